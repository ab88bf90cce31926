"""The base class of all box verbs: the box, its store, and the conversion of messages."""

from __future__ import annotations

from collections.abc import Iterable

from postroom._kernel.message import AnyMessage, StoredMessage
from postroom._kernel.policy import Box
from postroom._room_store import RoomStore
from postroom.spi import Features


class BoxBase:
    """A box on a store. The base of all groups of verbs."""

    def __init__(self, box: Box, store: RoomStore) -> None:
        # Imported with the first box: msgspec takes a third of the time that `import postroom` would take with it.
        from postroom._boxes.codec import decode
        from postroom._boxes.drafts import draft_of

        self._box = box
        self._store = store
        self._decode = decode
        self._draft_of = draft_of

    @property
    def box(self) -> Box:
        """The kind, the name and the policies of the box, as the verbs of `room.store` take them."""
        return self._box

    @property
    def name(self) -> str:
        """The name of the box."""
        return self._box.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._box.name!r} on {self._store.name}>"

    def _decoded(self, messages: Iterable[StoredMessage]) -> list[AnyMessage]:
        decode = self._decode
        return [decode(message) for message in messages]

    @property
    def _features(self) -> Features:
        return self._store.features
