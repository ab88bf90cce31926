"""What holds for every command: the exit codes, and where messages go."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import postroom
from postroom import cli
from tests.cli.conftest import Run, RunEach, Start


def test_the_command_is_installed() -> None:
    [script] = entry_points(group="console_scripts", name="postroom")
    assert script.load() is cli.main


def test_the_version(run: Run) -> None:
    ran = run("--version")
    assert (ran.returncode, ran.stdout) == (0, f"postroom {postroom.__version__}\n")


def test_it_is_a_module_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "postroom", "schema", "--url", "shop.db"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("postroom: this is not a URL")


def test_help_names_every_command(run_each: RunEach) -> None:
    whole, dead = run_each(("--help",), ("dead", "--help"))
    for command in ("demo", "run", "status", "dead", "groups", "cancel", "purge", "migrate", "schema", "bench"):
        assert f" {command} " in whole.stdout
    for command in ("list", "show", "replay", "purge"):
        assert f" {command} " in dead.stdout


WRONG: dict[tuple[str, ...], str] = {
    (): "Usage",
    ("nonsense",): "No such command",
    ("migrate", "--nonsense"): "No such option",
    ("demo", "--messages", "many"): "--messages",
    ("run",): "Missing argument",
    ("run", "shop:room", "--log-level", "loud"): "--log-level",
    ("schema", "shop:room", "--url", "memory://"): "leave out --url",
    ("migrate", "shop:room", "--prefix", "mail_"): "leave out --url, --schema and --prefix",
    ("status", "shop:room", "--url", "memory://"): "leave out --url",
    ("dead",): "Usage",
    ("dead", "list", "--url", "memory://"): "name one box",
    ("dead", "list", "--url", "memory://", "--inbox", "a", "--outbox", "b"): "name one box",
    ("dead", "replay", "--inbox", "inbox"): "or say --all",
    ("dead", "replay", "--inbox", "inbox", "--topic", ""): "or say --all",
    ("dead", "replay", "1", "--all", "--inbox", "inbox"): "but not both",
    ("dead", "purge", "--inbox", "inbox"): "--older-than 30d",
    ("dead", "purge", "--inbox", "inbox", "--older-than", "30"): "'30' is not a duration",
    ("purge", "--older-than", "soon"): "'soon' is not a duration",
    ("purge", "--state", "seen"): "--older-than 30d",
    ("purge", "--state", "waiting"): "--state",
    ("purge", "--reap"): "MODULE:ROOM",
    ("purge", "--json"): "--json does not ask: add --yes",
    ("dead", "purge", "--inbox", "inbox", "--older-than", "1d", "--json"): "--json does not ask: add --yes",
    ("dead", "replay", "--inbox", "inbox", "--all", "--json"): "--json does not ask: add --yes",
    ("cancel", "--inbox", "inbox", "--topic", "t", "--json"): "--json does not ask: add --yes",
    ("groups", "skip", "--inbox", "inbox", "--all", "--json"): "--json does not ask: add --yes",
    ("groups", "replay", "--inbox", "inbox", "--all", "--json"): "--json does not ask: add --yes",
    ("cancel", "--inbox", "inbox"): "name messages, or say which fit",
    ("cancel", "--inbox", "inbox", "--topic", ""): "name messages, or say which fit",
    ("cancel", "1", "--topic", "t", "--inbox", "inbox"): "but not both",
    ("cancel", "--id", "0", "--inbox", "inbox"): "--id",
    ("cancel", "1", "--url", "memory://"): "name one box",
    ("groups",): "Usage",
    ("groups", "list", "--url", "memory://"): "name one box",
    ("groups", "skip", "--inbox", "inbox"): "name groups, or say --all",
    ("groups", "replay", "ann", "--all", "--inbox", "inbox"): "name groups, or say --all",
    ("bench", "--messages", "0"): "--messages",
}


def test_a_wrong_call_ends_with_2(run_each: RunEach, tmp_path: Path) -> None:
    for (arguments, hint), ran in zip(WRONG.items(), run_each(*WRONG), strict=True):
        said = " ".join((ran.stdout + ran.stderr).split())
        assert ran.returncode == 2, (arguments, said)
        assert "Usage" in said, arguments
        assert hint in said, arguments
    assert list(tmp_path.iterdir()) == []


def test_a_shell_can_complete(start: Start) -> None:
    def typed(line: str) -> dict[str, str]:
        return {"_POSTROOM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}

    script = start("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    commands, options = start(**typed("postroom de")), start(**typed("postroom dead replay --dr"))
    assert "_POSTROOM_COMPLETE=complete_bash" in script.finish().stdout
    assert commands.finish().stdout.split() == ["demo", "dead"]
    assert options.finish().stdout.split() == ["--dry-run"]


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named(missing: str) -> None:
    hide = f"import sys; sys.modules[{missing!r}] = None; from postroom.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr == f"postroom: the command line needs {missing}: pip install 'postroom[cli]'\n"


def test_nothing_is_made_by_asking(run_each: RunEach, tmp_path: Path) -> None:
    run_each(("--help",), ("schema", "--sql", "--url", "sqlite:///shop.db"))
    assert list(tmp_path.iterdir()) == []
