"""Lease ids: a claim and its key as text. Every process of the service can read the lease ids of the others."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import blake2b
from http import HTTPStatus
from uuid import UUID

from postroom.service.problems import Refused
from postroom.spi import Claim

_FORM = re.compile(r"(\d{1,18})\.(\d{1,16})\.([0-9a-f]{32})\.([0-9a-f]{16})", re.ASCII)
_UNKNOWN = datetime.max.replace(tzinfo=UTC)


def lease_id(key: str, claim: Claim) -> str:
    """Returns a claim as text: the number of the record, the fence, the owner, and a digest of the key."""
    return f"{claim.id}.{claim.fence}.{claim.owner.hex}.{_digest(key)}"


def claim_of(key: str, text: str) -> Claim:
    """Returns the claim of a lease id. Raises Refused if the text is no lease id, or that of another key."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise Refused(HTTPStatus.BAD_REQUEST, "leaseId must be what try-begin returned")
    if found[4] != _digest(key):
        raise Refused(HTTPStatus.BAD_REQUEST, "leaseId is that of another key")
    return Claim(int(found[1]), UUID(hex=found[3]), int(found[2]), _UNKNOWN)


def _digest(key: str) -> str:
    return blake2b(key.encode(), digest_size=8).hexdigest()
