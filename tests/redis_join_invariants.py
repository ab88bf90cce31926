"""Checks the joins of a box in Redis: recounts the steps, and compares the keys of joins with each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

HASHES = {"joins", "join_states", "memberships", "continuations"}
STEP, JOIN = 49, 32
"""Characters of a step in `memberships`, and of the join at its beginning."""
_OUTCOMES = {"c": "completed", "f": "failed"}
_STATUSES = {"d": "completed", "x": "failed", None: "completed"}
"""By the state of the message. None: it was purged."""


class _Wait(msgspec.Struct):
    """A value of `continuations`, without the payloads, which may be any bytes."""

    join: str


_decode = msgspec.msgpack.Decoder().decode
_decode_wait = msgspec.msgpack.Decoder(_Wait).decode

Hashes = Mapping[str, Mapping[bytes, bytes]]
Sets = Mapping[str, Mapping[bytes, float]]


def join_complaints(hashes: Hashes, sets: Sets, states: Mapping[str, str]) -> Iterator[str]:
    """Yields what is wrong. `states` has the letter of each message."""
    joins = {join.decode(): _decode(record) for join, record in hashes["join_states"].items()}
    if {join.decode() for join in sets["join_index"]} != set(joins):
        yield "join_index: its joins are not those of join_states"
    ended = {join.decode() for join in sets["ended_joins"]}
    kept = {_decode_wait(wait).join for wait in hashes["continuations"].values()}
    wanted = {join for join, record in joins.items() if record["status"] != "pending"}
    if wanted - kept != (ended & set(joins)) - kept:
        yield "ended_joins: its joins are not those that have ended"
    if {join.decode() for join in hashes["joins"]} != set(joins) | ended:
        yield "joins: neither those of join_states, nor being purged"
    yield from _steps(hashes, sets, states, joins, ended)
    yield from _continuations(hashes, sets, states, joins)


def _steps(
    hashes: Hashes, sets: Sets, states: Mapping[str, str], joins: Mapping[str, Any], ended: set[str]
) -> Iterator[str]:
    """The numbers of each join are those of its steps."""
    members: set[str] = set()
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for field, value in hashes["memberships"].items():
        id_, text = field.decode(), value.decode()
        for step in (text[at : at + STEP] for at in range(0, len(text), STEP)):
            members.add(step[:JOIN] + id_)
            status = _OUTCOMES.get(step[JOIN]) or _STATUSES.get(states.get(id_), "pending")
            counted[step[:JOIN]][status] += 1
    if members != {member.decode() for member in sets["steps"]}:
        yield "steps: its members are not those of memberships"
    for join in set(counted) - set(joins) - ended:
        yield f"steps of no join: {join}"
    for join, record in joins.items():
        found = counted[join]
        numbers = (found.total(), found["completed"], found["failed"])
        if numbers != (record["attached"], record["completed"], record["failed"]):
            yield f"join {join}: it has counted {record}, there are {dict(found)}"


def _continuations(hashes: Hashes, sets: Sets, states: Mapping[str, str], joins: Mapping[str, Any]) -> Iterator[str]:
    """A continuation waits, or is dead. If all steps have ended, a claim looks at its join."""
    waits = {id_.decode(): time for id_, time in sets["waits"].items()}
    expected = {id_.decode(): _decode_wait(wait).join for id_, wait in hashes["continuations"].items()}
    if {id_ for id_ in expected if states.get(id_) == "w"} != set(waits):
        yield "waits: not the continuations that wait"
    for id_, join in expected.items():
        if states.get(id_) not in {"w", "x"}:
            yield f"a continuation that neither waits nor is dead: {id_}"
        record = joins.get(join)
        if record is None or id_ not in waits:
            continue
        wanted = record.get("expected")
        is_filled = record["sealed"] if wanted is None else record["attached"] >= wanted
        if is_filled and record["attached"] == record["completed"] + record["failed"] and waits[id_] == float("inf"):
            yield f"stuck: the join {join} has ended, and no claim looks at it"
