"""The verbs that inbox and outbox share: what goes in, and the work queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from postroom._faces import check, codec, deaths, duplicates
from postroom._faces.drafts import MISSING, NewMessage, draft_of
from postroom._faces.sending import TypedMessage, enqueue_verb
from postroom._faces.transaction import NOT_GIVEN, resolve
from postroom._kernel.message import Claim, Draft, Key, Message, OnConflict, OnDuplicate, Receipt
from postroom._kernel.policy import Box
from postroom._kernel.program import Program, call, verb
from postroom._kernel.queries import Ask, Counts, Filter, Purge, Reaped
from postroom._kernel.settlement import Held, Settlement, Target
from postroom._kernel.states import State
from postroom.errors import (
    AmbiguousMessageId,
    ArgumentTypeError,
    ArgumentValueError,
    FeatureMissing,
    MessageNotFound,
)

DEFAULT_LEASE_SECONDS = 30
DEFAULT_BATCH_SIZE = 50
PURGE_BATCH = 1000

Claimed = Message[Any] | Claim | Key | str
"""How a claimed message is named: by itself, by its claim, by its key, or by its bare message id."""

Named = Message[Any] | Receipt | Key | int | str
"""How any message is named: by itself, by its receipt, its key, its id, or, in an outbox, its bare message id."""


class BoxVerbs:
    """What every box can do, in both colours. Verbs that write take `tx=`, your open transaction."""

    def __init__(self, box: Box, store: Any) -> None:
        self.box = box
        self._store = store

    @property
    def name(self) -> str:
        return self.box.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.box.name!r} on {self._store.name}>"

    def _draft(self, new: NewMessage) -> Draft:
        draft = draft_of(new, self.box)
        if draft.collapse_key is not None and not self._store.features.collapse:
            raise FeatureMissing(f"{self._store.name} cannot collapse messages: leave out collapse_key")
        return draft

    # -- in ------------------------------------------------------------------------------------------------------

    @enqueue_verb
    def enqueue(
        self,
        topic: Any,
        payload: Any = MISSING,
        *,
        source: str | None = None,
        message_id: str | None = None,
        correlation_id: str | None = None,
        group: str | None = None,
        collapse_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        due: datetime | None = None,
        expires: datetime | None = None,
        received_at: datetime | None = None,
        hash: bytes | None = None,  # noqa: A002 - the word of the domain
        hash_algorithm: str = "sha256",
        on_conflict: OnConflict = "update",
        revive_dead: bool = False,
        on_duplicate: OnDuplicate | None = None,
        tx: Any = NOT_GIVEN,
    ) -> Program[Receipt]:
        """Store a message, once. The receipt says whether it was new.

        Pass a topic and a payload, or one typed message (a dataclass, a msgspec Struct, a pydantic model). With `tx`
        the message is there when, and only when, your transaction commits.
        """
        new = NewMessage(
            topic,
            payload,
            source,
            message_id,
            correlation_id,
            group,
            collapse_key,
            headers,
            due,
            expires,
            received_at,
            hash,
            hash_algorithm,
            on_conflict,
            revive_dead,
            on_duplicate,
        )
        drafts = [self._draft(new)]
        receipts = yield call(self._store.put, self.box, drafts, tx=resolve(tx, self._store))
        if drafts[0].on_duplicate == "raise":
            duplicates.raise_if_refused(drafts, receipts)
        return receipts[0]

    @verb
    def enqueue_many(
        self, messages: Iterable[NewMessage | TypedMessage], *, tx: Any = NOT_GIVEN
    ) -> Program[list[Receipt]]:
        """Store many in one transaction: all of them, or none. Returns one receipt each, in order.

        Takes up to 100,000 `NewMessage`s and typed messages. A store without transactions (Redis, memory) writes
        `write_batch_size` of them in one step, and each step is all or nothing.
        """
        if isinstance(messages, str | bytes | NewMessage) or not isinstance(messages, Iterable):
            raise ArgumentTypeError(f"messages must be a list of NewMessage, not {type(messages).__name__}")
        items = list(islice(messages, check.MAX_BATCH + 1))
        if len(items) > check.MAX_BATCH:
            raise ArgumentValueError(
                f"messages has more than {check.MAX_BATCH:,} items, the most that enqueue_many takes: call it several "
                "times"
            )
        drafts = [self._draft(item if isinstance(item, NewMessage) else NewMessage(item)) for item in items]
        transaction = resolve(tx, self._store)
        if not drafts:
            return []
        if self._store.features.transactional or len(drafts) <= self.box.write_batch_size:
            receipts = yield call(self._store.put, self.box, drafts, tx=transaction)
        else:
            receipts = yield from self._put_in_steps(drafts)
        duplicates.raise_if_refused(drafts, receipts)
        return receipts

    def _put_in_steps(self, drafts: list[Draft]) -> Program[list[Receipt]]:
        """A server that runs one script at a time serves its other clients between the steps."""
        receipts: list[Receipt] = []
        size = self.box.write_batch_size
        for begin in range(0, len(drafts), size):
            try:
                receipts += yield call(self._store.put, self.box, drafts[begin : begin + size], tx=None)
            except Exception as error:
                error.add_note(f"the first {begin} of {len(drafts)} messages are stored")
                raise
        return receipts

    # -- the work queue ------------------------------------------------------------------------------------------

    @verb
    def claim(
        self,
        owner: UUID,
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
        batch_size: int = DEFAULT_BATCH_SIZE,
        *,
        topics: Iterable[str] | None = None,
        tx: Any = NOT_GIVEN,
    ) -> Program[list[Message[Any]]]:
        """Lease up to `batch_size` messages that are due and free. Nobody else gets them until the lease ends."""
        ask = Ask(
            check.owner(owner), check.lease(lease_seconds), check.count("batch_size", batch_size), _topics(topics)
        )
        messages = yield call(self._store.claim, self.box, ask, tx=resolve(tx, self._store))
        return [codec.decode(message) for message in messages]

    @verb
    def ack(self, owner: UUID, messages: Iterable[Claimed], *, tx: Any = NOT_GIVEN) -> Program[list[bool]]:
        """Done. Answers, for each message, whether the owner still held it; what it no longer held is left alone."""
        return (yield from self._settle(owner, messages, Settlement.done, tx))

    @verb
    def abandon(
        self,
        owner: UUID,
        messages: Iterable[Claimed],
        *,
        last_error: str | None = None,
        delay: timedelta | None = None,
        tx: Any = NOT_GIVEN,
    ) -> Program[list[bool]]:
        """Count an attempt and try again later: after `delay`, or as the box's backoff says.

        This verb never gives up: it is the room's own worker that fails a message after `max_attempts`. Where you
        write the loop yourself, look at `message.attempt` and call `fail`.
        """
        error = check.optional_error("last_error", last_error, self._store.errors.redact)
        check.optional_duration("delay", delay)
        return (
            yield from self._settle(
                owner, messages, lambda target: Settlement.retry(target, delay=delay, error=error), tx
            )
        )

    @verb
    def release(
        self, owner: UUID, messages: Iterable[Claimed], *, delay: timedelta | None = None, tx: Any = NOT_GIVEN
    ) -> Program[list[bool]]:
        """Give messages back without counting an attempt."""
        check.optional_duration("delay", delay)
        return (yield from self._settle(owner, messages, lambda target: Settlement.release(target, delay=delay), tx))

    def _fail(self, owner: UUID, messages: Iterable[Claimed], error: Any, tx: Any) -> Program[list[bool]]:
        reason = check.error_text("error", error, self._store.errors.redact)
        items = _items(messages)
        dead = yield from self._settle(owner, items, lambda target: Settlement.dead(target, error=reason), tx)
        for item, is_dead in zip(items, dead, strict=True):
            if is_dead:
                deaths.record(self._store.name, self.box, item, "failed", reason)
        return dead

    def _settle(
        self, owner: UUID, messages: Iterable[Claimed], settle: Callable[[Target], Settlement], tx: Any
    ) -> Program[list[bool]]:
        check.owner(owner)
        settlements = [settle(_target(owner, item)) for item in _items(messages)]
        transaction = resolve(tx, self._store)
        if not settlements:
            return []
        return (yield call(self._store.settle, self.box, settlements, tx=transaction))

    @verb
    def renew(
        self,
        owner: UUID,
        messages: Iterable[Message[Any] | Claim],
        lease_seconds: float = DEFAULT_LEASE_SECONDS,
    ) -> Program[list[bool]]:
        """Keep leases for `lease_seconds` from now. Answers which of them still held."""
        check.owner(owner)
        lease = check.lease(lease_seconds)
        claims = [_claim(owner, item) for item in _items(messages)]
        if not claims:
            return []
        return (yield call(self._store.renew, self.box, claims, lease))

    @verb
    def reap(self) -> Program[Reaped]:
        """Free every lease that has passed, and bury what is past `expires`. Claims do both too, one by one."""
        total = Reaped(0, 0)
        while True:
            found = yield call(self._store.reap, self.box, PURGE_BATCH)
            total = Reaped(total.freed + found.freed, total.expired + found.expired)
            if max(found) < PURGE_BATCH:
                return total

    # -- looking -------------------------------------------------------------------------------------------------

    @verb
    def get(self, message_id: str, source: str | None = None) -> Program[Message[Any]]:
        """The message with this id. Raises MessageNotFound, or AmbiguousMessageId where several sources have it."""
        which = Filter(message_id=check.text("message_id", message_id), source=check.optional_text("source", source))
        found = yield call(self._store.find, self.box, which)
        if not found:
            raise MessageNotFound(f"there is no message {message_id!r} in {self.box.kind} {self.box.name!r}")
        if len({message.source for message in found}) > 1:
            raise AmbiguousMessageId
        return codec.decode(found[-1])

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
    ) -> Program[list[Message[Any]]]:
        """Messages in id order. For the next page, pass the last one's id as `after`."""
        which = _filter(states, topic, source, group, correlation_id, after, limit)
        found = yield call(self._store.find, self.box, which)
        return [codec.decode(message) for message in found]

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
    ) -> Program[list[Message[Any]]]:
        """What was given up: each with `last_error` and, as `completed_at`, when it died.

        With `blocking`, only those that hold up their group (`on_dead="block"`).
        """
        which = _filter([State.DEAD], topic, source, group, correlation_id, after, limit)._replace(
            blocking=bool(blocking)
        )
        found = yield call(self._store.find, self.box, which)
        return [codec.decode(message) for message in found]

    @verb
    def counts(self) -> Program[Counts]:
        """How many messages stand in each state."""
        return (yield call(self._store.counts, self.box))

    # -- dead letters and cleaning -------------------------------------------------------------------------------

    @verb
    def replay(
        self,
        messages: Iterable[Message[Any] | Receipt | int] | None = None,
        *,
        topic: str | None = None,
        source: str | None = None,
        group: str | None = None,
        correlation_id: str | None = None,
        limit: int = 100,
        tx: Any = NOT_GIVEN,
    ) -> Program[list[Key]]:
        """Let dead letters be tried again, with new budgets and in their old place: those given, or those that fit.

        Answers the keys of those that were dead and now wait.
        """
        transaction = resolve(tx, self._store)
        which = _filter([State.DEAD], topic, source, group, correlation_id, 0, limit)
        if messages is not None:
            ids = tuple(_id(item) for item in _items(messages))
            if not ids:
                return []
            which = which._replace(ids=ids, limit=len(ids))
        return (yield call(self._store.replay, self.box, which, tx=transaction))

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
        tx: Any = NOT_GIVEN,
    ) -> Program[list[Key]]:
        """End waiting messages before they are handled: those given, or those that fit.

        They are done, with the ending `cancelled`, and their keys stay known. A message that a worker has claimed is
        left alone. Returns the keys of those that were cancelled.
        """
        transaction = resolve(tx, self._store)
        if all(each is None for each in (messages, topic, source, group, correlation_id)):
            raise ArgumentTypeError(
                "cancel needs to know which messages: pass messages, keys or ids, or a topic, source, group or "
                "correlation_id"
            )
        which = _filter([State.WAITING], topic, source, group, correlation_id, 0, limit)
        if messages is not None:
            which = which._replace(**_names(self.box, messages))
            if not (which.ids or which.keys):
                return []
        return (yield call(self._store.cancel, self.box, which, tx=transaction))

    @verb
    def blocked_groups(self, *, limit: int = 100) -> Program[list[str]]:
        """Groups that a dead letter holds up (`on_dead="block"`). Go on with `skip_blocked`, or `replay(group=...)`."""
        found = yield call(self._store.find, self.box, _filter([State.DEAD], limit=limit)._replace(blocking=True))
        return list(dict.fromkeys(message.group for message in found))

    @verb
    def skip_blocked(self, group: str, *, tx: Any = NOT_GIVEN) -> Program[list[Key]]:
        """Let a blocked group go on without its dead letters, which stay dead; answers their keys."""
        transaction = resolve(tx, self._store)
        which = _filter([State.DEAD], group=check.text("group", group), limit=check.MAX_BATCH)._replace(blocking=True)
        found = yield call(self._store.find, self.box, which)
        keys = [message.key for message in found]
        skipped = (yield call(self._store.mark, self.box, keys, "skipped", tx=transaction)) if keys else []
        return [key for key, done in zip(keys, skipped, strict=True) if done]

    @verb
    def purge(
        self,
        state: State | str | None = None,
        *,
        older_than: timedelta | None = None,
        batch_size: int = PURGE_BATCH,
    ) -> Program[int]:
        """Delete old finished messages, in batches of short transactions; answers how many.

        Without a state, as the box's retention says: done messages, and dead ones where `dead_retention` is set.
        """
        size = check.count("batch_size", batch_size)
        total = 0
        for target, age in self._purges(state, check.optional_duration("older_than", older_than, zero=True)):
            while True:
                deleted = yield call(self._store.purge, self.box, Purge(target, age, size))
                total += deleted
                if deleted < size:
                    break
        return total

    def _purges(self, state: State | str | None, older_than: timedelta | None) -> list[tuple[State, timedelta]]:
        keeping = self.box.keeping
        if state is None:
            if older_than is not None:
                raise ArgumentTypeError("older_than needs a state: purge('done', older_than=...)")
            return list(keeping.ages.items())
        target = _state(state)
        if target in {State.WAITING, State.CLAIMED}:
            raise ArgumentValueError(f"{target} messages are not finished and cannot be purged; fail them first")
        if older_than is None and target is not State.DONE:
            raise ArgumentTypeError(f"purging {target} messages needs older_than, such as timedelta(days=30)")
        return [(target, keeping.retention if older_than is None else older_than)]


def _items(messages: Any) -> Sequence[Any]:
    """A list of whatever was passed; a message alone counts as one, though it is a tuple."""
    if isinstance(messages, Message | Claim | Key | Receipt):
        return [messages]
    if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
        raise ArgumentTypeError(f"messages must be a list, not {type(messages).__name__}")
    return list(messages)


def _target(owner: UUID, item: Any) -> Target:
    claim = item.claim if isinstance(item, Message) else item
    if isinstance(claim, Claim):
        return claim if claim.owner is owner or claim.owner == owner else claim._replace(owner=owner)
    if isinstance(item, Message):
        return Held(owner, item.message_id, item.source)
    if isinstance(item, Key):
        return Held(owner, check.text("message_id", item.message_id), check.text("source", item.source))
    return Held(owner, check.text("message_id", item))


def _claim(owner: UUID, item: Any) -> Claim:
    claim = item.claim if isinstance(item, Message) else item
    if not isinstance(claim, Claim):
        raise ArgumentTypeError("only claimed messages can be renewed: pass what claim() returned")
    return claim._replace(owner=owner)


def _id(item: Any) -> int:
    if isinstance(item, Message | Receipt):
        return item.id
    return check.count("message id", item, most=2**63 - 1)


def _names(box: Box, messages: Any) -> dict[str, Any]:
    """What was passed as the `ids` and `keys` of a filter."""
    items = [messages] if isinstance(messages, str | int) else _items(messages)
    keys = tuple(_key(box, item) for item in items if isinstance(item, Key | str))
    ids = tuple(_id(item) for item in items if not isinstance(item, Key | str))
    return {"ids": ids or None, "keys": keys or None}


def _key(box: Box, item: Key | str) -> Key:
    if isinstance(item, Key):
        return Key(check.text("source", item.source), check.text("message_id", item.message_id))
    if box.kind == "inbox":
        raise ArgumentTypeError(
            "an inbox recognises a message by source and message_id, and a str is only one of them: "
            "pass Key(source, message_id), or the id of its receipt"
        )
    return Key(box.name, check.text("message_id", item))


def _topics(topics: Any) -> frozenset[str] | None:
    if topics is None:
        return None
    if isinstance(topics, str):
        raise ArgumentTypeError("topics must be a list of topics, not one str")
    if not isinstance(topics, Iterable):
        raise ArgumentTypeError(f"topics must be a list of topics, not {type(topics).__name__}")
    names = frozenset(check.text("topic", name) for name in topics)
    if not names:
        raise ArgumentValueError("topics must not be empty; leave it out to claim any topic")
    return names


def _state(value: Any) -> State:
    try:
        return State(value)
    except ValueError:
        raise ArgumentValueError(f"there is no state {value!r}; there are {', '.join(State)}") from None


def _filter(
    states: Iterable[State] | None,
    topic: str | None = None,
    source: str | None = None,
    group: str | None = None,
    correlation_id: str | None = None,
    after: int = 0,
    limit: int = 100,
) -> Filter:
    if after != 0:
        check.count("after", after, most=2**63 - 1)
    if isinstance(states, str) or not isinstance(states, Iterable | None):
        raise ArgumentTypeError(f"states must be a list of states, not {type(states).__name__}")
    return Filter(
        None if states is None else frozenset(_state(state) for state in states),
        None,
        check.optional_text("topic", topic),
        check.optional_text("source", source),
        None,
        check.optional_text("group", group),
        check.optional_text("correlation_id", correlation_id),
        after,
        check.count("limit", limit),
    )
