"""The verb `cancel`: ends waiting messages before they are handled."""

from __future__ import annotations

from collections.abc import Iterable

from postroom._boxes import check, selection
from postroom._boxes.base import BoxBase
from postroom._boxes.selection import Named
from postroom._boxes.transaction import NOT_GIVEN, resolve
from postroom._kernel.message import Key
from postroom._kernel.program import Program, call, verb
from postroom._kernel.states import State
from postroom.errors import ArgumentTypeError
from postroom.spi import Tx


class CancelVerbs(BoxBase):
    """The verb that cancels messages."""

    @verb
    def cancel(
        self,
        messages: Named | Iterable[Named] | None = None,
        *,
        topic: str | None = None,
        source: str | None = None,
        group: str | None = None,
        correlation_id: str | None = None,
        limit: int = check.MAX_BATCH,
        tx: Tx = NOT_GIVEN,
    ) -> Program[list[Key]]:
        """Ends waiting messages before they are handled: they are done, with the ending `cancelled`.

        Their keys stay known. A message that a worker has claimed is unchanged.

        Args:
            messages: these messages, one or several: messages, receipts, keys or ids, in an outbox also message ids.
                None: all that fit the other arguments, of which at least one is needed.
            topic: only messages of this topic.
            source: only messages of this sender.
            group: only messages of this group.
            correlation_id: only messages with this correlation id.
            limit: how many at most: 100,000 by default.
            tx: your open transaction. Left out, the write commits by itself.

        Returns:
            The keys of the messages that were cancelled, in id order.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        transaction = resolve(tx, self._store)
        if all(each is None for each in (messages, topic, source, group, correlation_id)):
            raise ArgumentTypeError(
                "cancel needs to know which messages: pass messages, keys or ids, or a topic, source, group or "
                "correlation_id"
            )
        which = selection.fitting([State.WAITING], topic, source, group, correlation_id, limit=limit)
        if messages is not None:
            which = selection.by_name(which, self._box, messages)
            if not (which.ids or which.keys):
                return []
        cancelled: list[Key] = yield call(self._store.cancel, self._box, which, tx=transaction)
        return cancelled
