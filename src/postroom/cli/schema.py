"""`postroom migrate` and `postroom schema`: the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from postroom._many.migration import migrate_store
from postroom.cli.option_sets import Database
from postroom.cli.options import counted
from postroom.cli.session import DEFAULT_PARALLEL, ChosenStore, Session, Visited
from postroom.spi import Migrator


class Migrated(NamedTuple):
    """The migration of one store."""

    store: str
    applied: list[int]
    has_tables: bool

    def as_text(self, *, is_many: bool) -> str:
        if self.applied:
            return f"applied schema version {', '.join(map(str, self.applied))}"
        if self.has_tables:
            return "nothing to do"
        return "no tables to make" if is_many else "there are no tables to make in such a store; it was not opened"


def migrate(
    *,
    where: Database,
    parallel: Annotated[
        int, typer.Option(min=1, max=1000, help="How many stores of one server at the same time.")
    ] = DEFAULT_PARALLEL,
) -> None:
    """Make or update the tables. Safe to repeat, and to run everywhere. Of many stores, some may fail: run it again."""
    with where.open() as session:
        migrated = session.each(_migrate, parallel=parallel)
        if where.json:
            session.print_json([Visited(key, {"store": each.store, "applied": each.applied}) for key, each in migrated])
        else:
            show(session, migrated)


async def _migrate(store: ChosenStore) -> Migrated:
    return Migrated(store.name, await migrate_store(store.store), isinstance(store.store, Migrator))


def show(session: Session, migrated: Sequence[Visited[Migrated]]) -> None:
    if not session.is_many:
        [(_, each)] = migrated
        typer.echo(f"{each.store}: {each.as_text(is_many=False)}")
        return
    for text, count in Counter(each.as_text(is_many=True) for _, each in migrated).items():
        typer.echo(f"{counted(count, 'store')}: {text}")


def schema(
    *,
    where: Database,
    sql: Annotated[bool, typer.Option("--sql", help="Print SQL: the default, and the only form.")] = True,
) -> None:
    """Print the tables as SQL, for deployment by other tools. Nothing is opened or created."""
    with where.open() as session:
        session.check_one("a schema")
        if session.is_many:
            [key] = session.wait(session.chosen())
            name, script = key, session.room.router.store(key).schema_script()
        else:
            name, script = session.room.store.name, session.room.schema_script()
        if where.json:
            session.print_json([Visited(name, {"store": name, "sql": script})])
        elif sql:
            typer.echo(script, nl=False)
