"""Probes: one for each server, which hints at stores in which other processes have put messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from postroom._connect import open_probe
from postroom._kernel.cancellation import check_cancelled
from postroom._kernel.texts import ErrorTexts
from postroom._many.tenant import Tenant
from postroom._stores.hub import Hub
from postroom._stores.probe import Probe
from postroom.errors import RoomClosed

_log = logging.getLogger("postroom")

HUB = "hub"
"""The name of the hub in log records."""
RETRY_SECONDS = (1.0, 60.0)
"""The pause after an error of a probe: the first, and the longest. Meanwhile the schedule looks at the stores."""


class Probing:
    """Runs the probes of one event loop."""

    def __init__(self, errors: ErrorTexts) -> None:
        self._errors = errors
        self._probes: dict[str, Probe] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def set_tenants(self, tenants: Iterable[Tenant], boxes: Iterable[str], hint: Callable[[str], None]) -> None:
        """Makes these the stores that the probes look at. `hint`: called with the identifier of a changed store."""
        by_server: dict[str, list[Tenant]] = {}
        for tenant in tenants:
            if tenant.config.pool is None:  # its URL may name another server
                by_server.setdefault(tenant.server, []).append(tenant)
        for server in self._probes.keys() - by_server.keys():
            del self._probes[server]
            task = self._tasks.pop(server)
            task.cancel()
            self._ending.add(task)  # it closes its connection, for which `close` waits
            task.add_done_callback(self._ending.discard)
        for server, of_server in by_server.items():
            probe = self._probes.get(server) or self._open(server, of_server[0], hint)
            if probe is not None:
                probe.set_stores(
                    {tenant.key: tenant.config.url for tenant in of_server},
                    prefixes={tenant.key: tenant.config.prefix for tenant in of_server},
                    boxes=list(boxes),
                )

    def _open(self, server: str, tenant: Tenant, hint: Callable[[str], None]) -> Probe | None:
        probe = open_probe(tenant.config.url)
        if probe is not None:
            self._probes[server] = probe
            self._tasks[server] = asyncio.create_task(self._run_and_close(server, probe, hint))
        return probe

    def set_hub(self, hub: Hub, tenants: Iterable[Tenant], hint: Callable[[str], None]) -> None:
        """Lets the hub hint at these stores. It stays open when the probes are closed: the room still publishes."""
        hub.set_stores({tenant.key: tenant.config.url for tenant in tenants})
        if HUB not in self._tasks:
            self._tasks[HUB] = asyncio.create_task(self._run(HUB, hub, hint))

    def seen(self, tenant: Tenant) -> bool:
        """Takes the present state of a store as seen. Returns True if it had changed."""
        probe = self._probes.get(tenant.server)
        return probe is not None and probe.refresh(tenant.key)

    async def _run_and_close(self, server: str, probe: Probe, hint: Callable[[str], None]) -> None:
        try:
            await self._run(server, probe, hint)
        finally:
            await probe.close()

    async def _run(self, server: str, probe: Probe, hint: Callable[[str], None]) -> None:
        pause = RETRY_SECONDS[0]
        while True:
            check_cancelled()
            try:
                keys = await probe.wait()
            except RoomClosed:
                return
            except Exception as error:  # noqa: BLE001 - without hints, the schedule looks at the stores
                if pause == RETRY_SECONDS[0]:
                    _log.info("server=%s gives no hints: %s", server, self._errors.of(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, RETRY_SECONDS[1])
            else:
                pause = RETRY_SECONDS[0]
                for key in keys:
                    hint(key)

    async def close(self) -> None:
        """Ends all probes."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks or self._ending:
            await asyncio.wait([*tasks, *self._ending])
        self._tasks.clear()
        self._probes.clear()
