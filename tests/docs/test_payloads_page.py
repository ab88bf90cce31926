"""What the page about payloads says of each type is so, on every store."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest

from postroom import ArgumentTypeError, ArgumentValueError, Message, Postroom
from tests.docs.pages import ROOT
from tests.docs.servers import empty_redis
from tests.postgres import clean_database

TEXT = (ROOT / "docs/reference/payloads.md").read_text("utf-8")


class Color(Enum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Address:
    city: str


NAMES = {
    "UTC": UTC,
    **{cls.__name__: cls for cls in (date, datetime, time, timedelta, Decimal, UUID, Path, deque)},
    **{cls.__name__: cls for cls in (Color, Size, Point, Address)},
}


def rows(table: str) -> list[list[str]]:
    """The code in each cell of a table that the page marks with a comment."""
    [body] = re.findall(rf"<!-- table: {table} -->\n\|.*\n\|[-|]+\|\n((?:\|.*\n)+)", TEXT)
    return [re.findall(r"`([^`]+)`", row) for row in body.splitlines()]


def value(code: str) -> Any:
    return eval(code, dict(NAMES))


async def delivered(room: Postroom, payloads: dict[str, Any], types: dict[str, Any]) -> dict[str, Any]:
    """What handlers of these topics get, each annotated with its type; a topic without a type has none."""
    box, got = room.outbox("payloads"), dict[str, Any]()
    for topic, payload in payloads.items():

        def handle(message: Message[Any]) -> None:
            got[message.topic] = message.payload

        if topic in types:
            handle.__annotations__["message"] = Message.__class_getitem__(types[topic])
        box.handler(topic)(handle)
        await box.enqueue(topic, payload)
    await room.drain()
    await room.close()
    return got


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return clean_database()
    if request.param == "redis":
        return empty_redis()
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/payloads.db"


def test_what_the_page_says_is_changed_is_changed_so(url: str) -> None:
    table = rows("changed")
    payloads = {row[0]: {"v": value(row[0])} for row in table}
    got = asyncio.run(delivered(Postroom(url, deploy_schema=True), payloads, {}))
    assert got == {row[0]: {"v": value(row[-2])} for row in table}
    assert all(payload["v"] != got[code]["v"] or code.startswith("Size") for code, payload in payloads.items())


def test_with_a_type_the_original_comes_back(url: str) -> None:
    table = rows("changed")
    payloads = {row[0]: {"v": value(row[0])} for row in table}
    types = {row[0]: msgspec.defstruct("Typed", [("v", value(row[-1]))]) for row in table}
    got = asyncio.run(delivered(Postroom(url, deploy_schema=True), payloads, types))
    assert {code: item.v for code, item in got.items()} == {code: item["v"] for code, item in payloads.items()}
    assert {code: type(item.v) for code, item in got.items()} == {
        code: type(item["v"]) for code, item in payloads.items()
    }


def test_what_the_page_says_is_unchanged_is_unchanged(url: str) -> None:
    payloads = {row[0]: {"v": value(row[0])} for row in rows("unchanged")}
    got = asyncio.run(delivered(Postroom(url, deploy_schema=True), payloads, {}))
    assert {code: repr(item) for code, item in got.items()} == {code: repr(item) for code, item in payloads.items()}


@pytest.mark.parametrize("code", [row[0] for row in rows("refused")])
async def test_what_the_page_says_is_refused_is_refused(code: str) -> None:
    async with Postroom("memory://") as room:
        with pytest.raises((ArgumentTypeError, ArgumentValueError)):
            await room.outbox().enqueue("t", {"v": value(code)})
        assert await room.outbox().find() == []


async def test_of_keys_that_json_makes_equal_the_last_is_read() -> None:
    got = await delivered(Postroom("memory://"), {"t": {1: "a", "1": "b"}}, {})
    assert got == {"t": {"1": "b"}}


async def test_a_pydantic_model_is_written_by_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Model", v=(timedelta, ...), w=(bytes, ...))
    payload = model(v=timedelta(minutes=90), w=b"raw")
    assert await delivered(Postroom("memory://"), {"t": payload}, {}) == {"t": {"v": "PT1H30M", "w": "raw"}}
    assert await delivered(Postroom("memory://"), {"t": payload}, {"t": model}) == {"t": payload}
