"""The verbs of joins: arguments, results and errors, on every store that has joins, in sync and async code."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

import postroom
from postroom import (
    ArgumentTypeError,
    ArgumentValueError,
    FeatureMissing,
    JoinEnded,
    JoinFull,
    JoinId,
    JoinNotFound,
    JoinStatus,
    Key,
    MessageNotFound,
    NewMessage,
    OwnerToken,
    ReceiptStatus,
    State,
    StepStatus,
    TransactionRefused,
    sync,
)
from postroom._stores.memory import MemoryStore, SyncMemoryStore
from postroom.spi import Features
from postroom.testing import FrozenClock
from tests.support import settled

WORKER = OwnerToken.new()
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - the point of the test
TENANT = UUID("0b8f0d5e-6f3a-4a52-9d3c-2f6a1d7e9b10")


@pytest.fixture
def outbox(room: Any) -> Any:
    if not room.features.joins:
        pytest.skip(f"{room.store.name} has no joins")
    return room.outbox()


async def handle(box: Any, *failing: str) -> list[tuple[str, Any]]:
    """Handles all that can be claimed. Returns topics and payloads, in order."""
    seen = []
    while claimed := await settled(box.claim(WORKER)):
        for message in claimed:
            seen.append((message.topic, message.payload))
            fails = message.message_id in failing
            await settled(box.fail(WORKER, [message], "broken") if fails else box.ack(WORKER, [message]))
    return seen


async def counts(box: Any, join: UUID) -> tuple[str, int, int]:
    found = await settled(box.get_join(join))
    return found.status, found.completed_steps, found.failed_steps


# -- start -----------------------------------------------------------------------------------------------------------


@pytest.mark.req("OBX-074", "OBX-075", "OBX-076", "OBX-API-08")
async def test_a_join_has_what_it_was_started_with(outbox: Any, clock: FrozenClock) -> None:
    deadline = clock.now() + timedelta(hours=1)
    first = await settled(outbox.start_join(7, 3, '{"type": "etl"}', deadline=deadline))
    second = await settled(outbox.start_join("acme"))
    assert type(first) is JoinId
    assert first != second
    join = await settled(outbox.get_join(first))
    assert type(join.id) is JoinId
    assert (join.id, join.tenant_id, join.expected_steps, join.metadata) == (first, "7", 3, '{"type": "etl"}')
    assert (join.status, join.attached_steps, join.completed_steps, join.failed_steps) == (JoinStatus.PENDING, 0, 0, 0)
    assert (join.deadline, join.created_at, join.is_sealed) == (deadline, clock.now(), False)
    opened = await settled(outbox.get_join(second))
    assert (opened.tenant_id, opened.expected_steps, opened.metadata, opened.deadline) == ("acme", None, None, None)


@pytest.mark.req("OBX-089", "OBX-API-08", "C-37")
@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("acme", "acme"),
        ("x" * 255, "x" * 255),
        ("a\nb", "a\nb"),
        (0, "0"),
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "-9223372036854775808"),
        (TENANT, str(TENANT)),
    ],
)
async def test_a_join_belongs_to_one_tenant(outbox: Any, given: Any, stored: str) -> None:
    await settled(outbox.start_join("other", 1))
    join = await settled(outbox.start_join(given, 1))
    assert [found.id for found in await settled(outbox.joins(tenant_id=given))] == [join]
    [found] = await settled(outbox.joins(tenant_id=stored))
    assert (found.id, found.tenant_id) == (join, stored)


Bad = tuple[Callable[[Any, Any], Any], Any, type[Exception], str]


def start(**fields: Any) -> Callable[[Any, Any], Any]:
    """Calls `start_join` with good arguments, except the one that is named with `...`."""
    return lambda box, x: box.start_join(**{"tenant_id": "t"} | dict.fromkeys(fields, x))


def wait(*names: str, **fields: Any) -> Callable[[Any, Any], Any]:
    return lambda box, x: box.enqueue_join_wait(JOIN, **dict.fromkeys(names, x), **fields)


JOIN = uuid4()
BAD: dict[str, list[Bad]] = {
    "tenant_id": [
        *[(start(tenant_id=...), x, ArgumentTypeError, "tenant_id") for x in (None, 1.5, b"t", True, ["t"])],
        *[(start(tenant_id=...), x, ArgumentValueError, "tenant_id") for x in ("", "x" * 256, "a\x00b", "\ud800")],
        (start(tenant_id=...), 10**255, ArgumentValueError, "tenant_id"),
    ],
    "expected_steps": [
        *[(start(expected_steps=...), x, ArgumentTypeError, "expected_steps") for x in ("3", 1.5, True, [1])],
        *[(start(expected_steps=...), x, ArgumentValueError, "expected_steps") for x in (0, -1, 2**31)],
    ],
    "metadata": [
        *[(start(metadata=...), x, ArgumentTypeError, "metadata") for x in (b"m", 1, {"type": "etl"})],
        *[(start(metadata=...), x, ArgumentValueError, "metadata") for x in ("x" * 65_537, "a\x00b")],
    ],
    "deadline": [
        *[(start(deadline=...), x, ArgumentTypeError, "deadline") for x in ("soon", 5, timedelta(hours=1))],
        *[(start(deadline=...), x, ArgumentValueError, "deadline") for x in (NAIVE, datetime(2300, 1, 1, tzinfo=UTC))],
    ],
    "fail_if_any_step_failed": [
        (wait("fail_if_any_step_failed"), x, ArgumentTypeError, "fail_if_any_step_failed") for x in (None, 1, "yes")
    ],
    "topics": [
        (wait(name), x, error, name)
        for name in ("on_complete_topic", "on_fail_topic")
        for x, error in ((1, ArgumentTypeError), ("", ArgumentValueError), ("x" * 256, ArgumentValueError))
    ],
    "payloads": [
        (wait("on_complete_payload"), {"a": 1}, ArgumentValueError, "on_complete_payload is given without"),
        (wait("on_fail_payload"), "", ArgumentValueError, "on_fail_payload is given without on_fail_topic"),
        (wait("on_complete_payload", on_complete_topic="t"), object(), ArgumentTypeError, "payload"),
        (wait("on_fail_payload", on_fail_topic="t"), float("nan"), ArgumentValueError, "payload"),
    ],
    "correlation_id": [
        (wait("correlation_id"), 7, ArgumentTypeError, "correlation_id"),
        (wait("correlation_id"), "x" * 256, ArgumentValueError, "correlation_id"),
    ],
    "joins": [
        (lambda box, x: box.joins(tenant_id=x), "x" * 256, ArgumentValueError, "tenant_id"),
        (lambda box, x: box.joins(tenant_id=x), 1.5, ArgumentTypeError, "tenant_id"),
        (lambda box, x: box.joins(statuses=x), "pending", ArgumentTypeError, "statuses must be a list"),
        (lambda box, x: box.joins(statuses=x), ["done"], ArgumentValueError, "pending, completed, failed, cancelled"),
        *[(lambda box, x: box.joins(limit=x), x, ArgumentValueError, "limit") for x in (0, 100_001)],
        *[(lambda box, x: box.joins(after=x), x, ArgumentValueError, "after") for x in (-1, 2**63)],
        (lambda box, x: box.joins(after=x), "1", ArgumentTypeError, "after"),
    ],
    "join_steps": [
        (lambda box, x: box.join_steps(JOIN, limit=x), 0, ArgumentValueError, "limit"),
        (lambda box, x: box.join_steps(JOIN, after=x), -1, ArgumentValueError, "after"),
    ],
    "message": [
        (lambda box, x: box.attach_message_to_join(JOIN, x), x, error, "message")
        for x, error in (
            (None, ArgumentTypeError),
            (1.5, ArgumentTypeError),
            (True, ArgumentTypeError),
            (JOIN, ArgumentTypeError),
            (0, ArgumentValueError),
            ("", ArgumentValueError),
            (Key("s", "x" * 256), ArgumentValueError),
        )
    ],
}


@pytest.mark.parametrize("argument", BAD)
async def test_bad_arguments_are_refused_before_anything_is_written(outbox: Any, argument: str) -> None:
    for call, value, error, text in BAD[argument]:
        with pytest.raises(error, match=text) as caught:
            await settled(call(outbox, value))
        assert type(caught.value) is error
    assert await settled(outbox.joins()) == []
    assert set((await settled(outbox.counts())).values()) == {0}


# -- which join ------------------------------------------------------------------------------------------------------

OF_A_JOIN: dict[str, Callable[[Any, Any], Any]] = {
    "attach_message_to_join": lambda box, join: box.attach_message_to_join(join, "m"),
    "report_step_completed": lambda box, join: box.report_step_completed(join, "m"),
    "report_step_failed": lambda box, join: box.report_step_failed(join, "m"),
    "enqueue_join_wait": lambda box, join: box.enqueue_join_wait(join),
    "seal_join": lambda box, join: box.seal_join(join),
    "cancel_join": lambda box, join: box.cancel_join(join),
    "get_join": lambda box, join: box.get_join(join),
    "join_steps": lambda box, join: box.join_steps(join),
    "enqueue": lambda box, join: box.enqueue("t", {}, join=join),
    "enqueue_many": lambda box, join: box.enqueue_many([NewMessage("t", {})], join=join),
}


def test_every_verb_that_takes_a_join_is_in_this_test() -> None:
    methods = {name: getattr(postroom.Outbox, name) for name in dir(postroom.Outbox) if not name.startswith("_")}
    taking = {name for name, value in methods.items() if callable(value)}
    assert {name for name in taking if "join" in inspect.signature(methods[name]).parameters} == set(OF_A_JOIN)


@pytest.mark.parametrize("verb", OF_A_JOIN)
async def test_a_join_is_named_by_its_id(room: Any, outbox: Any, verb: str) -> None:
    join, elsewhere = await settled(outbox.start_join("t")), room.outbox("elsewhere")
    for box in (outbox, elsewhere):
        await settled(box.enqueue("t", {}, message_id="m"))
    wrong = [str(join), 7, b"join", *([] if verb.startswith("enqueue") and "wait" not in verb else [None])]
    for value in wrong:
        with pytest.raises(ArgumentTypeError, match="join must be the id that start_join returned"):
            await settled(OF_A_JOIN[verb](outbox, value))
    for box, id_ in ((outbox, uuid4()), (elsewhere, join)):
        with pytest.raises(JoinNotFound):
            await settled(OF_A_JOIN[verb](box, id_))
    assert [message.message_id for message in await settled(outbox.find())] == ["m"]
    assert (await settled(outbox.get_join(join))).attached_steps == 0


WRITES: dict[str, Callable[..., Any]] = {
    "start_join": lambda box, _, **tx: box.start_join("t", **tx),
    "attach_message_to_join": lambda box, join, **tx: box.attach_message_to_join(join, "m", **tx),
    "report_step_completed": lambda box, join, **tx: box.report_step_completed(join, "m", **tx),
    "report_step_failed": lambda box, join, **tx: box.report_step_failed(join, "m", **tx),
    "enqueue_join_wait": lambda box, join, **tx: box.enqueue_join_wait(join, **tx),
    "seal_join": lambda box, join, **tx: box.seal_join(join, **tx),
    "cancel_join": lambda box, join, **tx: box.cancel_join(join, **tx),
    "enqueue": lambda box, join, **tx: box.enqueue("t", {}, join=join, **tx),
    "enqueue_many": lambda box, join, **tx: box.enqueue_many([NewMessage("t", {})], join=join, **tx),
}


@pytest.mark.parametrize("verb", WRITES)
async def test_an_explicit_none_as_transaction_is_refused(outbox: Any, verb: str) -> None:
    """As for all verbs that write: the write would commit alone."""
    join = await settled(outbox.start_join("t"))
    with pytest.raises(TransactionRefused, match="pass the open connection"):
        await settled(WRITES[verb](outbox, join, tx=None))
    assert [(found.id, found.status, found.is_sealed) for found in await settled(outbox.joins())] == [
        (join, JoinStatus.PENDING, False)
    ]
    assert await settled(outbox.find()) == []


# -- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.req("OBX-077", "OBX-078", "OBX-API-09")
@pytest.mark.parametrize("how", ["receipt", "message", "key", "id", "message id"])
async def test_a_message_is_attached_once(outbox: Any, how: str) -> None:
    receipt = await settled(outbox.enqueue("t", {}, message_id="m"))
    message = await settled(outbox.get("m"))
    named = {"receipt": receipt, "message": message, "key": receipt.key, "id": receipt.id, "message id": "m"}[how]
    join = await settled(outbox.start_join("t", 2))
    assert await settled(outbox.attach_message_to_join(join, named)) is True
    assert await settled(outbox.attach_message_to_join(join, named)) is False
    [step] = await settled(outbox.join_steps(join))
    assert (step.id, step.source, step.message_id, step.status) == (receipt.id, "outbox", "m", StepStatus.PENDING)
    assert (await settled(outbox.get_join(join))).attached_steps == 1


@pytest.mark.req("OBX-079", "OBX-080", "OBX-081", "OBX-082", "OBX-API-10")
@pytest.mark.parametrize("how", ["receipt", "key", "id", "message id"])
@pytest.mark.parametrize("failed", [False, True])
async def test_a_report_counts_a_step_once(outbox: Any, how: str, failed: bool) -> None:
    join = await settled(outbox.start_join("t", 2))
    receipt = await settled(outbox.enqueue("t", {}, message_id="m", join=join))
    named = {"receipt": receipt, "key": receipt.key, "id": receipt.id, "message id": "m"}[how]
    report, other = outbox.report_step_completed, outbox.report_step_failed
    if failed:
        report, other = other, report
    assert await counts(outbox, join) == ("pending", 0, 0)
    assert await settled(report(join, named)) is True
    assert await counts(outbox, join) == ("pending", int(not failed), int(failed))
    assert await settled(report(join, named)) is False
    assert await settled(other(join, named)) is False
    await handle(outbox, *([] if failed else ["m"]))  # the end of the message does not count again
    assert await counts(outbox, join) == ("pending", int(not failed), int(failed))


async def test_a_report_is_about_a_step(outbox: Any) -> None:
    join = await settled(outbox.start_join("t", 2))
    receipt = await settled(outbox.enqueue("t", {}))
    for name in (receipt, "unknown"):
        with pytest.raises(MessageNotFound):
            await settled(outbox.report_step_completed(join, name))
    with pytest.raises(MessageNotFound):
        await settled(outbox.attach_message_to_join(join, "unknown"))


@pytest.mark.req("OBX-090")
async def test_a_message_is_a_step_of_several_joins(outbox: Any) -> None:
    joins = [await settled(outbox.start_join("t", 1)) for _ in range(2)]
    receipt = await settled(outbox.enqueue("t", "step", message_id="m", join=joins[0]))
    assert await settled(outbox.attach_message_to_join(joins[1], receipt))
    for join in joins:
        await settled(outbox.enqueue_join_wait(join, on_complete_topic="next", on_complete_payload=str(join)))
    assert await handle(outbox) == [("t", "step"), *(("next", str(join)) for join in joins)]
    assert [await counts(outbox, join) for join in joins] == [("completed", 1, 0)] * 2


async def test_a_join_takes_the_steps_that_it_expects(outbox: Any) -> None:
    join = await settled(outbox.start_join("t", 2))
    receipts = await settled(outbox.enqueue_many([NewMessage("t", {}), NewMessage("t", {}, join=join)], join=join))
    assert [receipt.status for receipt in receipts] == [ReceiptStatus.NEW] * 2
    with pytest.raises(JoinFull, match="larger expected_steps"):
        await settled(outbox.enqueue("t", {}, message_id="new", join=join))
    with pytest.raises(MessageNotFound):
        await settled(outbox.get("new"))
    with pytest.raises(JoinEnded):
        await settled(outbox.seal_join(join))
    assert (await settled(outbox.get_join(join))).attached_steps == 2


async def test_a_join_that_is_full_concerns_no_other_enqueue(room: Any, outbox: Any) -> None:
    """Enqueues of several tasks may share a transaction."""
    if isinstance(room, sync.Postroom):
        pytest.skip("each call is a transaction")
    full, other = await outbox.start_join("t", 1), await outbox.start_join("t", 3)
    joins = [None, full, other, full, None, other, JOIN]
    results = await asyncio.gather(
        *(outbox.enqueue("t", {}, message_id=str(number), join=join) for number, join in enumerate(joins)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [
        *[postroom.Receipt] * 3, JoinFull, *[postroom.Receipt] * 2, JoinNotFound,
    ]  # fmt: skip
    assert [message.message_id for message in await outbox.find()] == ["0", "1", "2", "4", "5"]
    assert [step.message_id for step in await outbox.join_steps(other)] == ["2", "5"]


async def test_an_open_join_takes_steps_until_it_is_sealed(outbox: Any) -> None:
    join = await settled(outbox.start_join("t"))
    for number in range(3):
        await settled(outbox.enqueue("t", number, join=join))
    await settled(outbox.enqueue_join_wait(join, on_complete_topic="next"))
    assert await handle(outbox) == [("t", 0), ("t", 1), ("t", 2)]
    assert await counts(outbox, join) == ("pending", 3, 0)
    assert await settled(outbox.seal_join(join)) is True
    assert await settled(outbox.seal_join(join)) is False
    with pytest.raises(JoinEnded):
        await settled(outbox.enqueue("t", {}, join=join))
    assert await handle(outbox) == [("next", None)]


async def test_a_join_of_a_message_replaces_none(outbox: Any) -> None:
    """`enqueue_many(join=)` is for all its messages; without it, each may have one of its own."""
    first, second = [await settled(outbox.start_join("t")) for _ in range(2)]
    await settled(outbox.enqueue_many([NewMessage("t", {}, join=first), NewMessage("t", {}, join=second)]))
    await settled(outbox.enqueue_many([NewMessage("t", {})]))
    assert [(await settled(outbox.get_join(join))).attached_steps for join in (first, second)] == [1, 1]


async def test_an_inbox_has_no_joins(room: Any, outbox: Any) -> None:
    join, inbox = await settled(outbox.start_join("t")), room.inbox()
    with pytest.raises(ArgumentValueError, match="a join belongs to an outbox"):
        await settled(inbox.enqueue("t", {}, source="s", message_id="1", join=join))
    with pytest.raises(ArgumentValueError, match="a join belongs to an outbox"):
        await settled(inbox.enqueue_many([NewMessage("t", {}, "s", "1")], join=join))
    assert not hasattr(inbox, "start_join")
    assert await settled(inbox.find()) == []


# -- the continuation ------------------------------------------------------------------------------------------------


@dataclass
class Transform:
    customer: int


@pytest.mark.req("OBX-API-26")
@pytest.mark.parametrize(
    ("given", "handled"),
    [
        ({"a": [1]}, {"a": [1]}),
        ("text", "text"),
        (b"\x00\xff", b"\x00\xff"),
        (Transform(7), {"customer": 7}),
        (None, None),
    ],
)
@pytest.mark.parametrize("failing", [(), ("m",)], ids=["completed", "failed"])
async def test_the_continuation_waits_and_then_has_topic_and_payload(
    outbox: Any, given: Any, handled: Any, failing: tuple[str, ...]
) -> None:
    join = await settled(outbox.start_join("t", 1))
    await settled(outbox.enqueue("t", "step", message_id="m", join=join))
    ends = {"on_fail_topic": "end", "on_fail_payload": given, "on_complete_topic": "other"}
    if not failing:
        ends = {"on_complete_topic": "end", "on_complete_payload": given, "on_fail_topic": "other"}
    receipt = await settled(outbox.enqueue_join_wait(join, **ends, correlation_id="c"))
    message = await settled(outbox.get(receipt.message_id))
    assert (receipt.status, receipt.message_id, message.topic) == (ReceiptStatus.NEW, str(join), "join.wait")
    assert (message.state, message.correlation_id) == (State.WAITING, "c")
    assert await handle(outbox, *failing) == [("t", "step"), ("end", handled)]
    assert (await settled(outbox.get(receipt.message_id))).attempt == 0  # waiting costs no attempt


@pytest.mark.req("OBX-API-26")
async def test_whether_a_failed_step_fails_the_join_is_chosen(outbox: Any) -> None:
    ended = {}
    for fails in (True, False):
        join = await settled(outbox.start_join("t", 1))
        await settled(outbox.enqueue("t", {}, message_id=f"m{fails}", join=join))
        await settled(outbox.enqueue_join_wait(join, fails, "complete", None, "fail", None))
        ended[fails] = (await handle(outbox, f"m{fails}"))[-1][0]
    assert ended == {True: "fail", False: "complete"}


async def test_a_continuation_is_stored_once(outbox: Any) -> None:
    join = await settled(outbox.start_join("t", 1))
    first = await settled(outbox.enqueue_join_wait(join, on_complete_topic="first"))
    again = await settled(outbox.enqueue_join_wait(join, on_complete_topic="second"))
    assert (again.status, again.id) == (ReceiptStatus.DUPLICATE, first.id)
    await settled(outbox.enqueue("t", {}, join=join))
    assert [topic for topic, _ in await handle(outbox)] == ["t", "first"]


@pytest.mark.req("OBX-API-27")
async def test_the_statuses_of_a_join(outbox: Any) -> None:
    pending, completed, failed, cancelled = [await settled(outbox.start_join("t", 1)) for _ in range(4)]
    for name, join in (("1", completed), ("2", failed)):
        await settled(outbox.enqueue("t", {}, message_id=name, join=join))
        await settled(outbox.enqueue_join_wait(join, on_fail_topic="fail"))
    await settled(outbox.enqueue_join_wait(cancelled, on_complete_topic="next"))
    await handle(outbox, "2")
    assert await settled(outbox.cancel_join(cancelled)) is True
    assert await settled(outbox.cancel_join(cancelled)) is False
    assert await settled(outbox.cancel_join(completed)) is False
    with pytest.raises(JoinEnded):
        await settled(outbox.enqueue("t", {}, join=cancelled))
    expected = {pending: "pending", completed: "completed", failed: "failed", cancelled: "cancelled"}
    assert {join.id: str(join.status) for join in await settled(outbox.joins())} == expected
    for join, status in expected.items():
        assert [found.id for found in await settled(outbox.joins(statuses=[status]))] == [join]
        assert (await settled(outbox.get_join(join))).status is JoinStatus(status)
    both = await settled(outbox.joins(statuses={JoinStatus.FAILED, JoinStatus.PENDING}))
    assert [join.id for join in both] == [pending, failed]
    assert set(JoinStatus) == set(expected.values())


async def test_a_join_of_a_cancelled_join_has_no_continuation(outbox: Any) -> None:
    join = await settled(outbox.start_join("t"))
    await settled(outbox.cancel_join(join))
    with pytest.raises(JoinEnded):
        await settled(outbox.enqueue_join_wait(join))


async def test_joins_and_steps_come_in_pages(outbox: Any) -> None:
    ids = [await settled(outbox.start_join("t", 3)) for _ in range(3)]
    page = await settled(outbox.joins(limit=2))
    rest = await settled(outbox.joins(after=page[-1].number))
    assert [join.id for join in page + rest] == ids
    await settled(outbox.enqueue_many([NewMessage("t", {}, message_id=name) for name in "abc"], join=ids[0]))
    steps = await settled(outbox.join_steps(ids[0], limit=2))
    steps += await settled(outbox.join_steps(ids[0], after=steps[-1].id))
    assert [step.message_id for step in steps] == ["a", "b", "c"]


# -- a store without joins -------------------------------------------------------------------------------------------

WITHOUT = Features(durable=False, transactional=False)


class Plain(MemoryStore):
    features = WITHOUT


class SyncPlain(SyncMemoryStore):
    features = WITHOUT


@pytest.mark.parametrize("module", [postroom, sync], ids=["async", "sync"])
@pytest.mark.parametrize("verb", ["start_join", "joins", *OF_A_JOIN])
async def test_a_store_without_joins_is_refused_before_io(module: Any, verb: str) -> None:
    calls: list[str] = []
    store = Plain() if module is postroom else SyncPlain()
    room = module.Postroom(store=store, observers=[lambda event: calls.append(event.verb)])
    outbox = room.outbox()
    more = {"start_join": lambda box, _: box.start_join("t"), "joins": lambda box, _: box.joins()}
    with pytest.raises(FeatureMissing, match="memory has no joins"):
        await settled((OF_A_JOIN | more)[verb](outbox, JOIN))
    assert calls == []
