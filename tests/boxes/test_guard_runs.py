"""Runs of a guard on every store and in both modes, and each way in which they end."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from postroom import (
    ArgumentTypeError,
    ArgumentValueError,
    BeginStatus,
    FeatureMissing,
    GuardBusy,
    GuardConflict,
    HandlerExists,
    LeaseLost,
    MessageNotFound,
    ResultNotKept,
    State,
)
from postroom.spi import NO_END
from postroom.testing import FrozenClock
from tests.support import settled


class Handler:
    """A handler in the mode of its guard. It records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: BaseException | None = None
        self.inside: Callable[[], Any] | None = None
        self.result: Any = None

    def guarded_by(self, guard: Any, **options: Any) -> Callable[..., Any]:
        options.setdefault("key", "key")
        options.setdefault("handler", "charge")

        def handle(key: str, body: str = "", **_tx: Any) -> Any:
            self.calls.append(key)
            if self.error is not None:
                raise self.error
            return self.result

        async def handle_async(key: str, body: str = "", **tx: Any) -> Any:
            if self.inside is not None:
                await settled(self.inside())
            return handle(key, body, **tx)

        is_async = inspect.iscoroutinefunction(type(guard).try_begin)
        made: Callable[..., Any] = guard.once(**options)(handle_async if is_async else handle)
        return made


@pytest.fixture
def handler() -> Handler:
    return Handler()


def is_async(room: Any) -> bool:
    return inspect.iscoroutinefunction(type(room).migrate)


@pytest.mark.req("CEB-001", "CEB-021", "CEB-024", "CEB-025", "CEB-048", "C-02")
@pytest.mark.parametrize("mode", ["lease", "mark_before", "mark_after"])
async def test_a_second_delivery_is_skipped(room: Any, handler: Handler, mode: Any) -> None:
    guard = room.guard("billing", mode=mode)
    charge = handler.guarded_by(guard)
    assert await settled(charge("1")) is None
    assert await settled(charge(key="1")) is None
    assert await settled(charge("2")) is None
    assert handler.calls == ["1", "2"]
    record = await settled(guard.get("1", handler="charge"))
    assert record.state is State.DONE
    assert await settled(guard.is_processed("1", handler="charge"))


@pytest.mark.req("CEB-028", "CEB-026", "CEB-050", "C-65")
@pytest.mark.parametrize("options", [{}, {"mode": "mark_before", "release_on_error": True}, {"mode": "mark_after"}])
async def test_an_error_is_raised_again_and_the_next_delivery_runs(
    room: Any, handler: Handler, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    charge = handler.guarded_by(room.guard("billing", **options))
    handler.error = KeyError("card")
    with pytest.raises(KeyError):
        await settled(charge("1"))
    handler.error = None
    if options.get("mode") != "mark_after":
        assert [each.levelno for each in caplog.records if "released" in each.message] == [logging.WARNING]
    await settled(charge("1"))
    await settled(charge("1"))
    assert handler.calls == ["1", "1"]


@pytest.mark.req("CEB-027", "CEB-028", "CEB-039", "CEB-051", "C-03")
async def test_mark_before_keeps_a_failed_message_as_dead(
    room: Any, handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    guard = room.guard("billing", mode="mark_before")
    charge = handler.guarded_by(guard)
    handler.error = KeyError("card")
    with pytest.raises(KeyError):
        await settled(charge("1"))
    assert [each.levelno for each in caplog.records if "dead letter" in each.message] == [logging.ERROR]
    caplog.clear()
    handler.error = None
    assert await settled(charge("1")) is None
    assert handler.calls == ["1"]
    assert [each.levelno for each in caplog.records if "but dead" in each.message] == [logging.WARNING]
    [dead] = await settled(guard.dead_letters())
    assert (dead.message_id, dead.last_error) == ("1", "KeyError: 'card'")
    assert await settled(guard.replay()) == [("charge", "1")]
    await settled(charge("1"))
    assert handler.calls == ["1", "1"]


@pytest.mark.parametrize("mode", ["lease", "mark_before"])
async def test_chosen_errors_make_a_record_dead(room: Any, handler: Handler, mode: Any) -> None:
    release = {"release_on_error": True} if mode == "mark_before" else {}
    guard = room.guard("billing", mode=mode, dead_on=(LookupError,), **release)
    charge = handler.guarded_by(guard)
    handler.error = KeyError("card")
    with pytest.raises(KeyError):
        await settled(charge("1"))
    handler.error = ValueError("again")
    with pytest.raises(ValueError, match="again"):
        await settled(charge("2"))
    states = {record.message_id: record.state for record in await settled(guard.find())}
    assert states == {"1": State.DEAD, "2": State.WAITING}


@pytest.mark.req("C-04", "KOAN-037", "CEB-007")
async def test_a_key_in_progress_is_busy_and_not_processed(room: Any, handler: Handler) -> None:
    guard = room.guard("billing")
    begun = await settled(guard.try_begin("1", handler="charge"))
    charge = handler.guarded_by(guard)
    with pytest.raises(GuardBusy) as busy:
        await settled(charge("1"))
    assert busy.value.until == begun.claim.until
    assert handler.calls == []
    assert not await settled(guard.is_processed("1", handler="charge"))
    assert await settled(guard.release(begun))
    await settled(charge("1"))
    assert handler.calls == ["1"]


@pytest.mark.req("CEB-005", "CEB-006", "CEB-007")
async def test_mark_before_skips_what_has_begun_and_lists_what_never_returned(
    room: Any, handler: Handler, clock: FrozenClock
) -> None:
    guard = room.guard("billing", mode="mark_before")
    crashed = await settled(guard.try_begin("1", handler="charge"))
    clock.advance(timedelta(days=300).total_seconds())
    charge = handler.guarded_by(guard)
    assert await settled(charge("1")) is None
    assert handler.calls == []
    [record] = await settled(guard.unfinished())
    assert (record.message_id, record.claim, record.claim.until) == ("1", crashed.claim, NO_END)
    assert await settled(guard.mark_processed("1", handler="charge"))
    assert await settled(guard.unfinished()) == []


@pytest.mark.req("C-01", "C-29")
async def test_a_crash_frees_the_key_after_the_lease(room: Any, handler: Handler, clock: FrozenClock) -> None:
    guard = room.guard("billing", lease_seconds=60)
    crashed = await settled(guard.try_begin("1", handler="charge"))
    charge = handler.guarded_by(guard)
    clock.advance(59)
    with pytest.raises(GuardBusy):
        await settled(charge("1"))
    clock.advance(2)
    await settled(charge("1"))
    assert handler.calls == ["1"]
    assert not await settled(guard.mark_processed(crashed))
    assert not await settled(guard.release(crashed))
    assert not await settled(guard.fail(crashed, "late"))
    assert not await settled(guard.renew(crashed))
    assert (await settled(guard.get("1", handler="charge"))).deliveries == 2


async def test_an_outcome_after_the_lease_was_taken_over_is_refused(
    room: Any, handler: Handler, clock: FrozenClock
) -> None:
    if not is_async(room):
        pytest.skip("the handler of this test is async")
    guard = room.guard("billing", lease_renewal=False)

    async def lose() -> None:
        clock.advance(31)
        assert (await guard.try_begin("1", handler="charge")).status is BeginStatus.ACQUIRED

    handler.inside = lose
    with pytest.raises(LeaseLost):
        await handler.guarded_by(guard)("1")
    assert not await guard.is_processed("1", handler="charge")


async def test_results_are_kept_on_request(room: Any, handler: Handler, caplog: pytest.LogCaptureFixture) -> None:
    guard = room.guard("billing", keep_results=True, max_result_size=20)
    charge = handler.guarded_by(guard)
    for key, result in (("1", {"ok": [1, None]}), ("2", None), ("3", "é"), ("4", b"\x00")):
        handler.result = result
        assert await settled(charge(key)) == result
        assert await settled(charge(key)) == result
    handler.result = "x" * 19
    assert await settled(charge("5")) == handler.result
    assert "21 bytes was not kept" in caplog.text
    with pytest.raises(ResultNotKept):
        await settled(charge("5"))
    assert handler.calls == ["1", "2", "3", "4", "5"]


async def test_another_content_is_a_conflict(room: Any, handler: Handler) -> None:
    guard = room.guard("billing")
    charge = handler.guarded_by(guard, hash=lambda _key, body: body.encode())
    await settled(charge("1", "one"))
    await settled(charge("1", "one"))
    with pytest.raises(GuardConflict):
        await settled(charge("1", "two"))
    assert handler.calls == ["1"]


@pytest.mark.req("C-14", "CEB-012")
async def test_each_handler_handles_a_message_once(room: Any) -> None:
    guard = room.guard("billing")
    first, second = Handler(), Handler()
    charge, ship = first.guarded_by(guard), second.guarded_by(guard, handler="ship")
    for handle in (charge, ship, charge, ship):
        await settled(handle("1"))
    assert (first.calls, second.calls) == (["1"], ["1"])
    assert {record.source for record in await settled(guard.find())} == {"charge", "ship"}


@pytest.mark.req("C-14")
async def test_a_second_handler_of_a_message_is_refused(room: Any) -> None:
    guard = room.guard("billing", scope="message")
    Handler().guarded_by(guard)
    with pytest.raises(ArgumentValueError, match='scope="message"'):
        Handler().guarded_by(guard, handler="ship")
    with pytest.raises(HandlerExists, match="charge"):
        Handler().guarded_by(guard)


@pytest.mark.req("CEB-038")
async def test_a_disabled_guard_touches_nothing(room: Any, handler: Handler) -> None:
    guard = room.guard("billing", enabled=False)
    charge = handler.guarded_by(guard)
    await settled(charge("1"))
    await settled(charge("1"))
    assert handler.calls == ["1", "1"]
    begun = await settled(guard.try_begin("1"))
    assert await settled(guard.mark_processed(begun))
    assert await settled(guard.mark_processed("1"))
    assert not await settled(guard.is_processed("1"))
    assert sum((await settled(guard.counts())).values()) == 0


@pytest.mark.parametrize("key", [None, "", "x" * 256, "\x00", 5])
async def test_a_call_without_a_key_does_not_run(room: Any, handler: Handler, key: Any) -> None:
    charge = handler.guarded_by(room.guard("billing"))
    with pytest.raises((ArgumentTypeError, ArgumentValueError)):
        await settled(charge(key))
    assert handler.calls == []


async def test_wait_runs_as_soon_as_the_key_is_free(room: Any, handler: Handler) -> None:
    if not is_async(room):
        pytest.skip("two tasks are needed")
    guard = room.guard("billing", wait=timedelta(seconds=20))
    begun = await guard.try_begin("1", handler="charge")
    waiting = asyncio.ensure_future(handler.guarded_by(guard)("1"))
    await asyncio.wait({waiting}, timeout=0.2)
    assert not waiting.done()
    await guard.release(begun)
    await waiting
    assert handler.calls == ["1"]


async def test_wait_ends_with_busy(room: Any, handler: Handler) -> None:
    guard = room.guard("billing")
    await settled(guard.try_begin("1", handler="charge"))
    with pytest.raises(GuardBusy):
        await settled(handler.guarded_by(guard, wait=timedelta(seconds=0.1))("1"))


async def test_a_completion_may_be_repeated_by_its_owner(room: Any) -> None:
    guard = room.guard("billing")
    begun = await settled(guard.try_begin("1"))
    assert await settled(guard.mark_processed(begun, result=1))
    assert await settled(guard.mark_processed(begun, result=2))
    again = await settled(guard.try_begin("1"))
    assert (again.status, again.result) == (BeginStatus.PROCESSED, 1)


@pytest.mark.req("KOAN-001", "KOAN-003", "KOAN-004", "C-19")
async def test_the_two_method_contract(room: Any) -> None:
    guard = room.guard("billing")
    assert not await settled(guard.is_processed("1"))
    with pytest.raises(MessageNotFound):
        await settled(guard.get("1"))
    assert await settled(guard.mark_processed("1"))
    assert not await settled(guard.mark_processed("1"))
    assert await settled(guard.is_processed("1"))
    assert (await settled(guard.try_begin("1"))).status is BeginStatus.PROCESSED


async def test_wrong_arguments_are_refused(room: Any, handler: Handler) -> None:
    guard = room.guard("billing")
    for bad in ({"mode": "both"}, {"retention": 5}, {"release_on_error": True}, {"dead_on": ("x",)}, {"ttl": 1}):
        with pytest.raises((ArgumentTypeError, ArgumentValueError)):
            room.guard("other", **bad)
    with pytest.raises(ArgumentValueError, match="no parameter 'id'"):
        handler.guarded_by(guard, key="id")
    await settled(guard.try_begin("1"))
    busy = await settled(guard.try_begin("1"))
    with pytest.raises(ArgumentValueError, match="not acquired"):
        await settled(guard.release(busy))
    with pytest.raises(ArgumentTypeError):
        await settled(guard.release("1"))
    with pytest.raises(ArgumentTypeError, match="result needs the claim"):
        await settled(guard.mark_processed("2", result=1))
    with pytest.raises(ArgumentValueError, match="other options"):
        room.guard("billing", mode="mark_before")


# -- transactional -------------------------------------------------------------------------------------------------


async def test_transactional_needs_transactions(room: Any) -> None:
    if room.features.transactional:
        pytest.skip("this store has transactions")
    with pytest.raises(FeatureMissing, match="transactional"):
        room.guard("billing", mode="transactional")


@pytest.fixture
def ledger(room: Any) -> Any:
    if not room.features.transactional:
        pytest.skip("this store has no transactions")
    return room.outbox("effects")


def effects(guard: Any, ledger: Any, handler: Handler) -> Callable[..., Any]:
    """A handler that writes one message to the outbox, in its transaction."""
    if inspect.iscoroutinefunction(type(guard).try_begin):

        async def charge(key: str, tx: Any = None) -> None:
            handler.calls.append(key)
            await ledger.enqueue("charged", {"key": key}, tx=tx)
            if handler.inside is not None:
                await handler.inside()
            if handler.error is not None:
                raise handler.error

        made: Callable[..., Any] = guard.once("key")(charge)
        return made

    def charge_sync(key: str, tx: Any = None) -> None:
        handler.calls.append(key)
        ledger.enqueue("charged", {"key": key}, tx=tx)
        if handler.error is not None:
            raise handler.error

    made_sync: Callable[..., Any] = guard.once("key")(charge_sync)
    return made_sync


@pytest.mark.req("C-01", "C-55")
async def test_the_completion_commits_with_the_writes(room: Any, ledger: Any, handler: Handler) -> None:
    guard = room.guard("billing", mode="transactional")
    charge = effects(guard, ledger, handler)
    handler.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await settled(charge("1"))
    assert (await settled(ledger.counts()))[State.WAITING] == 0
    handler.error = None
    await settled(charge("1"))
    await settled(charge("1"))
    assert handler.calls == ["1", "1"]
    assert (await settled(ledger.counts()))[State.WAITING] == 1


@pytest.mark.req("C-01", "C-26")
async def test_a_lost_lease_rolls_the_writes_back(room: Any, ledger: Any, handler: Handler, clock: FrozenClock) -> None:
    if not is_async(room) or not room.features.concurrent:
        pytest.skip("another transaction writes while the handler runs")
    guard = room.guard("billing", mode="transactional", lease_renewal=False)
    other = room.guard("billing")
    charge = effects(guard, ledger, handler)
    name = charge.__qualname__

    async def lose() -> None:
        clock.advance(31)
        handler.inside = None
        async with asyncio.TaskGroup() as tasks:  # the other caller is not inside this transaction
            tasks.create_task(_begin_elsewhere(other, name))

    handler.inside = lose
    with pytest.raises(LeaseLost):
        await charge("1")
    assert (await ledger.counts())[State.WAITING] == 0


async def _begin_elsewhere(guard: Any, name: str) -> None:
    assert (await guard.try_begin("1", handler=name)).status is BeginStatus.ACQUIRED


# -- cancellation and renewal --------------------------------------------------------------------------------------


@pytest.mark.req("C-03")
async def test_a_cancelled_handler_releases_its_key(room: Any, handler: Handler) -> None:
    if not is_async(room):
        pytest.skip("only tasks can be cancelled")
    guard = room.guard("billing")
    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    handler.inside = hang
    task = asyncio.ensure_future(handler.guarded_by(guard)("1"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await guard.get("1", handler="charge")).state is State.WAITING


async def test_a_long_handler_keeps_its_lease(room: Any, handler: Handler) -> None:
    """The clock of the store stands still, so each renewal is seen as the same end: it is counted."""
    if not is_async(room):
        pytest.skip("tested in test_guard_sync")
    renewals = asyncio.Semaphore(0)
    guard = room.guard("billing", lease_seconds=0.1, lease_renewal=0.1)
    renew = room.store.renew

    async def counted(*args: Any) -> Any:
        renewed = await renew(*args)
        renewals.release()
        return renewed

    room.store.renew = counted

    async def twice() -> None:
        await renewals.acquire()
        await renewals.acquire()

    handler.inside = twice
    await asyncio.wait_for(handler.guarded_by(guard)("1"), 20)
    assert await guard.is_processed("1", handler="charge")


@pytest.mark.req("CEB-020")
@pytest.mark.parametrize("mode", ["lease", "mark_before", "transactional"])
async def test_a_run_that_is_released_has_no_outcome(room: Any, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    if mode == "transactional" and not room.features.transactional:
        pytest.skip("this store has no transactions")
    guard, effects = room.guard(f"released-{mode}", mode=mode), room.outbox("effects")
    for deliveries in (1, 2):
        run = guard.run("a")
        assert await entered(run) is run
        assert run.deliveries == deliveries
        if mode == "transactional":
            await settled(effects.enqueue("paid", "a", tx=run.tx))
        run.release()
        await left(run)
    assert (await settled(guard.get("a"))).state is State.WAITING
    assert await settled(effects.find()) == []
    assert caplog.records == []


async def entered(run: Any) -> Any:
    return await run.__aenter__() if hasattr(run, "__aenter__") else run.__enter__()


async def left(run: Any) -> None:
    if hasattr(run, "__aexit__"):
        await run.__aexit__(None, None, None)
    else:
        run.__exit__(None, None, None)
