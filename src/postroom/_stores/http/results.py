"""Results and claims in bodies. Both ends use these functions."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta

import msgspec
from msgspec import Raw

from postroom._kernel.guard import NO_END
from postroom._kernel.message import Claim, Format
from postroom._kernel.settlement import RESULT_FORMATS, Result
from postroom._stores.http import wire

CLOCKS_AGREE = timedelta(seconds=1)
"""Clocks that differ by less are taken as equal, so that two responses name the same end of a lease."""


def store_result(payload: str | bytes, format_: Format | None) -> wire.StoredResult | None:
    """Returns a stored result for a body. None: there is no result."""
    if format_ not in RESULT_FORMATS:
        return None
    if isinstance(payload, bytes):
        return wire.StoredResult(Raw(msgspec.json.encode(base64.b64encode(payload).decode())), "base64")
    return wire.StoredResult(Raw(payload.encode()))


def read_result(raw: Raw, encoding: wire.Encoding) -> Result:
    """Returns the result of a body. Raises ValueError for one that is not JSON, or not base64."""
    value = msgspec.json.decode(raw)
    if encoding == "json":
        return Result(bytes(raw).decode(), "json")
    if not isinstance(value, str):
        raise ValueError("not a text")  # noqa: TRY004 - one error for all bad values
    return Result(base64.b64decode(value, validate=True), "bytes")


def show_claim(claim: Claim, now: datetime) -> wire.ClaimReply:
    """Returns a claim for a body, with the seconds until its lease ends."""
    if claim.until >= NO_END:
        return wire.ClaimReply(claim.id, claim.owner, claim.fence)
    return wire.ClaimReply(
        claim.id, claim.owner, claim.fence, until=claim.until, lease_seconds=(claim.until - now).total_seconds()
    )


def read_end(until: datetime | None, lease_seconds: float | None, now: datetime) -> datetime | None:
    """Returns the end of a lease by the clock of the caller, which is `now`. None: the lease has no end.

    The seconds decide: the clock of the service may differ.
    """
    if until is None or lease_seconds is None:
        return None
    here = now + timedelta(seconds=lease_seconds)
    return until if abs(here - until) < CLOCKS_AGREE else here


def read_claim(reply: wire.ClaimReply, now: datetime) -> Claim:
    """Returns the claim of a body."""
    end = read_end(reply.until, reply.lease_seconds, now)
    return Claim(reply.id, reply.owner, reply.fence, NO_END if end is None else end)
