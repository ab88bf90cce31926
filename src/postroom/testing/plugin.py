"""The pytest plugin of this package: it makes the marker known by which tests name requirements."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "req(*ids): the requirements that this test proves")
