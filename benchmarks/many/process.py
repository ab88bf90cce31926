"""Processes of a benchmark: a function that runs in a new process, to its end or beside this one."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_spawn = multiprocessing.get_context("spawn")  # a fork would inherit memory and connections


def silence() -> None:
    """Leaves out the log records of rooms: stores that fail are a part of the cases."""
    logging.getLogger("postroom").setLevel(logging.CRITICAL)


class Failed(Exception):
    """A function raised in its process, or the process ended."""


class Process:
    """Runs `function(pipe, *args)` in a new process. Both sides send and receive values through the pipe."""

    def __init__(self, function: Callable[..., None], *args: object) -> None:
        self._pipe, other = _spawn.Pipe()
        self._process = _spawn.Process(target=_run, args=(function, other, args))
        self._process.start()
        other.close()

    def send(self, value: object) -> None:
        self._pipe.send(value)

    def receive(self, seconds: float = 600.0) -> Any:
        """Waits for the next value. Raises what the function has raised."""
        if not self._pipe.poll(seconds):
            raise Failed(f"the process sent nothing in {seconds:g} seconds")
        try:
            value = self._pipe.recv()
        except EOFError:
            raise Failed("the process has ended") from None
        if isinstance(value, Failed):
            raise value
        return value

    def ask(self, value: object, seconds: float = 600.0) -> Any:
        """Sends a value, and waits for the next one."""
        self.send(value)
        return self.receive(seconds)

    def kill(self) -> None:
        """Ends the process like a crash."""
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(0 if error else 30)
        self.kill()


def apart(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls a function in a new process. Returns what it returns."""
    if kwargs:
        raise TypeError("apart takes positional arguments")
    with Process(_call, function, args) as process:
        result: R = process.receive(3600)
        return result


def _run(function: Callable[..., None], pipe: Connection, args: tuple[object, ...]) -> None:
    silence()
    try:
        function(pipe, *args)
    except (EOFError, BrokenPipeError):
        pass  # the parent needs no more
    except BaseException as error:
        pipe.send(Failed(f"{type(error).__name__}: {error}"))
        raise


def _call(pipe: Connection, function: Callable[..., object], args: tuple[object, ...]) -> None:
    pipe.send(function(*args))
