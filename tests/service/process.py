"""The service as a process: `postroom serve` on a free port."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TOKEN = "correct-horse-battery"
WATCHDOG_SECONDS = 90.0
_ADDRESS = re.compile(r"serving on (http://\S+)")


class ServiceProcess:
    """A running process, what it has logged, and its addresses."""

    def __init__(self, arguments: list[str], environment: dict[str, str] | None) -> None:
        command = [sys.executable, "-c", "from postroom.cli import main; main()", "serve", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.lines: list[str] = []
        self._has_more = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def addresses(self, count: int) -> list[str]:
        """Waits until the process serves on so many addresses."""
        self.wait_for(lambda: len(_ADDRESS.findall(self.log)) >= count)
        return _ADDRESS.findall(self.log)

    def wait_for_log(self, text: str) -> None:
        self.wait_for(lambda: text in self.log)

    def wait_for(self, is_true: Any) -> None:
        with self._has_more:
            assert self._has_more.wait_for(lambda: is_true() or self._has_ended, WATCHDOG_SECONDS), self.log
            assert is_true(), self.log

    def end(self, number: int) -> int:
        """Sends a signal, and waits for the end. Returns the exit code."""
        self.process.send_signal(number)
        return self.join()

    def join(self) -> int:
        code = self.process.wait(WATCHDOG_SECONDS)
        self._reader.join()
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._has_more:
                self.lines.append(line)
                self._has_more.notify_all()
        with self._has_more:
            self._has_ended = True
            self._has_more.notify_all()


@contextmanager
def service_process(
    *arguments: str, port: int = 0, environment: dict[str, str] | None = None
) -> Iterator[ServiceProcess]:
    """Starts a process; kills it if it still runs at the end."""
    started = ServiceProcess(["--port", str(port), *arguments], environment)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.join()
        assert started.process.stderr is not None
        started.process.stderr.close()
