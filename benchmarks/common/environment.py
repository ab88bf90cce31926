"""Where the cases run: one server, a database on it for each contender and case, and notes about failures."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from rich.console import Console

from benchmarks.common.contenders import Contenders
from benchmarks.common.plan import Plan
from benchmarks.common.worker_process import WorkerFailed, WorkerProcess
from benchmarks.rounds import Case, Rounds

stderr = Console(stderr=True, highlight=False)


class Environment(ABC):
    """A database is a database: contenders in different databases do not meet."""

    def __init__(self, plan: Plan, contenders: Contenders, notes: list[str] | None = None) -> None:
        self.plan = plan
        self.contenders = contenders
        self.notes = notes if notes is not None else []
        """Notes for the reader of the results."""

    @abstractmethod
    def new_database(self) -> str:
        """Creates a database and returns its name."""

    @abstractmethod
    def url(self, database: str) -> str: ...

    def settle(self, database: str) -> None:  # noqa: B027 - few servers have anything to do here
        """Do at once what the server would do some time after a database was filled."""

    def present(self, *names: str) -> tuple[str, ...]:
        return self.contenders.present(names)

    def note_missing(self) -> None:
        missing = [name for name in self.contenders.peers if name not in self.peers]
        self.notes += [f"{name} is not installed, and was left out" for name in missing]

    @property
    def peers(self) -> tuple[str, ...]:
        return self.present(*self.contenders.peers)

    def worker(self, name: str, database: str | None = None, *, groups: int = 0, install: bool = True) -> WorkerProcess:
        """A worker in a new database, or in one that has its tables already."""
        worker = WorkerProcess(self.contenders, name, self.url(database or self.new_database()), groups)
        if database is None or install:
            worker.ask("install")
        return worker

    @contextmanager
    def workers(self, names: tuple[str, ...]) -> Iterator[dict[str, WorkerProcess]]:
        """A worker for each that can be had, in its own database. A peer that fails is noted and left out."""
        with ExitStack() as stack:
            workers = {
                name: stack.enter_context(self.worker(name, self.new_database(), install=False)) for name in names
            }
            self.try_out(workers, lambda _, worker: worker.ask("install"))
            yield workers

    def try_out(self, workers: dict[str, WorkerProcess], work: Callable[[str, WorkerProcess], object]) -> None:
        """Let each do something that is not measured. A peer that fails is removed."""
        for name, worker in list(workers.items()):
            try:
                work(name, worker)
            except WorkerFailed as failure:
                self.leave_out(name, failure)
                del workers[name]

    def run(self, name: str, rounds: Rounds, contenders: Mapping[str, Callable[[], float]]) -> Case:
        """Runs a case in which contenders take rounds. A function returns its seconds per message."""
        stderr.print(f"  {name}")
        guarded = {contender: self._guarded(contender, run) for contender, run in contenders.items()}
        rates = rounds.take(1, guarded)
        return Case(name, {contender: found for contender, [found] in rates.items() if not any(map(math.isnan, found))})

    def _guarded(self, name: str, run: Callable[[], float]) -> Callable[[], tuple[float]]:
        """A peer that fails is out of the case; the others go on."""
        out = False

        def take() -> tuple[float]:
            nonlocal out
            if out:
                return (math.nan,)
            try:
                return (run(),)
            except WorkerFailed as failure:
                self.leave_out(name, failure)
                out = True
                return (math.nan,)

        return take

    def leave_out(self, name: str, failure: WorkerFailed) -> None:
        """A peer that fails is noted. Where we fail, everything ends."""
        if name not in self.contenders.peers:
            raise failure
        text = f"{name} is left out of a case: {failure}".splitlines()[0][:300]
        stderr.print(f"[red]{text}[/red]")
        self.notes.append(text)
