"""What holds for every command: the exit codes, and where messages go."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import postroom
from postroom import cli
from tests.cli.conftest import Run


def test_the_command_is_installed() -> None:
    [script] = entry_points(group="console_scripts", name="postroom")
    assert script.load() is cli.main


def test_the_version(run: Run) -> None:
    ran = run("--version")
    assert (ran.returncode, ran.stdout) == (0, f"postroom {postroom.__version__}\n")


def test_help_names_every_command(run: Run) -> None:
    ran = run("--help")
    assert ran.returncode == 0
    for command in ("demo", "migrate", "schema"):
        assert command in ran.stdout


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("migrate", "--nonsense"), ("demo", "--messages", "many")])
def test_a_wrong_call_ends_with_2(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert ran.returncode == 2
    assert "Usage" in ran.stdout + ran.stderr


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named(missing: str) -> None:
    hide = f"import sys; sys.modules[{missing!r}] = None; from postroom.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr == f"postroom: the command line needs {missing}: pip install 'postroom[cli]'\n"


def test_nothing_is_made_by_asking(run: Run, tmp_path: Path) -> None:
    run("--help")
    run("schema", "--sql", "--url", "sqlite:///shop.db")
    assert list(tmp_path.iterdir()) == []
