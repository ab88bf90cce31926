"""The composition root: from a URL to a store. Engines and drivers are imported only when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from postroom._kernel.clock import Clock
from postroom._kernel.observer import Observer
from postroom._kernel.retry import StorageRetry
from postroom._kernel.texts import Redact
from postroom._stores.sql.statements import DEFAULT_PREFIX, check_prefix
from postroom.errors import ArgumentTypeError, ArgumentValueError

Colour = Literal["sync", "async"]
ENVIRONMENT = "POSTROOM_URL"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What can be said of a store, beside its URL."""

    colour: Colour
    prefix: str = DEFAULT_PREFIX
    schema: str | None = None
    pool: Any = None
    notify: bool = True
    deploy_schema: bool = False
    require_durable: bool = False
    clock: Clock | None = None

    def check(self) -> None:
        check_prefix(self.prefix)
        for name in ("notify", "require_durable"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentTypeError(f"{name} must be a bool, not {type(getattr(self, name)).__name__}")

    def refuse(self, scheme: str, *names: str) -> None:
        """Raise where an option was given that means nothing to this kind of store."""
        for name in names:
            if getattr(self, name) is not None:
                raise ArgumentValueError(f"{scheme} knows no {name}: leave it out")


def open_store(url: str | None, *, colour: Colour, **given: Any) -> Any:
    """A store for a URL. Nothing is opened until its first verb."""
    scheme, rest = _split(_given(url))
    options = StoreOptions(colour, **given)
    options.check()
    if scheme == "sqlite":
        from postroom._connect.sqlite import open_sqlite

        return open_sqlite(rest, options)
    if scheme.partition("+")[0] in {"postgresql", "postgres"}:
        from postroom._connect.postgres import open_postgres

        return open_postgres(scheme, rest, options)
    if scheme.partition("+")[0] in {"redis", "rediss", "unix"}:
        from postroom._connect.redis import open_redis

        return open_redis(scheme, rest, options)
    if scheme == "memory":
        return _memory(rest, options)
    raise ArgumentValueError(
        f"there is no store for {scheme}://; this version has sqlite:///, postgresql://, redis:// and memory://"
    )


def observe(
    store: Any, observers: Sequence[Observer], retry: StorageRetry, colour: Colour, redact: Redact | None = None
) -> Any:
    from postroom._stores.observed import ObservedStore, SyncObservedStore

    wrap: Callable[..., Any] = ObservedStore if colour == "async" else SyncObservedStore
    return wrap(store, observers, retry, redact)


def _given(url: Any) -> str:
    if url is None:
        url = os.environ.get(ENVIRONMENT)
        if not url:
            raise ArgumentTypeError(
                "no database: pass a URL such as sqlite:///shop.db, postgresql://host/shop or redis://host, "
                f"or set {ENVIRONMENT}"
            )
    if not isinstance(url, str):
        raise ArgumentTypeError(f"url must be a str, not {type(url).__name__}")
    return url


def _split(url: str) -> tuple[str, str]:
    scheme, separator, rest = url.partition("://")
    if not separator:
        # The text is not repeated: it may be a connection string with a password.
        raise ArgumentValueError(
            "this is not a URL: it should look like sqlite:///shop.db, postgresql://host/shop, redis://host or memory://"
        )
    return scheme, rest


def _memory(rest: str, options: StoreOptions) -> Any:
    from postroom._stores.memory import MemoryStore, SyncMemoryStore

    if rest:
        raise ArgumentValueError("memory:// takes nothing after it: each room has a memory of its own")
    options.refuse("memory://", "schema", "pool")
    return MemoryStore(clock=options.clock) if options.colour == "async" else SyncMemoryStore(clock=options.clock)
