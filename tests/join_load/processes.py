"""Worker processes for joins, which a test starts and kills."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.join_load.load import Load, Place

ROOT = Path(__file__).parents[2]
LEASE = 2.0

Process = subprocess.Popen[str]


class Processes:
    """Processes on one store. All that still run are killed at the end."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._started: list[Process] = []

    def start(self, module: str, *arguments: object) -> Process:
        """Starts a program of this folder."""
        command = [sys.executable, "-m", f"tests.join_load.{module}", *self._place, *map(str, arguments)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        self._started.append(process)
        return process

    def kill(self, process: Process) -> None:
        """Kills a process with SIGKILL."""
        process.kill()
        process.communicate()
        self._started.remove(process)

    def close(self) -> None:
        for process in list(self._started):
            self.kill(process)


class Workers:
    """Worker processes that are killed and replaced."""

    def __init__(self, processes: Processes, load: Load, lease: float) -> None:
        self._processes, self._load, self._lease = processes, load, lease
        self._running: list[Process] = []

    def start(self, count: int) -> None:
        load = self._load
        arguments = (load.joins, load.steps, load.seed, self._lease)
        new = [self._processes.start("worker", *arguments) for _ in range(count)]
        for process in new:
            assert first_line(process) == "ready"
        self._running += new

    async def kill_some(self, kills: int, seconds: float) -> None:
        """Kills a random worker from time to time, and starts another one."""
        chance = random.Random(1)
        for _ in range(kills):
            await asyncio.sleep(seconds)
            process = self._running.pop(chance.randrange(len(self._running)))
            await asyncio.to_thread(self._processes.kill, process)
            await asyncio.to_thread(self.start, 1)


def first_line(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def processes_on(place: Place) -> Iterator[Processes]:
    processes = Processes(place)
    try:
        yield processes
    finally:
        processes.close()


@contextmanager
def workers_on(place: Place, load: Load, count: int, lease: float = LEASE) -> Iterator[Workers]:
    with processes_on(place) as processes:
        workers = Workers(processes, load, lease)
        workers.start(count)
        yield workers
