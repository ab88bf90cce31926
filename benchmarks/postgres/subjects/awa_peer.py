"""awa-pg, whose worker is written in Rust: on its queue storage, which its documentation calls the default engine.

`batch` is what a claimer takes at once. Handlers run beside each other, and twice as many may as a claim takes, up to
500, where it was fastest. A drain ends with the last handler call: its last acks, a few milliseconds later, are free.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import awa  # type: ignore[import-not-found, unused-ignore]

from benchmarks.common.subject import Span, Subject, Tally
from benchmarks.workload import Item

POOL = 10
MOST_WORKERS = 500


@dataclass
class OrderPlaced:
    """The payload; awa derives its kind from the name."""

    order: str
    customer: str
    amount: int
    currency: str
    note: str


class Awa(Subject):
    async def install(self) -> None:
        await self._client.migrate()
        await self._client.install_queue_storage(schema="awa", reset=True)
        await self._client.close()  # its connections remember the types that were there before
        await self.open()

    async def open(self) -> None:
        self._client = awa.AsyncClient(self.url, max_connections=POOL)

    async def send_one(self, item: Item) -> None:
        await self._client.insert(OrderPlaced(**item.payload), queue="bench")

    async def send_bulk(self, items: list[Item]) -> None:
        await self._client.enqueue_many_copy([OrderPlaced(**item.payload) for item in items], queue="bench")

    async def drain(self, batch: int, expected: int | None) -> Span:
        tally = Tally(expected)
        client = self._worker(tally.add)
        gc.collect()
        await self._start(client, batch, min(2 * batch, MOST_WORKERS))
        began = time.monotonic()  # its start takes 50 ms: they are free too
        await tally.wait()
        await self._stop(client)
        return Span(began, tally.last, tally.count)

    async def serve(self, handled: Callable[[], None]) -> None:
        self._serving = self._worker(handled)
        await self._start(self._serving, 1, 1)

    async def stop_serving(self) -> None:
        await self._stop(self._serving)

    def _worker(self, handled: Callable[[], None]) -> Any:
        client = awa.AsyncClient(self.url, max_connections=POOL)

        async def handle(job: Any) -> None:  # noqa: ARG001
            handled()

        client.task(OrderPlaced, queue="bench")(handle)
        return client

    async def _start(self, client: Any, batch: int, workers: int) -> None:
        await client.start([{"name": "bench", "max_workers": workers, "claim_batch_size": batch}], poll_interval_ms=50)

    async def _stop(self, client: Any) -> None:
        await client.shutdown(timeout_ms=5000)
        await client.close()

    async def close(self) -> None:
        await self._client.close()
