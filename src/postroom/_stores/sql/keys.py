"""`record`, `mark` and `cancel`: verbs that need no claim."""

from __future__ import annotations

from collections.abc import Sequence

from postroom._stores.sql import rows
from postroom._stores.sql.endings import DeadLetter, Endings
from postroom._stores.sql.inserts import NewRows
from postroom._stores.sql.known_keys import KnownKeys
from postroom._stores.sql.lines import Lines
from postroom._stores.sql.locks import Locks
from postroom._stores.sql.notifications import Notifications
from postroom._stores.sql.rows import KnownKey
from postroom._stores.sql.statements import SqlProgram, Statement, StoredTime, current_time
from postroom._stores.sql.steps import Steps
from postroom.spi import Box, Draft, Ending, Filter, Key, KeyStatus, Mark, State


class Keys:
    """The verbs of `KeyStore`."""

    def __init__(
        self,
        *,
        known_keys: KnownKeys,
        new_rows: NewRows,
        lines: Lines,
        endings: Endings,
        locks: Locks,
        notifications: Notifications,
        steps: Steps,
    ) -> None:
        self._steps = steps
        self._known_keys = known_keys
        self._new_rows = new_rows
        self._lines = lines
        self._endings = endings
        self._locks = locks
        self._notifications = notifications

    def record(self, box: Box, drafts: Sequence[Draft]) -> SqlProgram[list[KeyStatus]]:
        """Records keys that are new; returns what is known of each. Locks no queue row that a worker needs."""
        now = yield from current_time()
        yield from self._locks.keys(box, [draft.key for draft in drafts], progress=False)
        key_statuses: list[KeyStatus] = []
        for draft in drafts:
            key_statuses.append((yield from self._record(box, draft, now)))
        return key_statuses

    def _record(self, box: Box, draft: Draft, now: StoredTime) -> SqlProgram[KeyStatus]:
        # The id is reserved before anything is read: on SQLite this takes the write lock.
        [(id_,)] = yield Statement("reserve_ids", {"count": 1})
        known = yield from self._known_keys.find(box, draft.key, now, lock_progress=False)
        while known is None:
            if (yield from self._new_rows.insert_seen(box, id_, draft, now)):
                return KeyStatus(State.SEEN, is_new=True, conflict=False)
            # Another transaction has inserted the key first.
            known = yield from self._known_keys.find(box, draft.key, now, lock_progress=False)
        state = rows.STATES[known.state]
        if state is not State.DONE:
            yield Statement("set_last_seen", {"id": known.id})
            if draft.hash is not None:
                hash_ = {"hash": draft.hash, "hash_algorithm": draft.hash_algorithm}
                yield Statement("set_hash_if_missing", {"id": known.id, **hash_})
        return KeyStatus(state, is_new=False, conflict=draft.contradicts(known.hash, known.hash_algorithm, known.topic))

    def mark(self, box: Box, keys: Sequence[Key], mark: Mark, error: str | None = None) -> SqlProgram[list[bool]]:
        """Changes the state of the messages that have these keys; returns True for each that has changed."""
        now = yield from current_time()
        yield from self._locks.keys(box, keys, progress=True)
        changed: list[bool] = []
        ended: list[int] = []
        for key in keys:
            changed.append((yield from self._mark(box, key, mark, error or "", now, ended)))
        yield from self._steps.ended(box, ended)
        return changed

    def _mark(self, box: Box, key: Key, mark: Mark, error: str, now: StoredTime, ended: list[int]) -> SqlProgram[bool]:
        """Returns True if the message has changed. Adds to `ended` the steps of joins that end."""
        [(id_,)] = yield Statement("reserve_ids", {"count": 1})
        known = yield from self._known_keys.find(box, key, now, lock_progress=True)
        while known is None and mark == "processed":
            yield from self._new_rows.insert_seen(box, id_, Draft(*key), now)
            known = yield from self._known_keys.find(box, key, now, lock_progress=True)
        if known is None or known.state == rows.DONE:
            return False
        return (yield from self._move(box, known, key, mark, error, now, ended))

    def _move(
        self, box: Box, known: KnownKey, key: Key, mark: Mark, error: str, now: StoredTime, ended: list[int]
    ) -> SqlProgram[bool]:
        if mark == "processing":
            if known.state == rows.SEEN:
                yield from self._new_rows.enqueue_seen(box, known.id, Draft(*key), None, now)
            return known.state == rows.SEEN
        if mark == "skipped":
            blocks = known.state == rows.DEAD and known.line is not None
            if blocks:
                yield Statement("leave_line", {"id": known.id})
                yield from self._lines.promote(box, [known.line])
            return blocks
        if mark == "processed":
            erase = box.retention.on_success == "delete"
            ended += yield from self._endings.end(box, [known.id], Ending.MARKED, erase=erase)
            return True
        if known.state == rows.DEAD:
            return False
        if known.line is not None:
            yield from self._lines.end_batches(box, [(known.line, known.id)])
        ended += yield from self._endings.bury(box, [DeadLetter(known.id, known.line, error)])
        return True

    def cancel(self, box: Box, which: Filter) -> SqlProgram[list[Key]]:
        """Finishes waiting messages without handling them; returns their keys."""
        yield from self._locks.writes()
        waiting = yield from self._locks.waiting(box, which._replace(states=frozenset({State.WAITING})))
        erase = box.retention.on_success == "delete"
        yield from self._endings.finish(box, [message.id for message in waiting], Ending.CANCELLED, erase=erase)
        if waiting and box.order.fifo:
            yield from self._notifications.send(box)
        return [message.key for message in waiting]
