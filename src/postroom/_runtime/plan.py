"""From claimed messages to pieces of work: one message, a batch of one topic, or the prefix of one group."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from postroom._faces.handlers import Handler, Handlers
from postroom._kernel.message import Message


class Piece(NamedTuple):
    """Messages that one handler gets together, as a batch; or one after the other, if it takes one.

    For a plain handler a piece may have several groups, each in a row."""

    handler: Handler | None
    """None where nobody handles their topic."""
    messages: list[Message[Any]]
    ordered: bool
    """The first of a group that does not succeed ends it: what follows of the group is given back."""


SHARES = 4
"""Pieces for each worker of what was claimed: one that meets a slow message leaves the others to the rest."""

Line = deque[Piece]
"""Pieces that must be done one after the other."""


class Backlog:
    """Lines that are in hand and not begun, in order; and how many messages wait for each handler that has a limit."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque()
        self.waiting: Counter[Handler] = Counter()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def extend(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._lines.append(line)
            self._count(line, 1)

    def go_on_with(self, line: Line) -> None:
        """It has begun, and comes before the others."""
        self._lines.appendleft(line)
        self._count(line, 1)

    def next(self, is_free: Callable[[Piece], bool]) -> Line | None:
        """Take the first line that can go on."""
        for index, line in enumerate(self._lines):
            if is_free(line[0]):
                del self._lines[index]
                self._count(line, -1)
                return line
        return None

    def clear(self) -> list[Line]:
        lines = list(self._lines)
        self._lines.clear()
        self.waiting.clear()
        return lines

    def _count(self, line: Line, sign: int) -> None:
        handler = line[0].handler
        if handler is not None and handler.concurrency is not None:
            self.waiting[handler] += sign * sum(len(piece.messages) for piece in line)


def plan(messages: list[Message[Any]], handlers: Handlers, *, fifo: bool, concurrency: int = 1) -> Iterator[Line]:
    """Lines that may be done at the same time: pieces of whole groups, or of what has no group.

    For a plain handler, a piece is as small as `concurrency` workers need to share the work evenly.
    """
    shares = SHARES * concurrency
    groups: dict[str | None, list[Message[Any]]] = {}
    in_rows: dict[str, list[Message[Any]]] = {}
    if fifo:
        for message in messages:
            groups.setdefault(message.group, []).append(message)
        messages = groups.pop(None, [])
    for members in groups.values():
        # Neighbours of one topic: a batch must not overtake another topic of its group.
        runs = [(handlers.get(topic), list(run)) for topic, run in groupby(members, _topic)]
        if len(runs) == 1 and _is_plain(runs[0][0]):
            in_rows.setdefault(members[0].topic, []).extend(members)
            continue
        pieces = ((handler, chunk) for handler, run in runs for chunk in _chunks(run, handler, len(run)))
        yield deque(Piece(handler, chunk, ordered=True) for handler, chunk in pieces)
    for topic, rows in in_rows.items():
        for chunk in _chunks_of_groups(rows, len(rows) // shares):
            yield deque([Piece(handlers.get(topic), chunk, ordered=True)])
    by_topic: dict[str, list[Message[Any]]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, []).append(message)
    for topic, same in by_topic.items():
        handler = handlers.get(topic)
        for chunk in _chunks(same, handler, len(same) // shares):
            yield deque([Piece(handler, chunk, ordered=False)])


def _chunks(messages: list[Message[Any]], handler: Handler | None, most: int = 1) -> Iterator[list[Message[Any]]]:
    size = max(most, 1) if _is_plain(handler) else (handler.batch if handler else None) or 1
    for start in range(0, len(messages), size):
        yield messages[start : start + size]


def _chunks_of_groups(messages: list[Message[Any]], least: int) -> Iterator[list[Message[Any]]]:
    chunk: list[Message[Any]] = []
    for message in messages:
        if len(chunk) >= least and chunk and chunk[-1].group != message.group:
            yield chunk
            chunk = []
        chunk.append(message)
    yield chunk


_topic = attrgetter("topic")


def _is_plain(handler: Handler | None) -> bool:
    return handler is not None and handler.is_plain
