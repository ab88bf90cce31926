"""A box as the runtime sees it."""

from __future__ import annotations

from postroom._boxes.cleaning import CleaningVerbs
from postroom._boxes.handlers import Handlers
from postroom._kernel.policy import Box
from postroom._kernel.program import Async
from postroom._room_store import RoomStore


class HandledBox(CleaningVerbs, Async):
    """The policies of a box, its handlers, and the verbs that the janitor calls."""

    def __init__(self, box: Box, store: RoomStore) -> None:
        super().__init__(box, store)
        self.handlers = Handlers(box, store)

    @property
    def claimed_topics(self) -> frozenset[str] | None:
        """The topics that a worker claims; None is any."""
        return frozenset(handler.topic for handler in self.handlers) if self.box.work.only_handled else None
