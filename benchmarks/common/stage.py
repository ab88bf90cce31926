"""Where the cases run: one server, a place on it for each contender and case, and a list of what went wrong."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from rich.console import Console

from benchmarks.common.crew import Hand, WorkerFailed
from benchmarks.common.lineup import Lineup
from benchmarks.common.plan import Plan
from benchmarks.rounds import Case, Turns

stderr = Console(stderr=True, highlight=False)


class Stage(ABC):
    """A place is a database: contenders in different places do not meet."""

    def __init__(self, plan: Plan, lineup: Lineup, notes: list[str] | None = None) -> None:
        self.plan = plan
        self.lineup = lineup
        self.notes = notes if notes is not None else []
        """What whoever reads the results must know."""

    @abstractmethod
    def place(self) -> str:
        """A new one; its name."""

    @abstractmethod
    def url(self, place: str) -> str: ...

    def settle(self, place: str) -> None:  # noqa: B027 - few servers have anything to do here
        """Do at once what the server would do some time after a place was filled."""

    def present(self, *names: str) -> tuple[str, ...]:
        return self.lineup.present(names)

    def note_missing(self) -> None:
        missing = [name for name in self.lineup.peers if name not in self.peers]
        self.notes += [f"{name} is not installed, and was left out" for name in missing]

    @property
    def peers(self) -> tuple[str, ...]:
        return self.present(*self.lineup.peers)

    def hand(self, name: str, place: str | None = None, *, groups: int = 0, install: bool = True) -> Hand:
        """A worker in a new place, or in one that has its tables already."""
        hand = Hand(self.lineup, name, self.url(place or self.place()), groups)
        if place is None or install:
            hand.ask("install")
        return hand

    @contextmanager
    def hands(self, names: tuple[str, ...]) -> Iterator[dict[str, Hand]]:
        """A worker for each that can be had, in a place of its own. A peer that fails is noted and left out."""
        with ExitStack() as stack:
            hands = {name: stack.enter_context(self.hand(name, self.place(), install=False)) for name in names}
            self.try_out(hands, lambda _, hand: hand.ask("install"))
            yield hands

    def try_out(self, hands: dict[str, Hand], work: Callable[[str, Hand], object]) -> None:
        """Let each do something that is not measured. A peer that fails is not among the hands any more."""
        for name, hand in list(hands.items()):
            try:
                work(name, hand)
            except WorkerFailed as failure:
                self.leave_out(name, failure)
                del hands[name]

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
        if name not in self.lineup.peers:
            raise failure
        text = f"{name} is left out of a case: {failure}".splitlines()[0][:300]
        stderr.print(f"[red]{text}[/red]")
        self.notes.append(text)
