"""Verbs that only read: one message, messages by filter, counts."""

from __future__ import annotations

from collections.abc import Iterable

from postroom._boxes import check, selection
from postroom._boxes.base import BoxBase
from postroom._kernel.message import AnyMessage
from postroom._kernel.program import Program, call, verb
from postroom._kernel.queries import Counts, Filter
from postroom._kernel.states import State
from postroom.errors import AmbiguousMessageId, MessageNotFound


class FindVerbs(BoxBase):
    """Verbs that read messages by filter, and counts."""

    @verb
    def find(
        self,
        *,
        states: Iterable[State] | None = None,
        topic: str | None = None,
        source: str | None = None,
        group: str | None = None,
        correlation_id: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> Program[list[AnyMessage]]:
        """Returns messages that fit, in id order. An argument that is None does not restrict.

        Args:
            states: only messages in these states.
            topic: only messages of this topic.
            source: only messages of this sender.
            group: only messages of this group.
            correlation_id: only messages with this correlation id.
            after: only messages with a larger id: for the next page, the id of the last message of this one.
            limit: how many at most: 100 by default.

        Returns:
            The messages, JSON payloads decoded to plain values.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        which = selection.fitting(states, topic, source, group, correlation_id, after=after, limit=limit)
        return self._decoded((yield call(self._store.find, self._box, which)))

    @verb
    def dead_letters(
        self,
        *,
        topic: str | None = None,
        source: str | None = None,
        group: str | None = None,
        correlation_id: str | None = None,
        blocking: bool = False,
        after: int = 0,
        limit: int = 100,
    ) -> Program[list[AnyMessage]]:
        """Returns dead letters that fit, in id order. An argument that is None does not restrict.

        Args:
            topic: only dead letters of this topic.
            source: only dead letters of this sender.
            group: only dead letters of this group.
            correlation_id: only dead letters with this correlation id.
            blocking: only dead letters that block their group (`on_dead="block"`).
            after: only messages with a larger id: for the next page, the id of the last message of this one.
            limit: how many at most: 100 by default.

        Returns:
            The messages. `last_error` is why, and `completed_at` when each of them died.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
        """
        which = selection.fitting(
            [State.DEAD], topic, source, group, correlation_id, after=after, limit=limit, blocking=bool(blocking)
        )
        return self._decoded((yield call(self._store.find, self._box, which)))

    @verb
    def counts(self) -> Program[Counts]:
        """Returns the number of messages in each state.

        Returns:
            A mapping from `State` to a number. Every state is a key.
        """
        counts: Counts = yield call(self._store.counts, self._box)
        return counts


class LookupVerbs(FindVerbs):
    """Verbs that only read."""

    @verb
    def get(self, message_id: str, source: str | None = None) -> Program[AnyMessage]:
        """Returns one message, in whatever state it is.

        Args:
            message_id: the id that its sender gave it.
            source: its sender. None: any.

        Returns:
            The message, its JSON payload decoded to plain values.

        Raises:
            MessageNotFound: the box has no such message.
            AmbiguousMessageId: several sources use the id, and `source` is None.
        """
        which = Filter(message_id=check.text("message_id", message_id), source=check.optional_text("source", source))
        found = yield call(self._store.find, self._box, which)
        if not found:
            raise MessageNotFound(f"there is no message {message_id!r} in {self._box.kind} {self._box.name!r}")
        if len({message.source for message in found}) > 1:
            raise AmbiguousMessageId
        return self._decode(found[-1])
