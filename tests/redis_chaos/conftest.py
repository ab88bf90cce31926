"""Servers of our own, which may be killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest
from tools.servers.base import ServerMissing, missing
from tools.servers.redis import find_binary

# Servers and workers are killed here while both cores are busy: that needs the machine for itself, and some minutes.
# `make chaos` runs them, as does any run with POSTROOM_CHAOS set.
collect_ignore_glob = [] if os.environ.get("POSTROOM_CHAOS") else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    try:
        find_binary()
    except ServerMissing as reason:
        missing(reason)


@pytest.fixture
def emit(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints the measurements, also of a test that passes."""

    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{text}\n")

    return say
