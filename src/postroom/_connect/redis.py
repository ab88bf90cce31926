"""From a Redis URL to a store: one server, Sentinel's master or a cluster, on our own clients or the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode

from postroom._connect import StoreOptions
from postroom._kernel.local import Borrowed
from postroom._kernel.scope import UNNAMED
from postroom._stores.sql.statements import DEFAULT_PREFIX
from postroom.errors import ArgumentTypeError, ArgumentValueError, ExtraMissing

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "rediss+sentinel", "rediss+cluster")
POOL_SIZE = 10
SILENCE = 10
"""Seconds after which a connection that says nothing is given up."""
LONGEST_WAIT = (SILENCE - 1) * 1000
HANDED_ON = ("username", "password", "client_name", "protocol")
"""Parameters of a URL that redis-py takes as they are."""
PORTS = {"sentinel": 26379, "cluster": 6379}
LOOKS_LIKE = "redis://user:password@host:6379/0"


class Place(NamedTuple):
    """What a URL says."""

    kind: str
    """`single`, `sentinel` or `cluster`."""
    url: str
    """For one server, as redis-py takes it."""
    shown: str
    """Without credentials."""
    hosts: tuple[tuple[str, int], ...] = ()
    username: str | None = None
    password: str | None = None
    tls: bool = False
    service: str = ""
    database: int = 0

    def __repr__(self) -> str:
        return f"<Place {self.kind} {self.shown}>"


def open_redis(scheme: str, rest: str, options: StoreOptions) -> Any:
    _import_redis()
    from postroom._stores.redis.durability import Durability
    from postroom._stores.redis.store import RedisStore, SyncRedisStore
    from postroom._stores.redis.wire import Replication, SyncWire, Wire

    options.refuse(f"{scheme}://", "schema")
    place, replication, pool_size = _read(scheme, rest)
    name = f"redis:{place.shown}"
    cluster = place.kind == "cluster"
    if options.pool is not None:
        make, cluster = _theirs(options.pool, options.colour)
        name = name if place.shown.strip("/") else f"redis:{UNNAMED}"
    else:
        make = _ours(place, options.colour, pool_size)
    settings: dict[str, Any] = {
        "name": name,
        "cluster": cluster,
        "theirs": options.pool is not None,
        "most": pool_size if place.kind != "single" and options.pool is None else None,
        "replication": Replication(*replication),
        "durability": Durability(name, required=options.require_durable),
    }
    is_async = options.colour == "async"
    wire: Any = Wire(make, **settings) if is_async else SyncWire(make, **settings)
    store: Any = RedisStore if is_async else SyncRedisStore
    return store(wire, prefix=_prefix(options.prefix), clock=options.clock, notify=options.notify)


def _prefix(given: str) -> str:
    """The default of the SQL stores ends in an underscore, since names of tables follow; keys have a colon there."""
    return "postroom" if given == DEFAULT_PREFIX else given


# -- the URL ---------------------------------------------------------------------------------------------------------


def _read(scheme: str, rest: str) -> tuple[Place, tuple[int, int], int]:
    path, _, query = rest.partition("?")
    if "#" in rest or "@" in query:
        raise _unreadable()
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    replication = (
        _number(parameters, "wait_replicas", 0, 100),
        _number(parameters, "wait_timeout", 1000, LONGEST_WAIT, least=1),
    )
    pool_size = _number(parameters, "pool_size", POOL_SIZE, 1000, least=1)
    base, _, kind = scheme.partition("+")
    if scheme not in SCHEMES:
        raise ArgumentValueError(f"there is no {scheme}://; there are {', '.join(f'{each}://' for each in SCHEMES)}")
    _check(parameters, scheme)
    if base == "unix":
        place = Place("single", f"unix://{path}{_query(parameters)}", path.rpartition("@")[2])
        return place, replication, pool_size
    if kind and parameters:
        raise ArgumentValueError(
            f"{scheme}:// knows no {', '.join(sorted(parameters))}, only pool_size, wait_replicas and wait_timeout. "
            "For anything else, make a client of redis-py's and pass it as pool"
        )
    return _servers(base, kind, path, _query(parameters)), replication, pool_size


def _check(parameters: dict[str, str], scheme: str) -> None:
    """Now, and not when the first connection is made."""
    from redis.connection import URL_QUERY_ARGUMENT_PARSERS

    parsers: dict[str, Any] = dict(URL_QUERY_ARGUMENT_PARSERS)
    unknown = [name for name in parameters if name not in {*parsers, *HANDED_ON} and name[:4] != "ssl_"]
    if unknown:
        raise ArgumentValueError(f"{scheme}:// knows no parameter {', '.join(sorted(unknown))}")
    for name, value in parameters.items():
        try:
            parsers.get(name, str)(value)
        except (TypeError, ValueError):
            raise ArgumentValueError(f"{name} in a URL has a value that it cannot have") from None


def _servers(base: str, kind: str, path: str, query: str) -> Place:
    credentials, separator, after = path.rpartition("@")
    hosts_text, _, tail = after.partition("/")
    if "@" in credentials or "/" in credentials:
        raise _unreadable()
    hosts = _hosts(hosts_text, PORTS.get(kind, 6379))
    service, database = "", tail
    if kind == "sentinel":
        service, _, database = tail.partition("/")
        if not service:
            raise ArgumentValueError(
                "a Sentinel URL names the service: redis+sentinel://user:password@host1:26379,host2:26379/service/0"
            )
    elif not kind and len(hosts) > 1:
        raise ArgumentValueError("redis:// has one host; several are redis+sentinel:// or redis+cluster://")
    if database and not database.isdecimal():
        raise ArgumentValueError("the database at the end of a Redis URL is a number, such as /0")
    if kind == "cluster" and database not in {"", "0"}:
        raise ArgumentValueError("a Redis Cluster has only the database 0: leave it out")
    username, _, password = credentials.partition(":")
    return Place(
        kind or "single",
        f"{base}://{credentials}{separator}{after}{query}",
        f"{hosts_text}/{tail}",
        hosts,
        unquote(username) or None,
        unquote(password) or None,
        base == "rediss",
        service,
        int(database or 0),
    )


def _unreadable() -> ArgumentValueError:
    # The text is not repeated: it may contain a password.
    return ArgumentValueError(
        f"this URL cannot be read: it should look like {LOOKS_LIKE}. A password with / # @ ? or : in it must be "
        "percent-encoded (urllib.parse.quote)"
    )


def _hosts(text: str, port: int) -> tuple[tuple[str, int], ...]:
    hosts = []
    for each in text.split(","):
        host, separator, given = each.rpartition(":") if not each.endswith("]") else (each, "", "")
        if separator and not (given.isdecimal() and 0 < int(given) < 65_536):
            raise _unreadable()
        hosts.append(((host if separator else each).strip("[]") or "localhost", int(given) if separator else port))
    return tuple(hosts)


def _number(parameters: dict[str, str], name: str, default: int, most: int, *, least: int = 0) -> int:
    text = parameters.pop(name, str(default))
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ArgumentValueError(f"{name} in a URL is a number from {least} to {most}")
    return int(text)


def _query(parameters: dict[str, str]) -> str:
    return f"?{urlencode(parameters)}" if parameters else ""


# -- clients ---------------------------------------------------------------------------------------------------------


def _import_redis() -> Any:
    try:
        import redis
    except ImportError as error:
        raise ExtraMissing("Redis needs redis-py: pip install 'postroom[redis]'") from error
    return redis


def _ours(place: Place, colour: str, pool_size: int) -> Callable[[], Any]:
    """Makes a client. It repeats nothing by itself: whether a verb may be repeated is decided above it, once."""
    import redis
    import redis.asyncio
    from redis.asyncio.retry import Retry as AsyncRetry
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    kit: Any = redis.asyncio if colour == "async" else redis
    retry: Any = (AsyncRetry if colour == "async" else Retry)(NoBackoff(), 0)
    common: dict[str, Any] = {
        "socket_connect_timeout": 10,
        "socket_timeout": SILENCE,
        "client_name": "postroom",
    }
    if not place.url.startswith("unix://"):
        common["socket_keepalive"] = True
    # Before redis-py 6, how often a cluster's client repeats a command was a number.
    retries = {"cluster_error_retry_attempts": 0} if int(redis.__version__.partition(".")[0]) < 6 else None
    login = {"username": place.username, "password": place.password}

    def single() -> Any:
        pool = kit.BlockingConnectionPool.from_url(
            place.url, max_connections=pool_size, timeout=10, retry=retry, **common
        )
        return kit.Redis.from_pool(pool)

    def sentinel() -> Any:
        tls = {"ssl": True} if place.tls else {}
        watchers = kit.Sentinel(place.hosts, sentinel_kwargs={"socket_timeout": 5, **tls})
        # Its pool does not wait for a connection: how many we use is bounded above.
        return watchers.master_for(
            place.service, db=place.database, max_connections=pool_size + 2, retry=retry, **login, **tls, **common
        )

    def cluster() -> Any:
        node: Any = redis.asyncio.cluster.ClusterNode if colour == "async" else redis.cluster.ClusterNode
        tls = {"ssl": True} if place.tls else {}
        return kit.RedisCluster(
            startup_nodes=[node(*host) for host in place.hosts],
            max_connections=pool_size + 2,  # also asked for the state of the cluster; how many we use is bounded above
            **(retries if retries is not None else {"retry": retry}),
            **login,
            **tls,
            **common,
        )

    return {"single": single, "sentinel": sentinel, "cluster": cluster}[place.kind]


def _theirs(pool: Any, colour: str) -> tuple[Callable[[], Any], bool]:
    """The user's client, or a client on the user's pool of connections."""
    import redis
    import redis.asyncio

    kit: Any = redis.asyncio if colour == "async" else redis
    client = kit.Redis(connection_pool=pool) if isinstance(pool, kit.ConnectionPool) else pool
    if not isinstance(client, kit.Redis | kit.RedisCluster):
        where = kit.__name__
        raise ArgumentTypeError(
            f"pool is a {type(pool).__module__}.{type(pool).__name__}; {colour} code takes one of: {where}.Redis, "
            f"{where}.RedisCluster, {where}.ConnectionPool"
        )
    if client.get_encoder().decode_responses:
        raise ArgumentValueError("this client decodes responses to text: make it with decode_responses=False")
    # A client for sync code sees a fork by itself, and connects anew.
    make: Callable[[], Any] = Borrowed(client).get if colour == "async" else lambda: client
    return make, isinstance(client, kit.RedisCluster)
