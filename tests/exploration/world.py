"""A box with two workers, seen from outside: through the verbs of its store, and with the rules that must hold.

The names of the messages are their group and their number: `g1`, `g2`, `h1`. The workers are `a` and `b`. A world
remembers what a caller can know: each claim that was ever returned, and which delays were asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from postroom._kernel.backoff import Backoff
from postroom.spi import Box, Claim, ClaimRequest, Delivery, Draft, Filter, Key, Order, Settlement, State, StoredMessage
from postroom.testing import FrozenClock

SOURCE = "s"
TOPICS = ("t", "u")
OWNERS = {"a": UUID(int=1), "b": UUID(int=2)}
DUE = timedelta(seconds=5)
DELAY = timedelta(seconds=5)
LEASE = timedelta(seconds=10)
"""All times are multiples of five seconds: so few differences between times are possible, and they can be compared."""
EVERYTHING = Filter(limit=1000)
BLOCKING = Filter(states=frozenset({State.DEAD}), blocking=True, limit=1000)
NO_LIMIT: dict[str, Any] = {"max_lost_leases": None} if "max_lost_leases" in Delivery.__dataclass_fields__ else {}
"""With a limit to lost leases the number of states would grow with it."""
DELIVERY = Delivery(backoff=Backoff.immediate(), **NO_LIMIT)
"""A message that is abandoned without a delay is ready at once."""
BLOCK = Box("inbox", "block", Order(fifo=True, on_dead="block"), DELIVERY)
UNBLOCK = Box("inbox", "unblock", Order(fifo=True), DELIVERY)
LIMITED = Delivery(backoff=Backoff.immediate(), max_deliveries=2, **NO_LIMIT)
BLOCK_LIMITED = Box("inbox", "block-limited", Order(fifo=True, on_dead="block"), LIMITED)
UNBLOCK_LIMITED = Box("inbox", "unblock-limited", Order(fifo=True), LIMITED)

Snapshot = dict[str, StoredMessage]
"""Every message by its name, in id order."""


class Violation(AssertionError):
    """A rule does not hold."""


def require(condition: object, complaint: str) -> None:
    if not condition:
        raise Violation(complaint)


@dataclass
class World:
    """One box in one store, with its workers."""

    store: Any
    clock: FrozenClock
    box: Box
    claims: dict[str, list[Claim]] = field(default_factory=dict)
    """Every claim of each message, the newest last."""
    calls: dict[tuple[str, int], int] = field(default_factory=dict)
    """Name and fence → which call of claim returned it."""
    not_before: dict[str, datetime] = field(default_factory=dict)
    """When a message that was tried may be claimed again, where a delay was asked for."""
    tried: set[str] = field(default_factory=set)
    """Messages that were claimed or replayed: they stand in line, whatever their due time is."""
    call: int = 0
    _seen: Snapshot | None = None
    """What `find` returned since the last change."""

    # -- what can be seen ----------------------------------------------------------------------------------------

    def now(self) -> datetime:
        return self.clock.now()

    def look(self) -> Snapshot:
        if self._seen is None:
            self._seen = {message.message_id: message for message in self.store.find(self.box, EVERYTHING)}
        return self._seen

    def change(self) -> Any:
        """The store, for a verb that writes."""
        self._seen = None
        return self.store

    def blocking(self) -> set[str]:
        if self.box.order.on_dead != "block":
            return set()
        return {message.message_id for message in self.store.find(self.box, BLOCKING)}

    def is_live(self, message: StoredMessage) -> bool:
        return message.claim is not None and message.claim.until > self.now()

    def is_early(self, message: StoredMessage) -> bool:
        """Whether it is not in line because its due time lies ahead."""
        if message.due is None or message.state is not State.WAITING or message.message_id in self.tried:
            return False
        return message.due > self.now()

    def is_ready(self, message: StoredMessage) -> bool:
        """Whether a member in line may be claimed, as far as it alone is concerned."""
        if message.state is State.CLAIMED:
            return not self.is_live(message)
        at = self.not_before.get(message.message_id)
        return message.state is State.WAITING and (at is None or at <= self.now())

    def lines(self) -> dict[str, list[StoredMessage]]:
        """The members in line of each group, in order."""
        blocking, lines = self.blocking(), dict[str, list[StoredMessage]]()
        for name, message in self.look().items():
            unfinished = message.state in {State.WAITING, State.CLAIMED} or name in blocking
            if unfinished and not self.is_early(message):
                lines.setdefault(str(message.group), []).append(message)
        return lines

    def is_current(self, message: StoredMessage | None, claim: Claim) -> bool:
        return message is not None and message.claim is not None and message.claim[:3] == claim[:3]

    # -- the verbs -----------------------------------------------------------------------------------------------

    def put(self, name: str, topic: str, due: timedelta | None = None, collapse_key: str | None = None) -> Any:
        at = None if due is None else self.now() + due
        before = self.look().get(name)
        draft = Draft(SOURCE, name, topic=topic, group=name[0], due=at, collapse_key=collapse_key)
        (receipt,) = self.change().put(self.box, [draft])
        if before is not None and before.state is State.WAITING and name in self.tried and at is not None:
            self.not_before[name] = max(at, self.not_before.get(name, at))
        self.check_holders()
        return receipt.status, len(receipt.superseded)

    def claim(self, worker: str, topics: Iterable[str] | None, limit: int) -> list[str]:
        """Claim, and check all that a claim promises; returns the names."""
        asked = None if topics is None else frozenset(topics)
        held = {message.group for message in self.look().values() if self.is_live(message)}
        messages = self.change().claim(self.box, ClaimRequest(OWNERS[worker], LEASE, limit, asked))
        self.call += 1
        names = [message.message_id for message in messages]
        require(len(messages) <= limit, f"{names} are more than {limit}")
        require(len(set(names)) == len(names), f"{names} has a message twice")
        for message in messages:
            name = message.message_id
            require(asked is None or message.topic in asked, f"{name} has another topic than {asked}")
            require(message.group not in held, f"{name} was claimed while its group was held")
            require(message.claim is not None, f"{name} has no claim")
            known = self.claims.setdefault(name, [])
            require(not known or message.claim.fence > known[-1].fence, f"the fence of {name} did not grow")
            known.append(message.claim)
            self.calls[name, message.claim.fence] = self.call
            self.tried.add(name)
            self.not_before.pop(name, None)
        self.check_order(names)
        self.check_holders()
        return names

    def settle(self, names: Iterable[str], verdicts: Iterable[str], delay: timedelta | None = None) -> list[bool]:
        """Settle with the newest claim of each message; returns which were kept."""
        pairs = [(name, verdict) for name, verdict in zip(names, verdicts, strict=False) if self.claims.get(name)]
        before = self.look()
        kept = self.change().settle(self.box, [_settlement(self.claims[n][-1], verdict, delay) for n, verdict in pairs])
        after, single = self.look(), len(pairs) == 1
        for (name, verdict), applied in zip(pairs, kept, strict=True):
            current = self.is_current(before.get(name), self.claims[name][-1])
            require(current or not applied, f"a stale claim settled {name}")
            require(applied or not current or not single, f"the claim of {name} holds, but its outcome was lost")
            if applied:
                require(after[name].state is _STATES[verdict], f"{name} is {after[name].state} after {verdict}")
            if applied and delay and verdict in {"retry", "release"}:
                self.not_before[name] = self.now() + delay
        require(any(kept) or before == after, "an outcome that was lost changed something")
        self.check_holders()
        return list(kept)

    def renew(self, worker: str) -> list[bool]:
        claims = [known[-1] for known in self.claims.values() if known[-1].owner == OWNERS[worker]]
        before = self.look()
        kept = list(self.change().renew(self.box, claims, LEASE))
        held = {message.claim[:3] for message in before.values() if message.claim is not None}
        require(kept == [claim[:3] in held for claim in claims], "renew and find do not agree on who holds a claim")
        return kept

    def reap(self) -> int:
        reaped = self.change().reap(self.box, 100)
        self.check_holders()
        return int(reaped.freed)

    def replay(self, name: str) -> bool:
        replayed = self.change().replay(self.box, Filter(message_id=name))
        if replayed:
            self.tried.add(name)
            self.not_before.pop(name, None)
        self.check_holders()
        return bool(replayed)

    def mark(self, name: str, mark: str) -> bool:
        (changed,) = self.change().mark(self.box, [Key(SOURCE, name)], mark, error="marked")
        self.check_holders()
        return bool(changed)

    def cancel(self, name: str) -> bool:
        cancelled = self.change().cancel(self.box, Filter(keys=(Key(SOURCE, name),)))
        self.check_holders()
        return bool(cancelled)

    # -- the rules -----------------------------------------------------------------------------------------------

    def check_order(self, claimed: list[str]) -> None:
        """No message is overtaken, except messages that are not in line."""
        places: dict[str, list[StoredMessage]] = self.lines() if claimed else {}
        for name in claimed:
            for other in places.get(name[0], []):
                if other.message_id == name:
                    break
                require(other.message_id in claimed, f"{name} overtook {other.message_id}")
        for group in {name[0] for name in claimed}:
            batch = [name for name in claimed if name[0] == group]
            require(batch == sorted(batch), f"{batch} is out of order")

    def check_holders(self) -> None:
        """The live leases of a group come from one call of claim; what is claimed has a claim, and nothing else."""
        holders: dict[str, set[int]] = {}
        for name, message in self.look().items():
            require((message.state is State.CLAIMED) == (message.claim is not None), f"{name}: state and claim differ")
            if message.claim is not None:
                known = self.claims.get(name)
                require(known and known[-1][:3] == message.claim[:3], f"the claim of {name} was never returned")
                if self.is_live(message):
                    holders.setdefault(name[0], set()).add(self.calls[name, message.claim.fence])
        for group, calls in holders.items():
            require(len(calls) == 1, f"{len(calls)} claims hold the group {group}")

    def check_stale_claims(self) -> None:
        """A claim that is not the current one settles and renews nothing."""
        before = self.look()
        stale = [
            claim
            for name, known in self.claims.items()
            for claim in known
            if not self.is_current(before.get(name), claim)
        ]
        if not stale:
            return
        for verdict in ("done", "retry", "dead"):
            kept = self.change().settle(self.box, [_settlement(claim, verdict, None) for claim in stale])
            require(not any(kept), f"a stale claim was settled as {verdict}")
        require(not any(self.change().renew(self.box, stale, LEASE)), "a stale claim was renewed")
        require(self.look() == before, "a stale claim changed something")


_STATES = {"done": State.DONE, "retry": State.WAITING, "release": State.WAITING, "dead": State.DEAD}


def _settlement(claim: Claim, verdict: Any, delay: timedelta | None) -> Settlement:
    if verdict == "dead":
        return Settlement.dead(claim, error="given up")
    return Settlement(claim, verdict, None if verdict == "done" else delay)
