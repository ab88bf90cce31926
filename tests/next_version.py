"""A room of a Postroom to come: it knows one more migration."""

from __future__ import annotations

import copy
from typing import Any

from postroom._stores.sql.statements import Migration
from postroom._stores.wrapper import innermost


def add_migration(room: Any, migration: Migration) -> None:
    """Adds a migration to the schema of one room. All rooms of a process share an engine, so this one gets a copy."""
    schema = innermost(room.store)._schema
    engine = copy.copy(schema.engine)
    engine.migrations = (*engine.migrations, migration)
    schema.engine, schema.newest = engine, migration.version
