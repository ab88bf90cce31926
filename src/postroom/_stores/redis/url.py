"""Opens a store for a Redis URL: one server, the master of a Sentinel service, or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode

from postroom._kernel.prefix import DEFAULT_PREFIX
from postroom._kernel.scope import UNNAMED
from postroom._stores.hub import ChannelHub
from postroom._stores.options import StoreOptions
from postroom.errors import ArgumentValueError, ExtraMissing

if TYPE_CHECKING:
    from postroom._stores.redis.probe import ProbeClient, RedisProbe
    from postroom._stores.redis.store import RedisStore, SyncRedisStore

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "rediss+sentinel", "rediss+cluster")
ERROR_PACKAGES = frozenset({"redis"})
"""Packages whose errors say what is wrong with the server."""
POOL_SIZE = 10
SOCKET_TIMEOUT = 10
"""Seconds without a reply after which a connection is closed."""
MAX_REPLICA_TIMEOUT = (SOCKET_TIMEOUT - 1) * 1000
"""Milliseconds. A longer wait for replicas would look like a dead connection."""
PASSED_ON = ("username", "password", "client_name", "protocol")
"""Parameters of a URL that redis-py accepts and does not convert."""
PORTS = {"sentinel": 26379, "cluster": 6379}
EXAMPLE = "redis://user:password@host:6379/0"


class RedisAddress(NamedTuple):
    """The servers that a URL names."""

    kind: str
    """`single`, `sentinel` or `cluster`."""
    url: str
    """For a single server: the URL for redis-py."""
    shown: str
    """The address without credentials."""
    hosts: tuple[tuple[str, int], ...] = ()
    username: str | None = None
    password: str | None = None
    tls: bool = False
    service: str = ""
    database: int = 0

    def __repr__(self) -> str:
        return f"<RedisAddress {self.kind} {self.shown}>"


def open_store(scheme: str, rest: str, options: StoreOptions) -> RedisStore | SyncRedisStore:
    """Returns a store. `rest` is the part of the URL after `://`."""
    _check_installed()
    from postroom._stores.redis.client import RedisClient, SyncRedisClient
    from postroom._stores.redis.connections import client_factory, factory_for
    from postroom._stores.redis.durability import Durability
    from postroom._stores.redis.replication import Replication
    from postroom._stores.redis.store import RedisStore, SyncRedisStore

    options.refuse(f"{scheme}://", "schema", "token")
    address, replication, pool_size = _read(scheme, rest, options.pool_size)
    name = f"redis:{address.shown}"
    is_cluster = address.kind == "cluster"
    if options.pool is not None:
        make, is_cluster = factory_for(options.pool, options.mode)
        name = name if address.shown.strip("/") else f"redis:{UNNAMED}"
    else:
        make = client_factory(address, options.mode, pool_size)
    settings: dict[str, Any] = {
        "name": name,
        "cluster": is_cluster,
        "is_borrowed": options.pool is not None,
        "max_commands": pool_size if address.kind != "single" and options.pool is None else None,
        "replication": Replication(*replication),
        "durability": Durability(name, required=options.require_durable),
    }
    prefix, clock, notify = _prefix(options.prefix), options.clock, options.notify
    if options.mode == "async":
        return RedisStore(RedisClient(make, **settings), prefix=prefix, clock=clock, notify=notify)
    return SyncRedisStore(SyncRedisClient(make, **settings), prefix=prefix, clock=clock, notify=notify)


def server_of(scheme: str, rest: str) -> str:
    """Returns the server of a URL without credentials: its host and port, its Sentinels and service, or its cluster."""
    _check_installed()
    address, _, _ = _read(scheme, rest)
    if not address.hosts:
        return f"redis {address.shown}"  # the path of a socket
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host.lower()}:{port}" for host, port in address.hosts)
    kind = "" if address.kind == "single" else f"{address.kind} "
    service = f"/{address.service}" if address.service else ""
    return f"redis {kind}{hosts}{service}"


def open_probe(options: StoreOptions) -> RedisProbe:
    """Returns a probe for the stores of one server."""
    _check_installed()
    from postroom._stores.redis.probe import RedisProbe

    return RedisProbe(_probe_client, _prefix, options.prefix)


def _probe_client(url: str) -> ProbeClient:
    from postroom._stores.redis.connections import client_factory
    from postroom._stores.redis.probe import ProbeClient

    scheme, _, rest = url.partition("://")
    address, _, _ = _read(scheme, rest)
    return ProbeClient(client_factory(address, "async", 1)(), address.kind == "cluster")


def open_hub(scheme: str, rest: str, options: StoreOptions) -> ChannelHub:
    """Returns a hub on this server."""
    _check_installed()
    from postroom._stores.redis.connections import client_factory
    from postroom._stores.redis.hub import RedisChannel

    address, _, _ = _read(scheme, rest)
    return ChannelHub(RedisChannel(client_factory(address, "async", 1)(), f"{_prefix(options.prefix)}:hub"))


def _check_installed() -> None:
    try:
        import redis  # noqa: F401
    except ImportError as error:
        raise ExtraMissing("Redis needs redis-py: pip install 'postroom[redis]'") from error


def _prefix(given: str) -> str:
    """Returns the prefix of keys. The default prefix ends with an underscore, for tables; keys have a colon there."""
    return "postroom" if given == DEFAULT_PREFIX else given


def _read(scheme: str, rest: str, pool_size: int | None = None) -> tuple[RedisAddress, tuple[int, int], int]:
    """Returns the address, the arguments of `Replication`, and the pool size."""
    path, _, query = rest.partition("?")
    if "#" in rest or "@" in query:
        raise _unreadable()
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    replication = (
        _number(parameters, "wait_replicas", 0, 100),
        _number(parameters, "wait_timeout", 1000, MAX_REPLICA_TIMEOUT, least=1),
    )
    pool_size = _number(parameters, "pool_size", pool_size or POOL_SIZE, 1000, least=1)
    base, _, kind = scheme.partition("+")
    if scheme not in SCHEMES:
        raise ArgumentValueError(f"there is no {scheme}://; there are {', '.join(f'{each}://' for each in SCHEMES)}")
    _check(parameters, scheme)
    if base == "unix":
        address = RedisAddress("single", f"unix://{path}{_query(parameters)}", path.rpartition("@")[2])
        return address, replication, pool_size
    if kind and parameters:
        raise ArgumentValueError(
            f"{scheme}:// knows no {', '.join(sorted(parameters))}, only pool_size, wait_replicas and wait_timeout. "
            "For anything else, make a client of redis-py's and pass it as pool"
        )
    return _servers(base, kind, path, _query(parameters)), replication, pool_size


def _check(parameters: dict[str, str], scheme: str) -> None:
    """Raises for parameters that redis-py would reject when it makes the first connection."""
    from redis.connection import URL_QUERY_ARGUMENT_PARSERS

    parsers: dict[str, Any] = dict(URL_QUERY_ARGUMENT_PARSERS)
    unknown = [name for name in parameters if name not in {*parsers, *PASSED_ON} and name[:4] != "ssl_"]
    if unknown:
        raise ArgumentValueError(f"{scheme}:// knows no parameter {', '.join(sorted(unknown))}")
    for name, value in parameters.items():
        try:
            parsers.get(name, str)(value)
        except (TypeError, ValueError):
            raise ArgumentValueError(f"{name} in a URL has a value that it cannot have") from None


def _servers(base: str, kind: str, path: str, query: str) -> RedisAddress:
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
    return RedisAddress(
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
    # The error does not contain the URL, which may contain a password.
    return ArgumentValueError(
        f"this URL cannot be read: it should look like {EXAMPLE}. A password with / # @ ? or : in it must be "
        "percent-encoded (urllib.parse.quote)"
    )


def _hosts(text: str, port: int) -> tuple[tuple[str, int], ...]:
    """Returns hosts and ports. `port` is the default; an IPv6 address is in brackets."""
    hosts = []
    for each in text.split(","):
        if ("[" in each or "]" in each) and not (each.startswith("[") and each.count("[") == each.count("]") == 1):
            raise _unreadable()
        host, separator, given = each.rpartition(":") if not each.endswith("]") else (each, "", "")
        if separator and not (given.isdecimal() and 0 < int(given) < 65_536):
            raise _unreadable()
        if ":" in host and not host.startswith("["):
            raise _unreadable()
        hosts.append(((host if separator else each).strip("[]") or "localhost", int(given) if separator else port))
    return tuple(hosts)


def _number(parameters: dict[str, str], name: str, default: int, most: int, *, least: int = 0) -> int:
    """Removes a parameter and returns its value."""
    text = parameters.pop(name, str(default))
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ArgumentValueError(f"{name} in a URL is a number from {least} to {most}")
    return int(text)


def _query(parameters: dict[str, str]) -> str:
    return f"?{urlencode(parameters)}" if parameters else ""
