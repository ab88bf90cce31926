"""`postroom demo`: thousands of deliveries with duplicates, failures and a killed worker, each handled once.

It is also an example: what is here and in `demo_worker` uses nothing but the public API.
"""

from __future__ import annotations

import logging
import multiprocessing
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Annotated, Literal, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from postroom import Message, NewMessage, OwnerToken, State
from postroom.cli.demo_worker import DIE, MAX_ATTEMPTS, connect, work
from postroom.cli.options import Json, print_json
from postroom.sync import Inbox, Postroom

WORKERS = 3
SOURCE = "bank"
POISON = 2
DELIVERIES_AT_ONCE = 50
PATIENCE_SECONDS = 60.0


def demo(
    *,
    messages: Annotated[int, typer.Option(min=100, max=100_000, help="How many distinct messages.")] = 3000,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the database, to look into it.")] = False,
    json: Json = False,
) -> None:
    """Show thousands of deliveries with duplicates, failures and a killed worker, each handled once."""
    logging.getLogger("postroom").addHandler(logging.NullHandler())  # its warnings are what the table counts
    console = Console(quiet=json, highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="postroom-demo-"))
    file = folder / "demo.db"
    try:
        report = play(file, messages, console)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if json:
        kept = {"file": str(file)} if keep else {}
        print_json({**asdict(report), "promises_kept": report.promises_kept, **kept})
    else:
        show(report, console)
        if keep:
            console.print(f"Look into {file}, for instance at its view postroom_inbox.", soft_wrap=True)
    if not report.promises_kept:
        raise typer.Exit(1)


@dataclass
class Report:
    """What happened."""

    deliveries: int
    messages: int
    duplicates_recognised: int = 0
    failures_retried: int = 0
    workers_killed: int = 0
    messages_it_held: int = 0
    taken_over_by_others: int = 0
    dead_letters: int = 0
    effects: int = 0
    effects_written_twice: int = 0
    lost: int = 0
    seconds: float = 0.0

    @property
    def promises_kept(self) -> bool:
        return all(expected in {None, counted} for _, counted, expected in self.lines())

    def lines(self) -> list[tuple[str, int, int | None]]:
        """A count and its expected value; None if the value is random."""
        return [
            ("deliveries", self.deliveries, None),
            ("distinct messages", self.messages, None),
            ("duplicates recognised", self.duplicates_recognised, self.deliveries - self.messages),
            ("failures retried", self.failures_retried, None),
            ("workers killed with kill -9", self.workers_killed, None),
            ("messages that it held", self.messages_it_held, None),
            ("of these, taken over by others", self.taken_over_by_others, self.messages_it_held),
            ("dead letters, of poison messages", self.dead_letters, POISON),
            ("effects written", self.effects, self.messages - POISON),
            ("effects written twice", self.effects_written_twice, 0),
            ("messages lost", self.lost, 0),
        ]


def play(file: Path, count: int, console: Console) -> Report:
    """Delivers messages, starts workers, kills one of them, and counts the results."""
    started = time.monotonic()
    ids = [f"payment-{number}" for number in range(count)]
    deliveries = ids * 2  # a sender that got no response sends again
    random.shuffle(deliveries)
    report = Report(len(deliveries), len(ids))
    with Postroom(f"sqlite:///{file}") as room:
        room.migrate()
        with closing(connect(str(file))) as db:
            # No unique constraint: if something were done twice, this table would show it.
            db.execute("CREATE TABLE effects (number INTEGER PRIMARY KEY, message_id TEXT, worker TEXT)")
        inbox = room.inbox(max_attempts=MAX_ATTEMPTS)
        with workers_on(file) as workers, Stage(inbox, workers, count, console) as stage:
            for start in range(0, len(deliveries), DELIVERIES_AT_ONCE):
                report.duplicates_recognised += deliver(inbox, deliveries[start : start + DELIVERIES_AT_ONCE])
                stage.update()
                if start >= len(deliveries) // 3:
                    stage.doom_one()
            stage.wait_until_all_is_done()
        report.workers_killed = int(stage.fate == "dead")
        report.messages_it_held = len(stage.held)
        report.taken_over_by_others = sum(was_taken_over(inbox, message) for message in stage.held)
        count_effects(report, ids, inbox, file)
    report.seconds = round(time.monotonic() - started, 1)
    return report


def deliver(inbox: Inbox, ids: list[str]) -> int:
    """Enqueues all deliveries, and returns how many were duplicates."""
    poison = {f"payment-{number}" for number in range(POISON)}
    receipts = inbox.enqueue_many(
        NewMessage("payment.received", {"amount": 100, "poison": id_ in poison}, source=SOURCE, message_id=id_)
        for id_ in ids
    )
    return sum(not receipt.is_new for receipt in receipts)


def was_taken_over(inbox: Inbox, message: Message[object]) -> bool:
    """Whether a message that the killed worker held was finished, and by another."""
    now = inbox.get(message.message_id, SOURCE)
    return now.state in {State.DONE, State.DEAD} and (message.claim is None or now.completed_by != message.claim.owner)


def count_effects(report: Report, ids: list[str], inbox: Inbox, file: Path) -> None:
    with closing(connect(str(file))) as db:
        effects = [id_ for (id_,) in db.execute("SELECT message_id FROM effects")]
        [(report.failures_retried,)] = db.execute("SELECT sum(attempt) FROM postroom_inbox")
    dead = {message.message_id for message in inbox.dead_letters(limit=len(ids))}
    report.dead_letters = len(dead)
    report.effects = len(effects)
    report.effects_written_twice = len(effects) - len(set(effects))
    report.lost = len(set(ids) - set(effects) - dead)


@dataclass
class Worker:
    """A process, and the pipe to it."""

    process: SpawnProcess
    pipe: Connection
    owner: OwnerToken

    @classmethod
    def start(cls, file: Path) -> Worker:
        spawn = multiprocessing.get_context("spawn")
        owner = OwnerToken.new()
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=work, args=(str(file), owner, theirs), daemon=True)
        process.start()
        theirs.close()  # the process has its own; so reading ours fails when the process has ended
        return cls(process, ours, owner)

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(timeout=10)
        self.process.kill()


@contextmanager
def workers_on(file: Path) -> Iterator[list[Worker]]:
    workers = [Worker.start(file) for _ in range(WORKERS)]
    try:
        for worker in workers:
            worker.pipe.recv()  # READY
        yield workers
    finally:
        for worker in workers:
            worker.stop()


class Stage:
    """What the audience sees while the workers work."""

    def __init__(self, inbox: Inbox, workers: list[Worker], count: int, console: Console) -> None:
        self._inbox = inbox
        self._workers = workers
        self._victim = workers[0]
        self.fate: Literal["lives", "doomed", "dead"] = "lives"
        self._count = count
        self._console = console
        self._progress = Progress(
            TextColumn("handled"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._bar: TaskID = self._progress.add_task("handled", total=count)
        self.held: list[Message[object]] = []
        """What the killed worker held when it died."""

    def __enter__(self) -> Self:
        self._console.print(f"{WORKERS} worker processes share one SQLite file.")
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def doom_one(self) -> None:
        """Let one worker be killed in the middle of its next batch."""
        if self.fate == "lives":
            self._victim.pipe.send(DIE)
            self.fate = "doomed"

    def update(self) -> int:
        """Updates the progress bar, and returns how many messages are finished."""
        if self.fate == "doomed" and not self._victim.process.is_alive():
            self.fate = "dead"
            self._report_the_killed_worker()
        counts = self._inbox.counts()
        finished = counts[State.DONE] + counts[State.DEAD]
        self._progress.update(self._bar, completed=finished)
        return finished

    def _report_the_killed_worker(self) -> None:
        claimed = self._inbox.find(states=[State.CLAIMED], limit=1000)
        self.held = [message for message in claimed if message.claim and message.claim.owner == self._victim.owner]
        self._console.print(
            f"A worker was killed with kill -9 while it held {len(self.held)} messages, with effects written but not "
            "committed. The others get them when its lease ends."
        )

    def wait_until_all_is_done(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.update() < self._count and time.monotonic() < deadline:
            alive = [worker.process.sentinel for worker in self._workers if worker.process.is_alive()]
            if not alive:
                return
            wait(alive, timeout=0.1)  # until a worker ends, or it is time to look again


def show(report: Report, console: Console) -> None:
    table = Table("", "counted", "must be")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, counted, expected in report.lines():
        style = None if expected is None else "green" if counted == expected else "bold red"
        table.add_row(name, f"{counted:,}", "" if expected is None else f"{expected:,}", style=style)
    console.print(table)
    if report.promises_kept:
        console.print(f"Each effect once, nothing lost, in {report.seconds} seconds.")
    else:
        console.print("A promise was broken.", style="bold red")
