"""The kernel's values and rules."""

from __future__ import annotations

import ast
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

import postroom
from postroom import OwnerToken
from postroom._kernel.clock import from_microseconds, to_microseconds
from postroom._kernel.states import TRANSITIONS, State, documented_name
from postroom.spi import claimable_front, is_in_line

KERNEL = Path(postroom.__file__).parent / "_kernel"


def test_the_kernel_imports_only_the_standard_library_itself_and_errors() -> None:
    for file in KERNEL.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                ours = name.startswith("postroom._kernel") or name == "postroom.errors"
                # What type checkers know of themselves; it is never imported.
                known = ours or name.split(".")[0] in sys.stdlib_module_names or name == "typing_extensions"
                assert known, f"{file.name} imports {name}"


ENGINE_NAMES = re.compile(
    r"(sqlite|aiosqlite|postgres|postgresql|mysql|redis|asyncpg|psycopg|psycopg_pool)(3|2?\.\w+)?", re.IGNORECASE
)
ENGINE_FOLDERS = {"postgres", "sqlite", "redis"}


def test_engines_are_named_only_in_their_folders() -> None:
    """What differs between engines is data: no other code has the name of an engine, or imports its modules."""
    package = KERNEL.parent
    for file in package.rglob("*.py"):
        if ENGINE_FOLDERS & set(file.parts) or file == package / "_connect.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported = {part for name in names for part in name.split(".")}
            if file.name != "demo_worker.py":  # the demo shows a user's program, with a database of the user's
                assert not {name for name in imported if ENGINE_NAMES.fullmatch(name)}, file
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and file.name != "run.py":
                assert not ENGINE_NAMES.fullmatch(node.value), file


@pytest.mark.req("IBX-API-31", "C-06")
def test_every_state_has_its_ways_out_and_its_names() -> None:
    assert set(TRANSITIONS) == set(State)
    assert TRANSITIONS[State.DONE] == frozenset()
    assert {documented_name(state, "inbox") for state in State} == {"Seen", "Processing", "Done", "Dead"}
    assert documented_name(State.CLAIMED, "outbox") == "InProgress"


@pytest.mark.req("IBX-API-29")
def test_an_owner_token_is_a_uuid_of_its_own_type() -> None:
    token = OwnerToken.new()
    assert isinstance(token, OwnerToken)
    assert token.int != 0
    assert OwnerToken.new() != token
    assert type(OwnerToken(str(token))) is OwnerToken


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2030-01-01T01:02:03.456789Z"]
)
def test_microseconds_are_exact(moment: str) -> None:
    aware = datetime.fromisoformat(moment)
    assert from_microseconds(to_microseconds(aware)) == aware


class Place(NamedTuple):
    id: int
    state: State = State.WAITING
    available_at: int | None = None
    delayed: bool = False
    topic: str = "t"


NOW = 100


@pytest.mark.req("C-46")
class TestLine:
    def test_the_front_is_what_is_ready(self) -> None:
        line = [Place(1, available_at=50), Place(2), Place(3), Place(4)]
        assert [place.id for place in claimable_front(line, NOW, 3)] == [1, 2, 3]

    def test_a_retry_ahead_holds_those_behind(self) -> None:
        assert claimable_front([Place(1, available_at=150), Place(2)], NOW, 10) == []

    def test_a_due_time_ahead_blocks_no_other_message(self) -> None:
        not_due = Place(1, available_at=150, delayed=True)
        assert not is_in_line(not_due, NOW)
        assert is_in_line(not_due, 150)
        assert [place.id for place in claimable_front([not_due, Place(2)], NOW, 10)] == [2]

    def test_a_message_without_a_due_time_is_in_line_at_any_time(self) -> None:
        assert claimable_front([Place(1, available_at=150), Place(2)], NOW, 10) == []

    def test_a_dead_member_blocks(self) -> None:
        assert [p.id for p in claimable_front([Place(1), Place(2, State.DEAD), Place(3)], NOW, 10)] == [1]

    def test_a_topic_that_was_not_asked_for_ends_it(self) -> None:
        line = [Place(1), Place(2, topic="other"), Place(3)]
        assert [place.id for place in claimable_front(line, NOW, 10, frozenset({"t"}))] == [1]

    def test_a_passed_lease_is_taken_over_in_order(self) -> None:
        line = [Place(1, State.CLAIMED, 90), Place(2, State.CLAIMED, 90), Place(3)]
        assert [place.id for place in claimable_front(line, NOW, 10)] == [1, 2, 3]
