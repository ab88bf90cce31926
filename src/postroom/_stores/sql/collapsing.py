"""Collapse keys: a new message supersedes older waiting ones with the same collapse key."""

from __future__ import annotations

from postroom._stores.sql.endings import Endings
from postroom._stores.sql.statements import SqlProgram, Statement
from postroom._stores.sql.steps import Steps
from postroom.spi import Box, Draft, Ending


class Collapsing:
    """Finishes superseded messages."""

    def __init__(self, endings: Endings, steps: Steps) -> None:
        self._endings = endings
        self._steps = steps

    def supersede(self, box: Box, id_: int, draft: Draft, *, before: int) -> SqlProgram[tuple[int, ...]]:
        """Finishes the waiting messages that have the draft's collapse key and an id below `before`; returns their ids.
        `id_` is the id of the new message."""
        if draft.collapse_key is None:
            return ()
        found = yield Statement(
            "find_superseded", {"box": box.key, "collapse_key": draft.collapse_key, "before": before, "id": id_}
        )
        older = tuple(each for (each,) in found)
        yield from self._steps.superseded(box, older, id_, draft.join)
        yield from self._endings.finish(box, older, Ending.SUPERSEDED)
        return older
