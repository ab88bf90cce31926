"""Connections to public addresses only: names are resolved once, checked, and the checked address is used."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable

try:
    import httpcore2 as httpcore
except ImportError as _error:
    from postroom.errors import ExtraMissing

    raise ExtraMissing("sending webhooks needs httpcore2: pip install 'postroom[webhooks]'") from _error

__all__ = ["AddressRefused", "PublicAddresses", "Resolve", "httpcore", "is_allowed", "resolve"]

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host name."""

_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
_MOST_ADDRESSES = 4


class AddressRefused(Exception):
    """A name has no address to which a connection is allowed."""


def is_allowed(text: str, allowed: Iterable[Network] = ()) -> bool:
    """Returns True for a public address, and for one in an allowed network.

    An IPv6 address that contains an IPv4 address (mapped, 6to4, Teredo, NAT64) is judged by that one.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    inner = _inner(address)
    if any(one in network for network in allowed for one in inner):
        return True
    return all(one.is_global and not one.is_multicast and not one.is_reserved for one in inner)


def _inner(address: IPAddress) -> list[IPAddress]:
    """Returns the IPv4 addresses to which an IPv6 address leads, or else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address.sixtofour]
    if address.teredo is not None:
        return list(address.teredo)
    if any(address in network for network in _NAT64):
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    return [address]


async def resolve(host: str, port: int) -> list[str]:
    """Returns the addresses of a host name, by the resolver of the operating system."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class PublicAddresses(httpcore.AsyncNetworkBackend):
    """Opens connections for httpcore. The name is not resolved again between the check and the connection."""

    def __init__(self, allowed: Iterable[Network] = (), resolve: Resolve = resolve) -> None:
        self._allowed = tuple(allowed)
        self._resolve = resolve
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature of httpcore
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError("the name of the host cannot be resolved") from error
        usable = [address for address in addresses if is_allowed(address, self._allowed)]
        last: Exception = AddressRefused()
        for address in usable[:_MOST_ADDRESSES]:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last = error
        raise last

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature of httpcore
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise AddressRefused

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
