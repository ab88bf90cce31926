"""A discovery whose list a test changes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from tests.runtime.support import soon

SHORT = timedelta(milliseconds=10)


class Directory:
    """A discovery whose list a test changes."""

    def __init__(self, stores: Any) -> None:
        self.stores = dict(stores)
        self.error: Exception | None = None
        self.calls = 0
        self._called = asyncio.Event()

    async def __call__(self) -> Any:
        self.calls += 1
        self._called.set()
        if self.error is not None:
            raise self.error
        stores = dict(self.stores)
        await asyncio.sleep(0)
        return stores

    async def called(self, more: int = 2) -> None:
        """Waits for so many further calls. The second one has begun after the first was applied."""
        last = self.calls + more

        async def reached() -> None:
            while self.calls < last:
                self._called.clear()
                await self._called.wait()

        await soon(reached())
