"""A worker process on a shared file: it delivers, claims and settles, and writes down what it did.

python -m tests.crash.worker FILE OWNER LOG MESSAGES SEED

It delivers everything, says "delivered", and begins when its parent says "go". It ends when every message is done. For
each batch that it has settled it says "settled". On "take turns", it claims and settles one batch of each box and
waits for "go". On "hold claimed" or "hold open", it stops while it holds claims, or while outcomes are written and
not committed, and says "holding".
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TextIO
from uuid import UUID

from postroom import Message, NewMessage, State
from postroom._kernel.clock import to_microseconds
from postroom.sync import Inbox, Outbox, Postroom

LEASE_SECONDS = 1.0
MOST_SECONDS = 120  # a worker that hangs must not hang its parent
NEW, CLAIM, ACK, ABANDON, RELEASE, FORGET = "new", "claim", "ack", "abandon", "release", "forget"
STALE, LATE = "stale", "late"
OUTCOMES, WEIGHTS = (ACK, ABANDON, RELEASE, FORGET), (86, 6, 6, 2)
ENDED = (ABANDON, RELEASE, FORGET)
"""After these, the message is claimed again: by this worker in one case of eight, so it happens in every run."""


def now() -> int:
    return time.time_ns() // 1000  # the store's clock, in its unit


class Parent:
    """Who started this process, at the other end of stdin and stdout."""

    order = ""

    def listen(self, seconds: float) -> None:
        """Wait for an order, or for the time to pass.

        A worker also waits here while other workers hold all messages that are left. It needs a timeout, since the end
        of a lease is not notified.
        """
        readable, _, _ = select.select([0], [], [], seconds)
        if readable:
            orders = os.read(0, 100).decode().splitlines()
            if not orders:
                sys.exit("the parent is gone")
            self.order = orders[-1]

    def hold_if(self, order: str) -> None:
        if self.order == order:
            self.say("holding")
            os.read(0, 100)  # until it is killed
            sys.exit("the parent is gone")

    def say(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


class Worker:
    """One owner, and what it knows."""

    def __init__(self, room: Postroom, db: sqlite3.Connection, owner: UUID, log: TextIO, chance: random.Random) -> None:
        self.boxes: tuple[Inbox, Outbox] = (room.inbox(), room.outbox())
        self.db, self.owner, self.log, self.chance = db, owner, log, chance
        self.parent = Parent()
        self.ended: dict[int, tuple[Inbox | Outbox, Message[Any]]] = {}

    def run(self, messages: int) -> None:
        self.deliver([str(number) for number in range(messages)])
        self.parent.say("delivered")
        self.parent.listen(MOST_SECONDS)
        if self.parent.order == "take turns":
            for box in self.boxes:
                self.work_once(box)
            self.parent.listen(MOST_SECONDS)
        while not self.all_is_done():
            worked = [self.work_once(box) for box in self.boxes]
            self.parent.listen(0 if any(worked) else 0.05)
        self.come_too_late()

    def deliver(self, ids: list[str]) -> None:
        """Every worker delivers every message, in an order of its own."""
        for box in self.boxes:
            self.chance.shuffle(ids)
            for start in range(0, len(ids), 50):
                batch = ids[start : start + 50]
                receipts = box.enqueue_many(NewMessage("topic", "text", "shop", id_) for id_ in batch)
                new = [receipt.id for receipt in receipts if receipt.is_new]
                self.note(NEW, box, [[id_] for id_ in new])

    def all_is_done(self) -> bool:
        return not any(box.find(states=[State.WAITING, State.CLAIMED], limit=1) for box in self.boxes)

    def work_once(self, box: Inbox | Outbox) -> bool:
        before = now()
        messages = box.claim(self.owner, LEASE_SECONDS, self.chance.randint(1, 20))
        self.note(CLAIM, box, [[*self.proof(message), before, now(), self.until(message)] for message in messages])
        if not messages:
            return False
        self.parent.hold_if("hold claimed")
        self.settle(STALE, box, self.old_claims(messages), partial(box.ack, self.owner))
        chosen = self.chance.choices(OUTCOMES, WEIGHTS, k=len(messages))
        by_outcome = {
            outcome: [message for message, its in zip(messages, chosen, strict=True) if its == outcome]
            for outcome in OUTCOMES
        }
        self.settle(ACK, box, by_outcome[ACK], lambda acked: self.ack_with_effects(box, acked))
        soon = timedelta(milliseconds=1)
        self.settle(ABANDON, box, by_outcome[ABANDON], lambda failed: box.abandon(self.owner, failed, delay=soon))
        self.settle(RELEASE, box, by_outcome[RELEASE], lambda released: box.release(self.owner, released))
        self.ended |= {message.id: (box, message) for what in ENDED for message in by_outcome[what]}
        self.parent.say("settled")
        return True

    def settle(
        self,
        what: str,
        box: Inbox | Outbox,
        messages: list[Message[Any]],
        verb: Callable[[list[Message[Any]]], list[bool]],
    ) -> None:
        before = now()
        kept = verb(messages)
        after = now()
        self.note(what, box, [[*self.proof(m), before, after, ours] for m, ours in zip(messages, kept, strict=True)])

    def ack_with_effects(self, box: Inbox | Outbox, messages: list[Message[Any]]) -> list[bool]:
        """The effect commits with the ack."""
        self.db.execute("BEGIN IMMEDIATE")
        kept = box.ack(self.owner, messages, tx=self.db)
        effects = [(message.id, str(self.owner)) for message, ours in zip(messages, kept, strict=True) if ours]
        self.db.executemany("INSERT INTO effects (id, owner) VALUES (?, ?)", effects)
        self.parent.hold_if("hold open")
        self.db.execute("COMMIT")
        return kept

    def old_claims(self, messages: list[Message[Any]]) -> list[Message[Any]]:
        """Returns, of messages that this worker has claimed again, the claims that ended without an ack."""
        return [self.ended.pop(message.id)[1] for message in messages if message.id in self.ended]

    def come_too_late(self) -> None:
        """Acks the claims that ended without an ack. Others have handled their messages meanwhile."""
        for box, message in self.ended.values():
            self.settle(LATE, box, [message], partial(box.ack, self.owner))

    def note(self, what: str, box: Inbox | Outbox, rows: list[list[Any]]) -> None:
        for row in rows:
            self.log.write(json.dumps([what, box.box.kind, *row]) + "\n")
        self.log.flush()

    def proof(self, message: Message[Any]) -> tuple[int, int]:
        assert message.claim is not None
        return message.id, message.claim.fence

    def until(self, message: Message[Any]) -> int:
        assert message.claim is not None
        return to_microseconds(message.claim.until)


def main(file: str, owner: str, log: str, messages: str, seed: str) -> None:
    signal.alarm(MOST_SECONDS)
    with (
        Postroom(f"sqlite:///{file}") as room,
        closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as db,
        Path(log).open("a", encoding="utf-8") as notes,
    ):
        Worker(room, db, UUID(owner), notes, random.Random(int(seed))).run(int(messages))


if __name__ == "__main__":
    main(*sys.argv[1:])
