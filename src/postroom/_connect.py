"""From a URL to a store: one table from URL scheme to module, which entry points extend.

A module of the table is imported when a URL names it. It has

* `open_store(scheme, rest, options)`, where `rest` is what follows `://`;
* `server_of(scheme, rest)`, optional: the name of the server of a URL, without credentials;
* `addresses_of_tx(tx)`, optional: the `addresses` of the database of a caller's transaction, without I/O;
* `open_probe(options)`, optional: a `Probe` that finds new messages in the stores of one server;
* `open_hub(scheme, rest, options)`, optional: a `Hub` on the database of a URL;
* `TX_CLASSES`, optional: the class names of the transactions that handlers of its stores may get, as in `tx_classes`;
* `ERROR_PACKAGES`, optional: the packages whose errors say what is wrong with the database, for the command line;
* `DIALECT` and `make_engine(prefix, schema)`, for SQL engines: the name that SQLAlchemy has for the database, and the
  engine, for `postroom.sqlalchemy`.

Another package adds a store by an entry point of the group `postroom.stores`. Its name is the scheme, its value the
module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from postroom._kernel.program import Mode
from postroom._stores.options import StoreOptions
from postroom.errors import ArgumentTypeError, ArgumentValueError, PostroomError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from postroom._stores.hub import Hub
    from postroom._stores.probe import Probe
    from postroom._stores.sql.engine import Engine

ENVIRONMENT = "POSTROOM_URL"
ENTRY_POINTS = "postroom.stores"

_POSTGRES = "postroom._stores.sql.postgres.url"
_REDIS = "postroom._stores.redis.url"
_HTTP = "postroom._stores.http.url"
_MODULES = {
    "sqlite": "postroom._stores.sql.sqlite.url",
    "postgresql": _POSTGRES,
    "postgres": _POSTGRES,
    "redis": _REDIS,
    "rediss": _REDIS,
    "unix": _REDIS,
    "memory": "postroom._stores.memory.url",
    "http": _HTTP,
    "https": _HTTP,
}
"""By the part of the scheme before `+`: what follows it names a driver or a topology."""
_WITHOUT_VARIANTS = frozenset({"sqlite", "memory", "http", "https"})
DEFAULT_DIALECT = "postgresql"
_EXAMPLES = ("sqlite:///shop.db", "postgresql://host/shop", "redis://host")


def open_store(url: str | None, *, mode: Mode, **given: Any) -> Any:
    """Returns a store for a URL. The store connects when its first verb is called."""
    scheme, rest = _split(_given(url))
    options = StoreOptions(mode, **given)
    options.check()
    with _reading(scheme):
        return _module(scheme).open_store(scheme, rest, options)


def server_of(url: str) -> str:
    """Returns the name of the server of a URL, without credentials. Stores of one server have the same."""
    scheme, rest = _split(url)
    module = _module(scheme)
    if hasattr(module, "server_of"):
        with _reading(scheme):
            return str(module.server_of(scheme, rest))
    before, _, after = rest.partition("?")[0].partition("/")
    # An @ behind the host may be that of a password with / or ? in it.
    host = "" if "@" in after + rest.partition("?")[2] else before.rpartition("@")[2]
    return f"{scheme} {host}".strip()


def addresses_of_tx(url: str, tx: object) -> frozenset[str]:
    """Returns the addresses of the database of a transaction for the store of a URL. Empty if they are not known."""
    module = _module(_split(url)[0])
    return module.addresses_of_tx(tx) if hasattr(module, "addresses_of_tx") else frozenset()


def open_probe(url: str, *, mode: Mode = "async", **given: Any) -> Probe | None:
    """Returns a probe for stores on the server of a URL, with the options of `open_store`; None if there is none.

    The probe makes its connection with the URL of a store. So there is no probe for a store with the user's `pool`,
    whose URL may name another server.
    """
    module = _module(_split(url)[0])
    options = StoreOptions(mode, **given)
    if options.pool is not None or not hasattr(module, "open_probe"):
        return None
    probe: Probe = module.open_probe(options)
    return probe


def open_hub(url: str, **given: Any) -> Hub:
    """Returns a hub on the database of a URL."""
    scheme, rest = _split(url)
    module = _module(scheme)
    if not hasattr(module, "open_hub"):
        raise ArgumentValueError(f"{scheme}:// cannot be a hub: it has no notifications")
    with _reading(scheme):
        hub: Hub = module.open_hub(scheme, rest, StoreOptions("async", **given))
    return hub


@contextmanager
def _reading(scheme: str) -> Iterator[None]:
    """Replaces the error of a library that cannot parse a URL. Its text may contain a password."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, PostroomError):
            raise
        raise ArgumentValueError(
            f"this {scheme}:// URL cannot be read: check its host and port, and write the characters /?#[]@ of a user "
            "name or password as %2F, %3F and so on"
        ) from None


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
    engines = _engines(_own_modules())
    if dialect not in engines:
        engines |= _engines(_load(entry) for entry in _entry_points().values())
    if dialect not in engines:
        known = " and ".join(sorted(engines))
        raise ArgumentValueError(f"there are no tables for {dialect!r}; this version has {known}")
    return engines[dialect](prefix, schema)


def _engines(modules: Iterable[ModuleType]) -> dict[str, Callable[[str, str | None], Engine]]:
    return {module.DIALECT: module.make_engine for module in modules if hasattr(module, "DIALECT")}


def transaction_classes() -> tuple[str, ...]:
    """Returns the class names of the transactions that handlers may get, of all stores that are installed."""
    modules = [*_own_modules(), *_loadable_modules()]
    return tuple(dict.fromkeys(name for module in modules for name in getattr(module, "TX_CLASSES", ())))


def _own_modules() -> Iterator[ModuleType]:
    return (import_module(path) for path in dict.fromkeys(_MODULES.values()))


def _loadable_modules() -> Iterator[ModuleType]:
    """Yields the modules of other packages. One that cannot be loaded raises when a URL names it, not here."""
    for entry in _entry_points().values():
        with suppress(ArgumentValueError):
            yield _load(entry)


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
