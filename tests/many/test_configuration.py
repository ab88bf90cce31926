"""The stores of a room: what is accepted, and what is refused before any I/O."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from postroom import (
    ArgumentTypeError,
    ArgumentValueError,
    FeatureMissing,
    Postroom,
    PostroomError,
    StoreConfig,
    StoreKeyMissing,
)
from postroom.sync import Postroom as SyncPostroom

SECRET = "hunter2"
A_UUID = UUID("0190a8a4-8a3b-7c29-9d5e-0242ac120002")


@pytest.mark.parametrize("kind", [Postroom, SyncPostroom])
@pytest.mark.req("IBX-085", "OBX-060")
def test_stores_by_identifier(kind: Any) -> None:
    room = kind(
        stores={
            "acme": "sqlite:///acme.db",
            "bolt": StoreConfig("sqlite:///bolt.db", weight=2),
            "crow": {"url": "memory://", "concurrency": 3},
        }
    )
    assert room.router.keys == ["acme", "bolt", "crow"]
    assert len(room.router) == 3
    assert "acme" in room.router
    assert "nobody" not in room.router
    assert room.router.open_stores == {}, "nothing is opened before the first verb"


def test_a_uuid_is_its_text() -> None:
    room = Postroom(stores={A_UUID: "memory://"})
    assert room.router.keys == [str(A_UUID)]
    assert A_UUID in room.router
    assert str(A_UUID) in room.router


@pytest.mark.parametrize(
    ("stores", "text"),
    [
        ([], "mapping"),
        ("sqlite:///a.db", "mapping"),
        ({"": "memory://"}, "1 to 200 characters"),
        ({"a\nb": "memory://"}, "control character"),
        ({"a\x1b[31m": "memory://"}, "control character"),
        ({"a\u2028b": "memory://"}, "control character"),
        ({"a" * 201: "memory://"}, "1 to 200 characters"),
        ({7: "memory://"}, "str or a UUID"),
        ({None: "memory://"}, "str or a UUID"),
        ({A_UUID: "memory://", str(A_UUID): "memory://"}, "two stores"),
        ({"a": 7}, "'a': this must be a URL"),
        ({"a": None}, "'a': this must be a URL"),
        ({"a": {}}, "'a': the url is missing"),
        ({"a": {"url": "memory://", "colour": 1}}, "'a': there is no option 'colour'; there are url, "),
        ({"a": {"url": 7}}, "url must be a str"),
        ({"a": {"url": "memory://", "weight": "heavy"}}, "weight must be a number"),
        ({"a": {"url": "memory://", "weight": True}}, "weight must be a number"),
        ({"a": {"url": "memory://", "weight": 0}}, "weight must be between"),
        ({"a": {"url": "memory://", "weight": float("nan")}}, "weight must be between"),
        ({"a": {"url": "memory://", "concurrency": 0}}, "concurrency"),
        ({"a": {"url": "memory://", "schema": "x"}}, "schema"),
        ({"a": "sqlite://relative.db"}, "three slashes"),
        ({"a": "nothing://"}, "no store for nothing"),
        ({"a": "just text"}, "not a URL"),
    ],
)
@pytest.mark.parametrize("kind", [Postroom, SyncPostroom])
def test_what_is_refused(kind: Any, stores: Any, text: str) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match=text):
        kind(stores=stores)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://jane:12/{SECRET}@db/one",
        f"postgresql://jane:{SECRET}@[db/one",
        f"postgresql://jane:{SECRET}@db:port/one",
        f"redis://:{SECRET}@cache:port/0",
        f"redis://:{SECRET}@[cache/0",
        f"user={SECRET} dbname=one",
        f"nothing://jane:{SECRET}@db/one",
    ],
)
@pytest.mark.parametrize("kind", [Postroom, SyncPostroom])
def test_a_password_is_in_no_error(kind: Any, url: str) -> None:
    with pytest.raises(PostroomError) as raised:
        kind(stores={"a": url})
    error: BaseException | None = raised.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_configuration_does_not_show_its_url() -> None:
    assert SECRET not in repr(StoreConfig(f"postgresql://jane:{SECRET}@db/one"))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"url": "memory://"}, ArgumentValueError, "no url"),
        ({"store": object()}, ArgumentValueError, "no store"),
        ({"prefix": "x_"}, ArgumentValueError, "no prefix"),
        ({"schema": "x"}, ArgumentValueError, "no schema"),
        ({"pool": object()}, ArgumentValueError, "no pool"),
        ({"discover": dict}, ArgumentValueError, "not both"),
        ({"refresh": timedelta(minutes=1)}, ArgumentTypeError, "refresh needs discover"),
        ({"open_stores": 0}, ArgumentValueError, "open_stores"),
        ({"require_durable": True}, FeatureMissing, "require_durable"),
    ],
)
@pytest.mark.parametrize("kind", [Postroom, SyncPostroom])
def test_options_that_do_not_fit(kind: Any, options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kind(stores={"a": "memory://"}, **options)


def test_options_of_one_store() -> None:
    with pytest.raises(ArgumentTypeError, match="refresh needs discover"):
        Postroom("memory://", refresh=timedelta(minutes=1))
    for kind in (Postroom, SyncPostroom):
        with pytest.raises(FeatureMissing, match="this room has one store"):
            _ = kind("memory://").router


@pytest.mark.parametrize("look_interval", [0, "1", timedelta(seconds=-1)])
def test_a_bad_look_interval(look_interval: Any) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match="look_interval"):
        Postroom(stores={"a": "memory://"}, look_interval=look_interval)


async def test_verbs_of_a_room_with_many_stores() -> None:
    room = Postroom(stores={"a": "memory://"})
    with pytest.raises(StoreKeyMissing, match="migrate_stores"):
        await room.migrate()
    with pytest.raises(StoreKeyMissing, match=r"room\.router\.store"):
        room.schema_script()
    with pytest.raises(FeatureMissing, match="one store"):
        await Postroom("memory://").migrate_stores()
    assert "many" in repr(room)


def test_the_folder_of_a_file_may_be_missing(tmp_path: Path) -> None:
    assert Postroom(stores={"a": f"sqlite:///{tmp_path}/no/such/a.db"}).router.keys == ["a"]
