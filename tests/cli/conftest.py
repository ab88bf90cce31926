"""The command as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

PATIENCE = 120
"""Seconds until a command that hangs is ended; none comes near."""

Ran = subprocess.CompletedProcess[str]


class Run(Protocol):
    """Runs a command until it ends."""

    def __call__(self, *arguments: str, stdin: str = "", **environment: str) -> Ran: ...


RunEach = Callable[..., list[Ran]]
Start = Callable[..., "Running"]


class Running:
    """A command that goes on until it is told to end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._watchdog = threading.Timer(PATIENCE, process.kill)
        self._watchdog.start()

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(f"it ended with {self.process.wait()}: {self.end()[1]}")
        return line.rstrip("\n")

    def until(self, text: str) -> str:
        """All that it prints, up to this text."""
        assert self.process.stdout
        seen = ""
        while text not in seen:
            more = os.read(self.process.stdout.fileno(), 4096).decode()
            if not more:
                pytest.fail(f"it ended, and {text!r} is not in {seen!r}: {self.end()[1]}")
            seen += more
        return seen

    def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Its exit code and what it said on stderr."""
        if number is not None:
            self.process.send_signal(number)
        _, said = self.process.communicate()
        self._watchdog.cancel()
        return self.process.returncode, said


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `postroom` in an empty folder, without a terminal."""
    started: list[Running] = []

    def start(*arguments: str, **environment: str) -> Running:
        inherited = {name: value for name, value in os.environ.items() if name != "POSTROOM_URL"}
        process = subprocess.Popen(
            [sys.executable, "-c", "from postroom.cli import main; main()", *arguments],
            cwd=tmp_path,
            env={**inherited, "NO_COLOR": "1", "COLUMNS": "200", "TMPDIR": str(tmp_path), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(Running(process))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.end()


@pytest.fixture
def run(start: Start) -> Run:
    def run(*arguments: str, stdin: str = "", **environment: str) -> Ran:
        return _finish(start(*arguments, **environment), stdin)

    return run


@pytest.fixture
def run_each(start: Start) -> RunEach:
    """Commands that do not depend on each other, at the same time."""

    def run_each(*commands: tuple[str, ...], **environment: str) -> list[Ran]:
        started = [start(*command, **environment) for command in commands]
        return [_finish(running) for running in started]

    return run_each


def _finish(running: Running, stdin: str = "") -> Ran:
    out, said = running.process.communicate(stdin, timeout=PATIENCE)
    running.end()
    return subprocess.CompletedProcess(running.process.args, running.process.returncode, out, said)


def answer(ran: Ran) -> Any:
    """What a command that went well answered, in JSON."""
    assert (ran.returncode, ran.stderr) == (0, "")
    return json.loads(ran.stdout)
