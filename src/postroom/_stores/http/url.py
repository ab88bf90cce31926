"""From the URL of a service to a store."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from postroom._stores.client_imports import import_client
from postroom._stores.http.token import ENVIRONMENT, Token
from postroom._stores.options import StoreOptions
from postroom.errors import ArgumentValueError

if TYPE_CHECKING:
    from postroom._stores.http.store import HttpStore, SyncHttpStore

ERROR_PACKAGES = frozenset({"httpx2"})
CALL_SECONDS = 8.0
"""Less than `completion_timeout` of a guard."""
LONGEST_CALL = 600.0
POOL_SIZE = 20


def open_store(scheme: str, rest: str, options: StoreOptions) -> HttpStore | SyncHttpStore:
    """Returns a store. `rest` is the part of the URL after `://`."""
    options.refuse(f"{scheme}://", "schema", "pool")
    url, shown, seconds, pool_size = _read(scheme, rest, options.pool_size or POOL_SIZE)
    token = Token.from_environment() if options.token is None else Token(options.token)
    import_client("httpx2", needed_by=f"{scheme}://", extra="client")
    from postroom._stores.http.store import HttpStore, SyncHttpStore
    from postroom._stores.http.transport import SyncTransport, Transport

    settings = {"name": shown, "seconds": seconds, "pool_size": pool_size, "require_durable": options.require_durable}
    if options.mode == "async":
        return HttpStore(Transport(url, token, **settings), clock=options.clock)
    return SyncHttpStore(SyncTransport(url, token, **settings), clock=options.clock)


def server_of(scheme: str, rest: str) -> str:
    """Returns the service of a URL: its scheme, host and port."""
    _, shown, _, _ = _read(scheme, rest, POOL_SIZE)
    return shown.partition("://")[0] + " " + urlsplit(shown).netloc


def _read(scheme: str, rest: str, pool_size: int) -> tuple[str, str, float, int]:
    """Returns the URL without its parameters, the same for logs, the seconds of a call, and the pool size."""
    if scheme not in {"http", "https"}:
        raise ArgumentValueError(f"there is no {scheme}://; there are http:// and https://")
    parts = urlsplit(f"{scheme}://{rest}")
    if "@" in rest or parts.fragment:
        raise ArgumentValueError(
            f"a URL of a service has no user, password or fragment: put the token into {ENVIRONMENT}, or pass token="
        )
    if not parts.hostname:
        raise ArgumentValueError("a URL of a service has a host, such as http://127.0.0.1:8025")
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    seconds = _number(parameters, "timeout", CALL_SECONDS, LONGEST_CALL)
    connections = _number(parameters, "pool_size", pool_size, 1000)
    if parameters:
        raise ArgumentValueError(f"{scheme}:// knows no parameter {', '.join(sorted(parameters))}")
    port = "" if parts.port is None else f":{parts.port}"
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    url = f"{scheme}://{host}{port}{parts.path.rstrip('/')}"
    return url, url, seconds, int(connections)


def _number(parameters: dict[str, str], name: str, default: float, most: float) -> float:
    """Removes a parameter and returns its value."""
    text = parameters.pop(name, str(default))
    if not text.replace(".", "", 1).isdecimal() or not text.isascii() or not 0 < float(text) <= most:
        raise ArgumentValueError(f"{name} in a URL is a number above 0, and at most {most:g}")
    return float(text)
