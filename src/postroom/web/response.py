"""The response of an app: held back until the outcome of its request is stored."""

from __future__ import annotations

import logging

from postroom._boxes.guard.async_run import AsyncRun
from postroom.errors import LeaseLost
from postroom.web import problems
from postroom.web.asgi import Message, Send, length_of
from postroom.web.problems import Problem, send_problem
from postroom.web.rules import Rules

_log = logging.getLogger("postroom.web")


class RecordedResponse:
    """Stands between an app and its server. The outcome commits before the last byte of the response is sent.

    A response in one message, or with a Content-Length that can be stored, is held back as a whole. Any other is a
    stream: sent as it comes, except for its end, and recorded without its body.
    """

    def __init__(self, rules: Rules, run: AsyncRun, send: Send) -> None:
        self._rules = rules
        self._run = run
        self._server_send = send
        self._start: Message | None = None
        self._length: int | None = None
        self._size = 0
        self._chunks: list[bytes] = []
        self._is_streaming = False
        self._has_ended = False
        """Whether the run has ended: later messages pass."""
        self._is_replaced = False
        """Whether a problem was sent in place of the response."""
        self._is_client_gone = False

    async def send(self, message: Message) -> None:
        """Takes a message of the app."""
        if self._is_replaced:
            return
        if message["type"] == "http.response.start" and not self._has_ended:
            self._start, self._length = message, length_of(message.get("headers", ()))
        elif message["type"] == "http.response.body" and not self._has_ended and self._start is not None:
            await self._send_body(self._start, message)
        else:
            await self._forward(message)

    async def _send_body(self, start: Message, message: Message) -> None:
        chunk, has_more = message.get("body", b""), message.get("more_body", False)
        self._size += len(chunk)
        is_last = not has_more or (self._length is not None and self._size >= self._length)
        if self._is_streaming:
            if is_last:
                await self._end(None)
            await self._forward(message)
            return
        self._chunks.append(chunk)
        body = b"".join(self._chunks) if is_last or not self._may_be_stored() else None
        if body is None:
            return
        if is_last:
            problem = await self._end(body)
            if problem is not None:
                self._is_replaced = True
                await send_problem(self._server_send, problem)
                return
        self._is_streaming = True
        await self._forward(start)
        await self._forward({**message, "body": body})

    def _may_be_stored(self) -> bool:
        return self._length is not None and self._length <= self._rules.max_response_size

    async def _end(self, body: bytes | None) -> Problem | None:
        """Stores the outcome. Returns a problem to send in place of the response; raises if its begin was sent."""
        self._has_ended = True
        self._decide(body)
        try:
            await self._run.__aexit__(None, None, None)
        except LeaseLost:
            problem = problems.NOT_RECORDED
            if self._is_streaming:
                raise
        except Exception as error:
            if self._is_streaming:
                raise
            _log.error("an outcome is not stored (%s): guard %s", type(error).__name__, self._rules.guard.name)
            problem = problems.UNAVAILABLE
        else:
            return None
        return problem

    def _decide(self, body: bytes | None) -> None:
        if self._start is None:
            self._run.release()
        else:
            self._rules.keep(self._run, self._start["status"], list(self._start.get("headers", ())), body)

    async def _forward(self, message: Message) -> None:
        try:
            await self._server_send(message)
        except OSError:
            self._is_client_gone = True
            raise

    async def close(self, error: BaseException | None) -> None:
        """Ends the run of an app that has returned, or has raised this error, before its response was complete.

        A response that has begun shows that the handler has ended, so a client that goes while it is sent changes
        nothing. An error or a cancellation releases the key.
        """
        if self._has_ended:
            return
        self._has_ended = True
        if error is not None and not self._is_client_gone:
            await self._run.__aexit__(type(error), error, error.__traceback__)
            return
        self._decide(None)
        try:
            await self._run.__aexit__(None, None, None)
        except Exception as failure:  # noqa: BLE001 - the client has gone, so no response can report it
            _log.error("an outcome is not stored (%s): guard %s", type(failure).__name__, self._rules.guard.name)
