"""Bad input gets a clear error before any I/O, or comes back exactly as it was given; nothing is half-written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from postroom import ArgumentTypeError, ArgumentValueError, NewMessage, OwnerToken, PostroomError, State
from tests.support import settled

OWNER = OwnerToken.new()
NIL = UUID(int=0)
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - the point of the test
HOUR = timedelta(hours=1)

Verb = Callable[[Any, Any], Any]

# A text field of a verb, with everything else good.
TEXT_FIELDS: dict[str, Verb] = {
    "inbox.enqueue topic": lambda room, x: room.inbox().enqueue(x, "p", source="s", message_id="m"),
    "inbox.enqueue source": lambda room, x: room.inbox().enqueue("t", "p", source=x, message_id="m"),
    "inbox.enqueue message_id": lambda room, x: room.inbox().enqueue("t", "p", source="s", message_id=x),
    "outbox.enqueue topic": lambda room, x: room.outbox().enqueue(x, "p"),
    "already_processed message_id": lambda room, x: room.inbox().already_processed(x, "s"),
    "already_processed source": lambda room, x: room.inbox().already_processed("m", x),
    "is_processed message_id": lambda room, x: room.inbox().is_processed(x, "s"),
    "mark_processed message_id": lambda room, x: room.inbox().mark_processed(x, "s"),
    "mark_processing source": lambda room, x: room.inbox().mark_processing("m", x),
    "mark_dead message_id": lambda room, x: room.inbox().mark_dead(x, "s"),
    "get message_id": lambda room, x: room.inbox().get(x),
    "inbox name": lambda room, x: room.inbox(x),
}
OPTIONAL_TEXT_FIELDS: dict[str, Verb] = {
    "correlation_id": lambda room, x: room.outbox().enqueue("t", "p", correlation_id=x),
    "group": lambda room, x: room.outbox().enqueue("t", "p", group=x),
    "collapse_key": lambda room, x: room.outbox().enqueue("t", "p", collapse_key=x),
    "outbox message_id": lambda room, x: room.outbox().enqueue("t", "p", message_id=x),
    "outbox source": lambda room, x: room.outbox().enqueue("t", "p", source=x),
    "find topic": lambda room, x: room.outbox().find(topic=x),
    "find group": lambda room, x: room.outbox().find(group=x),
    "get source": lambda room, x: room.outbox().get("m", source=x),
}
WRONG_TYPES = [1, 1.5, b"bytes", ["list"], {"dict": 1}, object(), True]
BAD_TEXTS = ["", "x" * 256, "a\x00b", "\x00", "\ud800"]


async def stored(room: Any) -> int:
    counts = [await settled(box.counts()) for box in (room.inbox(), room.outbox())]
    return sum(sum(count.values()) for count in counts)


@pytest.mark.req("IBX-009", "IBX-010", "IBX-015", "IBX-016", "IBX-017", "OBX-004", "C-32", "C-63", "IBX-API-22")
@pytest.mark.parametrize("field", TEXT_FIELDS)
async def test_none_is_refused(room: Any, field: str) -> None:
    with pytest.raises(TypeError) as caught:
        await settled(TEXT_FIELDS[field](room, None))
    assert isinstance(caught.value, ArgumentTypeError)
    assert isinstance(caught.value, PostroomError)
    assert await stored(room) == 0


@pytest.mark.req("C-63", "C-32")
@pytest.mark.parametrize("field", [*TEXT_FIELDS, *OPTIONAL_TEXT_FIELDS])
async def test_wrong_types_are_refused(room: Any, field: str) -> None:
    for value in WRONG_TYPES:
        with pytest.raises(ArgumentTypeError):
            await settled((TEXT_FIELDS | OPTIONAL_TEXT_FIELDS)[field](room, value))
    assert await stored(room) == 0


@pytest.mark.req(
    "IBX-009", "IBX-010", "IBX-011", "IBX-012", "IBX-015", "IBX-016", "IBX-017", "IBX-020",
    "OBX-004", "OBX-107", "OBX-109", "C-32", "C-63",
)  # fmt: skip
@pytest.mark.parametrize("field", [*TEXT_FIELDS, *OPTIONAL_TEXT_FIELDS])
async def test_bad_texts_are_refused_with_the_fields_name(room: Any, field: str) -> None:
    for value in BAD_TEXTS:
        with pytest.raises(ValueError, match=field.rsplit(maxsplit=1)[-1]) as caught:
            await settled((TEXT_FIELDS | OPTIONAL_TEXT_FIELDS)[field](room, value))
        assert isinstance(caught.value, ArgumentValueError)
    assert await stored(room) == 0


@pytest.mark.req("IBX-011", "IBX-012", "IBX-020", "OBX-107", "OBX-109", "IBX-API-01", "IBX-API-02", "IBX-API-09")
@pytest.mark.parametrize(
    "text",
    ["x" * 255, "😀" * 255, " ", "a\nb", "🦄 ünïcode", "'; DROP TABLE postroom_queue; --", "%_\\"],
    ids=["255", "255-emoji", "space", "newline", "unicode", "injection", "wildcards"],
)
async def test_good_texts_come_back_as_they_were(room: Any, text: str) -> None:
    await settled(room.inbox().enqueue(text, "p", source=text, message_id=text, correlation_id=text, group=text))
    message = await settled(room.inbox().get(text, text))
    assert (message.topic, message.source, message.message_id) == (text, text, text)
    assert (message.correlation_id, message.group) == (text, text)
    assert [m.message_id for m in await settled(room.inbox().find(topic=text, group=text, source=text))] == [text]


@pytest.mark.req("IBX-018", "IBX-019", "OBX-005", "IBX-022", "IBX-SCP-04", "OBX-SCP-06", "IBX-API-10")
@pytest.mark.parametrize(
    "payload",
    ["", "{not json", "a\x00b\x00", "😀" * 1000, b"", b"\x00\xff\xfe", "x" * 1_000_000, '{"b": 1,   "a": 2}'],
    ids=["empty", "not-json", "nul", "emoji", "empty-bytes", "bytes", "1MB", "json-text"],
)
async def test_text_and_bytes_pass_unchanged(room: Any, payload: Any) -> None:
    await settled(room.inbox().enqueue("t", payload, source="s", message_id="m"))
    [message] = await settled(room.inbox().claim(OWNER))
    assert message.payload == payload
    assert type(message.payload) is type(payload)


@pytest.mark.req("IBX-118", "OBX-108")
async def test_a_payload_of_50_megabytes(room: Any) -> None:
    payload = "ä" + "x" * 50_000_000
    await settled(room.outbox().enqueue("t", payload))
    [message] = await settled(room.outbox().claim(OWNER))
    assert message.payload == payload
    assert await settled(room.outbox().ack(OWNER, [message])) == [True]


@pytest.mark.req("IBX-018", "OBX-005", "C-63")
@pytest.mark.parametrize(
    "payload",
    [None, object(), len, "\ud800", {1: object()}],
    ids=["none", "object", "function", "surrogate", "object-inside"],
)
async def test_payloads_that_cannot_be_stored_are_refused(room: Any, payload: Any) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match="payload"):
        await settled(room.outbox().enqueue("t", payload))
    assert await stored(room) == 0


async def test_errors_never_show_the_payload(room: Any) -> None:
    secret = {"card": "card 4111", "when": object()}
    with pytest.raises(PostroomError) as caught:
        await settled(room.outbox().enqueue("t", secret))
    assert "card 4111" not in str(caught.value)
    await settled(room.outbox().enqueue("t", "card 4111"))
    [message] = await settled(room.outbox().find())
    assert "card 4111" not in repr(message)


@pytest.mark.parametrize("field", ["due", "expires", "received_at"])
async def test_a_time_that_not_every_store_can_keep_is_refused_by_all(room: Any, field: str) -> None:
    last = datetime(2254, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    await settled(room.outbox().enqueue("t", "p", **{field: last}))
    [message] = await settled(room.outbox().find())
    assert getattr(message, field) == last
    for late in (datetime(2255, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        with pytest.raises(ArgumentValueError, match=f"{field} must lie before the year 2255"):
            await settled(room.outbox().enqueue("t", "p", **{field: late}))
    assert await stored(room) == 1


@pytest.mark.req("C-47", "IBX-API-11")
@pytest.mark.parametrize("field", ["due", "expires", "received_at"])
async def test_moments(room: Any, field: str) -> None:
    outbox = room.outbox()
    with pytest.raises(ArgumentValueError, match=f"{field} has no time zone"):
        await settled(outbox.enqueue("t", "p", **{field: NAIVE}))
    for wrong in ("2030-01-01", 5, timedelta(1)):
        with pytest.raises(ArgumentTypeError, match=field):
            await settled(outbox.enqueue("t", "p", **{field: wrong}))
    with pytest.raises(ArgumentValueError, match=field):
        await settled(outbox.enqueue("t", "p", **{field: datetime.min.replace(tzinfo=timezone(HOUR))}))
    assert await stored(room) == 0
    moment = datetime(2031, 5, 4, 3, 2, 1, 654321, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    receipt = await settled(outbox.enqueue("t", "p", **{field: moment}))
    found = getattr(await settled(outbox.get(receipt.message_id)), field)
    assert found == moment
    assert found.tzinfo is UTC


@pytest.mark.req("IBX-043", "IBX-130", "C-32")
@pytest.mark.parametrize("verb", ["claim", "ack", "abandon", "release", "fail", "renew"])
@pytest.mark.parametrize("box", ["inbox", "outbox"])
async def test_owners(room: Any, verb: str, box: str) -> None:
    opened = getattr(room, box)()
    arguments: list[Any] = {"claim": [], "fail": [["m"], "error"]}.get(verb, [["m"]])
    for owner in (None, NIL, "worker-1", str(uuid4()), 7, b"x" * 16):
        error = ArgumentValueError if owner is NIL else ArgumentTypeError
        with pytest.raises(error, match="owner"):
            await settled(getattr(opened, verb)(owner, *arguments))


@pytest.mark.req("IBX-040", "IBX-041", "C-32", "IBX-API-14", "IBX-API-15")
@pytest.mark.parametrize("box", ["inbox", "outbox"])
async def test_numbers(room: Any, box: str) -> None:
    opened = getattr(room, box)()
    await settled(opened.enqueue("t", "p", source="s", message_id="m"))
    for bad in (0, -1, float("nan"), float("inf"), 10**12):
        with pytest.raises(ArgumentValueError, match="lease_seconds"):
            await settled(opened.claim(OWNER, bad))
    for bad in (0, -1, 10**9):
        with pytest.raises(ArgumentValueError, match="batch_size"):
            await settled(opened.claim(OWNER, 30, bad))
    for wrong in (None, "30", True, timedelta(1)):
        with pytest.raises(ArgumentTypeError, match="lease_seconds"):
            await settled(opened.claim(OWNER, wrong))
        with pytest.raises(ArgumentTypeError, match="batch_size"):
            await settled(opened.claim(OWNER, 30, wrong))
    assert (await settled(opened.counts()))[State.CLAIMED] == 0


@pytest.mark.req("IBX-058", "C-08", "IBX-API-19")
@pytest.mark.parametrize("verb", ["abandon", "release"])
async def test_delays(room: Any, verb: str) -> None:
    await settled(room.inbox().enqueue("t", "p", source="s", message_id="m"))
    [message] = await settled(room.inbox().claim(OWNER))
    for bad in (timedelta(0), timedelta(seconds=-1)):
        with pytest.raises(ArgumentValueError, match="delay"):
            await settled(getattr(room.inbox(), verb)(OWNER, [message], delay=bad))
    with pytest.raises(ArgumentTypeError, match="delay"):
        await settled(getattr(room.inbox(), verb)(OWNER, [message], delay=5))
    assert (await settled(room.inbox().get("m"))).state is State.CLAIMED


@pytest.mark.req("IBX-048", "IBX-059", "IBX-066", "IBX-API-17", "C-32")
@pytest.mark.parametrize("verb", ["ack", "abandon", "release", "fail", "renew"])
@pytest.mark.parametrize("box", ["inbox", "outbox"])
async def test_collections(room: Any, verb: str, box: str) -> None:
    opened = getattr(room, box)()
    more = ["error"] if verb == "fail" else []
    for wrong in (None, 5, "m", b"m"):
        with pytest.raises(ArgumentTypeError, match="messages"):
            await settled(getattr(opened, verb)(OWNER, wrong, *more))
    assert await settled(getattr(opened, verb)(OWNER, [], *more)) == []
    with pytest.raises((ArgumentTypeError, ArgumentValueError)):
        await settled(getattr(opened, verb)(OWNER, [object()], *more))


@pytest.mark.req("IBX-067", "IBX-API-20", "C-31")
async def test_error_texts(room: Any) -> None:
    inbox, outbox = room.inbox(), room.outbox()
    for number, error in enumerate(["", "plain", "nul \x00 inside", "half \ud800 pair", "x" * 100_000]):
        await settled(inbox.enqueue("t", "p", source="s", message_id=str(number)))
        await settled(inbox.claim(OWNER))
        assert await settled(inbox.fail(OWNER, [str(number)], error)) == [True]
        kept = (await settled(inbox.get(str(number)))).last_error
        assert len(kept) <= 4000
        assert kept[:5] == error.replace("\x00", "\ufffd")[:5]
    with pytest.raises(ArgumentTypeError, match="error"):
        await settled(inbox.fail(OWNER, ["0"], None))
    await settled(outbox.enqueue("t", "p", message_id="m"))
    await settled(outbox.claim(OWNER))
    assert await settled(outbox.fail(OWNER, ["m"])) == [True]  # the outbox's error is optional


@pytest.mark.req("IBX-API-18")
async def test_an_empty_last_error_is_none(room: Any) -> None:
    await settled(room.inbox().enqueue("t", "p", source="s", message_id="m"))
    await settled(room.inbox().claim(OWNER))
    await settled(room.inbox().abandon(OWNER, ["m"], last_error=""))
    assert (await settled(room.inbox().get("m"))).last_error is None


async def test_other_arguments(room: Any) -> None:
    outbox = room.outbox()
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: outbox.enqueue("t", "p", hash="text"), "hash"),
        (lambda: outbox.enqueue("t", "p", headers=[("a", "b")]), "headers"),
        (lambda: outbox.enqueue("t", "p", headers={"a": 1}), "headers"),
        (lambda: outbox.enqueue("t", "p", on_conflict="explode"), "on_conflict"),
        (lambda: outbox.enqueue("t", "p", revive_dead="yes"), "revive_dead"),
        (lambda: outbox.enqueue("t"), "payload"),
        (lambda: outbox.enqueue_many("abc"), "messages"),
        (lambda: outbox.enqueue_many([NewMessage("t", "p"), "abc"]), "payload"),
        (lambda: outbox.claim(OWNER, topics="t"), "topics"),
        (lambda: outbox.claim(OWNER, topics=[]), "topics"),
        (lambda: outbox.find(limit=0), "limit"),
        (lambda: outbox.find(after=-1), "after"),
        (lambda: outbox.find(states=["lost"]), "state"),
        (lambda: outbox.purge("waiting", older_than=HOUR), "not finished"),
        (lambda: outbox.purge("dead"), "older_than"),
        (lambda: outbox.purge(older_than=HOUR), "older_than"),
        (lambda: outbox.purge("nonsense", older_than=HOUR), "state"),
        (lambda: outbox.replay(["not an id"]), "message id"),
    ]
    for call, what in calls:
        with pytest.raises((ArgumentTypeError, ArgumentValueError), match=what):
            await settled(call())
    assert await stored(room) == 0


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"order": "lifo"}, "order"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"backoff": 5}, "backoff"),
        ({"dedup_window": 5}, "dedup_window"),
        ({"retention": timedelta(-1)}, "retention"),
        ({"on_dead": "explode"}, "on_dead"),
        ({"mode": "red"}, "no option mode"),
    ],
)
async def test_options_of_a_box(room: Any, options: dict[str, Any], what: str) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match=what):
        room.inbox("shop", **options)


@pytest.mark.req("IBX-014", "IBX-102", "OBX-091")
async def test_one_bad_message_of_many_writes_none(room: Any) -> None:
    good = [NewMessage("t", "p", message_id=str(n)) for n in range(5)]
    with pytest.raises(ArgumentValueError):
        await settled(room.outbox().enqueue_many([*good, NewMessage("", "p")]))
    assert await stored(room) == 0


@pytest.mark.req("IBX-102", "OBX-091")
def test_a_failing_batch_is_not_half_written(tmp_path: Path) -> None:
    """A value that only the database refuses: the whole call is taken back."""
    from postroom.spi import Box, Draft
    from postroom.sync import Postroom

    with Postroom(f"sqlite:///{tmp_path}/room.db") as room:
        room.migrate()
        box = Box("outbox", "outbox")
        drafts = [Draft("s", "1", "t", "p"), Draft("s", "2", "t", object())]  # type: ignore[arg-type]
        with pytest.raises(sqlite3.Error):
            room.store.put(box, drafts)
        assert room.outbox().find() == []
        assert room.outbox().enqueue("t", "p").is_new
