"""Messages that a worker claims again while the outcome of its earlier claim is on its way to the store.

Two calls may be under way together. If the store runs the claim after it has stored the outcome, and the claim returns
first, the worker gets a message that it still has in hand. Whether the message is new work is known when the other call
returns: yes, if the outcome was stored. Otherwise the earlier lease had passed, and the outcome is handed in again
under the newer claim.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from postroom._kernel.message import Message


@dataclass(slots=True)
class Wait:
    """What one claim has brought and must wait."""

    unknown: set[int]
    """Messages whose earlier outcome may be stored or not."""
    again: list[Message[Any]]
    behind: list[Message[Any]]
    """New messages of the same groups: they must not overtake those before them."""
    refused: set[int] = field(default_factory=set)

    @property
    def accepted(self) -> list[Message[Any]]:
        return [message for message in self.again if message.id not in self.refused]


class ClaimedAgain:
    """All that waits."""

    def __init__(self) -> None:
        self._waits: list[Wait] = []

    def __bool__(self) -> bool:
        return bool(self._waits)

    def put_off(self, again: list[Message[Any]], held: list[Message[Any]]) -> list[Message[Any]]:
        """Returns those of `held` that need not wait."""
        groups: Collection[str | None] = {message.group for message in again} - {None}
        behind = [message for message in held if message.group in groups]
        self._waits.append(Wait({message.id for message in again}, again, behind))
        return [message for message in held if message.group not in groups]

    def learn(self, id_: int, *, stored: bool) -> Wait | None:
        """The outcome of a message was stored or not. Returns what need not wait any longer."""
        for wait in self._waits:
            if id_ in wait.unknown:
                wait.unknown.remove(id_)
                wait.refused |= set() if stored else {id_}
                if not wait.unknown:
                    self._waits.remove(wait)
                    return wait
                return None
        return None

    def clear(self) -> None:
        self._waits.clear()
