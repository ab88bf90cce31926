"""A put whose key is known: what becomes of the message that has the key."""

from __future__ import annotations

from postroom._kernel.availability import Availability, reschedule
from postroom._kernel.known_keys import decide_known_key, is_outside_dedup_window
from postroom._stores.sql import rows
from postroom._stores.sql.collapsing import Collapsing
from postroom._stores.sql.endings import Endings
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.inserts import NewRows
from postroom._stores.sql.lines import Lines
from postroom._stores.sql.locks import Locks
from postroom._stores.sql.rows import KnownKey
from postroom._stores.sql.statements import SqlProgram, Statement, StoredTime, current_time
from postroom.spi import Box, Draft, Key, Receipt


class KnownKeys:
    """Finds the message that has a key, and applies a draft with the same key to it."""

    def __init__(
        self,
        engine: Engine,
        *,
        locks: Locks,
        new_rows: NewRows,
        lines: Lines,
        endings: Endings,
        collapsing: Collapsing,
    ) -> None:
        self._engine = engine
        self._locks = locks
        self._new_rows = new_rows
        self._lines = lines
        self._endings = endings
        self._collapsing = collapsing

    def find(self, box: Box, key: Key, now: StoredTime, *, lock_progress: bool) -> SqlProgram[KnownKey | None]:
        """Returns the message that has this key, or None. A message whose deduplication window has passed loses its key
        here. `lock_progress`: see `Locks.key`."""
        known = yield from self._locks.key(box, key, progress=lock_progress)
        if known is None:
            return None
        window = box.retention.dedup_window
        stored = None if window is None else self._engine.duration(window)
        if is_outside_dedup_window(known.first_seen, stored, now):
            yield Statement("retire_key", {"id": known.id})
            return None
        return known

    def meet(self, box: Box, id_: int, draft: Draft, *, in_caller_tx: bool) -> SqlProgram[Receipt]:
        """Applies a draft whose key was known when it was inserted. `id_` is reserved for it."""
        now = yield from current_time()
        # The queue row is locked where a worker could otherwise ack content that this put replaces. A caller's
        # transaction locks it only if such an ack has an effect in this box (`on_stale_ack="requeue"`).
        lock_progress = draft.on_duplicate == "update" and (not in_caller_tx or box.delivery.on_stale_ack == "requeue")
        known = yield from self.find(box, draft.key, now, lock_progress=lock_progress)
        while known is None:  # the deduplication window of the earlier message has passed
            new = yield from self._new_rows.insert_messages(box, id_, [draft], now)
            if new:
                yield from self._new_rows.enqueue(box, new, now)
                superseded = yield from self._collapsing.supersede(box, id_, draft, before=id_)
                return Receipt.of_new(id_, draft)._replace(superseded=superseded)
            # Another transaction has inserted the key first.
            known = yield from self.find(box, draft.key, now, lock_progress=lock_progress)
        conflict = draft.contradicts(known.hash, known.hash_algorithm, known.topic)
        decision = decide_known_key(
            draft, rows.STATES[known.state], conflict=conflict, is_continuation=bool(known.is_continuation)
        )
        if not decision.touches:
            return decision.receipt(known.id, draft)
        yield Statement("set_last_seen", {"id": known.id})
        if decision.fills:
            superseded = yield from self._fill(box, known, draft, now, before=id_)
            return decision.receipt(known.id, draft, superseded=superseded)
        under_lease = decision.replaces and (yield from self._replace(box, known, draft, now))
        if decision.revives:
            yield from self._endings.revive(box, [(known.id, known.group_id)], now)
        return decision.receipt(known.id, draft, replaced_under_lease=under_lease)

    def _fill(
        self, box: Box, known: KnownKey, draft: Draft, now: StoredTime, *, before: int
    ) -> SqlProgram[tuple[int, ...]]:
        """Stores the content of a message of which only the key was known; returns the ids that it supersedes."""
        expires = self._new_rows.expires(draft, now)
        yield Statement("fill_seen", rows.message_parameters(self._engine, box, known.id, draft, expires, now))
        superseded = yield from self._collapsing.supersede(box, known.id, draft, before=before)
        yield from self._new_rows.enqueue_seen(box, known.id, draft, expires, now)
        return superseded

    def _replace(self, box: Box, known: KnownKey, draft: Draft, now: StoredTime) -> SqlProgram[bool]:
        """Replaces the content. Group, collapse key and progress stay. Returns True if a worker handles other
        content."""
        expires = self._engine.time(draft.expires)
        content = rows.message_parameters(self._engine, box, known.id, draft, expires, now)
        [(revision,)] = yield Statement("replace_content", content)
        if draft.expires is not None:
            yield Statement("set_expires", {"id": known.id, "expires": expires})
        if known.state == rows.WAITING:
            yield from self._reschedule(box, known, content["due"], now)
        under_lease = known.state == rows.CLAIMED and revision != known.revision
        if under_lease and box.delivery.on_stale_ack == "requeue":
            yield Statement("set_stale", {"id": known.id})
        return under_lease

    def _reschedule(self, box: Box, known: KnownKey, due: StoredTime, now: StoredTime) -> SqlProgram[None]:
        was = Availability(known.available_at, bool(known.delayed))
        becomes = reschedule(was, due, now, was_claimed=bool(known.fence), in_line=known.line is not None)
        if becomes != was:
            yield Statement(
                "reschedule",
                {
                    "id": known.id,
                    "available_at": becomes.available_at,
                    "delayed": becomes.delayed,
                    "fence": known.fence,
                    "was_delayed": was.delayed,
                },
            )
            yield from self._lines.promote(box, [known.line])
