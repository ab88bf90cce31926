"""The verbs `reap` and `purge`: expired leases and old messages. The janitor of a room calls them too."""

from __future__ import annotations

from datetime import timedelta

from postroom._boxes import check, selection
from postroom._boxes.base import BoxBase
from postroom._kernel.program import Program, call, verb
from postroom._kernel.queries import Purge, Reaped
from postroom._kernel.states import State
from postroom.errors import ArgumentTypeError, ArgumentValueError

PURGE_BATCH = 1000


class CleaningVerbs(BoxBase):
    """Verbs that free expired leases and delete old messages."""

    @verb
    def reap(self) -> Program[Reaped]:
        """Frees every lease that has expired, and makes messages past their `expires` dead.

        A claim does the same for the messages that it meets, so this verb is needed only where no worker runs.

        Returns:
            `Reaped(freed, expired)`: how many leases were freed and how many messages have died.
        """
        total = Reaped(0, 0)
        while True:
            found = yield call(self._store.reap, self._box, PURGE_BATCH)
            total = Reaped(total.freed + found.freed, total.expired + found.expired)
            if max(found) < PURGE_BATCH:
                return total

    @verb
    def purge(
        self,
        state: State | str | None = None,
        *,
        older_than: timedelta | None = None,
        batch_size: int = PURGE_BATCH,
    ) -> Program[int]:
        """Deletes old finished messages, in batches of one short transaction each.

        Args:
            state: `"done"`, `"dead"` or `"seen"`. None: as the retention of the box has it, done messages, and dead
                ones if `dead_retention` is set.
            older_than: the age. None: the `retention` of the box, for done messages only.
            batch_size: how many messages one transaction deletes: 1000 by default.

        Returns:
            How many messages were deleted.

        Raises:
            ArgumentTypeError: an age without a state, or a state without the age that it needs.
            ArgumentValueError: waiting and claimed messages cannot be purged.
        """
        size = check.count("batch_size", batch_size)
        total = 0
        for target, age in self._purges(state, check.optional_duration("older_than", older_than, zero=True)):
            while True:
                deleted = yield call(self._store.purge, self._box, Purge(target, age, size))
                total += deleted
                if deleted < size:
                    break
        return total

    def _purges(self, state: State | str | None, older_than: timedelta | None) -> list[tuple[State, timedelta]]:
        """Returns the states to purge, each with its age."""
        retention = self._box.retention
        if state is None:
            if older_than is not None:
                raise ArgumentTypeError("older_than needs a state: purge('done', older_than=...)")
            return list(retention.ages.items())
        target = selection.state_named(state)
        if target in {State.WAITING, State.CLAIMED}:
            raise ArgumentValueError(f"{target} messages are not finished and cannot be purged; fail them first")
        if older_than is None and target is not State.DONE:
            raise ArgumentTypeError(f"purging {target} messages needs older_than, such as timedelta(days=30)")
        return [(target, retention.done_age if older_than is None else older_than)]
