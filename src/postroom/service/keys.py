"""The routes below `/v1/inbox`: one verb of the guard each."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from http import HTTPStatus
from urllib.parse import unquote_to_bytes
from uuid import UUID

from msgspec import UNSET
from starlette.requests import Request

from postroom._boxes.guard.guard import Guard
from postroom._boxes.guard.programs import NO_RESULT
from postroom._kernel.guard import BeginStatus
from postroom._kernel.guard import Begun as GuardBegun
from postroom._kernel.message import AnyMessage
from postroom._kernel.states import State
from postroom.errors import MessageNotFound
from postroom.service import wire
from postroom.service.leases import claim_of, lease_id
from postroom.service.problems import Refused

KEY_PATH = b"/v1/inbox/"
_OUTCOMES = {
    BeginStatus.ACQUIRED: wire.BeginOutcome.ACQUIRED,
    BeginStatus.PROCESSED: wire.BeginOutcome.PROCESSED,
    BeginStatus.BUSY: wire.BeginOutcome.BUSY,
    BeginStatus.CONFLICT: wire.BeginOutcome.CONFLICT,
    BeginStatus.DEAD: wire.BeginOutcome.DEAD,
}
_STATES = {
    State.SEEN: wire.KeyState.SEEN,
    State.WAITING: wire.KeyState.SEEN,
    State.CLAIMED: wire.KeyState.LEASED,
    State.DONE: wire.KeyState.PROCESSED,
    State.DEAD: wire.KeyState.DEAD,
}


class Keys:
    """The verbs of a guard, as the wire has them."""

    def __init__(self, guard: Guard, *, max_lease_seconds: float) -> None:
        self._guard = guard
        self._max_lease = max_lease_seconds

    async def try_begin(self, body: wire.TryBegin) -> wire.Begun:
        self._check_lease(body.lease_seconds)
        begun = await self._guard.try_begin(
            body.key,
            topic=body.topic,
            owner=_token(body.owner),
            lease_seconds=body.lease_seconds,
            hash=_digest(body.hash),
        )
        return _begun(body.key, begun)

    async def mark_processed(self, body: wire.MarkProcessed) -> wire.Settled:
        result = NO_RESULT if body.result is UNSET else decoded("result", body.result, body.result_encoding)
        is_kept = await self._guard.mark_processed(claim_of(body.key, body.lease_id), result=result)
        return wire.Settled(status=wire.SettleOutcome.PROCESSED if is_kept else wire.SettleOutcome.LEASE_LOST)

    async def release(self, body: wire.Release) -> wire.Settled:
        is_kept = await self._guard.release(claim_of(body.key, body.lease_id))
        return wire.Settled(status=wire.SettleOutcome.RELEASED if is_kept else wire.SettleOutcome.LEASE_LOST)

    async def fail(self, body: wire.Fail) -> wire.Settled:
        is_kept = await self._guard.fail(claim_of(body.key, body.lease_id), body.error or "failed")
        return wire.Settled(status=wire.SettleOutcome.DEAD if is_kept else wire.SettleOutcome.LEASE_LOST)

    async def renew(self, body: wire.Renew) -> wire.Settled:
        self._check_lease(body.lease_seconds)
        is_kept = await self._guard.renew(claim_of(body.key, body.lease_id), body.lease_seconds)
        if not is_kept:
            return wire.Settled(status=wire.SettleOutcome.LEASE_LOST)
        return wire.Settled(status=wire.SettleOutcome.RENEWED, lease_seconds=body.lease_seconds)

    async def report(self, key: str) -> wire.Report:
        try:
            record = await self._guard.get(key)
        except MessageNotFound:
            return wire.Report(status=wire.KeyState.UNKNOWN, attempts=0, first_seen=None, last_seen=None)
        return _report(record)

    def _check_lease(self, seconds: float) -> None:
        if seconds > self._max_lease:
            raise Refused(HTTPStatus.BAD_REQUEST, f"leaseSeconds may be {self._max_lease:g} at most")


def _begun(key: str, begun: GuardBegun) -> wire.Begun:
    reply = wire.Begun(status=_OUTCOMES[begun.status])
    until = begun.until
    if begun.claim is not None:
        reply.lease_id, reply.attempts, until = lease_id(key, begun.claim), begun.deliveries, begun.claim.until
    if until is not None:
        reply.expires_at = until
        reply.lease_seconds = max((until - datetime.now(UTC)).total_seconds(), 0.0)
    if begun.has_result:
        is_binary = isinstance(begun.result, bytes)
        reply.result = base64.b64encode(begun.result).decode() if is_binary else begun.result
        reply.result_encoding = "base64" if is_binary else "json"
    return reply


def _report(record: AnyMessage) -> wire.Report:
    return wire.Report(
        status=_STATES[record.state],
        attempts=record.deliveries,
        first_seen=record.first_seen,
        last_seen=record.last_seen,
        lease_until=None if record.claim is None else record.claim.until,
        processed_at=record.completed_at,
    )


def key_of(request: Request) -> str:
    """Returns the key of a report: `?key=`, or the rest of the path as it was sent, percent-decoded once.

    A path that a server or a proxy has decoded no longer says which slashes belong to the key.
    """
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    if KEY_PATH not in path or not path.partition(KEY_PATH)[2].strip(b"/"):
        given = request.query_params.multi_items()
        if [name for name, _ in given] != ["key"]:
            raise Refused(HTTPStatus.BAD_REQUEST, "send ?key= once, and no other parameter")
        return _checked(given[0][1])
    return _checked(unquote_to_bytes(path.partition(KEY_PATH)[2]).decode())


def _checked(key: str) -> str:
    if not 1 <= len(key) <= wire.LONGEST_KEY:
        raise Refused(
            HTTPStatus.BAD_REQUEST, f"send a key of 1 to {wire.LONGEST_KEY} characters, in the path or as ?key="
        )
    return key


def _token(owner: str | None) -> UUID | None:
    """Returns the token of an owner; None for a name, which identifies no single execution."""
    try:
        return None if owner is None else UUID(owner)
    except ValueError:
        return None


def _digest(text: str | None) -> bytes | None:
    try:
        return None if text is None else bytes.fromhex(text)
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, "hash must have an even number of hex digits") from None


def decoded(name: str, value: object, encoding: str) -> object:
    """Returns a result or a payload as it is stored."""
    if encoding == "json":
        return value
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except ValueError:  # binascii.Error is one, too
        pass
    raise Refused(HTTPStatus.BAD_REQUEST, f"{name} must be a text in base64")
