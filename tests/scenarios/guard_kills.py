"""Deliveries that end by SIGKILL at an await: python -m tests.scenarios.guard_kills URL PREFIX MODE LEDGER.

For each line on stdin, `KEY STEP SECONDS`, it forks a process that delivers one message. STEP counts the beginnings and
the ends of awaits, in all tasks. There the process waits for so many seconds, in which a request that is on its way may
arrive, and kills itself. The program writes `killed` or `ended`. To fork is quicker than to start Python anew.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any

from postroom import Postroom

HANDLER = "charge"


class Fuse:
    """Kills the process at one of its awaits."""

    def __init__(self, step: int, seconds: float) -> None:
        self._left = step
        self._seconds = seconds
        self.is_lit = False

    def burn(self) -> None:
        """Called before and after each await of each task."""
        if not self.is_lit:
            return
        self._left -= 1
        if self._left == 0:
            time.sleep(self._seconds)  # the loop must not go on
            os.kill(os.getpid(), signal.SIGKILL)

    def make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(self._counted(coroutine), loop=loop, **options)

    def _counted(self, coroutine: Any) -> Coroutine[Any, Any, Any]:
        async def run() -> Any:
            return await Counted(coroutine, self)

        return run()


class Counted:
    """A coroutine whose awaits are counted."""

    def __init__(self, coroutine: Any, fuse: Fuse) -> None:
        self._coroutine = coroutine
        self._fuse = fuse

    def __await__(self) -> Generator[Any, Any, Any]:
        send, throw = self._coroutine.send, self._coroutine.throw
        step, value = send, None
        while True:
            try:
                awaited = step(value)
            except StopIteration as end:
                return end.value
            self._fuse.burn()
            try:
                step, value = send, (yield awaited)
            except BaseException as error:  # noqa: BLE001 - a cancellation is passed on
                step, value = throw, error
            self._fuse.burn()


def open_room(url: str, prefix: str) -> Postroom:
    options: dict[str, Any] = {"prefix": prefix} if prefix else {}
    return Postroom(url, **options)


async def deliver(url: str, prefix: str, mode: Any, ledger: Path, key: str, fuse: Fuse) -> None:
    """Delivers a message. The handler appends its key to the ledger; a transactional one also writes to an outbox."""
    asyncio.get_running_loop().set_task_factory(fuse.make_task)
    async with open_room(url, prefix) as room:
        guard, effects = room.guard("billing", mode=mode), room.outbox("effects")
        await guard.find()  # connects: what is killed before is no delivery

        async def charge(key: str, tx: Any = None) -> None:
            await asyncio.sleep(0)
            with ledger.open("a") as file:
                file.write(f"{key}\n")
            if mode == "transactional":
                await effects.enqueue("charged", key, tx=tx)
            await asyncio.sleep(0)

        guarded: Any = guard.once("key", handler=HANDLER)(charge)
        run: asyncio.Task[None] = asyncio.create_task(guarded(key))
        fuse.is_lit = True
        await run
        fuse.burn()
        fuse.is_lit = False


async def warm_up(url: str, prefix: str) -> None:
    """Imports what a delivery imports, and closes its connections: a fork must not inherit them."""
    async with open_room(url, prefix) as room, room.guard("warm").run("1"):
        pass


def main(url: str, prefix: str, mode: str, ledger: str) -> None:
    asyncio.run(warm_up(url, prefix))
    for line in sys.stdin:
        key, step, seconds = line.split()
        child = os.fork()
        if child == 0:
            sys.stdin.close()
            asyncio.run(deliver(url, prefix, mode, Path(ledger), key, Fuse(int(step), float(seconds))))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        sys.stdout.write("killed\n" if killed else f"ended {status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
