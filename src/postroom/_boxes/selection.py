"""How arguments select messages: from messages, claims, keys, ids and filters to the values that stores take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from postroom._boxes import check
from postroom._kernel.message import AnyMessage, Claim, Key, Message, Receipt
from postroom._kernel.policy import Box
from postroom._kernel.queries import Filter
from postroom._kernel.settlement import NamedTarget, Target
from postroom._kernel.states import State
from postroom.errors import ArgumentTypeError, ArgumentValueError
from postroom.spi import Step

Claimed = AnyMessage | Claim | Key | str
"""A claimed message: the message, its claim, its key, or its message id alone."""

Named = AnyMessage | Receipt | Key | int | str
"""Any message: the message, its receipt, its key, its id, or, in an outbox, its message id alone."""

T = TypeVar("T")


def items(messages: Iterable[T]) -> Sequence[T]:
    """Returns the argument as a list. A message, claim, key or receipt, though a tuple, is a list of one."""
    given: object = messages
    if isinstance(given, Message | Claim | Key | Receipt):
        return [given]  # type: ignore[list-item]
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ArgumentTypeError(f"messages must be a list, not {type(given).__name__}")
    return list(messages)


def target(owner: UUID, item: Claimed) -> Target:
    """Returns what a settlement applies to. Only a message and a claim have the fence."""
    claim = item.claim if isinstance(item, Message) else item
    if isinstance(claim, Claim):
        return claim if claim.owner is owner or claim.owner == owner else claim._replace(owner=owner)
    if isinstance(item, Message):
        return NamedTarget(owner, item.message_id, item.source)
    if isinstance(item, Key):
        return NamedTarget(owner, check.text("message_id", item.message_id), check.text("source", item.source))
    return NamedTarget(owner, check.text("message_id", item))


def claim_of(owner: UUID, item: AnyMessage | Claim) -> Claim:
    """Returns the claim of a message, for this owner."""
    claim = item.claim if isinstance(item, Message) else item
    if not isinstance(claim, Claim):
        raise ArgumentTypeError("only claimed messages can be renewed: pass what claim() returned")
    return claim._replace(owner=owner)


def id_of(item: AnyMessage | Receipt | int) -> int:
    """Returns the id of a message in its store."""
    if isinstance(item, Message | Receipt):
        return item.id
    return check.count("message id", item, most=2**63 - 1)


def step(box: Box, message: Named) -> Step:
    """Returns how a store finds a message that is a step of a join."""
    return _key(box, message) if isinstance(message, Key | str) else id_of(message)


def position(after: int) -> int:
    """Returns the number after which a page begins."""
    return after if after == 0 else check.count("after", after, most=2**63 - 1)


def by_name(which: Filter, box: Box, messages: Named | Iterable[Named]) -> Filter:
    """Returns the filter, restricted to these messages."""
    named: Sequence[Named] = [messages] if isinstance(messages, str | int) else items(messages)  # type: ignore[arg-type]
    keys = tuple(_key(box, item) for item in named if isinstance(item, Key | str))
    ids = tuple(id_of(item) for item in named if not isinstance(item, Key | str))
    return which._replace(ids=ids or None, keys=keys or None)


def _key(box: Box, item: Key | str) -> Key:
    if isinstance(item, Key):
        return Key(check.text("source", item.source), check.text("message_id", item.message_id))
    if box.kind == "inbox":
        raise ArgumentTypeError(
            "an inbox recognises a message by source and message_id, and a str is only one of them: "
            "pass Key(source, message_id), or the id of its receipt"
        )
    return Key(box.name, check.text("message_id", item))


def topic_names(topics: Iterable[str] | None) -> frozenset[str] | None:
    """Returns the topics of a claim; None is any topic."""
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


def state_named(value: State | str) -> State:
    """Returns a state by its value."""
    try:
        return State(value)
    except ValueError:
        raise ArgumentValueError(f"there is no state {value!r}; there are {', '.join(State)}") from None


def fitting(
    states: Iterable[State] | None,
    topic: str | None = None,
    source: str | None = None,
    group: str | None = None,
    correlation_id: str | None = None,
    *,
    after: int = 0,
    limit: int = 100,
    blocking: bool = False,
) -> Filter:
    """Returns a filter of these fields, each checked. None does not restrict."""
    if isinstance(states, str) or not isinstance(states, Iterable | None):
        raise ArgumentTypeError(f"states must be a list of states, not {type(states).__name__}")
    return Filter(
        states=None if states is None else frozenset(state_named(state) for state in states),
        topic=check.optional_text("topic", topic),
        source=check.optional_text("source", source),
        group=check.optional_text("group", group),
        correlation_id=check.optional_text("correlation_id", correlation_id),
        after=position(after),
        limit=check.count("limit", limit),
        blocking=blocking,
    )
