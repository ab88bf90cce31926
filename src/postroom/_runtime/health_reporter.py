"""Reports the health of a worker process: by HTTP checks, a heartbeat file, notifications to systemd.

All of them run in the event loop of the workers. If it is blocked, the checks time out, the file gets old and the
watchdog of systemd fires. If the database is down, the process is live but not ready: a restart would not help.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from enum import Enum
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self

from postroom._runtime import systemd
from postroom._runtime.health import Check, HealthServer, parse_address
from postroom._runtime.systemd import Notifier

_log = logging.getLogger("postroom")

BEAT_SECONDS = 5.0
"""Interval at which the heartbeat file is written."""
READY_SECONDS = 3.0
"""Timeout of the readiness check. A database that does not respond in time is not ready."""
FRESH_SECONDS = 1.0
"""How long a result is reused, so that frequent checks do not load the database."""


class Phase(Enum):
    """The phase of a worker process."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class HealthReporter:
    """A context manager around the whole run of a room. Without an address, a file or systemd it does nothing."""

    def __init__(
        self,
        is_ready: Check,
        *,
        health: str | None = None,
        heartbeat: str | PathLike[str] | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self._is_ready = is_ready
        self._phase = Phase.STARTING
        self.server = None if health is None else HealthServer(parse_address(health), self._checks())
        self._heartbeat = None if heartbeat is None else Path(heartbeat)
        self._notifier = notifier
        self._notified_ready = False
        self._changed = asyncio.Event()
        self._checking: asyncio.Task[bool] | None = None
        self._fresh_until = 0.0
        self._beating: asyncio.Task[None] | None = None

    def _checks(self) -> dict[str, Check]:
        return {"/live": self.is_live, "/ready": self.is_ready}

    async def __aenter__(self) -> Self:
        if self.server is not None:
            await self.server.start()
        try:
            self._touch()  # raises if the file cannot be written; a later failure is logged
        except BaseException:
            await self._close()
            raise
        if self._heartbeat is not None or self._notifier is not None:
            self._beating = asyncio.create_task(self._beat(), name="postroom heartbeat")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()
        if self._heartbeat is not None:
            with contextlib.suppress(OSError):
                self._heartbeat.unlink(missing_ok=True)

    async def _close(self) -> None:
        tasks = [task for task in (self._beating, self._checking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.server is not None:
            await self.server.stop()

    def started(self) -> None:
        self._phase = Phase.RUNNING
        self._changed.set()

    def stopping(self) -> None:
        self._phase = Phase.STOPPING
        if self._notifier is not None:
            self._notifier.send(systemd.STOPPING)

    async def is_live(self) -> bool:
        """Returns True: if it returns at all, the event loop runs."""
        return True

    async def is_ready(self) -> bool:
        """Returns True if the room has started, does not stop, and is ready. Concurrent checks share one result."""
        if self._phase is not Phase.RUNNING:
            return False
        loop = asyncio.get_running_loop()
        if self._checking is None or (self._checking.done() and loop.time() >= self._fresh_until):
            self._checking = asyncio.create_task(self._check(), name="postroom readiness")
        try:
            async with asyncio.timeout(READY_SECONDS):
                return await asyncio.shield(self._checking)
        except TimeoutError:
            return False

    async def _check(self) -> bool:
        try:
            return await self._is_ready()
        finally:
            self._fresh_until = asyncio.get_running_loop().time() + FRESH_SECONDS

    async def _beat(self) -> None:
        while True:
            try:
                self._touch()
            except OSError as error:
                _log.warning("the heartbeat file could not be written: %s", type(error).__name__)
            if self._notifier is not None:
                await self._notify(self._notifier)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._changed.wait()

    def _touch(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.touch()

    async def _notify(self, notifier: Notifier) -> None:
        if not self._notified_ready and await self.is_ready():
            notifier.send(systemd.READY)
            self._notified_ready = True
        if notifier.watchdog_seconds is not None:
            notifier.send(systemd.WATCHDOG)

    def _pause(self) -> float:
        if self._notifier is None:
            return BEAT_SECONDS
        watchdog = self._notifier.watchdog_seconds
        pause = BEAT_SECONDS if watchdog is None else min(BEAT_SECONDS, watchdog / 2)
        return pause if self._notified_ready else min(pause, FRESH_SECONDS)
