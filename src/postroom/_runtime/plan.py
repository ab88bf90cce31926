"""From claimed messages to pieces of work: one message, a batch of one topic, or the prefix of one group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from postroom._faces.handlers import Handler, Handlers
from postroom._kernel.message import Message


class Piece(NamedTuple):
    """Messages that one worker handles together: at once, or one after the other."""

    handler: Handler | None
    """None where nobody handles their topic."""
    messages: list[Message[Any]]
    ordered: bool
    """They are one group's: the first that does not succeed ends the piece."""


def plan(messages: list[Message[Any]], handlers: Handlers, *, fifo: bool) -> Iterator[list[Piece]]:
    """Pieces in lists: the pieces of one list must be done one after the other, those of different lists need not."""
    if fifo:
        for _, line in _by_group(messages):
            yield [
                Piece(handler, chunk, ordered=True)
                for handler, run in _runs(line, handlers)
                for chunk in _chunks(run, handler)
            ]
        return
    by_topic: dict[str, list[Message[Any]]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, []).append(message)
    for topic, same in by_topic.items():
        handler = handlers.get(topic)
        for chunk in _chunks(same, handler):
            yield [Piece(handler, chunk, ordered=False)]


def _by_group(messages: list[Message[Any]]) -> Iterable[tuple[str | None, list[Message[Any]]]]:
    groups: dict[str | None, list[Message[Any]]] = {}
    for message in messages:
        groups.setdefault(message.group, []).append(message)
    return groups.items()


def _runs(line: list[Message[Any]], handlers: Handlers) -> Iterator[tuple[Handler | None, list[Message[Any]]]]:
    """Neighbours of one topic: a batch must not overtake another topic of its group."""
    for topic, run in groupby(line, key=lambda message: message.topic):
        yield handlers.get(topic), list(run)


def _chunks(messages: list[Message[Any]], handler: Handler | None) -> Iterator[list[Message[Any]]]:
    size = (handler.batch if handler else None) or 1
    for start in range(0, len(messages), size):
        yield messages[start : start + size]
