"""NaN and infinity have no value in JSON: a payload with one of them is refused, and does not become null."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

from postroom import ArgumentValueError, NewMessage
from postroom.sync import Postroom


@dataclass
class Point:
    x: Any
    y: Any = None


class Reading(msgspec.Struct):
    value: Any


class Measure(pydantic.BaseModel):
    value: Any


class WithConstants(pydantic.BaseModel):
    model_config = {"ser_json_inf_nan": "constants"}
    value: float


class WithStrings(pydantic.BaseModel):
    model_config = {"ser_json_inf_nan": "strings"}
    value: float
    other: str | None = None


PAYLOADS: dict[str, Callable[[float], Any]] = {
    "a number": lambda value: value,
    "dict": lambda value: {"x": value},
    "deep in a dict": lambda value: {"x": [{"y": ({"z": value},)}]},
    "list": lambda value: [1, value],
    "beside a large integer": lambda value: [2**80, value],
    "set": lambda value: {value},
    "dataclass": Point,
    "dataclass in a dataclass": lambda value: Point(1, Point(value)),
    "msgspec": Reading,
    "pydantic": lambda value: Measure(value=value),
    "dict in pydantic": lambda value: Measure(value={"x": [value]}),
    "pydantic in a dict": lambda value: {"m": Measure(value=value)},
    "dict in pydantic in a list": lambda value: [Measure(value={"x": value})],
    "pydantic with constants": lambda value: WithConstants(value=value),
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("kind", PAYLOADS)
def test_is_refused(kind: str, value: float) -> None:
    outbox = Postroom("memory://").outbox()
    payload = PAYLOADS[kind](value)
    for put in (outbox.enqueue, lambda *given: outbox.enqueue_many([NewMessage(*given)])):
        with pytest.raises(ArgumentValueError, match="the payload contains NaN or infinity"):
            put("t", payload)
    assert outbox.find() == []


@pytest.mark.parametrize(
    "payload",
    [
        {"x": None, "y": 1.5, "null": "null"},
        [None, Decimal("NaN")],
        Point(None, {"x": 1e308}),
        Measure(value=None),
        {"m": Measure(value=None)},
        [None, 2**80],
        [None, 0xCB7FF0, b"\xcb\x7f\xf0"],
        WithStrings(value=math.nan),
    ],
    ids=repr,
)
def test_null_and_numbers_are_accepted(payload: Any) -> None:
    assert Postroom("memory://").outbox().enqueue("t", payload).is_new
