"""A process that runs one library on one database and does what its standard input says, line by line.

    python -m benchmarks.common.worker PACKAGE NAME URL FIRST GROUPS

PACKAGE has the line-up with NAME in it. FIRST is the number of the first message that it sends: no two workers may send
the same.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TextIO

import uvloop

from benchmarks.common.contenders import find_contenders
from benchmarks.common.subject import Subject, seconds
from benchmarks.workload import Item, items

_log = logging.getLogger("benchmarks")


class Worker:
    """Calls a verb by name and writes its result as JSON."""

    def __init__(self, subject: Subject, first: int, reply: Callable[[Any], None]) -> None:
        self._subject = subject
        self._numbers = itertools.count(first)
        self._reply = reply
        self._verbs: dict[str, Callable[..., Awaitable[Any]]] = {
            "install": subject.install,
            "fill": self._fill,
            "one": self._one,
            "each": partial(self._timed, subject.send_each),
            "tasks": partial(self._timed, subject.send_from_tasks),
            "bulk": partial(self._timed, subject.send),
            "drain": subject.drain,
            "take": subject.take,
            "serve": self._serve,
            "stop_serving": subject.stop_serving,
        }

    async def run(self) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await self._subject.open()
        self._reply({"result": "ready"})
        while line := await reader.readline():
            verb, arguments = json.loads(line)
            try:
                self._reply({"result": await self._verbs[verb](**arguments)})
            except Exception as error:  # noqa: BLE001 - it belongs to the parent
                _log.exception("%s failed", verb)
                self._reply({"error": f"{type(error).__name__}: {error}"})
        await self._subject.close()

    def _items(self, count: int, note: int = 0) -> list[Item]:
        numbers = itertools.islice(self._numbers, count)
        return [
            item._replace(message_id=f"event-{number:012d}")
            for item, number in zip(items(count, note), numbers, strict=True)
        ]

    async def _fill(self, count: int, size: int, note: int = 0) -> None:
        left = count
        while left:  # piece by piece: a million messages would fill the memory
            piece = min(left, 20_000)
            await self._subject.send(self._items(piece, note), size)
            left -= piece

    async def _timed(self, send: Callable[..., Awaitable[None]], count: int, **options: int) -> float:
        """The messages themselves are made before the clock starts."""
        sent = self._items(count)
        return await seconds(lambda: send(sent, **options))

    async def _one(self) -> float:
        """Returns when the call began; the reply is written when it has ended."""
        [item] = self._items(1)
        began = time.monotonic()
        await self._subject.send_one(item)
        return began

    async def _serve(self) -> None:
        await self._subject.serve(lambda: self._reply({"handled": time.monotonic()}))


def main() -> None:
    package, name, url, first, groups = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING)
    replies = _keep_standard_output()

    def reply(content: Any) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    subject = find_contenders(package).find(name)(url, int(groups))
    uvloop.run(Worker(subject, int(first), reply).run())


def _keep_standard_output() -> TextIO:
    """Reserves standard output for replies: what a library prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


if __name__ == "__main__":
    main()
