"""From a PostgreSQL URL to a store: which driver, whose connections, and what may be expected of them."""

from __future__ import annotations

import importlib.util
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from postroom._connect import StoreOptions, addresses
from postroom._kernel.scope import UNNAMED
from postroom._stores.sql.drivers.asyncpg import AsyncpgPool, AsyncpgWire
from postroom._stores.sql.drivers.callers import class_names
from postroom._stores.sql.drivers.pools import Pool, PoolSettings, SqlalchemyPool, SyncSqlalchemyPool
from postroom._stores.sql.drivers.postgres import FOR_HANDLERS, PostgresDriver, SyncPostgresDriver
from postroom._stores.sql.drivers.psycopg import PsycopgPool, PsycopgWire, SyncPsycopgPool, SyncPsycopgWire
from postroom._stores.sql.engines.postgres.engine import PostgresEngine
from postroom._stores.sql.store import SqlStore, SyncSqlStore
from postroom.errors import ArgumentTypeError, ArgumentValueError

DRIVERS = {"async": ("asyncpg", "psycopg"), "sync": ("psycopg",)}
POOL_SIZE = 10

# A queue is full one moment and empty the next, and statistics are always of another moment. For these statements an
# index is the right way in any case, row by row; so one plan is enough, and to make it anew took a fifth of a claim's
# time. None is so long that compiling it would pay.
_NEVER = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")
SERVER_SETTINGS = {
    "application_name": "postroom",
    **dict.fromkeys(_NEVER, "off"),
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "timezone": "UTC",
    "default_transaction_isolation": "read committed",
}
FOR_THEIR_STATEMENTS = "; ".join(
    [*(f"SET LOCAL {setting} = on" for setting in _NEVER), "SET LOCAL plan_cache_mode = auto"]
)


def open_postgres(scheme: str, rest: str, options: StoreOptions) -> Any:
    driver = _driver(scheme.partition("+")[2], options)
    place, settings = _settings(rest)
    pool = _pool(driver, settings, options)
    place, known = _place(place, settings.url, options.pool)
    engine = PostgresEngine(
        options.prefix,
        schema=options.schema,
        own_clock=options.clock is not None,
        notifies=options.notify and not settings.pgbouncer,
    )
    is_async = options.colour == "async"
    made: Any = (PostgresDriver if is_async else SyncPostgresDriver)(
        pool,
        engine,
        name=f"postgresql:{place}",
        addresses=known,
        wires=(AsyncpgWire(), PsycopgWire()) if is_async else (SyncPsycopgWire(),),
        clock=options.clock,
        explicit=settings.pgbouncer,
        handlers=_most_handlers(options.pool, settings),
        # A pool may be of another database than the URL says, and PgBouncer may call it by another name.
        database=None if options.pool is not None or settings.pgbouncer else _database(settings.url),
    )
    store: Any = SqlStore if is_async else SyncSqlStore
    return store(made, deploy_schema=options.deploy_schema)


def _place(place: str, url: str, pool: Any) -> tuple[str, frozenset[str]]:
    """The name of the database for logs, and its addresses. A given pool may be of another one than the URL says."""
    if pool is None:
        known = addresses.of_url(url)
        return place, known.known if known else frozenset()
    known = addresses.of_pool(pool) or (addresses.of_url(url) if place != "/" else None)
    return (known.shown, known.known) if known else (UNNAMED, frozenset())


def _most_handlers(pool: Any, settings: PoolSettings) -> int | None:
    """How many handlers may have a transaction at once, so that verbs find a connection too."""
    size = settings.size if pool is None else _size_of(pool)
    return None if size is None else size - FOR_HANDLERS


def _driver(asked: str, options: StoreOptions) -> str:
    drivers = DRIVERS[options.colour]
    if asked and asked not in drivers:
        known = " or ".join(f"postgresql+{name}://" for name in drivers)
        raise ArgumentValueError(f"{options.colour} code has no driver {asked!r} for PostgreSQL: use {known}")
    installed = [name for name in drivers if importlib.util.find_spec(name)]
    return asked or next(iter(installed), drivers[0])


def _settings(rest: str) -> tuple[str, PoolSettings]:
    """What comes after the scheme, for the driver; and where that is, without credentials."""
    path, _, query = rest.partition("?")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    pgbouncer = _flag("pgbouncer", parameters.pop("pgbouncer", "false"))
    size = _size(parameters.pop("pool_size", str(POOL_SIZE)))
    settings: dict[str, str] = {} if pgbouncer else SERVER_SETTINGS
    hosts = _hosts(path)
    place = f"{hosts or parameters.get('host', '')}/{path.partition('/')[2]}"
    url = f"postgresql://{path}" + (f"?{urlencode(parameters)}" if parameters else "")
    return place, PoolSettings(
        url,
        size=size,
        pgbouncer=pgbouncer,
        several_hosts="," in hosts and "target_session_attrs" not in parameters,
        # What the URL says goes before what we say.
        server_settings={name: value for name, value in settings.items() if name not in parameters},
        for_handlers="" if pgbouncer else FOR_THEIR_STATEMENTS,
    )


def _database(url: str) -> str | None:
    """What the database is called, if the URL says so."""
    return unquote(urlsplit(url).path.lstrip("/")) or None


def _hosts(path: str) -> str:
    """The hosts and ports, checked here: a driver's complaint might quote a piece of a password."""
    before, _, database = path.partition("/")
    hosts = before.rpartition("@")[2]
    ports = [host.rpartition(":")[2] for host in hosts.split(",") if ":" in host and not host.endswith("]")]
    if (
        "@" in database
        or "#" in path
        or before.count("@") > 1
        or not all(port.isdecimal() or not port for port in ports)
    ):
        raise ArgumentValueError(
            "this URL cannot be read: it should look like postgresql://user:password@host:5432/database. A password "
            "with / # @ ? or : in it must be percent-encoded (urllib.parse.quote), or come from PGPASSWORD"
        )
    return hosts


def _flag(name: str, value: str) -> bool:
    if value.lower() not in {"true", "false", "1", "0"}:
        raise ArgumentValueError(f"{name} in a URL is true or false")
    return value.lower() in {"true", "1"}


def _size(value: str) -> int:
    if not value.isdecimal() or not FOR_HANDLERS < int(value) <= 1000:
        raise ArgumentValueError(f"pool_size in a URL is a number from {FOR_HANDLERS + 1} to 1000")
    return int(value)


def _pool(driver: str, settings: PoolSettings, options: StoreOptions) -> Pool:
    given = options.pool
    if given is None:
        own: Any = {"asyncpg": AsyncpgPool, "psycopg": PsycopgPool if options.colour == "async" else SyncPsycopgPool}
        return own[driver](settings)
    kinds: dict[tuple[str, str], Any] = {
        ("asyncpg.Pool", "async"): lambda: AsyncpgPool(settings, given),
        ("psycopg_pool.AsyncConnectionPool", "async"): lambda: PsycopgPool(settings, given),
        ("psycopg_pool.ConnectionPool", "sync"): lambda: SyncPsycopgPool(settings, given),
        ("sqlalchemy.AsyncEngine", "async"): lambda: SqlalchemyPool(given, _wire(given, "async")),
        ("sqlalchemy.Engine", "sync"): lambda: SyncSqlalchemyPool(given, _wire(given, "sync")),
    }
    names = class_names(given)  # one of the user's own may inherit from these
    make = next((kinds[name, options.colour] for name in names if (name, options.colour) in kinds), None)
    if make is None:
        known = ", ".join(kind for kind, colour in kinds if colour == options.colour)
        raise ArgumentTypeError(f"pool is a {names[0]}; {options.colour} code takes one of: {known}")
    most = _size_of(given)
    if options.colour == "async" and most is not None and most <= FOR_HANDLERS:
        raise ArgumentValueError(
            f"this pool has at most {most} connections: a room needs {FOR_HANDLERS + 1} or more, since one listens, "
            "one settles, and a transactional handler has one for itself"
        )
    return make()


def _size_of(pool: Any) -> int | None:
    """How many connections a user's pool may have; None where it does not say, or has no limit."""
    if hasattr(pool, "get_max_size"):
        return int(pool.get_max_size())
    size = getattr(pool, "max_size", None)
    below: Any = getattr(pool, "pool", None)
    if size is None and hasattr(below, "size") and getattr(below, "_max_overflow", -1) >= 0:
        size = below.size() + below._max_overflow  # noqa: SLF001 - SQLAlchemy does not tell otherwise
    return int(size) if size else None


def _wire(engine: Any, colour: str) -> Any:
    if engine.dialect.name != "postgresql":
        raise ArgumentValueError(f"this SQLAlchemy engine is on {engine.dialect.name}, not on PostgreSQL")
    wires = {("async", "asyncpg"): AsyncpgWire, ("async", "psycopg"): PsycopgWire, ("sync", "psycopg"): SyncPsycopgWire}
    wire = wires.get((colour, engine.dialect.driver))
    if wire is None:
        known = " or ".join(f"postgresql+{driver}://" for driver in DRIVERS[colour])
        raise ArgumentValueError(f"this SQLAlchemy engine uses {engine.dialect.driver}: make it with {known}")
    return wire()
