"""`reap`, `purge` and `replay`: expired leases, old messages, dead letters."""

from __future__ import annotations

from typing import Protocol

from postroom._kernel.joins import FAILED_ENDINGS
from postroom._kernel.policy import EXPIRED
from postroom._stores.sql.endings import DeadLetter, Endings
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.finding import Finding
from postroom._stores.sql.lines import Lines
from postroom._stores.sql.locks import Locks
from postroom._stores.sql.notifications import Notifications
from postroom._stores.sql.statements import Many, SqlProgram, Statement, current_time
from postroom._stores.sql.steps import Steps
from postroom.spi import Box, Filter, Key, Purge, Reaped, State


class ExpiredLeases(Protocol):
    """How an engine finds claimed messages whose leases have expired."""

    def find(self, box: Box, limit: int) -> SqlProgram[list[int]]:
        """Returns their ids, at most `limit`. They cannot change before the transaction ends."""


class Cleaning:
    """The verbs `reap`, `purge` and `replay`."""

    def __init__(
        self,
        engine: Engine,
        *,
        expired_leases: ExpiredLeases,
        lines: Lines,
        endings: Endings,
        finding: Finding,
        locks: Locks,
        notifications: Notifications,
        steps: Steps,
    ) -> None:
        self._engine = engine
        self._steps = steps
        self._expired_leases = expired_leases
        self._lines = lines
        self._endings = endings
        self._finding = finding
        self._locks = locks
        self._notifications = notifications

    def reap(self, box: Box, limit: int) -> SqlProgram[Reaped]:
        """Ends expired leases, and makes messages dead that have expired while they waited."""
        leases = yield from self._expired_leases.find(box, limit)
        if leases:
            yield Many("end_leases", ("id",), [(id_,) for id_ in leases])
        expired = yield Statement("find_expired", {"box": box.key, "limit": limit})
        yield from self._endings.make_dead(box, [DeadLetter(id_, group, EXPIRED) for id_, group in expired])
        return Reaped(len(leases), len(expired))

    def purge(self, box: Box, purge: Purge) -> SqlProgram[int]:
        """Deletes old messages of one state; returns their number."""
        now = yield from current_time()
        window = box.retention.dedup_window
        deleted = yield Statement(
            f"purge_{purge.state.value}",
            {
                "box": box.key,
                "cutoff": now - self._engine.duration(purge.older_than),
                "limit": purge.limit,
                "sliding": int(box.retention.age_from == "last_seen"),
                # A purge does not shorten the deduplication window.
                "window": None if window is None else self._engine.duration(window),
            },
        )
        if deleted:
            yield Statement("delete_messages", {"ids": self._engine.array([row[0] for row in deleted])})
            if purge.state is State.DEAD:
                yield from self._lines.promote(box, [group for _, group in deleted])
                yield from self._steps.purged(box, [id_ for id_, _ in deleted])
        if purge.state is State.DONE:
            yield from self._steps.purged(box, [id_ for id_, ending in deleted if ending in FAILED_ENDINGS])
            yield from self._steps.purge(box, now - self._engine.duration(purge.older_than), purge.limit)
        return len(deleted)

    def replay(self, box: Box, which: Filter) -> SqlProgram[list[Key]]:
        """Makes dead messages wait again; returns their keys."""
        yield from self._locks.writes()
        now = yield from current_time()
        found = yield from self._finding.find(box, which._replace(states=frozenset({State.DEAD})))
        dead = {message.id: message for message in found}
        locked = yield Statement("lock_dead", {"ids": self._engine.array(list(dead))})
        revived = [dead[id_] for (id_,) in locked]
        yield from self._endings.revive(box, [(message.id, message.group) for message in revived], now)
        if revived:
            yield from self._notifications.send(box)
        return [message.key for message in revived]
