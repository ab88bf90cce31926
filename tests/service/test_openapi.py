"""The OpenAPI document: random requests that fit it, and that do not, get only responses that it describes."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.specs.openapi.checks import positive_data_acceptance

from postroom.service.app import make_service
from postroom.service.settings import Settings
from tests.service.process import TOKEN

service = make_service(Settings(url="memory://", tokens=f"shop={TOKEN}"))
schema = schemathesis.openapi.from_asgi("/openapi.json", service.app)


@pytest.mark.req("KOAN-012", "C-58")
@schema.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_every_response_is_described(case: Case[Any]) -> None:
    # A schema cannot say that a lease id belongs to its key, so a body that fits may get 400.
    case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"}, excluded_checks=[positive_data_acceptance])
