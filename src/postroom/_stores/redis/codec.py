"""Between values and what scripts take and give: see layout.md."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from postroom._kernel.clock import from_microseconds, to_microseconds
from postroom._kernel.policy import suspect_from
from postroom.errors import ArgumentValueError
from postroom.spi import (
    Ask,
    Box,
    Claim,
    Draft,
    Ending,
    Filter,
    Held,
    Message,
    Receipt,
    ReceiptStatus,
    Settlement,
    Sighting,
    State,
    StoredMessage,
)

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder().decode

STATES = {"s": State.SEEN, "w": State.WAITING, "c": State.CLAIMED, "d": State.DONE, "x": State.DEAD}
LETTERS = {state: letter for letter, state in STATES.items()}
_ENDINGS = {ending.value: ending for ending in Ending}
_STATUSES = {status.value: status for status in ReceiptStatus}
_MICROSECOND = timedelta(microseconds=1)


def microseconds(duration: timedelta) -> int:
    return duration // _MICROSECOND


LAST = 2**53 - 1
"""The last moment that Lua's numbers can tell from the next: in the year 2255, after all that boxes take."""


def _moment(value: datetime | None) -> int | None:
    if value is None:
        return None
    moment = to_microseconds(value)
    if moment > LAST:
        raise ArgumentValueError(f"Redis keeps no time after {from_microseconds(LAST):%Y-%m-%d}: {value:%Y-%m-%d}")
    return moment


def _end(value: datetime | None) -> int | None:
    """When something expires: 0 would be never."""
    moment = _moment(value)
    return None if moment is None else max(1, moment)


def _time(value: int | None) -> datetime | None:
    return from_microseconds(value) if value else None


def id_text(id_: int) -> str:
    return f"{id_:016}"


def policy(box: Box) -> dict[str, Any]:
    """What scripts must know of a box. What is missing is off."""
    keeping, delivery = box.keeping, box.delivery
    wanted = {
        "box": box.key,
        "fifo": box.order.fifo,
        "block": box.order.on_dead == "block",
        "window": keeping.dedup_window and microseconds(keeping.dedup_window),
        "retention": microseconds(keeping.retention),
        "sliding": keeping.retention_from == "last_seen",
        "max_deliveries": delivery.max_deliveries,
        "max_lost_leases": delivery.max_lost_leases,
        "suspect_from": suspect_from(delivery),
        "requeue": delivery.on_stale_ack == "requeue",
        "blank": keeping.on_success == "delete",
        "discard": keeping.dead_letter == "discard",
    }
    return {name: value for name, value in wanted.items() if value is not None and value is not False}


# -- drafts and receipts ---------------------------------------------------------------------------------------------


def _body(draft: Draft) -> bytes:
    """All of a message but its first value, without the header of an array."""
    headers = draft.headers
    return encode(
        (
            draft.topic,
            draft.source,
            draft.message_id,
            draft.correlation_id,
            draft.format,
            _moment(draft.due),
            None if draft.hash is None else draft.hash.hex(),
            draft.hash_algorithm,
            draft.group,
            draft.collapse_key,
            _moment(draft.received_at),
            headers if headers is None or type(headers) is dict else dict(headers),
            draft.payload,
        )
    )[1:]


_PLAIN = (None, None, None, None, "update", False)


def _extra(draft: Draft) -> dict[str, Any] | None:
    """What is not so of most drafts."""
    given = (draft.collapse_key, draft.due, draft.expires, draft.lifetime, draft.on_conflict, draft.revive_dead)
    if given == _PLAIN:
        return None
    wanted = {
        "collapses": draft.collapse_key is not None,
        "due": _moment(draft.due),
        "expires": _end(draft.expires),
        "lifetime": None if draft.lifetime is None else microseconds(draft.lifetime),
        "on_conflict": draft.on_conflict,
        "revive_dead": draft.revive_dead,
    }
    return {name: value for name, value in wanted.items() if value is not None and value is not False}


def drafts_given(drafts: Sequence[Draft], *, fifo: bool) -> tuple[dict[str, Any], bytes]:
    """Column by column, and all contents in one text: few values for the script to unpack."""
    bodies = [_body(draft) for draft in drafts]
    extras = [(index, extra) for index, draft in enumerate(drafts, 1) if (extra := _extra(draft)) is not None]
    given: dict[str, Any] = {
        "message_ids": [draft.message_id for draft in drafts],
        "sources": [draft.source for draft in drafts],
        "lengths": [len(body) for body in bodies],
        "extras": dict(extras),
    }
    if fifo and any(draft.group is not None for draft in drafts):
        given["groups"] = [False if draft.group is None else draft.group for draft in drafts]
    if rejecting := [index for index, draft in enumerate(drafts, 1) if draft.on_duplicate != "update"]:
        given["rejects"] = True if len(rejecting) == len(drafts) else dict.fromkeys(rejecting, True)
    return given, b"".join(bodies)


def receipts(blob: bytes, drafts: Sequence[Draft]) -> list[Receipt]:
    return [_receipt(answer, draft) for answer, draft in zip(decode(blob), drafts, strict=True)]


def _receipt(answer: Any, draft: Draft) -> Receipt:
    if type(answer) is int:
        new = (ReceiptStatus.NEW, answer, draft.source, draft.message_id, State.WAITING, (), False, False)
        return tuple.__new__(Receipt, new)
    status, id_, state, superseded, under_lease, updated = answer
    return Receipt(_STATUSES[status], id_, *draft.key, STATES[state], tuple(superseded), under_lease, updated)


def sightings(blob: bytes) -> list[Sighting]:
    return [Sighting(STATES[state], is_new, conflict) for state, is_new, conflict in decode(blob)]


# -- claims ----------------------------------------------------------------------------------------------------------


def ask_given(ask: Ask, limit: int, skip: Sequence[int]) -> dict[str, Any]:
    given: dict[str, Any] = {
        "owner": ask.owner.hex,
        "lease": microseconds(ask.lease),
        "limit": limit,
        "skip": skip,
        "suspects": ask.suspects,
        "in_hand": list(map(id_text, ask.in_hand)),
    }
    if ask.topics is not None:
        given["topics"] = sorted(ask.topics)
    return given


def claimed(blob: bytes, owner: UUID, lease_end: int) -> list[StoredMessage]:
    until, new, message = from_microseconds(lease_end), tuple.__new__, _message
    return [
        message(id_ := int(number), content, progress, new(Claim, (id_, owner, progress[1], until)), State.CLAIMED)
        for number, content, progress in decode(blob)
    ]


def found(blob: bytes) -> list[StoredMessage]:
    messages = []
    for number, content, progress, lease_end in decode(blob):
        id_, state = int(number), STATES[progress[0]]
        owner = UUID(hex=progress[7]) if progress[7] else None
        claim = None
        if state is State.CLAIMED and owner is not None:
            claim = Claim(id_, owner, progress[1], from_microseconds(int(lease_end)))
        messages.append(_message(id_, content, progress, claim, state, owner if state is State.DONE else None))
    return messages


def _message(id_: int, content: Any, progress: Any, claim: Any, state: State, completed_by: UUID | None = None) -> Any:
    first, topic, source, name, correlation, form, due, hash_, _, group, collapse, received, headers, payload = content
    _, _, attempt, deliveries, revision, last, expires, _, _, completed, ending, error, lost = progress
    first_seen = from_microseconds(first)
    # Its constructor would cost as much again: this runs for every message that is claimed.
    return tuple.__new__(
        Message,
        (
            id_,
            source,
            name,
            topic,
            payload,
            form,
            headers or {},
            correlation,
            group,
            collapse,
            None if hash_ is None else bytes.fromhex(hash_),
            None if due is None else from_microseconds(due),
            from_microseconds(expires) if expires else None,
            None if received is None else from_microseconds(received),
            first_seen,
            from_microseconds(last) if last else first_seen,
            revision,
            state,
            attempt,
            deliveries,
            None if error is False else error,
            claim,
            from_microseconds(completed) if completed else None,
            completed_by,
            _ENDINGS.get(ending),
            lost,
            None,
        ),
    )


# -- settlements -----------------------------------------------------------------------------------------------------


class Outcomes:
    """Settlements as a script takes them: successes of claims column by column, anything else one by one."""

    def __init__(
        self, settlements: Sequence[Settlement], delays: Sequence[timedelta | None] = (), *, ordered: bool = False
    ) -> None:
        """`delays`: instead of the settlements' own. `ordered`: a success may turn out to be none, and then its place
        among the others counts."""
        self._count = len(settlements)
        self._acks: list[int] = []
        self._others: list[int] = []
        acks: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        owner, fence = None, 0
        ids: list[str] = []
        # Of the same owner and fence is mostly the one before, too.
        by_proof: dict[tuple[UUID, int], list[str]] = {}
        places: dict[tuple[UUID, int], list[int]] = {}
        indexes: list[int] = []
        for index, settlement in enumerate(settlements):
            target = settlement.target
            if settlement.verdict == "done" and type(target) is Claim:
                if target.owner is not owner or target.fence != fence:
                    owner, fence = target.owner, target.fence
                    ids = by_proof.setdefault((owner, fence), [])
                    indexes = places.setdefault((owner, fence), [])
                ids.append(f"{target.id:016}")
                indexes.append(index)
            else:
                others.append(_other(settlement, delays[index] if delays else settlement.delay, index))
                self._others.append(index)
        for proof, ids in by_proof.items():
            ack: dict[str, Any] = {"owner": proof[0].hex, "fence": proof[1], "ids": ids}
            acks.append(ack | {"orders": places[proof]} if ordered else ack)
            self._acks += places[proof]
        self.given: dict[str, Any] = {"acks": acks, "others": others}

    def kept(self, acks: bytes, others: bytes) -> list[bool]:
        if len(acks) == self._count and b"0" not in acks:
            return [True] * self._count
        kept = [False] * self._count
        for indexes, digits in ((self._acks, acks), (self._others, others)):
            for index, digit in zip(indexes, digits, strict=True):
                kept[index] = digit == ord("1")
        return kept


def target_given(target: Claim | Held) -> dict[str, Any]:
    if isinstance(target, Claim):
        return {"id": id_text(target.id), "owner": target.owner.hex, "fence": target.fence}
    named: dict[str, Any] = {"message_id": target.message_id, "owner": target.owner.hex}
    return named if target.source is None else named | {"source": target.source}


def _other(settlement: Settlement, delay: timedelta | None, order: int) -> dict[str, Any]:
    given = target_given(settlement.target) | {"verdict": settlement.verdict, "order": order}
    if delay is not None:
        given["delay"] = microseconds(delay)
    if settlement.error is not None:
        given["error"] = settlement.error
    if settlement.counts:
        given["counts"] = True
    return given


def kept(digits: bytes) -> list[bool]:
    return [digit == ord("1") for digit in digits]


# -- filters ---------------------------------------------------------------------------------------------------------

_SETS = {State.DEAD: "dlq", State.SEEN: "seen", State.CLAIMED: "captured"}


def filter_given(which: Filter, *, after: str, limit: int, looks: int) -> dict[str, Any]:
    inside = {name: getattr(which, name) for name in ("topic", "source", "message_id", "group", "correlation_id")}
    given = {name: value for name, value in inside.items() if value is not None}
    given |= {"after": after, "limit": limit, "looks": looks, "looks_inside": bool(given)}
    if which.blocking:
        given |= {"blocking": True, "set": "dlq"}
    if which.states is not None:
        given["states"] = {LETTERS[state]: True for state in which.states}
        if len(which.states) == 1:
            given.setdefault("set", _SETS.get(next(iter(which.states)), "index"))
    if which.ids is not None:
        given["ids"] = sorted({id_text(id_) for id_ in which.ids})
    if which.keys is not None:
        given |= {"keys": sorted(set(which.keys)), "looks_inside": True}
    return given
