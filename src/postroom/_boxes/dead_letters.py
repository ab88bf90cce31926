"""The verbs `replay`, `blocked_groups` and `skip_blocked`: dead letters, and the groups that they block."""

from __future__ import annotations

from collections.abc import Iterable

from postroom._boxes import check, selection
from postroom._boxes.base import BoxBase
from postroom._boxes.transaction import NOT_GIVEN, resolve
from postroom._kernel.message import AnyMessage, Key, Receipt
from postroom._kernel.program import Program, call, verb
from postroom._kernel.states import State
from postroom.spi import Tx


class ReplayVerbs(BoxBase):
    """The verb `replay`."""

    @verb
    def replay(
        self,
        messages: Iterable[AnyMessage | Receipt | int] | None = None,
        *,
        topic: str | None = None,
        source: str | None = None,
        group: str | None = None,
        correlation_id: str | None = None,
        limit: int = 100,
        tx: Tx = NOT_GIVEN,
    ) -> Program[list[Key]]:
        """Makes dead letters wait again, in their old place in the group, with attempts and deliveries at 0.

        Args:
            messages: these dead letters: messages, receipts or ids. None: all that fit the other arguments.
            topic: only dead letters of this topic.
            source: only dead letters of this sender.
            group: only dead letters of this group.
            correlation_id: only dead letters with this correlation id.
            limit: how many at most, if `messages` is None: 100 by default.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            The keys of the messages that were dead and now wait.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        transaction = resolve(tx, self._store)
        which = selection.fitting([State.DEAD], topic, source, group, correlation_id, limit=limit)
        if messages is not None:
            ids = tuple(selection.id_of(item) for item in selection.items(messages))
            if not ids:
                return []
            which = which._replace(ids=ids, limit=len(ids))
        replayed: list[Key] = yield call(self._store.replay, self._box, which, tx=transaction)
        return replayed


class DeadLetterVerbs(ReplayVerbs):
    """Verbs for dead letters and the groups that they block."""

    @verb
    def blocked_groups(self, *, limit: int = 100) -> Program[list[str]]:
        """Returns the groups that a dead letter blocks (`on_dead="block"`).

        They continue after `skip_blocked(group)` or `replay(group=group)`.

        Args:
            limit: how many such dead letters are read at most: 100 by default.

        Returns:
            The names of the groups.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        found = yield call(self._store.find, self._box, selection.fitting([State.DEAD], limit=limit, blocking=True))
        return list(dict.fromkeys(message.group for message in found))

    @verb
    def skip_blocked(self, group: str, *, tx: Tx = NOT_GIVEN) -> Program[list[Key]]:
        """Unblocks a group without its dead letters, which stay dead.

        Args:
            group: the blocked group.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            The keys of the dead letters that blocked the group.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        transaction = resolve(tx, self._store)
        which = selection.fitting([State.DEAD], group=check.text("group", group), limit=check.MAX_BATCH, blocking=True)
        found = yield call(self._store.find, self._box, which)
        keys = [message.key for message in found]
        skipped = (yield call(self._store.mark, self._box, keys, "skipped", tx=transaction)) if keys else []
        return [key for key, done in zip(keys, skipped, strict=True) if done]
