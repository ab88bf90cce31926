"""`find`, `counts` and `boxes`: reading without changing."""

from __future__ import annotations

from postroom._stores.sql import rows
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.rows import Row
from postroom._stores.sql.statements import Parameters, SqlProgram, Statement
from postroom.spi import Box, Counts, Filter, State, StoredMessage

NEARBY = 10_000
"""Messages of all boxes in which a page is searched first, before all of its box is read."""


class Finding:
    """Finds and counts messages."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def find(self, box: Box, which: Filter) -> SqlProgram[list[StoredMessage]]:
        """Returns the messages that match the filter, in id order."""
        if which.blocking:  # a message that blocks a line is dead, and still in line
            which = which._replace(states=frozenset({State.DEAD}))
        if which.is_by_name:
            found = yield from self._find_named(box, which)
            in_line = [row for row in found if not which.blocking or row[rows.LINE] is not None]
            messages = [message for message in self._messages(in_line) if which.fits(message)]
            return messages[: which.limit]
        parameters = _filter_parameters(box, which)
        if which.states == frozenset({State.DEAD}):
            found = yield Statement("find_dead", parameters)
        else:
            found = yield Statement("find_nearby", parameters | {"nearby": NEARBY})
            if len(found) < which.limit:
                found = yield Statement("find_in_box", parameters)
        return self._messages(found)

    def find_waiting(self, box: Box, which: Filter) -> SqlProgram[list[StoredMessage]]:
        """Returns the waiting messages that match the filter, in id order."""
        if which.is_by_name:
            return (yield from self.find(box, which))
        return self._messages((yield Statement("find_waiting", _filter_parameters(box, which))))

    def _find_named(self, box: Box, which: Filter) -> SqlProgram[list[Row]]:
        """Returns the rows that the filter names, in id order. They are few: the caller applies the rest of the
        filter."""
        if which.ids is None and which.keys is None:
            by_id: list[Row] = yield Statement("find_by_message_id", {"box": box.key, "message_id": which.message_id})
            return by_id
        found: dict[int, Row] = {}
        if which.ids:
            ids = self._engine.array(sorted(set(which.ids)))
            found |= {row[rows.ID]: row for row in (yield Statement("find_by_ids", {"box": box.key, "ids": ids}))}
        for message_id in sorted({key.message_id for key in which.keys or ()}):
            named = yield Statement("find_by_message_id", {"box": box.key, "message_id": message_id})
            found |= {row[rows.ID]: row for row in named}
        return [found[id_] for id_ in sorted(found)]

    def _messages(self, found: list[Row]) -> list[StoredMessage]:
        return [rows.message_of(self._engine, row) for row in found]

    def boxes(self) -> SqlProgram[list[str]]:
        """Returns the keys of the boxes that have messages."""
        return [box for (box,) in (yield Statement("list_boxes"))]

    def counts(self, box: Box) -> SqlProgram[Counts]:
        """Returns the number of messages in each state."""
        found = yield Statement("count_queue", {"box": box.key})
        [(done,)] = yield Statement("count_done", {"box": box.key})
        counted = {rows.STATES[code]: count for code, count in found}
        return {state: counted.get(state, 0) for state in State} | {State.DONE: done}


def _filter_parameters(box: Box, which: Filter) -> Parameters:
    return {
        "box": box.key,
        "after": which.after,
        "limit": which.limit,
        "topic": which.topic,
        "source": which.source,
        "group_id": which.group,
        "correlation_id": which.correlation_id,
        "blocking": int(which.blocking),
        **{state.value: int(which.states is None or state in which.states) for state in State},
    }
