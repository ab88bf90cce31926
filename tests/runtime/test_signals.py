"""The signals of a worker process: none of them is an error of a handler."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from postroom import State
from postroom.sync import Postroom

WORKER = """
import asyncio, logging, os, signal, time
from postroom import Postroom

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores SIGINT
logging.basicConfig(level="WARNING")
room = Postroom("sqlite:///room.db")


def begun():
    print("begun", flush=True)


async def waits(message):
    begun()
    await asyncio.Event().wait()


async def works(message):
    begun()
    while True:
        sum(range(10**6))
        await asyncio.sleep(0)


async def wraps(message):
    begun()
    try:
        while True:
            sum(range(10**6))
            await asyncio.sleep(0)
    except BaseException as error:
        raise ValueError("wrapped") from error


async def blocks(message):
    begun()
    await asyncio.sleep(0.1)
    while True:
        time.sleep(0.01)


def in_a_thread(message):
    begun()
    while not os.path.exists("go"):
        time.sleep(0.01)
    print("ended", flush=True)


async def works_in_a_group(message):
    async with asyncio.TaskGroup() as group:
        group.create_task(works(message))


async def transactional(message, tx):
    await works(message)


async def interrupted(message):
    # asyncio.run cancels its main task at the first Ctrl-C, and raises KeyboardInterrupt at the second.
    try:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:
        raise ValueError("wrapped") from error


async def interrupted_in_a_group(message):
    async def child():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    async with asyncio.TaskGroup() as group:
        group.create_task(child())


async def serve():
    async with room:
        await asyncio.Event().wait()


handler = HANDLER
room.inbox().handler("t", transactional=handler is transactional)(handler)
if handler in (interrupted, interrupted_in_a_group):
    asyncio.run(serve())
else:
    room.run()
"""


@pytest.fixture
def room(tmp_path: Path) -> Postroom:
    room = Postroom(f"sqlite:///{tmp_path}/room.db")
    room.migrate()
    room.inbox().enqueue("t", {}, source="s", message_id="1")
    return room


@contextmanager
def start(handler: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER.replace("HANDLER", handler)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def outcome(room: Postroom) -> tuple[State, int, str | None]:
    message = room.inbox().get("1")
    return message.state, message.attempt, message.last_error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("handler", ["waits", "works", "wraps", "works_in_a_group", "transactional"])
def test_the_second_one_gives_messages_back(
    handler: str, number: signal.Signals, room: Postroom, tmp_path: Path
) -> None:
    with start(handler, tmp_path) as worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        assert worker.stdout.readline() == "begun\n"
        worker.send_signal(number)
        first = worker.stderr.readline()
        assert "handlers may end what they have begun" in first
        assert "a second signal stops at once and gives their messages back" in first
        worker.send_signal(number)
        assert "inbox:inbox worker is stopped at once: its messages are given back" in worker.stderr.readline()
        worker.communicate(timeout=30)
    assert outcome(room) == (State.WAITING, 0, None)
    assert worker.returncode == -number


def test_the_second_one_waits_for_a_thread(room: Postroom, tmp_path: Path) -> None:
    """A thread cannot be cancelled."""
    with start("in_a_thread", tmp_path) as worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        assert worker.stdout.readline() == "begun\n"
        worker.send_signal(signal.SIGINT)
        worker.stderr.readline()
        worker.send_signal(signal.SIGINT)
        assert "is stopped at once" in worker.stderr.readline()
        assert "handlers still run in threads (1), which cannot be cancelled" in worker.stderr.readline()
        assert worker.poll() is None
        (tmp_path / "go").touch()
        output, _ = worker.communicate(timeout=30)
    assert output == "ended\n"
    assert outcome(room) == (State.WAITING, 0, None)
    assert worker.returncode == -signal.SIGINT


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_the_status_of_the_command(number: signal.Signals, status: int, room: Postroom, tmp_path: Path) -> None:
    module = WORKER.replace("HANDLER", "waits").replace("asyncio.run(serve())\nelse:\n    room.run()", "pass")
    (tmp_path / "work.py").write_text(module)
    command = [sys.executable, "-m", "postroom", "run", "work:room"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        try:
            while worker.stdout.readline() != "begun\n":
                assert worker.poll() is None
            worker.send_signal(number)
            assert "a second signal" in worker.stderr.readline()
            worker.send_signal(number)
            worker.communicate(timeout=30)
        finally:
            worker.kill()
    assert worker.returncode == status
    assert outcome(room) == (State.WAITING, 0, None)


def test_a_third_one_ends_a_handler_that_blocks_the_loop(room: Postroom, tmp_path: Path) -> None:
    with start("blocks", tmp_path) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "begun\n"
        while worker.poll() is None:
            worker.send_signal(signal.SIGINT)
            try:
                worker.wait(0.3)
            except subprocess.TimeoutExpired:
                continue
    assert outcome(room)[1:] == (0, None)


@pytest.mark.parametrize("handler", ["interrupted", "interrupted_in_a_group"])
def test_an_interrupt_inside_of_a_handler_is_not_counted(handler: str, room: Postroom, tmp_path: Path) -> None:
    """Where the program has an event loop of its own, Ctrl-C is raised wherever the program is."""
    with start(handler, tmp_path) as worker:
        _, errors = worker.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert outcome(room) == (State.WAITING, 0, None)
