"""Splits claimed messages into units of work: one message, a batch of one topic, or the front of one group."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from postroom._boxes.handlers import Handler, Handlers
from postroom._kernel.message import HeldMessage


class WorkUnit(NamedTuple):
    """Messages that one handler gets: together, or one after the other if it takes one message.

    For a handler that takes one message, a unit may contain several groups, one after the other.
    """

    handler: Handler | None
    """None if their topic has no handler."""
    messages: list[HeldMessage]
    ordered: bool
    """Whether the first message of a group that does not succeed ends the group: the rest of it is given back."""


UNITS_PER_WORKER = 4
"""Into how many units the messages of a claim are split for each worker: while one handles a slow message, the others
do the rest."""

Chain = deque[WorkUnit]
"""Units that must be done one after the other. Different chains may be done at the same time."""


class Backlog:
    """Chains in hand that are not begun, in order; and how many messages wait for each handler with a limit."""

    def __init__(self) -> None:
        self._chains: deque[Chain] = deque()
        self.waiting: Counter[Handler] = Counter()

    def __bool__(self) -> bool:
        return bool(self._chains)

    def extend(self, chains: Iterable[Chain]) -> None:
        for chain in chains:
            self._chains.append(chain)
            self._count(chain, 1)

    def resume(self, chain: Chain) -> None:
        """Puts the rest of a chain that has begun before all others."""
        self._chains.appendleft(chain)
        self._count(chain, 1)

    def take(self, is_free: Callable[[WorkUnit], bool]) -> Chain | None:
        """Removes and returns the first chain whose next unit can begin."""
        for index, chain in enumerate(self._chains):
            if is_free(chain[0]):
                del self._chains[index]
                self._count(chain, -1)
                return chain
        return None

    def clear(self) -> list[Chain]:
        """Removes and returns all chains."""
        chains = list(self._chains)
        self._chains.clear()
        self.waiting.clear()
        return chains

    def _count(self, chain: Chain, sign: int) -> None:
        handler = chain[0].handler
        if handler is not None and handler.concurrency is not None:
            self.waiting[handler] += sign * sum(len(unit.messages) for unit in chain)


def plan(messages: list[HeldMessage], handlers: Handlers, *, fifo: bool, concurrency: int = 1) -> Iterator[Chain]:
    """Splits messages into chains that may be done at the same time: whole groups, or messages without a group.

    For a handler that takes one message, a unit is as small as `concurrency` workers need to share the work evenly.
    """
    units = UNITS_PER_WORKER * concurrency
    groups: dict[str | None, list[HeldMessage]] = {}
    by_topic: dict[str, list[HeldMessage]] = {}
    if fifo:
        for message in messages:
            groups.setdefault(message.group, []).append(message)
        messages = groups.pop(None, [])
    for members in groups.values():
        # A batch must not overtake another topic of its group, so only neighbours of one topic are together.
        runs = [(handlers.get(topic), list(run)) for topic, run in groupby(members, _topic)]
        if len(runs) == 1 and _is_plain(runs[0][0]):
            by_topic.setdefault(members[0].topic, []).extend(members)
            continue
        chunks = ((handler, chunk) for handler, run in runs for chunk in _chunks(run, handler, len(run)))
        yield deque(WorkUnit(handler, chunk, ordered=True) for handler, chunk in chunks)
    for topic, same in by_topic.items():
        for chunk in _chunks_of_groups(same, len(same) // units):
            yield deque([WorkUnit(handlers.get(topic), chunk, ordered=True)])
    for topic, same in _by_topic(messages).items():
        handler = handlers.get(topic)
        for chunk in _chunks(same, handler, len(same) // units):
            yield deque([WorkUnit(handler, chunk, ordered=False)])


def _by_topic(messages: list[HeldMessage]) -> dict[str, list[HeldMessage]]:
    if messages and len(set(map(_topic, messages))) == 1:
        return {messages[0].topic: messages}
    by_topic: dict[str, list[HeldMessage]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, []).append(message)
    return by_topic


def _chunks(messages: list[HeldMessage], handler: Handler | None, most: int) -> Iterator[list[HeldMessage]]:
    size = max(most, 1) if _is_plain(handler) else (handler.batch if handler else None) or 1
    for start in range(0, len(messages), size):
        yield messages[start : start + size]


def _chunks_of_groups(messages: list[HeldMessage], least: int) -> Iterator[list[HeldMessage]]:
    chunk: list[HeldMessage] = []
    for message in messages:
        if len(chunk) >= least and chunk and chunk[-1].group != message.group:
            yield chunk
            chunk = []
        chunk.append(message)
    yield chunk


_topic = attrgetter("topic")


def _is_plain(handler: Handler | None) -> bool:
    return handler is not None and handler.is_plain
