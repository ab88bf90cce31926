"""Where the cases run: one server, a database per contender and case, and a list of what went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec

from rich.console import Console
from tools.servers.postgres import PostgresServer

from benchmarks.postgres.crew import Hand, WorkerFailed
from benchmarks.postgres.plan import Plan
from benchmarks.postgres.subjects import AWA, PEERS
from benchmarks.rounds import Case, Turns

stderr = Console(stderr=True, highlight=False)


@dataclass
class Stage:
    server: PostgresServer
    plan: Plan
    notes: list[str] = field(default_factory=list)
    """What whoever reads the results must know."""
    _databases: int = 0

    def database(self) -> str:
        """A new one; its name."""
        self._databases += 1
        name = f"bench_{self._databases}"
        self.server.create_database(name)
        return name

    def hand(self, name: str, database: str | None = None, *, groups: int = 0, install: bool = True) -> Hand:
        """A worker on a new database, or on one that has its tables already."""
        hand = Hand(name, self.server.url(database or self.database()), groups)
        if database is None or install:
            hand.ask("install")
        return hand

    @contextmanager
    def hands(self, names: tuple[str, ...]) -> Iterator[dict[str, Hand]]:
        """A worker for each that can be had, on a database of its own. A peer that fails is noted and left out."""
        with ExitStack() as stack:
            hands = {name: stack.enter_context(self.hand(name, self.database(), install=False)) for name in names}
            for name, hand in list(hands.items()):
                try:
                    hand.ask("install")
                except WorkerFailed as failure:
                    self.leave_out(name, failure)
                    del hands[name]
            yield hands

    def run(self, name: str, turns: Turns, contenders: Mapping[str, Callable[[], float]]) -> Case:
        """A case in which contenders take turns. A turn answers its seconds per message."""
        stderr.print(f"  {name}")
        guarded = {contender: self._guarded(contender, turn) for contender, turn in contenders.items()}
        rates = turns.take(1, guarded)
        return Case(name, {contender: found for contender, [found] in rates.items() if not any(map(math.isnan, found))})

    def _guarded(self, name: str, turn: Callable[[], float]) -> Callable[[], tuple[float]]:
        """A peer that fails is out of the case; the others go on."""
        out = False

        def take() -> tuple[float]:
            nonlocal out
            if out:
                return (math.nan,)
            try:
                return (turn(),)
            except WorkerFailed as failure:
                self.leave_out(name, failure)
                out = True
                return (math.nan,)

        return take

    def leave_out(self, name: str, failure: WorkerFailed) -> None:
        """A peer that fails is noted. Where we fail, everything ends."""
        if name not in PEERS:
            raise failure
        text = f"{name} is left out of a case: {failure}".splitlines()[0][:300]
        stderr.print(f"[red]{text}[/red]")
        self.notes.append(text)

    def query(self, database: str, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        return self.server.query(statement, *parameters, database=database)


def present(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those whose packages are installed."""
    modules = {AWA: "awa"}
    return tuple(name for name in names if name not in PEERS or find_spec(modules.get(name, name)) is not None)
