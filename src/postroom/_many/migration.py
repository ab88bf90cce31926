"""Migrations of many stores."""

from __future__ import annotations

from collections.abc import Callable

from postroom._many.config import StoreMigrated, StoreResult
from postroom._many.router import AsyncRouter
from postroom.spi import Migrator


async def migrate_store(store: object) -> list[int]:
    """Makes or updates the tables of one store. Returns the versions that were applied."""
    return await store.migrate() if isinstance(store, Migrator) else []


async def migrate_all(
    router: AsyncRouter, parallel: int, progress: Callable[[StoreMigrated], object] | None
) -> list[StoreMigrated]:
    """Migrates all stores. Calls `progress` after each."""

    def ended(result: StoreResult[list[int]]) -> None:
        if progress is not None:
            progress(_migrated(result))

    return list(map(_migrated, await router.each(migrate_store, parallel=parallel, progress=ended)))


def _migrated(result: StoreResult[list[int]]) -> StoreMigrated:
    return StoreMigrated(result.store, result.value or [], result.error)
