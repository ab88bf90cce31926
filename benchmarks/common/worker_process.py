"""The worker processes, as the benchmark sees them: started, given commands, ended."""

from __future__ import annotations

import contextlib
import itertools
import json
import selectors
import subprocess
from pathlib import Path
from typing import Any, Self

from benchmarks.common.contenders import Contenders
from benchmarks.common.subject import Span

PATIENCE = 180.0
"""Seconds after which a worker that does not reply counts as stuck."""
STRIDE = 10**9

_firsts = itertools.count(STRIDE, STRIDE)


class WorkerFailed(Exception):
    """A library raised, ended or hung. Its own words are on standard error."""


class WorkerProcess:
    """One worker process."""

    def __init__(self, contenders: Contenders, name: str, url: str, groups: int = 0) -> None:
        self.name = name
        arguments = [contenders.package, name, url, str(next(_firsts)), str(groups)]
        self._process = subprocess.Popen(
            [contenders.python(name), "-m", "benchmarks.common.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        self._lines: list[bytes] = []
        self._rest = b""
        self._ready = False

    def ask(self, verb: str, **arguments: Any) -> Any:
        self.begin(verb, **arguments)
        return self.end()

    def begin(self, verb: str, **arguments: Any) -> None:
        self.await_ready()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([verb, arguments]).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(f"{self.name}: the process has ended") from None

    def await_ready(self) -> None:
        """Waits until the process is ready. Several processes can start at the same time."""
        if not self._ready:
            self._await_result()
            self._ready = True

    def end(self) -> Any:
        return self._await_result()

    def drain(self, batch: int, expected: int) -> Span:
        span = Span(*self.ask("drain", batch=batch, expected=expected))
        check_handled([span], expected)
        return span

    def take(self, batch: int, count: int) -> float:
        """Seconds per message: a part of a backlog may be a little more than was asked for."""
        span = Span(*self.ask("take", batch=batch, count=count))
        return (span.ended - span.began) / span.handled

    def await_handled(self) -> float:
        """When the handler of the next message was called, while serving."""
        found = self._read()
        if "handled" not in found:
            raise WorkerFailed(f"{self.name}: {found} came instead of a handler call")
        return float(found["handled"])

    def _await_result(self) -> Any:
        found = self._read()
        if "error" in found:
            raise WorkerFailed(f"{self.name}: {found['error']}")
        return found["result"]

    def _read(self) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while not self._lines:
                if not selector.select(PATIENCE):
                    self._process.kill()
                    raise WorkerFailed(f"{self.name}: no reply in {PATIENCE:g} s")
                read = output.read1(65536)  # type: ignore[attr-defined]
                if not read:
                    raise WorkerFailed(f"{self.name}: the process has ended")
                *lines, self._rest = (self._rest + read).split(b"\n")
                self._lines.extend(lines)
        found: dict[str, Any] = json.loads(self._lines.pop(0))
        return found

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_handled(spans: list[Span], expected: int) -> None:
    """A benchmark without messages is fast and shows nothing."""
    handled = sum(span.handled for span in spans)
    if handled != expected:
        raise WorkerFailed(f"{handled} messages were handled instead of {expected}")
