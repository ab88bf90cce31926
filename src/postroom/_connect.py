"""From a URL to a store: one table from URL scheme to module, which entry points extend.

A module of the table is imported when a URL names it. It has

* `open_store(scheme, rest, options)`, where `rest` is what follows `://`;
* `ERROR_PACKAGES`, optional: the packages whose errors say what is wrong with the database, for the command line;
* `DIALECT` and `make_engine(prefix, schema)`, for SQL engines: the name that SQLAlchemy has for the database, and the
  engine, for `postroom.sqlalchemy`.

Another package adds a store by an entry point of the group `postroom.stores`. Its name is the scheme, its value the
module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from postroom._kernel.program import Mode
from postroom._stores.options import StoreOptions
from postroom.errors import ArgumentTypeError, ArgumentValueError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from postroom._stores.sql.engine import Engine

ENVIRONMENT = "POSTROOM_URL"
ENTRY_POINTS = "postroom.stores"

_POSTGRES = "postroom._stores.sql.postgres.url"
_REDIS = "postroom._stores.redis.url"
_MODULES = {
    "sqlite": "postroom._stores.sql.sqlite.url",
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "redis": _REDIS,
    "rediss": _REDIS,
    "unix": _REDIS,
    "memory": "postroom._stores.memory.url",
}
"""By the part of the scheme before `+`: what follows it names a driver or a topology."""
_WITHOUT_VARIANTS = frozenset({"sqlite", "memory"})
DEFAULT_DIALECT = "postgresql"
_EXAMPLES = ("sqlite:///shop.db", "postgresql://host/shop", "redis://host")


def open_store(url: str | None, *, mode: Mode, **given: Any) -> Any:
    """Returns a store for a URL. The store connects when its first verb is called."""
    scheme, rest = _split(_given(url))
    options = StoreOptions(mode, **given)
    options.check()
    return _module(scheme).open_store(scheme, rest, options)


def _module(scheme: str) -> ModuleType:
    base, plus, _ = scheme.partition("+")
    if base in _MODULES and not (plus and base in _WITHOUT_VARIANTS):
        return import_module(_MODULES[base])
    others = _entry_points()
    if base not in others:
        known = ", ".join(f"{name}://" for name in (*_MODULES, *sorted(others)))
        raise ArgumentValueError(f"there is no store for {scheme}://; this installation has {known}")
    return _load(others[base])


def _load(entry: EntryPoint) -> ModuleType:
    try:
        module: ModuleType = entry.load()
    except Exception as error:
        raise ArgumentValueError(
            f"the store for {entry.name}:// cannot be loaded: its entry point names {entry.value}, which raised "
            f"{type(error).__name__}"
        ) from error
    return module


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # which takes 10 ms to import

    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def make_engine(dialect: str, prefix: str, schema: str | None) -> Engine:
    """Returns the SQL engine of the database that SQLAlchemy calls `dialect`."""
    engines = _engines(import_module(path) for path in dict.fromkeys(_MODULES.values()))
    if dialect not in engines:
        engines |= _engines(_load(entry) for entry in _entry_points().values())
    if dialect not in engines:
        known = " and ".join(sorted(engines))
        raise ArgumentValueError(f"there are no tables for {dialect!r}; this version has {known}")
    return engines[dialect](prefix, schema)


def _engines(modules: Iterable[ModuleType]) -> dict[str, Callable[[str, str | None], Engine]]:
    return {module.DIALECT: module.make_engine for module in modules if hasattr(module, "DIALECT")}


def is_database_error(error: BaseException) -> bool:
    """Returns True if a client library of a store that is in use raised this error."""
    package = type(error).__module__.partition(".")[0]
    loaded = [sys.modules[path] for path in dict.fromkeys(_MODULES.values()) if path in sys.modules]
    loaded += [sys.modules[entry.module] for entry in _entry_points().values() if entry.module in sys.modules]
    return any(package in getattr(module, "ERROR_PACKAGES", ()) for module in loaded)


def _given(url: Any) -> str:
    if url is None:
        url = os.environ.get(ENVIRONMENT)
        if not url:
            raise ArgumentTypeError(
                f"no database: pass a URL such as {', '.join(_EXAMPLES[:-1])} or {_EXAMPLES[-1]}, or set {ENVIRONMENT}"
            )
    if not isinstance(url, str):
        raise ArgumentTypeError(f"url must be a str, not {type(url).__name__}")
    return url


def _split(url: str) -> tuple[str, str]:
    scheme, separator, rest = url.partition("://")
    if not separator:
        # The text is not repeated: it may be a connection string with a password.
        raise ArgumentValueError(f"this is not a URL: it should look like {', '.join(_EXAMPLES)} or memory://")
    return scheme, rest
