"""Test databases that crashed runs left behind are removed, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import psycopg
import pytest
from tools.requirements import ROOT
from tools.servers.leftovers import is_leftover, new_name, remove_leftovers

from tests.postgres import server

YOUNG, OLD = timedelta(hours=1), timedelta(days=2)

CRASHED = """
import os, signal
from tests.postgres import create_database
print(create_database(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def name_of_a_process_that_is_gone() -> str:
    code = "from tools.servers.leftovers import new_name; print(new_name())"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout[
        :-1
    ]


def exists(admin: str, name: str) -> bool:
    with psycopg.connect(admin) as connection:
        return connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone() is not None


@pytest.mark.parametrize("age", [YOUNG, None])
def test_a_database_of_a_process_that_is_gone_is_a_leftover(age: timedelta | None) -> None:
    assert is_leftover(name_of_a_process_that_is_gone(), age)


@pytest.mark.parametrize("age", [YOUNG, None])
def test_a_database_of_a_process_that_runs_is_kept(age: timedelta | None) -> None:
    assert not is_leftover(new_name(), age)


@pytest.mark.parametrize("name", ["postroom_test_0123456789ab", "postroom_test_00000000_1_0123456789ab"])
def test_of_another_machine_or_without_a_process_only_the_old_ones_are_leftovers(name: str) -> None:
    assert is_leftover(name, OLD)
    assert not is_leftover(name, YOUNG)
    assert not is_leftover(name, None)


@pytest.mark.parametrize(
    "name", ["postroom", "postroom_test", "postroom_test_mine", "shop", "xpostroom_test_0123456789ab"]
)
def test_databases_of_other_names_are_kept(name: str) -> None:
    assert not is_leftover(name, OLD)


def test_the_database_of_a_killed_process_is_removed_once_nothing_uses_it() -> None:
    admin = server()
    killed = subprocess.run([sys.executable, "-c", CRASHED], cwd=ROOT, capture_output=True, text=True, check=False)
    url = killed.stdout.strip()
    name = url.rpartition("/")[2]
    with psycopg.connect(url):
        assert name not in remove_leftovers(admin)
        assert exists(admin, name)
    for _ in range(100):  # one call drops a few, and the server may take a moment to end the connection
        if not exists(admin, name):
            break
        remove_leftovers(admin)  # or another test process does it at the same time
    assert not exists(admin, name)
