"""From the values of a store to the bodies of requests, and from the bodies of responses back."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import cast

import msgspec
from msgspec import UNSET, Raw

from postroom._stores.http import wire
from postroom._stores.http.results import read_claim, read_end, read_result, store_result
from postroom.errors import FeatureMissing
from postroom.spi import (
    Begin,
    BeginStatus,
    Begun,
    Box,
    Claim,
    Draft,
    Filter,
    Key,
    Receipt,
    Settlement,
    StoredMessage,
)


def dedup_seconds(box: Box) -> float | None:
    window = box.retention.dedup_window
    return None if window is None else window.total_seconds()


def begin_item(begin: Begin) -> wire.BeginItem:
    draft = begin.draft
    return wire.BeginItem(
        draft.source,
        draft.message_id,
        begin.owner,
        None if begin.lease is None else begin.lease.total_seconds(),
        topic=draft.topic or None,
        hash=None if draft.hash is None else draft.hash.hex(),
        hash_algorithm=draft.hash_algorithm,
    )


def begun_of(item: wire.BegunItem, now: datetime) -> Begun:
    """Returns what a begin found. Raises ValueError for an acquired key without its claim: it could not be settled."""
    if item.status is BeginStatus.ACQUIRED and item.claim is None:
        raise ValueError("a claim is missing")
    result = None if item.stored is None else read_result(item.stored.result, item.stored.result_encoding)
    return Begun(
        item.status,
        None if item.claim is None else read_claim(item.claim, now),
        item.deliveries,
        read_end(item.until, item.lease_seconds, now),
        None if result is None else result.payload,
        None if result is None else result.format,
        item.error,
    )


def proof_of(claim: Claim) -> wire.ClaimProof:
    return wire.ClaimProof(claim.id, claim.owner, claim.fence)


def settle_item(settlement: Settlement) -> wire.SettleItem:
    claim, verdict = settlement.target, settlement.verdict
    if not isinstance(claim, Claim) or verdict == "retry":
        raise FeatureMissing("over HTTP, an execution is settled by its claim, as done, released or dead")
    stored = None if settlement.result is None else store_result(*settlement.result)
    return wire.SettleItem(
        proof_of(claim),
        verdict,
        delay_seconds=None if settlement.delay is None else settlement.delay.total_seconds(),
        error=settlement.error,
        counts=settlement.counts,
        result=UNSET if stored is None else stored.result,
        result_encoding="json" if stored is None else stored.result_encoding,
    )


def record_key(key: Key) -> wire.RecordKey:
    return wire.RecordKey(key.source, key.message_id)


def record_item(draft: Draft) -> wire.RecordItem:
    digest = None if draft.hash is None else draft.hash.hex()
    return wire.RecordItem(draft.source, draft.message_id, hash=digest, hash_algorithm=draft.hash_algorithm)


def selection_of(which: Filter, box: Box, *, after: int, limit: int) -> wire.Selection:
    if which.group is not None or which.correlation_id is not None or which.blocking:
        raise FeatureMissing("records of a guard have no group and no correlation id")
    return wire.Selection(
        dedup_seconds=dedup_seconds(box),
        states=None if which.states is None else sorted(which.states),
        ids=None if which.ids is None else list(which.ids),
        topic=which.topic,
        source=which.source,
        message_id=which.message_id,
        keys=None if which.keys is None else [record_key(key) for key in which.keys],
        after=after,
        limit=limit,
    )


def message_of(record: wire.RecordReply, now: datetime) -> StoredMessage:
    stored = record.stored
    result = None if stored is None else read_result(stored.result, stored.result_encoding)
    return StoredMessage(
        id=record.id,
        source=record.source,
        message_id=record.message_id,
        topic=record.topic,
        payload="" if result is None else result.payload,
        format=record.format,
        headers={},
        correlation_id=None,
        group=None,
        collapse_key=None,
        hash=None if record.hash is None else bytes.fromhex(record.hash),
        due=None,
        expires=None,
        received_at=None,
        first_seen=record.first_seen,
        last_seen=record.last_seen,
        revision=record.revision,
        state=record.state,
        attempt=record.attempt,
        deliveries=record.deliveries,
        last_error=record.last_error,
        claim=None if record.claim is None else read_claim(record.claim, now),
        completed_at=record.completed_at,
        completed_by=record.completed_by,
        ending=record.ending,
        lost_leases=record.lost_leases,
    )


def new_message(draft: Draft) -> wire.NewMessage:
    """Returns a message for an inbox. Raises FeatureMissing for what the protocol does not have."""
    if draft.lifetime is not None:
        raise FeatureMissing("over HTTP, the lifetime of a message is set by `expires`")
    return wire.NewMessage(
        draft.topic,
        _payload(draft),
        draft.source,
        draft.message_id,
        payload_encoding=_ENCODINGS[draft.format],
        correlation_id=draft.correlation_id,
        due=draft.due,
        group=draft.group,
        headers=None if draft.headers is None else dict(draft.headers),
        expires=draft.expires,
        received_at=draft.received_at,
        hash=None if draft.hash is None else draft.hash.hex(),
        hash_algorithm=draft.hash_algorithm,
        on_conflict=draft.on_conflict,
        revive_dead=draft.revive_dead,
        on_duplicate="update" if draft.on_duplicate == "update" else "reject",
    )


_ENCODINGS: dict[str, wire.PayloadEncoding] = {"json": "document", "text": "json", "bytes": "base64"}
"""By the format of a payload. A text is a JSON value that is a text."""


def _payload(draft: Draft) -> Raw:
    if draft.format == "json":
        return Raw(cast("str", draft.payload).encode())
    if isinstance(draft.payload, bytes):
        return Raw(msgspec.json.encode(base64.b64encode(draft.payload).decode()))
    return Raw(msgspec.json.encode(draft.payload))


def receipts_of(reply: wire.Receipts) -> list[Receipt]:
    return [
        Receipt(
            each.status,
            each.id,
            each.source,
            each.message_id,
            each.state,
            replaced_under_lease=each.replaced_under_lease,
            updated=each.updated,
        )
        for each in reply.receipts
    ]


def keys_of(reply: Sequence[wire.RecordKey]) -> list[Key]:
    return [Key(each.source, each.message_id) for each in reply]
