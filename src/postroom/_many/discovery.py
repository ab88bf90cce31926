"""Discovery: calls a function of the user again and again, to refresh the list of stores."""

from __future__ import annotations

import inspect
import logging
import time
from datetime import timedelta
from typing import Any

from postroom._kernel.program import Mode, Program, call
from postroom._kernel.texts import ErrorTexts
from postroom._many.config import Discover, StoreConfig, configs_of, shown_key
from postroom._many.discovery_thread import DiscoveryThread
from postroom._many.distinct import DistinctStores
from postroom._many.registry import Change, Registry
from postroom.errors import ArgumentTypeError, PostroomError

_log = logging.getLogger("postroom")

LONGEST_CALL_SECONDS = 60.0
"""How long a call may take in an async room; then it has failed."""
CONFIRM_SECONDS = 30.0
"""The longest pause before a discovery that must confirm the one before."""


class Discovery:
    """Refreshes a registry by a function of the user."""

    def __init__(self, discover: Discover, refresh: timedelta, registry: Registry, errors: ErrorTexts) -> None:
        if not callable(discover):
            raise ArgumentTypeError(f"discover must be a function, not {type(discover).__name__}")
        self._discover = discover
        self._thread = DiscoveryThread(discover)
        method = getattr(discover, "__call__", None)  # noqa: B004 - of an object, which may be async as well
        self._is_async = inspect.iscoroutinefunction(discover) or inspect.iscoroutinefunction(method)
        self._seconds = refresh.total_seconds()
        self._registry = registry
        self._errors = errors
        self._read_at: float | None = None
        self._failing = False
        self._begun = self._applied = self._suspected = 0
        """How many calls have begun; the number of the last one whose result is the list; and how many had begun when
        a list was returned that must be confirmed."""
        self._must_confirm = False
        self.left_out: dict[str, str] = {}
        """Why stores are left out, by identifier."""

    @property
    def has_list(self) -> bool:
        """Whether a call has succeeded."""
        return self._read_at is not None

    @property
    def pause(self) -> float:
        """Seconds until the next discovery."""
        if self._read_at is None:
            return 0.0
        interval = min(self._seconds, CONFIRM_SECONDS) if self._must_confirm else self._seconds
        return max(self._read_at + interval - time.monotonic(), 0.0)

    def refresh(self, mode: Mode) -> Program[Change | None]:
        """Calls the function, and makes its result the list of stores. Returns what has changed.

        Raises what it raises if it has never succeeded. Later, an error keeps the list and is logged.
        """
        is_first = self._read_at is None
        number = self._begun = self._begun + 1
        try:
            given = yield call(self._call, mode)
            configs = self._usable(configs_of(given, self._refuse))
            listed = {shown_key(key) for key in given}
            self.left_out = {key: text for key, text in self.left_out.items() if key in listed}
        except Exception as error:
            if is_first:
                raise
            self._read_at = time.monotonic()
            if not self._failing:
                self._failing = True
                message = "the discovery of stores failed; the room keeps its %d stores"
                self._errors.log(logging.ERROR, message, len(self._registry), error=error)
            return None
        self._read_at = time.monotonic()
        if self._failing:
            self._failing = False
            _log.info("the discovery of stores works again")
        if number < self._applied:
            return None  # a call that began later has returned before
        if self._must_confirm and number <= self._suspected:
            return None  # it began before the list that it would confirm
        self._applied = number
        return self._apply(configs)

    def _usable(self, configs: dict[str, StoreConfig]) -> dict[str, StoreConfig]:
        """Returns the stores that can be opened. A store with a bad new configuration keeps the one that it has."""
        usable: dict[str, StoreConfig] = {}
        distinct = DistinctStores(self._registry.unchanged(configs))
        for key, config in configs.items():
            try:
                distinct.add(self._registry.check(key, config))
            except PostroomError as error:
                self._refuse(key, error)
                known = self._registry.find(key)
                if known is not None:
                    usable[key] = known.config
            else:
                usable[key] = config
                self.left_out.pop(key, None)
        return usable

    def _refuse(self, key: str, error: PostroomError) -> None:
        """Logs a store that cannot be used, once."""
        text = self._errors.of(error)
        if self.left_out.get(key) != text:
            self.left_out[key] = text
            _log.warning("store=%s is left out: %s", key, text)

    def _apply(self, configs: dict[str, StoreConfig]) -> Change:
        self._must_confirm = self._registry.must_confirm(configs)
        if self._must_confirm:
            self._suspected = self._begun
            _log.warning(
                "the discovery of stores returned %d stores, and the room has %d: those that have disappeared are kept "
                "until a second discovery confirms it",
                len(configs),
                len(self._registry),
            )
            kept = {tenant.key: tenant.config for tenant in self._registry if tenant.key not in configs}
            configs = {**configs, **kept}
        change = self._registry.replace(configs)
        if change.added or change.removed or change.configured:
            _log.info(
                "the room has %d stores: %d added, %d removed, %d changed",
                len(self._registry),
                len(change.added),
                len(change.removed),
                len(change.configured),
            )
        return change

    def _call(self, mode: Mode) -> Any:
        """In async mode returns an awaitable."""
        if mode == "async":
            return self._call_async()
        result = self._discover()
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise ArgumentTypeError("discover is an async function: a room of postroom.sync needs a plain function")
        return result

    async def _call_async(self) -> Any:
        import asyncio

        async with asyncio.timeout(LONGEST_CALL_SECONDS):
            if self._is_async:
                return await self._discover()  # type: ignore[misc]
            result: object = await self._thread.call()  # it may read a database, which blocks
            return await result if inspect.isawaitable(result) else result
