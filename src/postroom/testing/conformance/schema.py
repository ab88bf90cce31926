"""The name, the features, the tables and the end of a store."""

from __future__ import annotations

import asyncio

import pytest

from postroom.spi import Features, Migrator, Store
from postroom.testing.conformance.base import OpenBox, Suite, draft


def with_schema(store: Store) -> Migrator:
    if not isinstance(store, Migrator):
        pytest.skip("this store has no tables to make: it has none of the verbs of Migrator")
    return store


class SchemaConformance(Suite):
    """Every store; and `migrate` of a store that is a `Migrator`."""

    async def test_a_store_has_a_name_and_features(self, store: Store) -> None:
        assert store.name
        assert isinstance(store.features, Features)

    async def test_closing_twice_is_fine(self, store: Store, open_box: OpenBox) -> None:
        await open_box().put(draft("1"))
        await store.close()
        await store.close()

    async def test_migrating_again_changes_nothing(self, store: Store, open_box: OpenBox) -> None:
        schema, box = with_schema(store), open_box()
        await schema.migrate()
        await box.put(draft("1"))
        version, before = await schema.schema_version(), await box.find()
        assert version > 0
        assert await schema.migrate() == []
        assert await schema.schema_version() == version
        assert await box.find() == before

    async def test_migrations_may_race(self, store: Store) -> None:
        schema = with_schema(store)
        await schema.migrate()
        assert await asyncio.gather(*(schema.migrate() for _ in range(5))) == [[]] * 5

    async def test_the_script_is_text(self, store: Store) -> None:
        assert with_schema(store).schema_script().strip()
