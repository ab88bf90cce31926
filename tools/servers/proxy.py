"""A TCP proxy that breaks connections on request: what a network, a load balancer or a crash does to a client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self

from tools.servers.base import HOST, PATIENCE, free_port

_CHUNK = 65_536


class Proxy:
    """Forwards a free loopback port to a server. Its loop runs in a separate thread; all methods are synchronous.

    `target` may be changed, as when an address moves to another server: it holds for new connections.
    """

    host = HOST

    def __init__(self, host: str, port: int) -> None:
        self.port = free_port()
        self.target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._armed: tuple[Callable[[bytes], bool], threading.Event] | None = None

    def start(self) -> None:
        self._thread.start()
        self.accept()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self.refuse()
            self.cut()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE)
        self._loop.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._connections)

    def cut(self) -> None:
        """Break all connections now, on both sides. New ones are still accepted, unless `refuse` was called."""
        self._run(self._cut())

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay."""
        self._run(self._refuse())

    def accept(self) -> None:
        """Accept new connections again."""
        self._run(self._accept())

    def freeze(self) -> None:
        """Hold all bytes, in both directions. Connections stay open, and new ones are accepted."""
        self._run(self._freeze())

    def thaw(self) -> None:
        """Let the bytes go on, those that were held first."""
        self._run(self._thaw())

    def cut_after(self, matches: Callable[[bytes], bool]) -> threading.Event:
        """Breaks a connection between a request and its reply: the server acts, and the client gets no reply.

        The first bytes from a client for which `matches` is true are forwarded, the reply is not. That client is cut
        when the server has done with them and has closed its side: then a test can look at once at what it did. The
        event that is returned is set thereafter. It happens once; the other connections go on. `matches` gets what one
        read brought, which for a small request is all of it, and runs in the thread of the proxy.
        """
        happened = threading.Event()
        self._armed = (matches, happened)
        return happened

    def _run(self, action: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(action, self._loop).result(PATIENCE)

    async def _cut(self) -> None:
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _accept(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accepted, HOST, self.port)

    async def _freeze(self) -> None:
        self._thawed.clear()

    async def _thaw(self) -> None:
        self._thawed.set()

    def _accepted(self, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        connection = self._loop.create_task(self._connect(requests, client))
        self._connections.add(connection)
        connection.add_done_callback(lambda ended: self._ended(ended, client))

    def _ended(self, connection: asyncio.Task[None], client: asyncio.StreamWriter) -> None:
        self._connections.discard(connection)
        if not client.is_closing():  # it was cut before it had begun
            client.transport.abort()

    async def _connect(self, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        writers = [client]
        try:
            replies, server = await asyncio.open_connection(*self.target)
            writers.append(server)
            await _Connection(self, requests, client, replies, server).forward()
            for writer in writers:
                writer.close()  # in order: what is in its buffer is sent
        except OSError:
            pass  # the server refused, or one side broke the connection: so it ends for the other side
        finally:
            for writer in writers:
                if not writer.is_closing():
                    writer.transport.abort()

    async def flow(self) -> None:
        while not self._thawed.is_set():
            await self._thawed.wait()

    def take_match(self, data: bytes) -> threading.Event | None:
        """The event of `cut_after` if these are the bytes it waits for; it waits no longer then."""
        if self._armed is None:
            return None
        matches, happened = self._armed
        if not matches(data):
            return None
        self._armed = None
        return happened


class _Connection:
    """One client and its server."""

    def __init__(
        self,
        proxy: Proxy,
        requests: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        replies: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> None:
        self.proxy = proxy
        self.requests, self.client = requests, client
        self.replies, self.server = replies, server
        self.muted: threading.Event | None = None

    async def forward(self) -> None:
        """Return when one side has ended."""
        back = asyncio.create_task(self._back())
        forth = asyncio.create_task(self._forth(back))
        try:
            await asyncio.wait({back, forth}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            back.cancel()
            forth.cancel()
            results = await asyncio.gather(back, forth, return_exceptions=True)
        if self.muted is not None:
            self.client.transport.abort()
            self.muted.set()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _forth(self, back: asyncio.Task[None]) -> None:
        while data := await self.requests.read(_CHUNK):
            await self.proxy.flow()
            self.muted = self.proxy.take_match(data)
            self.server.write(data)
            await self.server.drain()
            if self.muted is not None:
                # The server reads all of it before it finds the end. Closing instead could take away what it has not
                # read yet.
                self.server.write_eof()
                await asyncio.wait({back})
                return

    async def _back(self) -> None:
        while data := await self.replies.read(_CHUNK):
            await self.proxy.flow()
            if self.muted is None:
                self.client.write(data)
                await self.client.drain()
