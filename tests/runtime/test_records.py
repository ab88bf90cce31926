"""One record for each event of a message; texts from outside forge nothing in it, and error texts are redacted."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from postroom import Backoff, JoinNotFound, Message, NewMessage, Outbox, Outcome, OwnerToken, Postroom
from postroom.errors import ArgumentTypeError
from postroom.sync import Postroom as SyncPostroom
from postroom.testing import FrozenClock
from tests.runtime.conftest import OpenRoom
from tests.runtime.support import HOUR, SOON, Gate, Logged, Sabotage, always, put, soon

SECRET = "card 4111"
EVIL = "x\r\n2026-01-01 ERROR postroom: FORGED\x1b[2J\u2028y"


def written(logged: Logged) -> str:
    """What a handler with the usual formatter writes, tracebacks included."""
    formatter = logging.Formatter("%(levelname)s %(message)s")
    return "\n".join(map(formatter.format, logged.records))


def redact(text: str) -> str:
    return text.replace(SECRET, "****")


def serious(logged: Logged) -> list[logging.LogRecord]:
    return [record for record in logged.records if record.levelno >= logging.WARNING]


async def fails(_: Any) -> None:
    raise LookupError("no such customer")


def raise_several() -> None:
    raise ExceptionGroup("several", [ValueError("first\nline"), KeyError("k")])


class TestOneRecord:
    @pytest.mark.parametrize("kind", ["inbox", "outbox"])
    @pytest.mark.req("C-59", "IBX-111", "OBX-099")
    async def test_of_a_retry(self, still: Postroom, kind: str) -> None:
        box: Any = getattr(still, kind)(max_attempts=3, backoff=Backoff.constant(60))
        box.handler("t")(fails)
        await put(box, 1)
        before = datetime.now(UTC)
        with Logged() as logged:
            await still.drain()
        [record] = serious(logged)
        assert record.levelno == logging.WARNING
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], LookupError)
        start = (
            f"store={still.store.name} box={kind}:{kind} topic=t source=s message_id=1 handler=fails "
            "attempt 1 of 3 failed: LookupError: no such customer; next attempt at "
        )
        assert record.message.startswith(start)
        at = datetime.fromisoformat(record.message.removeprefix(start))
        assert timedelta(seconds=59) <= at - before <= timedelta(seconds=70)

    @pytest.mark.parametrize("batch", [None, 5])
    @pytest.mark.req("C-59")
    async def test_of_a_dead_letter(self, still: Postroom, clock: FrozenClock, batch: int | None) -> None:
        box = still.inbox(max_attempts=2)
        box.handler("t", batch=batch)(fails)
        await put(box, 1)
        await still.drain()
        clock.advance(HOUR)
        with Logged() as logged:
            await still.drain()
        [record] = serious(logged)
        assert record.levelno == logging.ERROR
        assert record.message == (
            f"store={still.store.name} box=inbox:inbox topic=t source=s message_id=1 handler=fails "
            "attempt 2 of 2 failed: LookupError: no such customer; dead letter"
        )

    @pytest.mark.parametrize(
        ("options", "topic", "level", "text"),
        [
            ({}, "dead", logging.ERROR, "attempt 1 of 10 ended as dead: reason; dead letter"),
            ({"dead_letter": "discard"}, "dead", logging.ERROR, "ended as dead: reason; discarded"),
            ({}, "again", logging.INFO, "attempt 1 of 10 is not counted: reason; next attempt at 2"),
            ({}, "garbage", logging.WARNING, "attempt 1 of 10 failed: the handler returned a str; return None"),
            ({"on_undecodable": "dead"}, "typed", logging.ERROR, "could not run: Undecodable: the payload is not a"),
            ({"on_undecodable": "failed"}, "typed", logging.WARNING, "attempt 1 of 10 could not run: Undecodable: "),
            ({"on_unhandled": "dead"}, "none", logging.ERROR, "could not run: no handler for this topic; dead letter"),
            (
                {"on_unhandled": "abandon"},
                "none",
                logging.WARNING,
                "attempt 1 of 10 could not run: no handler for",
            ),
            (
                {"on_unhandled": "abandon", "max_attempts": 1},
                "none",
                logging.ERROR,
                "attempt 1 of 1 could not run: no handler for this topic; dead letter",
            ),
            ({"on_unhandled": "release"}, "none", logging.WARNING, "is not counted: no handler for this topic; next"),
        ],
    )
    async def test_of_other_outcomes(
        self,
        still: Postroom,
        caplog: pytest.LogCaptureFixture,
        options: dict[str, Any],
        topic: str,
        level: int,
        text: str,
    ) -> None:
        caplog.set_level(logging.INFO, "postroom")
        box = still.inbox(**options)
        box.handler("dead")(always(Outcome.DEAD.because("reason")))
        box.handler("again")(always(Outcome.RETRY.after(HOUR).because("reason")))
        box.handler("garbage")(always("fine"))

        @box.handler("typed")
        async def typed(message: Message[int]) -> None: ...

        await put(box, 1, topic=topic)
        with Logged() as logged:
            await still.drain()
        [record] = [r for r in logged.records if "attempt 1 of" in r.message]
        assert (record.levelno, text in record.message) == (level, True), record.message
        assert f"box=inbox:inbox topic={topic} source=s message_id=1 handler=" in record.message
        assert len(serious(logged)) == (level >= logging.WARNING)

    async def test_of_a_batch_that_raises_and_of_each_of_it(self, still: Postroom) -> None:
        box = still.inbox()
        box.handler("t", batch=5)(fails)
        await put(box, 1, 2)
        with Logged() as logged:
            await still.drain()
        batch, first, second = serious(logged)
        assert "topic=t handler=fails failed on a batch of 2: LookupError: no such customer; each" in batch.message
        assert "message_id=1 handler=fails attempt 1 of 10 failed" in first.message
        assert "message_id=2 handler=fails attempt 1 of 10 failed" in second.message

    @pytest.mark.parametrize("how", ["message", "claim", "key", "id"])
    async def test_of_the_verb_fail(self, still: Postroom, how: str) -> None:
        for box, kind in ((still.inbox(), "inbox"), (still.outbox(), "outbox")):
            await put(box, 1, topic="t")
            owner = OwnerToken.new()
            [message] = await box.claim(owner)
            which: Any = {"message": message, "claim": message.claim, "key": message.key, "id": "1"}[how]
            with Logged() as logged:
                assert await box.fail(owner, [which], "no use") == [True]
                assert await box.fail(owner, [which], "no use") == [False]
            known = {
                "message": "topic=t source=s message_id=1 attempt=0",
                "claim": f"id={message.id}",
                "key": "source=s message_id=1",
                "id": "message_id=1",
            }[how]
            [record] = [record for record in logged.records if record.levelno == logging.ERROR]
            assert record.message == f"store={still.store.name} box={kind}:{kind} {known} failed: no use; dead letter"

    async def test_of_the_verb_mark_dead(self, still: Postroom) -> None:
        box = still.inbox()
        await put(box, 1)
        with Logged() as logged:
            assert await box.mark_dead("1", "s", error="no use")
            assert not await box.mark_dead("unknown", "s", error="no use")
        [record] = serious(logged)
        assert record.levelno == logging.ERROR
        where = f"store={still.store.name} box=inbox:inbox"
        assert record.message == f"{where} source=s message_id=1 marked as dead: no use; dead letter"

    async def test_in_sync_code(self) -> None:
        with SyncPostroom("memory://", redact=redact) as room, Logged() as logged:
            box = room.inbox()
            box.enqueue_many([NewMessage("t", "x", source="s", message_id=id_) for id_ in "12"])
            owner = OwnerToken.new()
            first, _ = box.claim(owner)
            box.fail(owner, [first], SECRET)
            box.mark_dead("2", "s", error=SECRET)
            assert [letter.last_error for letter in box.dead_letters()] == ["****"] * 2
        assert [record.levelno for record in serious(logged)] == [logging.ERROR] * 2
        assert SECRET not in written(logged)

    async def test_of_a_lost_lease_has_the_error_of_the_handler(self, room: Postroom) -> None:
        box = room.inbox(lease_renewal=False)
        gate = Gate()

        @box.handler("t")
        async def handle(message: Message[Any]) -> None:
            await gate(message)
            gate.entered[0].lease.lost = True
            raise LookupError("no such customer")

        await put(box, 1)
        with Logged() as logged:
            await room.start()
            await gate.reached()
            gate.open()
            record = await logged.says("outcome dropped")
            await room.stop()
        text = "outcome dropped (failed: LookupError: no such customer): topic=t source=s message_id=1"
        assert text in record.message
        assert record.exc_info is not None


class TestJoins:
    @pytest.fixture
    def box(self, still: Postroom, caplog: pytest.LogCaptureFixture) -> Outbox:
        caplog.set_level(logging.DEBUG, "postroom")
        return still.outbox()

    async def test_of_the_verbs(self, still: Postroom, box: Outbox) -> None:
        with Logged() as logged:
            join = await box.start_join(EVIL, 2, SECRET)
            await box.enqueue("t", {"card": SECRET}, message_id="1", join=join)
            other = await box.enqueue("t", {}, message_id="2")
            await box.attach_message_to_join(join, other)
            await box.attach_message_to_join(join, other)
            follow_up = {"on_complete_topic": EVIL, "on_complete_payload": {"card": SECRET}}
            for _ in range(2):
                await box.enqueue_join_wait(join, **follow_up, on_fail_topic="f", on_fail_payload=SECRET)  # type: ignore[arg-type]
            await box.report_step_failed(join, "1")
            await box.report_step_completed(join, "1")
            opened = await box.start_join(7)
            await box.seal_join(opened)
            await box.seal_join(opened)
            third = await box.start_join("acme", 1)
            await box.cancel_join(third)
            await box.cancel_join(third)
        where = f"store={still.store.name} box=outbox:outbox"
        tenant = EVIL.encode("unicode_escape").decode()
        wait = f"{where} topic=join.wait source=outbox message_id={join} state=waiting"
        assert [(record.levelno, record.message) for record in logged.records] == [
            (logging.INFO, f"join started {where} join={join} tenant_id={tenant} expected_steps=2"),
            (logging.INFO, f"enqueued {where} topic=t source=outbox message_id=1 join={join} state=waiting"),
            (logging.INFO, f"enqueued {where} topic=t source=outbox message_id=2 state=waiting"),
            (logging.DEBUG, f"attached 1 steps {where} join={join}"),
            (logging.DEBUG, f"attached 0 steps {where} join={join}"),
            (logging.INFO, f"enqueued {wait}"),
            (logging.INFO, f"duplicate (duplicate): {wait}"),
            (logging.DEBUG, f"a step was reported {where} join={join}"),
            (logging.INFO, f"join started {where} join={opened} tenant_id=7 expected_steps=open"),
            (logging.DEBUG, f"join sealed {where} join={opened}"),
            (logging.INFO, f"join started {where} join={third} tenant_id=acme expected_steps=1"),
            (logging.INFO, f"join cancelled {where} join={third}"),
        ]

    async def test_in_a_transaction(self, still: Postroom, box: Outbox) -> None:
        if not still.features.transactional:
            pytest.skip(f"{still.store.name} has no transactions")
        with Logged() as logged:
            async with still.store.transaction() as tx:
                join = await box.start_join("acme", None, tx=tx)
                receipt = await box.enqueue("t", {}, tx=tx)
                await box.attach_message_to_join(join, receipt, tx=tx)
                await box.enqueue_join_wait(join, tx=tx)
                await box.report_step_failed(join, receipt, tx=tx)
                await box.seal_join(join, tx=tx)
                await box.cancel_join(join, tx=tx)
        assert [record.message.partition(" in the caller's transaction store=")[0] for record in logged.records] == [
            "join started",
            "enqueued",
            "attached 1 steps",
            "enqueued",
            "a step was reported",
            "join sealed",
            "join cancelled",
        ]

    async def test_of_a_verb_that_raises_there_is_none(self, box: Outbox) -> None:
        with Logged() as logged:
            for verb in (box.seal_join, box.cancel_join, box.enqueue_join_wait):
                with pytest.raises(JoinNotFound):
                    await verb(uuid4())
        assert logged.records == []


class TestForging:
    @pytest.mark.req("C-59")
    async def test_no_text_from_outside_makes_a_line_or_steers_a_terminal(
        self, open_room: OpenRoom, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "postroom")
        clock = FrozenClock()
        room = await open_room(clock)
        box = room.inbox(max_attempts=2, on_undecodable="dead")

        async def evil(_: Any) -> None:
            cause = ValueError(EVIL)
            cause.add_note(EVIL)
            raise LookupError(EVIL) from cause

        box.handler(EVIL)(evil)
        box.handler("batch", batch=2)(evil)
        box.handler("dead")(always(Outcome.DEAD.because(EVIL)))
        box.handler("again")(always(Outcome.RETRY.after(HOUR).because(EVIL)))

        @box.handler("typed")
        async def typed(message: Message[dict[str, int]]) -> None: ...

        with Logged() as logged:
            for topic in (EVIL, "batch", "dead", "again", "typed", EVIL + "unhandled"):
                for id_ in (EVIL + topic, EVIL + topic + "2", EVIL + topic):  # the last one is a duplicate
                    payload = {EVIL: EVIL}
                    await box.enqueue(topic, payload, source=EVIL, message_id=id_[-250:], correlation_id=EVIL)
            await room.drain()
            clock.advance(HOUR)
            await room.drain()
            await box.already_processed(EVIL, EVIL)
            await box.mark_dead(EVIL, EVIL, error=EVIL)
            await box.enqueue("t", "x", source=EVIL, message_id=EVIL)
            Sabotage(room, "exchange", "settle", "claim", error=RuntimeError(EVIL))
            await box.start()
            await logged.says("the store failed")
            await soon(box.stop())
        text = written(logged)
        assert "FORGED" in text
        assert "\x1b" not in text
        assert "\u2028" not in text
        assert "\r" not in text
        assert [line for line in text.splitlines() if line.startswith(("2026", "y"))] == []
        assert len({record.message.split("handler=")[0] for record in logged.records}) > 20

    async def test_a_traceback_without_such_texts_stays_an_exception(self, still: Postroom) -> None:
        box = still.inbox()
        box.handler("t")(fails)
        await put(box, 1)
        with Logged() as logged:
            await still.drain()
        [record] = serious(logged)
        assert record.exc_info is not None

    async def test_a_changed_traceback_has_its_lines(self, still: Postroom) -> None:
        box = still.inbox()

        @box.handler("t")
        async def handle(_: Any) -> None:
            try:
                raise_several()
            except ExceptionGroup as error:
                raise RuntimeError("second\nline") from error

        await put(box, 1)
        with Logged() as logged:
            await still.drain()
        [record] = serious(logged)
        assert record.exc_info is None
        assert record.exc_text is not None
        lines = record.exc_text.splitlines()
        assert lines[-1] == r"RuntimeError: second\nline"
        assert r"ValueError: first\nline" in lines
        assert "KeyError: 'k'" in lines
        assert lines.count("Traceback (most recent call last):") == 2
        assert "The above exception was the direct cause of the following exception:" in lines
        assert sum("in handle" in line for line in lines) == 2
        assert (record.funcName, record.filename) == ("settled", "message_log.py")


class TestRedaction:
    @pytest.mark.req("C-59")
    async def test_of_all_that_is_stored_or_logged(self, open_room: OpenRoom) -> None:
        def watch(_: Any) -> None:
            raise ValueError(SECRET)

        room = await open_room(redact=redact, observers=[watch])
        box = room.inbox()

        async def raises(_: Any) -> None:
            cause = ValueError(SECRET)
            cause.add_note(SECRET)
            raise LookupError(SECRET) from cause

        box.handler("raises")(raises)
        box.handler("batch", batch=2)(raises)
        box.handler("dead")(always(Outcome.DEAD.because(SECRET)))
        box.handler("again")(always(Outcome.RETRY.after(HOUR).because(SECRET)))
        box.handler("returned")(always(ValueError(SECRET)))

        @room.on_stop
        def hook() -> None:
            raise ValueError(SECRET)

        with Logged() as logged:
            for topic in ("raises", "dead", "again", "returned"):
                await put(box, topic, topic=topic)
            await put(box, "b1", "b2", topic="batch")
            await room.drain()
            for id_ in ("abandoned", "failed", "marked"):
                await put(box, id_, topic="none")
            owner = OwnerToken.new()
            claimed = {m.message_id: m for m in await box.claim(owner, topics=["none"])}
            await box.abandon(owner, [claimed["abandoned"]], last_error=SECRET)
            await box.fail(owner, [claimed["failed"]], SECRET)
            await box.mark_dead("marked", "s", error=SECRET)
            Sabotage(room, "exchange", "settle", "claim", error=RuntimeError(SECRET))
            await room.start()
            await logged.says("the store failed")
            await soon(room.stop())
        errors = {m.message_id: m.last_error for m in await box.find()}
        assert errors == {
            "raises": "LookupError: ****",
            "dead": "****",
            "again": None,
            "returned": "ValueError: ****",
            "b1": "LookupError: ****",
            "b2": "LookupError: ****",
            "abandoned": "****",
            "failed": "****",
            "marked": "****",
        }
        text = written(logged)
        assert SECRET not in text
        for record in logged.records:
            assert SECRET not in str(record.exc_info)
        assert "Traceback" in text
        for words in ("an observer failed", "a hook failed", "the store failed", "failed on a batch"):
            assert words in text

    async def test_before_the_text_is_cut(self, open_room: OpenRoom) -> None:
        room = await open_room(redact=redact)
        box = room.inbox()
        box.handler("t")(always(Outcome.DEAD.because("x" * 3995 + SECRET + "y" * 100)))
        await put(box, 1)
        await room.drain()
        assert "card" not in ((await box.get("1")).last_error or "")

    @pytest.mark.parametrize("broken", ["raises", "returns"])
    async def test_a_function_that_fails_lets_nothing_through(self, open_room: OpenRoom, broken: str) -> None:
        def function(text: str) -> Any:
            if broken == "raises":
                raise ValueError(text)

        room = await open_room(redact=function)
        box = room.inbox()
        box.handler("t")(always(Outcome.DEAD.because(SECRET)))
        await put(box, 1)
        with Logged() as logged:
            await room.drain()
        assert (await box.get("1")).last_error == "(left out: the redact function failed)"
        assert re.search("the redact function (raised ValueError|returned a NoneType)", written(logged))
        assert SECRET not in written(logged)

    @pytest.mark.parametrize("wrong", ["text", 1, fails])
    async def test_is_a_plain_function(self, wrong: Any) -> None:
        with pytest.raises(ArgumentTypeError, match="redact must be a plain function"):
            Postroom("memory://", redact=wrong)
        with pytest.raises(ArgumentTypeError, match="redact must be a plain function"):
            SyncPostroom("memory://", redact=wrong)


async def test_an_exception_without_a_text(still: Postroom) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    box = still.inbox(poll_interval=SOON)
    box.handler("t")(always(Mute()))

    @box.handler("raises")
    async def handle(_: Any) -> None:
        raise Mute

    await put(box, 1)
    await put(box, 2, topic="raises")
    with Logged() as logged:
        await still.drain()
    assert [record.message.count("failed: Mute;") for record in serious(logged)] == [1, 1]
