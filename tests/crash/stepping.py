"""Programs run one statement at a time: a hook is called between their statements, and may stop them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from postroom._stores.sql.sqlite.sqlite3_driver import Sqlite3Driver
from postroom._stores.sql.statements import SqlProgram, Step
from postroom._stores.sql.store import SyncSqlStore
from postroom.spi import Clock

R = TypeVar("R")

Hook = Callable[[int, Step | None], None]
"""Called with the number of statements that have run, and the last of them."""


class Crash(BaseException):
    """The worst that can come between two statements: no `except Exception` catches it."""


def stepped(program: SqlProgram[R], hook: Hook) -> SqlProgram[R]:
    """The same program, with the hook called before its first statement and after each."""
    hook(0, None)
    try:
        step = next(program)
        count = 0
        while True:
            result = yield step
            count += 1
            hook(count, step)
            step = program.send(result)
    except StopIteration as end:
        returned: R = end.value
        return returned


class SteppingDriver(Sqlite3Driver):
    """A driver that calls the hook between the statements of every program that writes."""

    def __init__(self, file: Path, clock: Clock | None) -> None:
        super().__init__(str(file), clock=clock)
        self.hook: Hook | None = None
        self.connection = self._connect()
        # Waiting for the disk is for power cuts. What is tested here is that a transaction is one.
        self.connection.execute("PRAGMA synchronous = OFF")

    def _run_on(
        self, connection: sqlite3.Connection, program: Callable[[], SqlProgram[R]], *, in_caller_tx: bool, write: bool
    ) -> R:
        if write and self.hook is not None:
            program = partial(_start, program, self.hook)
        return super()._run_on(connection, program, in_caller_tx=in_caller_tx, write=write)


def _start(program: Callable[[], SqlProgram[R]], hook: Hook) -> SqlProgram[R]:
    return stepped(program(), hook)


class SteppingStore(SyncSqlStore):
    """A store of sync code whose programs can be watched and stopped."""

    def __init__(self, file: Path, clock: Clock | None = None) -> None:
        self.stepping = SteppingDriver(file, clock)
        super().__init__(self.stepping)


def stop_after(count: int) -> Hook:
    def hook(done: int, step: Step | None) -> None:
        if done == count:
            raise Crash

    return hook


def dump(connection: sqlite3.Connection) -> str:
    """Everything that is in the database, as this connection sees it now."""
    return "\n".join(connection.iterdump())


def dump_file(file: Path) -> str:
    with closing(sqlite3.connect(file)) as connection:
        return dump(connection)
