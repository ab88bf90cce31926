"""The reference of the command line is complete: every command and every option stands in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from postroom.cli.app import app

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/command-line.md"
SECTION = re.compile(r"^#+ `postroom ?([^`]*)`\n(.*?)(?=^#+ |\Z)", re.MULTILINE | re.DOTALL)
SECTIONS = dict(SECTION.findall(PAGE.read_text("utf-8")))


def walk(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    yield " ".join(path), command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, *path, name)


COMMANDS = dict(walk(get_command(app)))


def test_the_walk_finds_commands() -> None:
    assert {"", "run", "dead", "dead replay"} <= set(COMMANDS)


def test_there_is_a_section_for_every_command_and_no_other() -> None:
    assert set(SECTIONS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_and_argument_is_in_its_section(name: str) -> None:
    parameters = COMMANDS[name].params
    rows = "\n".join(line for line in SECTIONS[name].splitlines() if line.startswith("|"))
    documented = set(re.findall(r"`(-[\w-]+|[A-Z:_]+)`", rows))
    options = {option for parameter in parameters for option in parameter.opts if option.startswith("-")}
    arguments = {
        (parameter.metavar or parameter.name).upper()
        for parameter in parameters
        if not parameter.opts[0].startswith("-")
    }
    assert documented >= (options | arguments) - {"--help"}
    assert {word for word in documented if word.startswith("-")} <= options
