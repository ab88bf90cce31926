"""The work queue of an engine, as programs.

A program yields named statements and receives rows. It knows neither the driver nor whether it runs in sync or async
code. Each verb belongs to one part:

| part | verbs | module |
|---|---|---|
| `Arrivals` | `put` | `arrivals`, with `inserts`, `known_keys` and `collapsing` |
| `Begins` | `begin` | `begins` |
| `Claims` | `claim` | `claims`, with `fifo` and `fronts` |
| `Renewals` | `renew` | `claims` |
| `Settlements` | `settle` | `settlements`, with `endings` and `lines` |
| `Exchange` | `exchange` | `exchange` |
| `Cleaning` | `reap`, `purge`, `replay` | `cleaning` |
| `Finding` | `find`, `counts`, `boxes` | `finding` |
| `Keys` | `record`, `mark`, `cancel` | `keys` |
| `Orders` | the recorded order of a box | `orders` |
| `Attending` | what is due, and the soft lease | `attending` |

The rules are those of the memory store, and come from the kernel. What differs per engine is behind small protocols: an
engine chooses its parts (`EngineParts`), and `Queue` builds the rest from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from postroom._stores.sql.arrivals import Arrivals, Inserts
from postroom._stores.sql.attaching import Attaching
from postroom._stores.sql.attending import Attending
from postroom._stores.sql.begins import Begins, Records
from postroom._stores.sql.claims import ClaimPass, Claims, Renewals
from postroom._stores.sql.cleaning import Cleaning, ExpiredLeases
from postroom._stores.sql.collapsing import Collapsing
from postroom._stores.sql.endings import Endings
from postroom._stores.sql.engine import Engine
from postroom._stores.sql.exchange import Exchange, SettleThenClaim
from postroom._stores.sql.fifo import FifoClaims, Fronts
from postroom._stores.sql.finding import Finding
from postroom._stores.sql.inserts import NewRows
from postroom._stores.sql.joins import Joins
from postroom._stores.sql.keys import Keys
from postroom._stores.sql.known_keys import KnownKeys
from postroom._stores.sql.lines import Lines
from postroom._stores.sql.locks import Locks
from postroom._stores.sql.looks import Looks
from postroom._stores.sql.notifications import Notifications
from postroom._stores.sql.orders import Orders
from postroom._stores.sql.settlements import Settlements, Successes
from postroom._stores.sql.statements import SqlProgram
from postroom._stores.sql.steps import Steps
from postroom.spi import VERBS


class CommonParts:
    """The parts that are the same on every engine and that parts of an engine use."""

    def __init__(self, engine: Engine, notifications: Notifications) -> None:
        self.finding = Finding(engine)
        self.lines = Lines(engine)
        self.steps = Steps(engine, notifications)
        self.endings = Endings(engine, self.lines, self.steps)
        self.new_rows = NewRows(engine)


@dataclass(frozen=True, kw_only=True)
class EngineParts:
    """The parts that an engine chooses."""

    locks: Locks
    notifications: Notifications
    inserts: Inserts
    records: Records
    unordered: ClaimPass
    fronts: Fronts
    locks_groups: bool
    """Whether the statement `find_candidates` locks the groups of candidates."""
    successes: Successes
    expired_leases: ExpiredLeases
    renewals: Renewals
    exchange: Callable[[Settlements, Claims], Exchange] = SettleThenClaim


class Queue:
    """The verbs of a work queue. Each is a method of one of the parts."""

    def __init__(self, engine: Engine, common: CommonParts, chosen: EngineParts) -> None:
        finding, lines, endings, new_rows = common.finding, common.lines, common.endings, common.new_rows
        locks, notifications = chosen.locks, chosen.notifications
        collapsing = Collapsing(endings, common.steps)
        attaching = Attaching(engine, locks, notifications, common.steps)
        known_keys = KnownKeys(
            engine, locks=locks, new_rows=new_rows, lines=lines, endings=endings, collapsing=collapsing
        )
        arrivals = Arrivals(
            chosen.inserts,
            known_keys=known_keys,
            collapsing=collapsing,
            locks=locks,
            attaching=attaching,
            notifications=notifications,
        )
        fifo = FifoClaims(engine, lines=lines, locks=locks, fronts=chosen.fronts, locks_groups=chosen.locks_groups)
        looks = Looks(engine, locks=locks, endings=endings, steps=common.steps)
        claims = Claims(unordered=chosen.unordered, fifo=fifo, endings=endings, looks=looks, locks=locks)
        settlements = Settlements(
            engine,
            lines=lines,
            endings=endings,
            successes=chosen.successes,
            notifications=notifications,
            steps=common.steps,
        )
        cleaning = Cleaning(
            engine,
            expired_leases=chosen.expired_leases,
            lines=lines,
            endings=endings,
            finding=finding,
            locks=locks,
            notifications=notifications,
            steps=common.steps,
        )
        joins = Joins(engine, arrivals=arrivals, attaching=attaching, locks=locks, endings=endings, finding=finding)
        keys = Keys(
            known_keys=known_keys,
            steps=common.steps,
            new_rows=new_rows,
            lines=lines,
            endings=endings,
            locks=locks,
            notifications=notifications,
        )
        exchange = chosen.exchange(settlements, claims)
        begins = Begins(engine, chosen.records)
        self._parts = (arrivals, begins, claims, chosen.renewals, settlements, exchange, cleaning, finding, keys, joins)
        self.renewals = chosen.renewals
        self.orders = Orders(locks)
        self.attending = Attending(engine)

    def __getattr__(self, verb: str) -> Callable[..., SqlProgram[Any]]:
        """Returns the program of a verb of `postroom.spi`: the method of this name of one of the parts.

        It is called once for each verb, since it sets the attribute.
        """
        for part in self.__dict__.get("_parts", ()):
            if verb in VERBS and hasattr(part, verb):
                program: Callable[..., SqlProgram[Any]] = getattr(part, verb)
                setattr(self, verb, program)
                return program
        raise AttributeError(f"no part of the queue has a program {verb!r}")
