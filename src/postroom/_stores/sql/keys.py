"""What is known of a key, as programs: the deduplication check, and moves that need no claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroom._kernel.program import Program
from postroom._stores.sql import rows
from postroom._stores.sql.lines import Doomed
from postroom._stores.sql.queue import Known, QueuePrograms
from postroom._stores.sql.statements import Many, Statement
from postroom.spi import Box, Draft, Ending, Filter, Key, Mark, Sighting, State


class KeyPrograms:
    """The verbs of KeyStore, as programs."""

    def __init__(self, queue: QueuePrograms) -> None:
        self.queue = queue
        self.engine = queue.engine

    def record(self, box: Box, drafts: Sequence[Draft]) -> Program[list[Sighting]]:
        now = yield from self.queue.moment()
        yield from self.queue.lock_keys(box, [draft.key for draft in drafts], in_passing=True)
        sightings: list[Sighting] = []
        for draft in drafts:
            sightings.append((yield from self._record(box, draft, now)))
        return sightings

    def _record(self, box: Box, draft: Draft, now: Any) -> Program[Sighting]:
        # The id is reserved first: that takes the write lock where an engine has only one, before anything is read.
        [(id_,)] = yield Statement("reserve", {"count": 1})
        known = yield from self.queue.known(box, draft.key, now, in_passing=True)
        while known is None:
            if (yield from self._insert_seen(box, id_, draft, now)):
                return Sighting(State.SEEN, is_new=True, conflict=False)
            known = yield from self.queue.known(box, draft.key, now, in_passing=True)  # somebody else was faster
        state = rows.STATES[known.state]
        if state is not State.DONE:
            yield Statement("touch", {"id": known.id})
            if draft.hash is not None:
                yield Statement(
                    "fill_hash", {"id": known.id, "hash": draft.hash, "hash_algorithm": draft.hash_algorithm}
                )
        return Sighting(state, is_new=False, conflict=draft.contradicts(known.hash, known.hash_algorithm, known.topic))

    def _insert_seen(self, box: Box, id_: int, draft: Draft, now: Any) -> Program[bool]:
        """Whether the key was free."""
        row = rows.message_row(self.engine, box, id_, draft, None, now)
        inserted = yield Many("insert_message", rows.MESSAGE_COLUMNS, [row])
        if inserted:
            yield Many(
                "enter",
                rows.ENTRY_COLUMNS,
                [(id_, box.key, rows.SEEN, None, 0, None, None, None)],
            )
        return bool(inserted)

    def mark(self, box: Box, keys: Sequence[Key], mark: Mark, error: str | None) -> Program[list[bool]]:
        now = yield from self.queue.moment()
        yield from self.queue.lock_keys(box, keys)
        changed: list[bool] = []
        for key in keys:
            changed.append((yield from self._mark(box, key, mark, error or "", now)))
        return changed

    def _mark(self, box: Box, key: Key, mark: Mark, error: str, now: Any) -> Program[bool]:
        [(id_,)] = yield Statement("reserve", {"count": 1})
        known = yield from self.queue.known(box, key, now)
        while known is None and mark == "processed":
            yield from self._insert_seen(box, id_, Draft(*key), now)
            known = yield from self.queue.known(box, key, now)
        if known is None or known.state == rows.DONE:
            return False
        return (yield from self._move(box, known, key, mark, error, now))

    def _move(self, box: Box, known: Known, key: Key, mark: Mark, error: str, now: Any) -> Program[bool]:
        if mark == "processing":
            if known.state == rows.SEEN:
                yield from self.queue.enter_seen(box, known.id, Draft(*key), None, now)
            return known.state == rows.SEEN
        if mark == "skipped":
            blocks = known.state == rows.DEAD and known.line is not None
            if blocks:
                yield Statement("leave_line", {"id": known.id})
                yield from self.queue.promote(box, [known.line])
            return blocks
        if mark == "processed":
            blank = box.keeping.on_success == "delete"
            yield from self.queue.finish(box, [known.id], Ending.MARKED, blank=blank)
            return True
        if known.state == rows.DEAD:
            return False
        if known.line is not None:
            yield Many("end_batch", ("box", "group_id", "id"), [(box.key, known.line, known.id)])
        yield from self.queue.bury(box, [Doomed(known.id, known.line, error)])
        return True

    def cancel(self, box: Box, which: Filter) -> Program[list[Key]]:
        yield from self.queue.lock_writes()
        waiting = yield from self.queue.lock_waiting(box, which._replace(states=frozenset({State.WAITING})))
        blank = box.keeping.on_success == "delete"
        yield from self.queue.finish(box, [message.id for message in waiting], Ending.CANCELLED, blank=blank)
        if waiting:
            yield from self.queue.notify_of_lines(box)
        return [message.key for message in waiting]
