"""Converts values to arguments of scripts, and replies of scripts to values. Packed fields are in `layout` order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from redis.utils import HIREDIS_AVAILABLE

from postroom._kernel.clock import from_microseconds, to_microseconds
from postroom._kernel.fields import DRAFT_LABELS
from postroom._kernel.policy import suspect_from
from postroom._stores.redis.layout import CONTENT
from postroom._stores.redis.redis_py import Reply
from postroom.errors import ArgumentValueError
from postroom.spi import (
    NO_END,
    Begin,
    BeginStatus,
    Begun,
    Box,
    Claim,
    ClaimRequest,
    Draft,
    Filter,
    KeyStatus,
    NamedTarget,
    Receipt,
    ReceiptStatus,
    State,
)

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder().decode

Arguments = dict[str, Any]
"""Named arguments of a script. An absent name is None or False."""

STATES = {"s": State.SEEN, "w": State.WAITING, "c": State.CLAIMED, "d": State.DONE, "x": State.DEAD}
LETTERS = {state: letter for letter, state in STATES.items()}
_STATUSES = {status.value: status for status in ReceiptStatus}
_MICROSECOND = timedelta(microseconds=1)

MAX_TIME = 2**53 - 1
"""The last time in microseconds that Lua represents exactly, in the year 2255. Boxes accept no later one."""


def microseconds(duration: timedelta) -> int:
    return duration // _MICROSECOND


def _time(value: datetime | None) -> int | None:
    if value is None:
        return None
    time = to_microseconds(value)
    if time > MAX_TIME:
        raise ArgumentValueError(f"Redis keeps no time after {from_microseconds(MAX_TIME):%Y-%m-%d}: {value:%Y-%m-%d}")
    return time


def time_or_never(value: datetime | None) -> int | None:
    """Returns a time of expiry or a deadline. 0 would mean never."""
    time = _time(value)
    return None if time is None else max(1, time)


ID_DIGITS = 16


def id_text(id_: int) -> str:
    """Returns an id as scripts use it in fields and members: the order of these texts is the order of the numbers."""
    return str(id_).zfill(ID_DIGITS)


def id_texts(ids: Iterable[int]) -> list[str]:
    """Returns ids as `id_text` does, without a call for each."""
    return [str(id_).zfill(ID_DIGITS) for id_ in ids]


def kept(digits: bytes) -> list[bool]:
    return [digit == ord("1") for digit in digits]


def present(arguments: Mapping[str, object]) -> Arguments:
    """Returns the arguments that are given: an absent name is None or False."""
    return {name: value for name, value in arguments.items() if value is not None and value is not False}


def policy_arguments(box: Box) -> Arguments:
    """Returns the policies of a box that scripts apply."""
    retention, delivery = box.retention, box.delivery
    return present(
        {
            "box": box.key,
            "fifo": box.order.fifo,
            "block": box.order.on_dead == "block",
            "window": retention.dedup_window and microseconds(retention.dedup_window),
            "retention": microseconds(retention.done_age),
            "sliding": retention.age_from == "last_seen",
            "max_deliveries": delivery.max_deliveries,
            "max_lost_leases": delivery.max_lost_leases,
            "suspect_from": suspect_from(delivery),
            "requeue": delivery.on_stale_ack == "requeue",
            "blank": retention.on_success == "delete",
            "discard": retention.dead_letter == "discard",
        }
    )


# -- drafts and receipts ---------------------------------------------------------------------------------------------


_HEADER = 1 if len(CONTENT) <= 16 else 3
"""The bytes of the header of an array, which MessagePack puts in front of the values."""


def _body(draft: Draft) -> bytes:
    """Returns the content fields in the order of `layout.CONTENT`, without `first_seen`, which the script adds."""
    headers = draft.headers
    labels: Any = draft[DRAFT_LABELS]
    values = (
        draft.topic,
        draft.source,
        draft.message_id,
        draft.format,
        *labels,
        _time(draft.due),
        None if draft.hash is None else draft.hash.hex(),
        draft.hash_algorithm,
        _time(draft.received_at),
        headers if headers is None or type(headers) is dict else dict(headers),
        draft.payload,
    )
    return encode(values)[_HEADER:]


_USUAL = (None, None, None, None, "update", False)


def _extra(draft: Draft) -> Arguments | None:
    """Returns the arguments that most drafts do not need."""
    given = (draft.collapse_key, draft.due, draft.expires, draft.lifetime, draft.on_conflict, draft.revive_dead)
    if given == _USUAL:
        return None
    return present(
        {
            "collapses": draft.collapse_key is not None,
            "due": _time(draft.due),
            "expires": time_or_never(draft.expires),
            "lifetime": None if draft.lifetime is None else microseconds(draft.lifetime),
            "on_conflict": draft.on_conflict,
            "revive_dead": draft.revive_dead,
        }
    )


def draft_arguments(drafts: Sequence[Draft], *, fifo: bool) -> tuple[Arguments, bytes]:
    """Returns named arguments, as lists with one value per draft, and all contents one after the other.

    A script unpacks few lists faster than many small maps.
    """
    bodies = [_body(draft) for draft in drafts]
    extras = [(index, extra) for index, draft in enumerate(drafts, 1) if (extra := _extra(draft)) is not None]
    arguments: Arguments = {
        "message_ids": [draft.message_id for draft in drafts],
        "sources": [draft.source for draft in drafts],
        "lengths": [len(body) for body in bodies],
        "extras": dict(extras),
    }
    if fifo and any(draft.group is not None for draft in drafts):
        arguments["groups"] = [False if draft.group is None else draft.group for draft in drafts]
    if rejecting := [index for index, draft in enumerate(drafts, 1) if draft.on_duplicate != "update"]:
        arguments["rejects"] = True if len(rejecting) == len(drafts) else dict.fromkeys(rejecting, True)
    if joining := {index: draft.join.hex for index, draft in enumerate(drafts, 1) if draft.join is not None}:
        arguments["joins"] = joining
    return arguments, b"".join(bodies)


def receipts(reply: bytes, drafts: Sequence[Draft]) -> list[Receipt]:
    return [_receipt(each, draft) for each, draft in zip(decode(reply), drafts, strict=True)]


def _receipt(reply: Reply, draft: Draft) -> Receipt:
    if type(reply) is int:
        return Receipt.of_new(reply, draft)
    status, id_, state, superseded, under_lease, updated = reply
    return Receipt(_STATUSES[status], id_, *draft.key, STATES[state], tuple(superseded), under_lease, updated)


def key_statuses(reply: bytes) -> list[KeyStatus]:
    return [KeyStatus(STATES[state], is_new, conflict) for state, is_new, conflict in decode(reply)]


# -- claims ----------------------------------------------------------------------------------------------------------


def claim_arguments(request: ClaimRequest, limit: int, skip: Sequence[int]) -> Arguments:
    arguments: Arguments = {
        "owner": request.owner.hex,
        "lease": microseconds(request.lease),
        "limit": limit,
        "skip": skip,
        "suspects": request.suspects,
        "in_hand": id_texts(request.in_hand),
        "separate": HIREDIS_AVAILABLE,
    }
    if request.topics is not None:
        arguments["topics"] = sorted(request.topics)
    return arguments


def target_arguments(target: Claim | NamedTarget) -> Arguments:
    if isinstance(target, Claim):
        return {"id": id_text(target.id), "owner": target.owner.hex, "fence": target.fence}
    named: Arguments = {"message_id": target.message_id, "owner": target.owner.hex}
    return named if target.source is None else named | {"source": target.source}


# -- begins ----------------------------------------------------------------------------------------------------------


def begin_arguments(begins: Sequence[Begin]) -> Arguments:
    return {
        "owners": [begin.owner.hex for begin in begins],
        "leases": [False if begin.lease is None else microseconds(begin.lease) for begin in begins],
        "no_end": to_microseconds(NO_END),
    }


def begun(reply: Sequence[bytes], begins: Sequence[Begin]) -> list[Begun]:
    packed, *results = reply
    payloads = map(decode, results)
    return [_begun(each, begin, payloads) for each, begin in zip(decode(packed), begins, strict=True)]


def _begun(reply: Reply, begin: Begin, payloads: Iterator[Any]) -> Begun:
    status = BeginStatus(reply["status"])
    if status is BeginStatus.ACQUIRED:
        until = from_microseconds(reply["lease_end"])
        return Begun(status, Claim(reply["id"], begin.owner, reply["fence"], until), reply["deliveries"])
    if status is BeginStatus.BUSY:
        until = from_microseconds(reply["lease_end"])
        return Begun(status, until=None if until >= NO_END else until)
    format_ = reply.get("format")
    return Begun(status, result=next(payloads) if format_ else None, format=format_, error=reply.get("error"))


# -- filters ---------------------------------------------------------------------------------------------------------

_SETS = {State.DEAD: "dlq", State.SEEN: "seen", State.CLAIMED: "captured"}
_CONTENT_FILTERS = ("topic", "source", "message_id", "group", "correlation_id")


def filter_arguments(which: Filter, *, after: str, limit: int, reads: int) -> Arguments:
    """Returns a filter. `reads`: messages that the script reads at most."""
    arguments = present({name: getattr(which, name) for name in _CONTENT_FILTERS})
    arguments |= {"after": after, "limit": limit, "reads": reads, "reads_content": bool(arguments)}
    if which.blocking:
        arguments |= {"blocking": True, "set": "dlq"}
    if which.states is not None:
        arguments["states"] = {LETTERS[state]: True for state in which.states}
        if len(which.states) == 1:
            arguments.setdefault("set", _SETS.get(next(iter(which.states)), "index"))
    if which.ids is not None:
        arguments["ids"] = sorted({id_text(id_) for id_ in which.ids})
    if which.keys is not None:
        arguments |= {"keys": sorted(set(which.keys)), "reads_content": True}
    return arguments
