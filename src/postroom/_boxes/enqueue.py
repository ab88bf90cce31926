"""The verbs `enqueue` and `enqueue_many`, and the overloads of `enqueue` for type checkers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol, TypeVar, Unpack, cast, overload
from uuid import UUID

from postroom._boxes import check, duplicates
from postroom._boxes.base import BoxBase
from postroom._boxes.new_message import MISSING, MessageOptions, NewMessage, TypedMessage
from postroom._boxes.transaction import NOT_GIVEN, resolve
from postroom._kernel.message import Draft, Receipt
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom.errors import ArgumentTypeError, ArgumentValueError, FeatureMissing
from postroom.spi import Tx

R_co = TypeVar("R_co", covariant=True)


class Enqueue(Protocol[R_co]):
    """`enqueue`, as a type checker sees it: a topic with a payload, or a typed message alone."""

    @overload
    def __call__(self, topic: str, payload: Any, *, tx: Tx = ..., **options: Unpack[MessageOptions]) -> R_co:
        """Stores a message once and returns its receipt."""

    @overload
    def __call__(self, topic: TypedMessage, *, tx: Tx = ..., **options: Unpack[MessageOptions]) -> R_co:
        """Stores a typed message once and returns its receipt. Its class has the topic."""


class EnqueueVerb(Protocol):
    """A `verb` with overloads, which a ParamSpec cannot have."""

    @overload
    def __get__(self, instance: Async, owner: type | None = None) -> Enqueue[Coroutine[Any, Any, Receipt]]: ...
    @overload
    def __get__(self, instance: Sync, owner: type | None = None) -> Enqueue[Receipt]: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Callable[..., object]: ...


def _enqueue_verb(function: Callable[..., Program[Receipt]]) -> EnqueueVerb:
    """Makes a verb whose signature, at run time, has the fields of `NewMessage` in place of `**options`."""
    signature = inspect.signature(function)
    *given, tx, _ = signature.parameters.values()
    known = {parameter.name for parameter in given}
    options = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(NewMessage).parameters.values()
        if parameter.name not in known
    ]
    function.__signature__ = signature.replace(parameters=[*given, *options, tx])  # type: ignore[attr-defined]
    return cast("EnqueueVerb", verb(function))


class EnqueueVerbs(BoxBase):
    """Verbs that store messages."""

    @_enqueue_verb
    def enqueue(
        self,
        topic: str | TypedMessage,
        payload: Any = MISSING,
        *,
        tx: Tx = NOT_GIVEN,
        **options: Unpack[MessageOptions],
    ) -> Program[Receipt]:
        """Stores a message once and returns its receipt, which says whether it was new.

        Pass a topic and a payload, or one typed message (a dataclass, a msgspec Struct, a pydantic model) alone.
        Deduplication, collapsing and the insert are one atomic step.

        Args:
            topic: the topic, which selects the handler; or a typed message, which has its own.
            payload: str and bytes are stored unchanged, other values as JSON. Not for a typed message.
            source: the sender. Required in an inbox, except for a typed message; by default the name of the box.
            message_id: the sender's id. Required in an inbox, except for a typed message; by default generated.
            correlation_id: an id that relates the message to others.
            group: the FIFO group. Required in a FIFO box.
            collapse_key: the message replaces waiting messages that have the same key.
            headers: a mapping of str to str.
            due: the message cannot be claimed before this time. None: at once.
            expires: the message is dead after this time, unless it is done.
            received_at: when your program received it. Stored, not used.
            hash: a content hash. Another hash for a known key is a conflict.
            hash_algorithm: the name of the algorithm (`"sha256"`). Hashes of one algorithm are compared.
            on_conflict: for a known key with another topic or hash: `"update"` (default), `"keep"` or `"reject"`.
            revive_dead: a dead message with this key waits again.
            on_duplicate: for a known key: `"update"`, `"reject"` or `"raise"`. None: as the box has it; without that
                `"reject"` for a typed message that has an id, and `"update"` for any other.
            join: the join of which the message becomes a step, in an outbox. The message that has the key becomes the
                step, also if it is known.
            tx: your open transaction: the message is stored if it commits. Left out, the write commits by itself.

        Returns:
            A `Receipt` with the status, the id, the key and the state of the message.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
            DuplicateMessage: the key is known, and `on_duplicate` is `"raise"`.
            TransactionRefused: `tx` is None, has no open transaction or is of another database; or it is left out in a
                transactional handler.
            JoinNotFound, JoinEnded, JoinFull: the join is not in this box, or takes no more steps. Nothing is stored.
            FeatureMissing: the store cannot collapse messages, cannot join a transaction, or has no joins.
        """
        try:
            new = NewMessage(topic, payload, **options)
        except TypeError as error:  # the error of a call with an unknown argument
            name = f"{type(self).__name__}.enqueue"
            raise ArgumentTypeError(str(error).replace("NewMessage.__init__", name)) from None
        drafts = [self._draft(new)]
        receipts: list[Receipt] = yield call(self._store.put, self._box, drafts, tx=resolve(tx, self._store))
        if drafts[0].on_duplicate == "raise":
            duplicates.raise_if_refused(drafts, receipts)
        return receipts[0]

    @verb
    def enqueue_many(
        self, messages: Iterable[NewMessage | TypedMessage], *, join: UUID | None = None, tx: Tx = NOT_GIVEN
    ) -> Program[list[Receipt]]:
        """Stores many messages in one transaction: all of them or none.

        A store without transactions (Redis, memory) writes `write_batch_size` messages in one step, and each step
        stores all of its messages or none. If a step fails, a note of the error has the number of stored messages.

        Args:
            messages: up to 100,000 `NewMessage`s and typed messages.
            join: the join of which all these messages become steps, in an outbox.
            tx: your open transaction: the messages are stored if it commits. Left out, the write commits by itself.

        Returns:
            One receipt per message, in order.

        Raises:
            ArgumentTypeError, ArgumentValueError: before any I/O.
            DuplicateMessage: a key is known, and `on_duplicate` of its message is `"raise"`. The others are stored.
            TransactionRefused, JoinNotFound, JoinEnded, JoinFull, FeatureMissing: as for `enqueue`.
        """
        if isinstance(messages, str | bytes | NewMessage) or not isinstance(messages, Iterable):
            raise ArgumentTypeError(f"messages must be a list of NewMessage, not {type(messages).__name__}")
        given = list(islice(messages, check.MAX_BATCH + 1))
        if len(given) > check.MAX_BATCH:
            raise ArgumentValueError(
                f"messages has more than {check.MAX_BATCH:,} items, the most that enqueue_many takes: call it several "
                "times"
            )
        new = [item if isinstance(item, NewMessage) else NewMessage(item) for item in given]
        drafts = [self._draft(item if join is None else replace(item, join=join)) for item in new]
        transaction = resolve(tx, self._store)
        if not drafts:
            return []
        receipts: list[Receipt]
        if self._features.transactional or len(drafts) <= self._box.write_batch_size:
            receipts = yield call(self._store.put, self._box, drafts, tx=transaction)
        else:
            receipts = yield from self._put_in_steps(drafts)
        duplicates.raise_if_refused(drafts, receipts)
        return receipts

    def _draft(self, new: NewMessage) -> Draft:
        draft = self._draft_of(new, self._box)
        if draft.collapse_key is not None and not self._features.collapse:
            raise FeatureMissing(f"{self._store.name} cannot collapse messages: leave out collapse_key")
        if draft.join is not None and not self._features.joins:
            raise FeatureMissing(f"{self._store.name} has no joins: leave out join")
        return draft

    def _put_in_steps(self, drafts: list[Draft]) -> Program[list[Receipt]]:
        """A server that runs one script at a time serves its other clients between two steps."""
        receipts: list[Receipt] = []
        size = self._box.write_batch_size
        for begin in range(0, len(drafts), size):
            try:
                receipts += yield call(self._store.put, self._box, drafts[begin : begin + size], tx=None)
            except Exception as error:
                error.add_note(f"the first {begin} of {len(drafts)} messages are stored")
                raise
        return receipts
