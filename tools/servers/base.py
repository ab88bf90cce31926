"""What every private server shares: a folder, a port, a process, and an end that comes even when the tests fail."""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn, Self

from tools.requirements import SERVER_MISSING

HOST = "127.0.0.1"
PATIENCE = 30.0
"""Seconds until a server that neither responds nor ends counts as failed."""

PRIVATE = "private"
"""In place of a URL in POSTROOM_TEST_POSTGRES and POSTROOM_TEST_REDIS: start a server, whatever the machine has."""

# Below the range from which the system takes the ports of clients: a client must not get the port of a server that is
# down for the moment, nor, by connecting to it, get connected to itself.
_PORTS = range(15_000, 32_000)

# Outlives its parent, however that ended, and does what the parent could not: it reads until the pipe is closed. The
# command line is compared because another process may have got the number. The children are killed too, because one
# that is stopped (SIGSTOP) does not notice that its parent is gone.
_GUARD = """
server=0
while read -r word; do
    [ "$word" = end ] && break
    server=$word
done
if ps -ww -o args= -p "$server" | grep -qF "$1"; then
    family="$server $(pgrep -P "$server")"
    kill -CONT $family
    kill -QUIT "$server"
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        ps -o stat= -p "$server" | grep -q "^[^Z]" || break
        sleep 0.2
    done
    kill -KILL $family
fi
rm -rf "$1"
"""


class ServerMissing(Exception):
    """A server can be neither found nor started. One line says what is missing."""


class ServerFailed(Exception):
    """A server did not start, did not end or did not do what it should. The text ends with the tail of its log."""


def missing(reason: object) -> NoReturn:
    """Skip the test, and fail it under CI=true: there a missing server is a broken set-up."""
    import pytest

    text = f"{SERVER_MISSING} {reason}"
    if os.environ.get("CI") == "true":
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


def free_port() -> int:
    for _ in range(1000):
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return port
    raise ServerFailed("no free port was found")


def wait_for(condition: Callable[[], bool], what: str, *, seconds: float = PATIENCE) -> None:
    """ClaimRequest until the condition holds. `what` completes the sentence "waited … seconds for"."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ServerFailed(f"waited {seconds:g} seconds for {what}")
        time.sleep(0.02)


def unprivileged_user() -> str | None:
    """The user for servers that refuse to run as root; None when this process is not root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


class Server(ABC):
    """A separate server. The context manager starts it and, at its end, ends it and removes its folder."""

    name: str
    host: str = HOST
    stop_signal = signal.SIGINT
    """Ends it in order."""
    close_signal = signal.SIGQUIT
    """Ends it at once, when its data no longer matter."""
    refuses_root = True
    """Whether it must run as another user if this process is root."""

    def __init__(self) -> None:
        self.port = free_port()
        self.user = unprivileged_user() if self.refuses_root else None
        self.folder = Path(tempfile.mkdtemp(prefix=f"postroom-{self.name}-", dir=self._temporary()))
        self.log = self.folder / "server.log"
        self._own(self.folder)
        self._process: subprocess.Popen[bytes] | None = None
        self._prepared = False
        self._owner = os.getpid()
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us, not for it
        )
        atexit.register(self.close)

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program and its arguments. It stays in the foreground and writes its log to standard error."""

    @abstractmethod
    def is_responding(self) -> bool:
        """Whether a real request succeeds now."""

    @abstractmethod
    def prepare(self) -> None:
        """Make what the first start needs."""

    def clean(self) -> None:  # noqa: B027 - few servers have anything to do here
        """Remove what a crash left outside of the folder. Called at the end, before the server is ended."""

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, seconds: float = PATIENCE) -> None:
        """Starts it, and returns when it responds."""
        if self.running:
            raise ServerFailed(f"{self.name} is running already")
        if not self._prepared:
            self.prepare()
            self._prepared = True
        with self.log.open("ab") as log:
            self._process = self._spawn(self.command(), stdout=log, stderr=log)
        self._write_to_guard(str(self._process.pid))
        try:
            wait_for(lambda: not self.running or self.is_responding(), f"{self.name} to respond", seconds=seconds)
        except ServerFailed as failure:
            raise ServerFailed(f"{failure}\n{self.log_tail()}") from None
        if not self.running:
            self._ended()
            raise ServerFailed(f"{self.name} ended while it was starting\n{self.log_tail()}")

    def stop(self, *, seconds: float = PATIENCE) -> None:
        """End it in order: its clients are disconnected, its data are written. Nothing happens if it is not running."""
        self._end(self.stop_signal, seconds)

    def kill(self) -> None:
        """End it like a crash, with SIGKILL, and return when its children are gone too: a restart works at once."""
        if self._process is None:
            return
        children = self._children()
        self._process.kill()
        self._process.wait(PATIENCE)
        # They end by themselves once they notice, except those that are stopped or hang on to a client.
        _signal(children, signal.SIGKILL)
        # One that ended stays in the table until its new parent asks for it, which in a container may be never.
        wait_for(lambda: _are(children, "Z"), f"the children of {self.name} to end")
        self._ended()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the server's processes where they are: connections stay open, and there is no response."""
        # The parent first, and only then a look at its children: what is stopped makes no more of them. A signal takes
        # its time, so each step is waited for.
        _signal([self.pid], signal.SIGSTOP)
        wait_for(lambda: _are([self.pid], "T"), f"{self.name} to stop")
        children = self._children()
        _signal(children, signal.SIGSTOP)
        wait_for(lambda: _are(children, "TZ"), f"the children of {self.name} to stop")

    def resume(self) -> None:
        _signal([self.pid, *self._children()], signal.SIGCONT)

    def close(self) -> None:
        """End it and remove its folder. It cannot be started again."""
        if os.getpid() != self._owner or self._guard.returncode is not None:
            return  # a forked child, which runs the exit handlers of its parent, or closed already
        atexit.unregister(self.close)
        try:
            self.clean()
            self._end(self.close_signal, 10)
        except ServerFailed:
            self.kill()
        finally:
            self._write_to_guard("end")
            self._guard.communicate(timeout=PATIENCE)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log_tail(self, lines: int = 20) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def run(self, *command: str | Path) -> None:
        """Run a program of the server's to its end, as the server's user."""
        with self.log.open("ab") as log:
            process = self._spawn([str(part) for part in command], stdout=log, stderr=log)
        try:
            code = process.wait(PATIENCE * 2)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code != 0:
            raise ServerFailed(f"{Path(command[0]).name} ended with {code}\n{self.log_tail()}")

    def _spawn(self, command: Sequence[str], **streams: object) -> subprocess.Popen[bytes]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
        process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
            command,
            stdin=subprocess.DEVNULL,
            cwd=self.folder,
            env=environment,
            start_new_session=True,
            **({"user": self.user, "group": pwd.getpwnam(self.user).pw_gid, "extra_groups": []} if self.user else {}),
            **streams,
        )
        return process

    def _end(self, number: signal.Signals, seconds: float) -> None:
        if self._process is None:
            return
        if self.running:
            self.resume()
            self._process.send_signal(number)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"{self.name} did not end in {seconds:g} seconds\n{self.log_tail()}") from None
        self._ended()

    def _ended(self) -> None:
        self._process = None
        self._write_to_guard("0")

    def _children(self) -> list[int]:
        return [process for process, parent, _ in _processes() if parent == self.pid]

    def _write_to_guard(self, word: str) -> None:
        pipe = self._guard.stdin
        assert pipe is not None
        pipe.write(f"{word}\n".encode())
        pipe.flush()

    def _own(self, path: Path) -> None:
        if self.user:
            entry = pwd.getpwnam(self.user)
            os.chown(path, entry.pw_uid, entry.pw_gid)

    def _temporary(self) -> str:
        """The folder for temporary files, or /tmp where the server's user cannot get into the former."""
        path = Path(tempfile.gettempdir())
        if self.user and not all(part.stat().st_mode & 0o001 for part in (path, *path.parents)):
            return "/tmp"
        return str(path)


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _are(processes: Iterable[int], states: str) -> bool:
    """Whether each of the processes is in one of the states, or gone."""
    chosen = set(processes)
    return all(state[0] in states for process, _, state in _processes() if process in chosen)


def _processes() -> list[tuple[int, int, str]]:
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    return [(int(process), int(parent), state) for process, parent, state in map(str.split, table.splitlines())]
