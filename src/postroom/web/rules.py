"""The rules of idempotency keys that the middleware and the decorator share: who may begin, and what others get."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import timedelta
from typing import Any, TypeAlias

from postroom._boxes import check
from postroom._boxes.guard.async_run import AsyncRun
from postroom._boxes.guard.guard import Guard, SyncGuard
from postroom._boxes.guard.options import Mode
from postroom._kernel.guard import BeginStatus
from postroom.errors import ArgumentTypeError, ArgumentValueError, GuardBusy, GuardConflict
from postroom.web import problems
from postroom.web.asgi import Headers
from postroom.web.keys import ANONYMOUS, Anonymous, fingerprint, key_in, record_key
from postroom.web.problems import Refused
from postroom.web.stored import KeptStatuses, StoredResponse, stored

PrincipalOf: TypeAlias = Callable[[Any], str | Awaitable[str | None] | None]
"""Takes the ASGI scope (middleware) or the request (decorator). Returns who sent it; None: unknown."""

MAX_BODY_SIZE = 1_048_576
_log = logging.getLogger("postroom.web")


class Rules:
    """The options of a guarded app or route, checked."""

    def __init__(
        self,
        guard: Guard,
        mode: Mode,
        principal: PrincipalOf | Anonymous,
        *,
        wait: timedelta | None,
        keep_statuses: Collection[int],
        max_body_size: int,
    ) -> None:
        self.guard = _checked(guard, mode)
        if principal is not ANONYMOUS and not callable(principal):
            raise ArgumentTypeError(
                "principal must be a function that returns who sent a request, so that callers cannot get each other's "
                "responses; for a service without callers, pass ANONYMOUS"
            )
        self._principal = principal
        self._wait = check.optional_duration("wait", wait)
        self.kept = KeptStatuses(keep_statuses)
        self.max_body_size = check.count("max_body_size", max_body_size, most=1_000_000_000)
        self.max_response_size = guard.policy.max_result_size

    async def record_of(
        self, source: Any, headers: Iterable[tuple[bytes, bytes]], method: str, path: str
    ) -> str | None:
        """Returns the key of a record; None if the request has no idempotency key. `source`: what `principal` takes."""
        key = key_in(headers)
        return None if key is None else record_key(await self._principal_of(source), method, path, key)

    async def _principal_of(self, source: Any) -> str | Anonymous:
        if isinstance(self._principal, Anonymous):
            return self._principal
        found = self._principal(source)
        principal = await found if inspect.isawaitable(found) else found
        if principal is None or principal == "":
            raise Refused(problems.NO_PRINCIPAL)
        if not isinstance(principal, str):
            raise ArgumentTypeError(f"principal returned {type(principal).__name__}: it must return a str, or None")
        return principal

    async def begin(
        self, record: str, headers: Iterable[tuple[bytes, bytes]], query: bytes, body: bytes
    ) -> AsyncRun | StoredResponse:
        """Begins a request, whose run the caller ends. Returns the stored response if it is a repetition.

        Raises Refused, also if the store fails: the request is not handled then.
        """
        run = self.guard.run(record, hash=fingerprint(headers, query, body), wait=self._wait)
        try:
            await run.__aenter__()
        except GuardBusy:
            raise Refused(problems.IN_PROGRESS) from None
        except GuardConflict:
            raise Refused(problems.REUSED) from None
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the store, the key is not known to be free
            _log.error("a request could not begin (%s): guard %s", type(error).__name__, self.guard.name)
            raise Refused(problems.UNAVAILABLE) from None
        if run.acquired:
            return run
        if run.status is BeginStatus.DEAD:
            raise Refused(problems.FAILED)
        if not run.has_result:
            raise Refused(problems.REPLAY_UNAVAILABLE)
        return StoredResponse.decode(run.result)

    def keep(self, run: AsyncRun, status: int, headers: Headers, body: bytes | None) -> None:
        """Decides what the end of a run stores. `body`: None if it is not known, or too large."""
        if status not in self.kept:
            run.release()
        elif body is not None and len(body) <= self.max_response_size:
            encoded = stored(status, headers, body).encode()
            if len(encoded) <= self.max_response_size:
                run.keep(encoded)


def _checked(guard: object, mode: Mode) -> Guard:
    if isinstance(guard, SyncGuard):
        raise ArgumentTypeError(
            "this guard is of postroom.sync, and requests are async: use a guard of postroom.Postroom"
        )
    if not isinstance(guard, Guard):
        raise ArgumentTypeError(f"guard must be what room.guard() returns, not {type(guard).__name__}")
    if guard.policy.mode != mode:
        uses = "the decorator idempotent" if mode == "transactional" else "IdempotencyMiddleware"
        raise ArgumentValueError(f'{uses} needs room.guard(…, mode="{mode}"), and this guard is "{guard.policy.mode}"')
    return guard
