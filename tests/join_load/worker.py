"""Workers for joins in a process: python -m tests.join_load.worker URL PREFIX JOINS STEPS SEED LEASE

The process prints "ready" when its room has started. It stops when its stdin ends, or is killed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import timedelta

from postroom import Cleaning
from tests.join_load.load import Handlers, Load, Place, open_box


async def work(url: str, prefix: str, joins: str, steps: str, seed: str, lease: str) -> None:
    logging.getLogger("postroom").setLevel(logging.CRITICAL)
    room = Place(url, prefix).open(cleaning=Cleaning(reap_interval=timedelta(milliseconds=200)))
    box = open_box(room, lease=float(lease))
    Handlers(room, box, Load(int(joins), int(steps), int(seed)))
    await room.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await room.stop()
    await room.close()


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
