"""Guards and processes that are killed or paused, cancelled completions, and threads."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom import BeginStatus, GuardBusy, State
from postroom.sync import Postroom
from tests.postgres import clean_database, with_driver

LONG = 30
STORES = ("sqlite3", "psycopg")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "psycopg":
        return with_driver(clean_database(), "psycopg")
    url = f"sqlite:///{tmp_path}/guard.db"
    with Postroom(url) as room:
        room.migrate()
    return url


@pytest.fixture
def start(url: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(mode: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.scenarios.guard_process", url, mode]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()
        process.communicate()


def begin_after_lease(guard: Any) -> Any:
    """The next delivery, as often as a broker repeats it, until the lease of one second has passed."""
    deadline = time.monotonic() + LONG
    with guard.run("1", handler="charge", wait=timedelta(seconds=LONG)) as run:
        assert run.acquired
        assert time.monotonic() < deadline
        return run.deliveries


@pytest.mark.req("CEB-001", "C-01")
def test_a_killed_process_frees_the_key_after_its_lease(url: str, start: Callable[[str], Any]) -> None:
    process = start("lease")
    with Postroom(url) as room:
        guard = room.guard("billing", lease_seconds=1)
        assert guard.try_begin("1", handler="charge").status is BeginStatus.BUSY
        process.kill()
        process.wait()
        assert begin_after_lease(guard) == 2
        assert guard.is_processed("1", handler="charge")


@pytest.mark.req("CEB-005", "C-01")
def test_a_killed_process_is_never_repeated_with_mark_before_and_is_listed(
    url: str, start: Callable[[str], Any]
) -> None:
    process = start("mark_before")
    process.kill()
    process.wait()
    with Postroom(url) as room:
        guard = room.guard("billing", mode="mark_before")
        with guard.run("1", handler="charge", wait=timedelta(seconds=1.5)) as run:
            assert run.status is BeginStatus.BUSY
        assert [record.message_id for record in guard.unfinished()] == ["1"]


def test_a_killed_transactional_process_leaves_no_completion(url: str, start: Callable[[str], Any]) -> None:
    process = start("transactional")
    process.kill()
    process.wait()
    with Postroom(url) as room:
        guard = room.guard("billing", mode="transactional", lease_seconds=1)
        assert begin_after_lease(guard) == 2


@pytest.mark.req("C-26")
@pytest.mark.parametrize("mode", ["lease", "transactional"])
def test_the_late_completion_of_a_paused_process_is_refused(url: str, start: Callable[[str], Any], mode: str) -> None:
    if mode == "transactional" and url.startswith("sqlite"):
        pytest.skip("the paused process holds the write lock of the database")
    process = start(mode)
    os.kill(process.pid, signal.SIGSTOP)
    with Postroom(url) as room:
        guard = room.guard("billing", lease_seconds=1)
        assert begin_after_lease(guard) == 2
        os.kill(process.pid, signal.SIGCONT)
        output, _ = process.communicate("go on\n", timeout=LONG)
        assert output == "LeaseLost\n"
        record = guard.get("1", handler="charge")
        assert (record.state, record.deliveries) == (State.DONE, 2)


@pytest.mark.req("CEB-008", "CEB-049")
def test_of_fifty_threads_one_acquires(url: str) -> None:
    with Postroom(url) as room:
        guard = room.guard("billing")
        barrier = threading.Barrier(50)

        def begin(_: int) -> BeginStatus:
            barrier.wait(LONG)
            return guard.try_begin("contended").status

        with ThreadPoolExecutor(50) as threads:
            statuses = sorted(threads.map(begin, range(50)))
        assert statuses == [BeginStatus.ACQUIRED, *[BeginStatus.BUSY] * 49]


def test_a_long_handler_of_sync_code_keeps_its_lease(url: str) -> None:
    with Postroom(url) as room:
        guard = room.guard("billing", lease_seconds=0.5, lease_renewal=0.2)
        with guard.run("1") as run:
            first = guard.get("1").claim
            assert first is not None
            deadline = time.monotonic() + LONG
            while (renewed := guard.get("1").claim) is None or renewed.until <= first.until + timedelta(seconds=0.6):
                assert time.monotonic() < deadline
                with pytest.raises(GuardBusy), guard.run("1", wait=timedelta(seconds=0.05)):
                    pass
            assert not run.lease_lost
        assert guard.is_processed("1")


class SlowCompletion:
    """Lets a test act while a completion is on its way to the store."""

    def __init__(self, room: Any) -> None:
        self.started, self.may_go_on = asyncio.Event(), asyncio.Event()
        settle = room.store.settle

        async def slowly(*args: Any, **kwargs: Any) -> Any:
            self.started.set()
            await self.may_go_on.wait()
            return await settle(*args, **kwargs)

        room.store.settle = slowly


@pytest.fixture
async def slow(tmp_path: Path) -> Any:
    async with postroom.Postroom(f"sqlite:///{tmp_path}/slow.db", deploy_schema=True) as room:
        yield room, SlowCompletion(room)


@pytest.mark.req("C-03")
async def test_a_cancellation_does_not_stop_a_completion(slow: Any) -> None:
    room, completion = slow
    guard = room.guard("billing")

    async def handle() -> None:
        async with guard.run("1"):
            pass

    task = asyncio.create_task(handle())
    await completion.started.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    completion.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await guard.is_processed("1")


async def test_a_cancelled_begin_leaves_no_lease(tmp_path: Path) -> None:
    async with postroom.Postroom(f"sqlite:///{tmp_path}/begin.db", deploy_schema=True) as room:
        guard = room.guard("billing", mode="mark_before")
        started, may_go_on, begin = asyncio.Event(), asyncio.Event(), room.store.begin

        async def slowly(*args: Any) -> Any:
            started.set()
            await may_go_on.wait()
            return await begin(*args)

        room.store.begin = slowly

        async def handle() -> None:
            async with guard.run("1"):
                pytest.fail("the handler must not run")

        task = asyncio.create_task(handle())
        await started.wait()
        task.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await guard.unfinished() == []
        assert (await guard.get("1")).state is State.WAITING


async def test_a_completion_that_takes_too_long_raises(slow: Any) -> None:
    room, completion = slow
    guard = room.guard("billing", completion_timeout=timedelta(seconds=0.05))

    async def handle() -> None:
        async with guard.run("1"):
            pass

    with pytest.raises(TimeoutError, match=r"0\.05 seconds"):
        await handle()
    assert completion.started.is_set()
    assert not await guard.is_processed("1")


@pytest.mark.parametrize("error", [ValueError("bad card"), asyncio.CancelledError()])
async def test_an_error_is_raised_even_if_its_outcome_takes_too_long(slow: Any, error: BaseException) -> None:
    room, completion = slow
    guard = room.guard("billing", completion_timeout=timedelta(seconds=0.05))

    async def handle() -> None:
        async with guard.run("1"):
            raise error

    with pytest.raises(type(error)):
        await handle()
    assert completion.started.is_set()


class Keys:
    """A provider with two methods."""

    def __init__(self) -> None:
        self.keys: set[str] = set()

    async def is_processed(self, key: str) -> bool:
        return key in self.keys

    async def mark_processed(self, key: str) -> None:
        self.keys.add(key)


@pytest.mark.req("KOAN-001", "KOAN-009", "KOAN-010", "C-04")
async def test_a_provider_with_two_methods_is_accepted() -> None:
    keys, calls = Keys(), list[str]()
    guard = postroom.ProviderGuard(keys)

    @guard.once("key")
    async def charge(key: str) -> None:
        calls.append(key)
        if key == "bad":
            raise ValueError("bad card")

    await charge("1")
    await charge("1")
    with pytest.raises(ValueError, match="bad card"):
        await charge("bad")
    assert calls == ["1", "bad"]
    assert keys.keys == {"1"}
    with pytest.raises(postroom.ArgumentTypeError, match="is_processed"):
        postroom.ProviderGuard(object())  # type: ignore[arg-type]
