"""The crash sweep: every program is stopped after each of its statements. All of it happens, or nothing."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from postroom._kernel.states import BoxKind
from postroom._stores.sql.sqlite.engine import SqliteEngine
from postroom._stores.sql.statements import Script, Step
from postroom.spi import Box
from postroom.testing import FrozenClock
from tests.crash.scenarios import BY_NAME, SCENARIOS, Scenario
from tests.crash.stepping import Crash, Hook, SteppingStore, dump, dump_file, stop_after

ROOT = Path(__file__).parents[2]
MARKS: dict[BoxKind, pytest.MarkDecorator] = {
    "inbox": pytest.mark.req("IBX-102"),
    "outbox": pytest.mark.req("OBX-002", "OBX-091"),
    "guard": pytest.mark.req("CEB-004"),
}


def in_boxes(scenarios: Iterable[Scenario], *, most: int = 2) -> pytest.MarkDecorator:
    """Parametrizes a test with scenarios, each in `most` of its kinds of box. In many tests, the kind, which is a word
    in a parameter, makes no difference."""
    cases = [
        pytest.param(scenario, kind, marks=MARKS[kind], id=f"{scenario.name}-{kind}")
        for scenario in scenarios
        for kind in scenario.kinds[:most]
    ]
    return pytest.mark.parametrize(("scenario", "kind"), cases)


@dataclass
class Sweep:
    """A scenario on a real file, with what it does when nothing stops it."""

    scenario: Scenario
    box: Box
    folder: Path
    file: Path
    clock: FrozenClock
    given: Any
    before: str
    after: str
    result: Any
    steps: int
    """How many statements the program has."""

    @classmethod
    def make(cls, scenario: Scenario, kind: BoxKind, folder: Path) -> Sweep:
        file = folder / "prepared.db"
        given, clock = scenario.set_up(file, kind)
        sweep = cls(scenario, scenario.box(kind), folder, file, clock, given, dump_file(file), "", None, 0)
        steps: list[int] = []
        store = sweep.copy("reference.db")
        store.stepping.hook = lambda done, _step: steps.append(done)
        sweep.result = sweep.act(store)
        sweep.after, sweep.steps = dump(store.stepping.connection), steps[-1]
        store.close()
        assert sweep.after != sweep.before  # a program that changes nothing would pass everything
        return sweep

    def copy(self, name: str, hook: Hook | None = None) -> SteppingStore:
        """A store on a database of its own that is as the scenario prepared it."""
        shutil.copy(self.file, self.folder / name)
        store = SteppingStore(self.folder / name, self.clock)
        store.stepping.hook = hook
        return store

    def act(self, store: SteppingStore, tx: sqlite3.Connection | None = None) -> Any:
        joins = {"tx": tx} if self.scenario.joins_transactions else {}
        return self.scenario.act(store, self.box, self.given, joins)


@pytest.fixture
def sweep(scenario: Scenario, kind: BoxKind, tmp_path: Path) -> Sweep:
    return Sweep.make(scenario, kind, tmp_path)


@in_boxes(SCENARIOS)
def test_a_program_that_is_stopped_leaves_nothing_behind(sweep: Sweep) -> None:
    for count in range(sweep.steps + 1):
        store = sweep.copy(f"stopped-{count}.db", stop_after(count))
        with pytest.raises(Crash):
            sweep.act(store)
        assert dump(store.stepping.connection) == sweep.before, f"after {count} statements"
        store.stepping.hook = None
        assert sweep.act(store) == sweep.result, f"once more, after it was stopped after {count} statements"
        assert dump(store.stepping.connection) == sweep.after
        store.close()


@pytest.mark.req("C-55")
@in_boxes(scenario for scenario in SCENARIOS if scenario.joins_transactions)
def test_a_program_that_is_stopped_in_the_callers_transaction_leaves_the_callers_work(sweep: Sweep) -> None:
    for count in range(sweep.steps + 1):
        store = sweep.copy(f"stopped-{count}.db", stop_after(count))
        with closing(sqlite3.connect(store.stepping.path, isolation_level=None)) as caller:
            caller.execute("PRAGMA synchronous = OFF")
            caller.execute("CREATE TABLE orders (id INTEGER)")
            caller.execute("BEGIN")
            caller.execute("INSERT INTO orders VALUES (1)")
            callers_work = dump(caller)
            with pytest.raises(Crash):
                sweep.act(store, caller)
            assert caller.in_transaction
            assert dump(caller) == callers_work, f"after {count} statements"
            store.stepping.hook = None
            assert sweep.act(store, caller) == sweep.result
            caller.execute("COMMIT")
            assert caller.execute("SELECT id FROM orders").fetchall() == [(1,)]
            caller.execute("DROP TABLE orders")
            assert dump(caller) == sweep.after
        store.close()


@in_boxes(SCENARIOS, most=1)
def test_what_is_on_the_disk_between_two_statements_is_what_was_there_before(sweep: Sweep) -> None:
    """As if the machine stopped: the files as they lie there at that moment, opened by another process."""
    found: list[str] = []

    def copy_files(done: int, _step: Step | None) -> None:
        crashed = sweep.folder / f"crashed-{done}.db"
        for suffix in ("", "-wal"):
            shutil.copy(f"{store.stepping.path}{suffix}", f"{crashed}{suffix}")
        found.append(dump_file(crashed))

    store = sweep.copy("running.db", copy_files)
    sweep.act(store)
    assert len(found) == sweep.steps + 1
    assert all(state == sweep.before for state in found)
    copy_files(sweep.steps + 1, None)
    assert found[-1] == sweep.after  # the call has returned, so it is committed
    store.close()


@in_boxes(SCENARIOS, most=1)
def test_a_caller_that_lost_the_result_may_call_again(sweep: Sweep) -> None:
    """Stopped after the commit: the second call finds the work done. Only numbers were reserved for nothing."""
    store = sweep.copy("twice.db")
    sweep.act(store)
    sweep.act(store)
    assert _without_sequence(dump(store.stepping.connection)) == _without_sequence(sweep.after)
    store.close()


def _without_sequence(text: str) -> str:
    return re.sub(r'INSERT INTO "postroom_sequence".*', "", text)


@in_boxes([BY_NAME[name] for name in ("put", "put much", "claim", "settle", "look")], most=1)
def test_a_process_killed_in_its_transaction_leaves_the_file_intact_and_unlocked(sweep: Sweep) -> None:
    file = sweep.folder / "killed.db"
    arguments = [str(file), sweep.scenario.name, sweep.box.kind, str(sweep.steps)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash.holder", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holding\n"
        assert _is_locked(file)
        holder.kill()
    assert not _is_locked(file)
    assert dump_file(file) == sweep.before
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    store = SteppingStore(file, sweep.clock)
    assert sweep.act(store) == sweep.result
    assert dump(store.stepping.connection) == sweep.after
    store.close()


def _is_locked(file: Path) -> bool:
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        return False


def test_a_migration_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    def migrate(name: str, hook: Hook) -> str:
        with closing(SteppingStore(tmp_path / name)) as store:
            store.stepping.hook = hook
            store.migrate()
            return dump(store.stepping.connection)

    steps: list[Step | None] = []
    after = migrate("whole.db", lambda _done, step: steps.append(step))
    assert sum(isinstance(step, Script) for step in steps) > 10
    for count in range(len(steps)):
        name = f"stopped-{count}.db"
        with pytest.raises(Crash):
            migrate(name, stop_after(count))
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
        assert migrate(name, lambda _done, _step: None) == after


def test_the_sweep_goes_through_every_statement_that_writes(tmp_path: Path) -> None:
    """A statement that no scenario runs belongs to a program that was never stopped."""
    ran: set[str] = set()

    def note(_done: int, step: Step | None) -> None:
        if step is not None and not isinstance(step, Script):
            ran.add(step.name)

    for scenario in SCENARIOS:
        folder = tmp_path / scenario.name
        folder.mkdir()
        sweep = Sweep.make(scenario, scenario.kinds[0], folder)
        store = sweep.copy("noted.db", note)
        sweep.act(store)
        store.close()
    writes: Callable[[str], Any] = re.compile(r"\s*(INSERT|UPDATE|DELETE)").match
    book = SqliteEngine().statements
    assert {name for name, text in book.items() if writes(text.named)} - ran == set()
