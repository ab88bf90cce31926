"""How messages leave the queue without a success, and how dead ones come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from postroom._stores.sql.engine import Engine
from postroom._stores.sql.lines import Lines
from postroom._stores.sql.statements import Many, SqlProgram, Statement, StoredTime
from postroom._stores.sql.steps import Steps
from postroom.spi import Box, Ending


class DeadLetter(NamedTuple):
    """A message that is dead, or is about to be."""

    id: int
    group: str | None
    """The FIFO line in which it is."""
    error: str
    counts: bool = False
    """Whether the execution that led to this counts as an attempt."""


class Endings:
    """Finishes messages without a claim, makes messages dead, and revives dead ones."""

    def __init__(self, engine: Engine, lines: Lines, steps: Steps) -> None:
        self._engine = engine
        self._lines = lines
        self._steps = steps

    def finish(self, box: Box, ids: Sequence[int], ending: Ending, *, erase: bool = False) -> SqlProgram[None]:
        """Makes messages done: superseded, marked, cancelled or discarded. `erase`: removes their content."""
        yield from self._steps.ended(box, (yield from self.end(box, ids, ending, erase=erase)))

    def end(self, box: Box, ids: Sequence[int], ending: Ending, *, erase: bool) -> SqlProgram[list[int]]:
        """Like `finish`, and wakes no continuations. Returns the ids of watched steps, for `Steps.ended`."""
        if ids:
            yield Statement("finish", {"ids": self._engine.array(sorted(ids)), "ending": ending.value})
        return (yield from self.dequeue(box, sorted(ids), erase=erase))

    def dequeue(self, box: Box, ids: Sequence[int], *, erase: bool) -> SqlProgram[list[int]]:
        """Deletes the queue rows of messages that are done. Returns the ids of watched steps, for `Steps.ended`."""
        if not ids:
            return []
        parameters = {"ids": self._engine.array(list(ids))}
        gone = yield Statement("dequeue", parameters)
        if erase:
            yield Statement("erase_content", parameters)
        yield from self._lines.promote(box, [group for _, group, _ in gone])
        return [id_ for id_, _, watched in gone if watched]

    def make_dead(self, box: Box, letters: Sequence[DeadLetter]) -> SqlProgram[None]:
        """Makes messages dead, or discards them if the box keeps no dead letters."""
        yield from self._steps.ended(box, (yield from self.bury(box, letters)))

    def bury(self, box: Box, letters: Sequence[DeadLetter]) -> SqlProgram[list[int]]:
        """Like `make_dead`, and wakes no continuations. Returns the ids of steps, for `Steps.ended`."""
        if not letters:
            return []
        if box.retention.dead_letter == "discard":
            errors = [(letter.id, letter.error, int(letter.counts)) for letter in letters]
            yield Many("set_error", ("id", "error", "counted"), sorted(errors))
            return (yield from self.end(box, [letter.id for letter in letters], Ending.DISCARDED, erase=True))
        blocks = box.order.on_dead == "block"
        dead = [(letter.id, letter.error, letter.group if blocks else None, int(letter.counts)) for letter in letters]
        dead.sort(key=lambda row: row[0])
        yield Many("make_dead", ("id", "error", "group_id", "counted"), dead)
        yield from self._lines.promote(box, [letter.group for letter in letters])
        return [letter.id for letter in letters]

    def revive(self, box: Box, dead: Sequence[tuple[int, str | None]], now: StoredTime) -> SqlProgram[None]:
        """Makes dead messages wait again, in their old place in line: ids and groups. Fences go on, so a claim from
        before the death stays invalid."""
        lines = sorted((id_, group if box.order.fifo else None) for id_, group in dead)
        yield Many("revive", ("id", "group_id", "at"), [(id_, line, None if line else now) for id_, line in lines])
        yield Many("clear_expires", ("id",), [(id_,) for id_, _ in lines])
        yield from self._lines.promote(box, [line for _, line in lines])
