"""The messages in hand of a worker: claimed, and their outcomes not stored yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from postroom._boxes.handlers import Handler, Handlers
from postroom._kernel.message import Claim, HeldMessage, Lease, StoredMessage
from postroom._kernel.policy import Box, is_suspect
from postroom._kernel.settlement import ClaimSettlement
from postroom._runtime.reclaims import PendingReclaim, Reclaims


class Received(NamedTuple):
    """What a worker does with the messages of a claim."""

    ready: list[HeldMessage]
    """Handlers can begin with them."""
    behind: list[HeldMessage]
    """They are behind messages of their groups that this worker still handles: they must be released."""


class InHand:
    """The messages in hand, with their leases."""

    def __init__(self, box: Box, store: str, handlers: Handlers, on_removal: Callable[[], None]) -> None:
        """`store`: its name. `on_removal`: called after messages were removed."""
        self._box = box
        self._store = store
        self._on_removal = on_removal
        self._handlers = handlers
        self._lease_seconds = box.work.lease.total_seconds()
        self._messages: dict[int, HeldMessage] = {}
        self._reclaims = Reclaims()
        self._second_half_from = math.inf
        """When the first lease enters its second half."""
        self.suspect: int | None = None
        """The suspect in hand, if there is one. It may have killed its workers, so it is handled while nothing else is
        in hand, and nothing else is claimed until it is settled."""

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[HeldMessage]:
        return iter(self._messages.values())

    def __contains__(self, message: HeldMessage) -> bool:
        return self._messages.get(message.id) is message

    def group_of(self, claim: Claim) -> str | None:
        message = self._messages.get(claim.id)
        return None if message is None else message.group

    # -- after a claim -------------------------------------------------------------------------------------------

    def receive(self, messages: Sequence[StoredMessage], started: float, is_pending: Callable[[int], bool]) -> Received:
        """Takes claimed messages in hand. Returns those that handlers can begin with, and those to release.

        `started`: when the claim began, from which the leases count here. `is_pending`: returns True if a message has
        an outcome that is not known to be stored.
        """
        ends = started + self._lease_seconds
        self._second_half_from = min(self._second_half_from, (started + ends) / 2)
        received: list[HeldMessage] = []
        reclaimed: list[StoredMessage] = []
        continued: set[str | None] = set()
        in_hand, handler_of, store = self._messages, self._handlers.get, self._store
        for message in messages:
            claim = message.claim
            if claim is None:
                raise TypeError("the store returned a message that is not claimed")
            id_ = message.id
            earlier = in_hand.get(id_)
            if earlier is None:
                handler = handler_of(message.topic)
                try:  # most payloads are valid JSON: `_decoded`, without its calls
                    decode = handler.decode.json if handler is not None and message.format == "json" else None
                    payload = decode(message.payload) if decode is not None else _decoded(message, handler)
                except Exception:  # noqa: BLE001 - the validation of a user's type may raise anything
                    payload = _decoded(message, handler)
                held = in_hand[id_] = message.held(payload, Lease(claim, ends, store))
                received.append(held)
                if message.lost_leases and self._is_suspect(message):
                    self.suspect = id_
            else:
                # Its lease had ended, and the claim came before a renewal could fail. The handler goes on under the
                # new claim.
                lease = earlier.lease
                lease.claim, lease.ends, lease.lost = claim, ends, False
                if is_pending(id_):
                    reclaimed.append(message)  # or the outcome is stored, and this is new work
                else:
                    continued.add(message.group)
        behind: list[HeldMessage] = []
        if continued and self._box.order.fifo:
            # They must not overtake a message of their group whose handler goes on.
            behind = [held for held in received if held.group is not None and held.group in continued]
            received = [held for held in received if held.group is None or held.group not in continued]
        return Received(self._reclaims.defer(reclaimed, received) if reclaimed else received, behind)

    def _is_suspect(self, message: StoredMessage) -> bool:
        return is_suspect(self._box, deliveries=message.deliveries - 1, lost_leases=message.lost_leases)

    # -- after a settlement --------------------------------------------------------------------------------------

    def settle(self, outcomes: Sequence[ClaimSettlement], stored: Sequence[bool]) -> list[tuple[ClaimSettlement, bool]]:
        """Removes the messages whose outcomes are stored. Returns the outcomes that are not stored or have a delay."""
        unusual: list[tuple[ClaimSettlement, bool]] = []
        in_hand = self._messages
        for settlement, is_stored in zip(outcomes, stored, strict=True):
            if settlement.delay or not is_stored:
                unusual.append((settlement, is_stored))
            if is_stored:
                claim = settlement.target
                id_ = claim.id
                message = in_hand.get(id_)
                # `is` first: nearly always it is in hand under the same claim.
                if message is not None and ((held := message.lease.claim) is claim or held.fence == claim.fence):
                    del in_hand[id_]
        self._removed()
        return unusual

    def remove(self, claim: Claim, *, is_lost: bool) -> None:
        """Removes a message if it is in hand under this claim."""
        message = self._messages.get(claim.id)
        if message is not None and message.lease.claim.fence == claim.fence:
            del self._messages[claim.id]
            message.lease.lost |= is_lost
            self._removed()

    def _removed(self) -> None:
        if self.suspect is not None and self.suspect not in self._messages:
            self.suspect = None
        self._on_removal()

    def newer_claim(self, claim: Claim) -> Claim | None:
        """Returns the claim under which a message is in hand, if this worker has claimed it again since `claim`."""
        message = self._messages.get(claim.id)
        return None if message is None or message.lease.claim == claim else message.lease.claim

    @property
    def has_pending_reclaims(self) -> bool:
        return bool(self._reclaims)

    def decide_reclaim(self, claim: Claim, *, is_stored: bool) -> PendingReclaim | None:
        """Notes whether the outcome of an earlier claim is stored. Returns the reclaim that is decided by it."""
        return self._reclaims.decide(claim.id, is_stored=is_stored)

    def resume(self, decided: PendingReclaim) -> list[HeldMessage]:
        """Returns the messages of a decided reclaim that are still in hand, as new work."""
        for message in decided.new_work:
            earlier = self._messages.get(message.id)
            if earlier is not None:
                payload = _decoded(message, self._handlers.get(message.topic))
                self._messages[message.id] = message.held(payload, earlier.lease)
        waiting = (self._messages.get(message.id) for message in (*decided.new_work, *decided.behind))
        return [message for message in waiting if message is not None]

    def clear(self) -> None:
        self._messages.clear()
        self._reclaims.clear()
        self.suspect = None

    # -- leases --------------------------------------------------------------------------------------------------

    def may_have_expired(self, now: float) -> tuple[int, ...]:
        """Returns the messages whose leases are in their second half and may end before a claim that begins now reaches
        the store. A claim excludes them: a worker must not take a message from itself."""
        if now < self._second_half_from:
            return ()
        half = self._lease_seconds / 2
        begins = {message.id: message.lease.ends - half for message in self}
        expiring = tuple(id_ for id_, begin in begins.items() if begin <= now)
        later = min((begin for begin in begins.values() if begin > now), default=math.inf)
        self._second_half_from = now if expiring else later
        return expiring

    def leases_changed(self) -> None:
        """The next `may_have_expired` looks at every lease."""
        self._second_half_from = 0.0

    def is_overdue(self, now: float) -> bool:
        """Returns True if a lease may have ended. The outcome is stored all the same if no other worker claims."""
        return any(message.lease.ends <= now for message in self)


def _decoded(message: StoredMessage, handler: Handler | None) -> object:
    """Returns the payload as the handler takes it, or an `Undecodable`; without a handler, as it is stored."""
    if handler is None:
        return message.payload
    return handler.decode(message.payload, message.format)
