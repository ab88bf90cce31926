"""Messages that a worker claims again while an exchange hands in the outcome of its earlier claim.

Two exchanges may be under way. If the store stores the outcome first and then runs the claim, but the claim returns
first, the worker gets a message that it still has in hand. When the other exchange returns, the worker knows: if the
outcome was stored, the message is new work. Otherwise the earlier lease had ended, and the worker hands in the outcome
again under the newer claim.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from postroom._kernel.message import AnyMessage, HeldMessage


@dataclass(slots=True)
class PendingReclaim:
    """The messages of one claim that must wait until other exchanges have returned."""

    undecided: set[int]
    """Messages whose earlier outcome may be stored or not."""
    reclaimed: list[AnyMessage]
    behind: list[HeldMessage]
    """New messages of the same groups, which must not overtake the reclaimed ones."""
    refused: set[int] = field(default_factory=set)
    """Messages whose earlier outcome was not stored."""

    @property
    def new_work(self) -> list[AnyMessage]:
        return [message for message in self.reclaimed if message.id not in self.refused]


class Reclaims:
    """All pending reclaims of a worker."""

    def __init__(self) -> None:
        self._pending: list[PendingReclaim] = []

    def __bool__(self) -> bool:
        return bool(self._pending)

    def defer(self, reclaimed: list[AnyMessage], received: list[HeldMessage]) -> list[HeldMessage]:
        """Keeps the reclaimed messages, and those behind them in their groups, until the earlier outcomes are known.
        Returns the others of `received`."""
        groups: Collection[str | None] = {message.group for message in reclaimed} - {None}
        behind = [message for message in received if message.group in groups]
        self._pending.append(PendingReclaim({message.id for message in reclaimed}, reclaimed, behind))
        return [message for message in received if message.group not in groups]

    def decide(self, id_: int, *, is_stored: bool) -> PendingReclaim | None:
        """Notes whether the earlier outcome of a message is stored. Returns the reclaim that is decided by it."""
        for pending in self._pending:
            if id_ in pending.undecided:
                pending.undecided.remove(id_)
                pending.refused |= set() if is_stored else {id_}
                if not pending.undecided:
                    self._pending.remove(pending)
                    return pending
                return None
        return None

    def clear(self) -> None:
        self._pending.clear()
