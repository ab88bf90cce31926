"""The limit: the same rows in the same tables, written as tightly as asyncpg allows.

Two statements per batch: one claims and returns whole messages, one deletes the queue's rows and appends to the ledger,
having checked owner and fence. Each is a transaction; two connections, so that the next claim runs beside an ack. It
knows one box, one topic and one owner, never renews, looks for nothing that expired, checks no arguments, decodes
nothing and builds no objects. A claim begins where the last one ended: otherwise it would pass by all that is gone,
which stays in the index until the next vacuum. Each run begins with a check that it leaves the same rows as Postroom.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import uuid4

import asyncpg

from benchmarks.common.subject import Span, Subject
from benchmarks.workload import BOX, SOURCE, TOPIC, Item
from postroom import Postroom

BOX_KEY = f"inbox:{BOX}"
BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
TABLES = ("postroom_message", "postroom_queue", "postroom_ledger")

_ENQUEUE = f"""
WITH given AS MATERIALIZED (
    SELECT nextval('postroom_ids') AS id, message_id, payload
      FROM unnest($1::text[], $2::bytea[]) AS d (message_id, payload)
), new AS (
    INSERT INTO postroom_message (id, box, source, message_id, topic, payload, format, first_seen, last_seen)
    SELECT id, '{BOX_KEY}', '{SOURCE}', message_id, '{TOPIC}', payload, 'json', now(), now() FROM given
        ON CONFLICT (box, message_id, source, retired) DO NOTHING
    RETURNING id
)
INSERT INTO postroom_queue (id, box, state, available_at) SELECT id, '{BOX_KEY}', 1, now() FROM new
"""

_CLAIM = f"""
WITH due AS MATERIALIZED (
    SELECT id, available_at FROM postroom_queue
     WHERE (box, available_at, id) > ('{BOX_KEY}', $3, $4::bigint) AND (box, available_at) <= ('{BOX_KEY}', now())
       AND available_at IS NOT NULL AND (state = 1 OR lease_until <= now())
     ORDER BY box, available_at, id
     LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED
), taken AS (
    UPDATE postroom_queue q
       SET state = 2, owner = $2, fence = q.fence + 1, deliveries = q.deliveries + 1, lease_until = now() + '30 s'
      FROM due
     WHERE q.id = due.id
    RETURNING q.id, q.fence, q.attempt, q.deliveries, q.last_error, q.lease_until, due.available_at AS since
)
SELECT t.id, t.fence, t.since, t.attempt, t.deliveries, t.last_error, t.lease_until,
       m.source, m.message_id, m.topic, m.payload, m.format, m.headers, m.correlation_id, m.group_id, m.collapse_key,
       m.hash, m.due, m.expires, m.received_at, m.first_seen, m.last_seen, m.revision
  FROM taken t
  JOIN postroom_message m ON m.id = t.id
"""

_ACK = f"""
WITH gone AS (
    DELETE FROM postroom_queue q
     USING unnest($1::bigint[], $2::bigint[]) AS c (id, fence)
     WHERE q.id = c.id AND q.fence = c.fence AND q.owner = $3 AND q.state = 2
    RETURNING q.id, q.owner, q.attempt, q.deliveries, q.last_error
)
INSERT INTO postroom_ledger (id, box, completed_at, completed_by, ending, attempt, deliveries, last_error)
SELECT id, '{BOX_KEY}', now(), owner, 'handled', attempt, deliveries, last_error FROM gone
"""

Rows = list[asyncpg.Record]


class Raw(Subject):
    async def install(self) -> None:
        room = Postroom(self.url)
        await room.migrate()
        await room.close()

    async def open(self) -> None:
        # One plan, by the indexes, whatever the table's size was when it was made.
        settings = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "enable_hashjoin": "off"}
        settings |= {"enable_mergejoin": "off", "enable_bitmapscan": "off"}
        self._claiming, self._acking = [await asyncpg.connect(self.url, server_settings=settings) for _ in range(2)]
        self._owner = uuid4()

    async def send_one(self, item: Item) -> None:
        await self.send_bulk([item])

    async def send_bulk(self, items: list[Item]) -> None:
        ids, payloads = [item.message_id for item in items], [item.text.encode() for item in items]
        _expect(await self._claiming.execute(_ENQUEUE, ids, payloads), len(items))

    async def drain(self, batch: int, expected: int | None) -> Span:
        return await self.take(batch, None)

    async def take(self, batch: int, count: int | None) -> Span:
        """As many as are asked for, or all."""
        gc.collect()
        began = time.monotonic()
        self._since = (BEGINNING, 0)
        handled = 0
        acking: asyncio.Task[None] | None = None
        while rows := await self._claim(batch if count is None else min(batch, count - handled)):
            handled += len(rows)
            if acking is not None:
                await acking
            acking = asyncio.create_task(self._ack(rows))
        if acking is not None:
            await acking
        return Span(began, time.monotonic(), handled)

    async def _claim(self, limit: int) -> Rows:
        if not limit:
            return []
        rows: Rows = await self._claiming.fetch(_CLAIM, limit, self._owner, *self._since)
        self._since = max(((row[2], row[0]) for row in rows), default=self._since)
        return rows

    async def _ack(self, rows: Rows) -> None:
        ids, fences = [row[0] for row in rows], [row[1] for row in rows]
        _expect(await self._acking.execute(_ACK, ids, fences, self._owner), len(rows))

    async def serve(self, handled: Callable[[], None]) -> None:
        raise NotImplementedError("the raw loop does not wait for messages")

    async def stop_serving(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        for connection in (self._claiming, self._acking):
            await connection.close()


async def contents(url: str) -> dict[str, list[tuple[object, ...]]]:
    """The tables without times and owners, to compare what two loops have left."""
    varying = {"first_seen", "last_seen", "available_at", "lease_until", "owner", "completed_at", "completed_by"}
    connection = await asyncpg.connect(url)
    try:
        return {
            table: [
                tuple((name, value is None if name in varying else value) for name, value in row.items())
                for row in await connection.fetch(f"SELECT * FROM {table} ORDER BY id")
            ]
            for table in TABLES
        }
    finally:
        await connection.close()


def _expect(status: str, wanted: int) -> None:
    """A benchmark that changes nothing is fast, and worthless."""
    if status != f"INSERT 0 {wanted}":
        raise AssertionError(f"the raw loop returned {status!r} for {wanted} messages")
