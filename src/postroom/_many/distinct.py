"""Stores with the same tables: two identifiers for them would mix the messages of two tenants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias
from urllib.parse import parse_qs

from postroom._many.tenant import Tenant
from postroom.errors import ArgumentValueError

Tables: TypeAlias = tuple[str, str, object]
"""The address of a database, the prefix, and the schema."""


class DistinctStores:
    """Checks that no two stores of a list have the same tables."""

    def __init__(self, tenants: Iterable[Tenant] = ()) -> None:
        """`tenants`: stores that keep their tables."""
        self._keys: dict[Tables, str] = {}
        for tenant in tenants:
            self._keys.update(dict.fromkeys(_tables_of(tenant), tenant.key))

    def add(self, tenant: Tenant) -> None:
        """Adds a store. Raises ArgumentValueError if another one has its tables."""
        tables = _tables_of(tenant)
        other = next((self._keys[each] for each in tables if self._keys.get(each, tenant.key) != tenant.key), None)
        if other is not None:
            raise ArgumentValueError(
                f"it has the same tables as store {other!r}, so messages of one would be handled as those of the "
                "other: give it another database, schema or prefix"
            )
        self._keys.update(dict.fromkeys(tables, tenant.key))


def _tables_of(tenant: Tenant) -> list[Tables]:
    config, facts = tenant.config, tenant.facts
    if not facts.features.durable:
        return []  # each store object has its data for itself
    schema = _search_path(config.url, config.pool) if config.schema is None else config.schema
    return [(address, config.prefix, schema) for address in sorted(facts.addresses)]


def _search_path(url: str, pool: object) -> object:
    """Returns what decides the schema if none is given: PostgreSQL's search path depends on the user and options."""
    before, _, query = url.partition("://")[2].partition("?")
    user = before.rpartition("@")[0].partition(":")[0]
    parameters = parse_qs(query)
    return user, *(tuple(parameters.get(name, ())) for name in ("user", "options", "service")), id(pool)
