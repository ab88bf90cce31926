"""From a memory URL to a store."""

from __future__ import annotations

from postroom._stores.memory import MemoryStore, SyncMemoryStore
from postroom._stores.options import StoreOptions
from postroom.errors import ArgumentValueError


def open_store(scheme: str, rest: str, options: StoreOptions) -> object:
    if rest:
        raise ArgumentValueError("memory:// takes nothing after it: each room has a separate memory")
    options.refuse(f"{scheme}://", "schema", "pool", "token")
    return MemoryStore(clock=options.clock) if options.mode == "async" else SyncMemoryStore(clock=options.clock)
