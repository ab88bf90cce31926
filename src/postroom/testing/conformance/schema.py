"""What a store says of itself, its tables and its end."""

from __future__ import annotations

import asyncio

import pytest

from postroom.spi import Features, Schema, Store
from postroom.testing.conformance.base import OpenBox, Suite, draft


def with_schema(store: Store) -> Schema:
    if not isinstance(store, Schema):
        pytest.skip("this store has no tables to make: it has none of the verbs of Schema")
    return store


class SchemaConformance(Suite):
    """`Schema`, where a store has it, and what every store has."""

    async def test_a_store_has_a_name_and_features(self, store: Store) -> None:
        assert store.name
        assert isinstance(store.features, Features)

    async def test_closing_twice_is_fine(self, store: Store, open_box: OpenBox) -> None:
        await open_box().put(draft("1"))
        await store.close()
        await store.close()

    @pytest.mark.req("IBX-116", "OBX-104")
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
