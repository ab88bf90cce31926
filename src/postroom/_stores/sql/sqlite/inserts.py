"""Inserting on SQLite: several statements. They have no round trips, and executemany is the fastest bulk insert."""

from __future__ import annotations

from collections.abc import Mapping

from postroom._stores.sql.arrivals import Batch, Inserted
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.inserts import NewRows
from postroom._stores.sql.lines import line_of
from postroom._stores.sql.statements import SqlProgram, Statement, current_time
from postroom.spi import Box, Draft


class SqliteInserts:
    """Reserves ids, inserts messages, then inserts their queue rows."""

    def __init__(self, engine: Engine, new_rows: NewRows) -> None:
        self._engine = engine
        self._new_rows = new_rows

    def insert(self, box: Box, batch: Batch) -> SqlProgram[Inserted]:
        count = len(batch.drafts)
        [(last,)] = yield Statement("reserve_ids", {"count": count})
        now = yield from current_time()
        first = last - count + 1
        new = yield from self._new_rows.insert_messages(box, first, batch.drafts, now)
        asleep = yield from self._find_asleep(box, new)
        yield from self._new_rows.enqueue(box, new, now, asleep=asleep)
        ids = range(first, last + 1)
        return Inserted(ids, frozenset(ids) - new.keys())

    def _find_asleep(self, box: Box, new: Mapping[int, Draft]) -> SqlProgram[set[int]]:
        """Returns the ids of new messages behind another in line, which wakes them when it leaves. A message with a due
        time wakes no other: it may join its line late."""
        lines = {id_: line for id_, draft in new.items() if (line := line_of(box, draft)) is not None}
        if not lines:
            return set()
        groups = self._engine.array(sorted(set(lines.values())))
        found = yield Statement("find_nonempty_lines", {"box": box.key, "groups": groups})
        nonempty = {group for (group,) in found}
        asleep = set[int]()
        for id_, line in lines.items():
            if line in nonempty:
                asleep.add(id_)
            elif new[id_].due is None:
                nonempty.add(line)
        return asleep
