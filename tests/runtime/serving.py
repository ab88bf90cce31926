"""python -m tests.runtime.serving FILE: a room that runs until a signal stops it."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from postroom import Message, Postroom


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main(path: str) -> None:
    room = Postroom(f"sqlite:///{path}")
    box = room.inbox()

    released = asyncio.Event()

    @box.handler("t")
    async def handle(message: Message[Any]) -> None:
        say(f"handling {message.message_id}")
        await released.wait()
        say(f"done {message.message_id}")

    stop = room.stop

    async def stop_and_release() -> None:
        released.set()  # by now the handler is in the middle of its work
        await stop()

    room.stop = stop_and_release  # type: ignore[method-assign]
    room.on_start(lambda: say("started"))
    room.on_stop(lambda: say("stopped"))
    room.run()


main(sys.argv[1])
