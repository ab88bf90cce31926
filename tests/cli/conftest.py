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

ONE = "from postroom.cli import main; main()"
IN_A_TERMINAL = f"import pty, sys; pty.spawn([sys.executable, '-c', {ONE!r}, *sys.argv[1:]])"
EACH = """\
import contextlib, gc, io, json, os, sys
from postroom.cli import main
from postroom.cli.app import app

# A wrong call, unheard: what it imports takes longer than most commands do, and is the same for all of them.
with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
    app(["purge", "--older-than", "soon"])
gc.freeze()  # the children share it
for command in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        for number, file in enumerate(command["files"], start=1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
        sys.argv = ["postroom", *command["arguments"]]
        main()
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Running:
    """A command that runs until a signal ends it."""

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
        seen = b""
        while text.encode() not in seen:
            more = os.read(self.process.stdout.fileno(), 4096)
            if not more:
                pytest.fail(f"it ended, and {text!r} is not in {seen!r}: {self.end()[1]}")
            seen += more
        return seen.decode(errors="replace")  # it may end in the middle of a character

    def finish(self, stdin: str = "") -> Ran:
        """Wait until it ends by itself."""
        out, said = self.process.communicate(stdin)
        self._watchdog.cancel()
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, said)

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

    def start(*arguments: str, program: str = ONE, **environment: str) -> Running:
        inherited = {name: value for name, value in os.environ.items() if name != "POSTROOM_URL"}
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
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
        return start(*arguments, **environment).finish(stdin)

    return run


@pytest.fixture
def run_each(start: Start, tmp_path_factory: pytest.TempPathFactory) -> RunEach:
    """Run several commands, one after the other, each in a fork of one process, which has imported what they need."""

    def run_each(*commands: tuple[str, ...], **environment: str) -> list[Ran]:
        folder = tmp_path_factory.mktemp("printed")
        files = [(folder / f"{number}.out", folder / f"{number}.err") for number in range(len(commands))]
        given = [
            {"arguments": command, "files": list(map(str, pair))} for command, pair in zip(commands, files, strict=True)
        ]
        server = start(program=EACH, **environment).finish(json.dumps(given))
        assert (server.returncode, server.stderr) == (0, "")
        codes = map(int, server.stdout.split())
        return [
            subprocess.CompletedProcess(command, code, *(file.read_text("utf-8") for file in pair))
            for command, code, pair in zip(commands, codes, files, strict=True)
        ]

    return run_each


def output_of(ran: Ran) -> Any:
    """Returns the JSON that a successful command printed."""
    assert (ran.returncode, ran.stderr) == (0, "")
    return json.loads(ran.stdout)
