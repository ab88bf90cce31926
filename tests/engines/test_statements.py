"""The SQL files: every statement is used, and every statement of an engine says why it is not the common one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import postroom._stores.sql
from postroom._stores.sql.postgres.engine import PostgresEngine
from postroom._stores.sql.sqlite.engine import SqliteEngine
from postroom._stores.sql.statements import parse
from postroom.spi import State

FOLDER = Path(postroom._stores.sql.__file__).parent
ENGINES = ("sqlite", "postgres")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_statement_of_an_engine_begins_with_a_comment(engine: str) -> None:
    text = (FOLDER / engine / "statements.sql").read_text("utf-8")
    assert re.findall(r"^-- name: (\w+)\n(?!--)", text, re.MULTILINE) == []


def test_every_statement_is_used() -> None:
    """Programs name statements as plain strings, except for those of a purge."""
    files = [FOLDER / "common.sql", *(FOLDER / engine / "statements.sql" for engine in ENGINES)]
    names = {name for file in files for name in parse(file.read_text("utf-8"))}
    code = "".join(file.read_text("utf-8") for file in FOLDER.rglob("*.py"))
    purges = {f"purge_{state.value}" for state in State}
    assert {name for name in names - purges if f'"{name}"' not in code} == set()


@pytest.mark.parametrize("engine", [SqliteEngine(), PostgresEngine()], ids=ENGINES)
def test_every_statement_of_the_common_programs_exists(engine: SqliteEngine | PostgresEngine) -> None:
    code = "".join(file.read_text("utf-8") for file in FOLDER.glob("*.py"))
    named = set(re.findall(r"(?:Statement|Many)\(\s*\"(\w+)\"", code))
    assert len(named) > 30
    assert named - engine.statements.keys() == set()
