"""A producer that dies half-way: python -m tests.join_load.producer URL PREFIX

The process starts a join of `STEPS` steps, puts half of them, prints the id of the join, and waits to be killed.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from uuid import UUID

from postroom import NewMessage
from tests.join_load.load import COMPLETED, FREE, Place, open_box

STEPS = 20


async def produce(box: Any, join: UUID, steps: int) -> None:
    """Stores the continuation and the first steps. A repetition changes nothing: all of them have keys."""
    await box.enqueue_join_wait(join, True, COMPLETED, 0)
    await box.enqueue_many(NewMessage(FREE, n, message_id=f"{join}-{n}", join=join) for n in range(steps))


async def main(url: str, prefix: str) -> None:
    async with Place(url, prefix).open() as room:
        box: Any = open_box(room)
        join = await box.start_join("t", STEPS)
        await produce(box, join, STEPS // 2)
        sys.stdout.write(f"{join}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
