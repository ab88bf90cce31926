"""Checks the invariants of a box in Redis, which hold between any two scripts: see layout.md.

    complaints(client, prefix, "inbox:orders")    # [] if all is well

It reads the keys in one transaction, so it may be asked while others work, and recounts all from them. The client
is one of redis-py's for a single server: on a cluster, for the node that has the box.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import redis

from postroom._stores.redis.layout import KEYS, attendant_key, box_keys, boxes_key, ids_key
from postroom.spi import Counts, State
from tests.redis_join_invariants import HASHES as JOIN_HASHES
from tests.redis_join_invariants import join_complaints

HASHES = {"meta", "messages", "states", "dedup", "line", "collapse", "pages"} | JOIN_HASHES
PAGE = 1024
ID = 16
"""Digits of an id in a field or a member."""
WORDS = {"s": State.SEEN, "w": State.WAITING, "c": State.CLAIMED, "d": State.DONE, "x": State.DEAD}
SETS = {"s": "seen", "c": "captured", "d": "done", "x": "dlq"}
"""The set that has all messages of a state, and no others."""

_decode = msgspec.msgpack.Decoder().decode


class Content(NamedTuple):
    """A value of `messages`."""

    first_seen: int
    topic: str
    source: str
    message_id: str
    format: str
    correlation_id: str | None
    group: str | None
    collapse_key: str | None
    due: int | None
    hash: str | None
    hash_algorithm: str | None
    received_at: int | None
    headers: Any
    payload: Any


class Progress(NamedTuple):
    """What stands in `states`."""

    state: str
    fence: int
    attempt: int
    deliveries: int
    revision: int
    last_seen: int
    expires: int
    owner: str
    stale: int
    completed_at: int
    ending: str
    last_error: str | bool
    lost_leases: int
    delayed: bool


UNTOUCHED = Progress("w", 0, 0, 0, 0, 0, 0, "", 0, 0, "", False, 0, False)


@dataclass
class Snapshot:
    """A box at one moment."""

    now: int
    """Microseconds, by the server's clock."""
    contents: dict[str, Content]
    states: dict[str, Progress]
    """Only of messages that were claimed or settled."""
    hashes: dict[str, dict[bytes, bytes]]
    sets: dict[str, dict[bytes, float]]

    @classmethod
    def take(cls, client: Any, prefix: str, box_key: str, *, now: int | None = None, at_rest: bool = False) -> Snapshot:
        """`now`: where the store has another clock than the server's. `at_rest`: no worker runs, and no transaction is
        needed, which a full server and the client of a cluster do not have."""
        keys = dict(zip(KEYS, box_keys(prefix, box_key), strict=True))
        if now is None:
            seconds, microseconds = client.time()
            now = seconds * 1_000_000 + microseconds
        pipeline = client.pipeline(transaction=not at_rest)
        for name, key in keys.items():
            if name in HASHES:
                pipeline.hgetall(key)
            else:
                pipeline.zrange(key, 0, -1, withscores=True)
        found = dict(zip(keys, pipeline.execute(), strict=True))
        hashes = {name: found[name] for name in keys if name in HASHES}
        sets = {name: {member: score for member, score in found[name]} for name in keys if name not in HASHES}  # noqa: C416
        return cls(
            now,
            # Fourteen values without a header: it is put before them here.
            {id_.decode(): Content(*_decode(b"\x9e" + body)) for id_, body in hashes["messages"].items()},
            {id_.decode(): Progress(*_decode(record)) for id_, record in hashes["states"].items()},
            hashes,
            sets,
        )

    def progress(self, id_: str) -> Progress:
        return self.states.get(id_, UNTOUCHED)

    def members(self, name: str) -> dict[str, float]:
        """Of a sorted set of ids."""
        return {member.decode(): score for member, score in self.sets[name].items()}

    def ids_in(self, state: str) -> set[str]:
        return {id_ for id_ in self.contents if self.progress(id_).state == state}

    @property
    def groups(self) -> dict[str, list[str]]:
        """Ids in line, by group, from the front."""
        found: dict[str, list[str]] = defaultdict(list)
        for id_, group in sorted(self.hashes["line"].items()):
            found[group.decode()].append(id_.decode())
        return found

    def counts(self) -> dict[State, int]:
        """Recounted."""
        return {word: len(self.ids_in(letter)) for letter, word in WORDS.items()}


def complaints(
    client: Any, prefix: str, box_key: str, *, counts: Counts | None = None, now: int | None = None
) -> list[str]:
    """What is wrong, in words. `counts`: what the store says; only of use while no worker runs."""
    snapshot = Snapshot.take(client, prefix, box_key, now=now, at_rest=counts is not None)
    wrong = list(_complaints(snapshot))
    if counts is not None and dict(counts) != snapshot.counts():
        wrong.append(f"counts say {dict(counts)}, there are {snapshot.counts()}")
    return wrong


def shared_keys(prefix: str) -> set[str]:
    """Those of all boxes of a prefix."""
    return {ids_key(prefix), boxes_key(prefix), attendant_key(prefix)}


def foreign_keys(client: redis.Redis, prefix: str, *box_keys_: str) -> set[str]:
    """Keys of the prefix that layout.md does not name."""
    documented = {key.decode() for each in box_keys_ for key in box_keys(prefix, each)} | shared_keys(prefix)
    found = {key.decode() for key in client.scan_iter(f"*{prefix}*", count=10_000)}
    return found - documented


def _complaints(box: Snapshot) -> Iterator[str]:
    yield from _records(box)
    yield from _one_place(box)
    yield from _keys(box)
    yield from _lines(box)
    yield from _other_indexes(box)
    states = {id_: box.progress(id_).state for id_ in box.contents}
    yield from join_complaints(box.hashes, box.sets, states)


def _differ(what: str, found: set[str], wanted: set[str]) -> Iterator[str]:
    if more := found - wanted:
        yield f"{what}: {len(more)} too many, such as {sorted(more)[:3]}"
    if fewer := wanted - found:
        yield f"{what}: {len(fewer)} missing, such as {sorted(fewer)[:3]}"


def _records(box: Snapshot) -> Iterator[str]:
    """Every record belongs to a message, every message that does not wait has one, and every id is one of the box."""
    yield from _differ("states of no message", set(box.states) - set(box.contents), set())
    lengths = sum(len(box.sets[name]) for name in SETS.values())
    if len(box.states) - lengths != len(box.ids_in("w") & set(box.states)):
        yield f"states: {len(box.states)} records, and {lengths} messages in the sets of other states than waiting"
    meta = {name.decode(): int(value) for name, value in box.hashes["meta"].items()}
    sequence, limit = meta.get("sequence", 0), meta.get("limit", 0)
    if sequence > limit:
        yield f"meta: the sequence {sequence} is past the limit {limit}"
    if box.contents and int(max(box.contents)) > sequence:
        yield f"meta: the id {max(box.contents)} is past the sequence {sequence}"
    pages: dict[int, int] = defaultdict(int)
    for id_ in box.contents:
        pages[int(id_) // PAGE] += 1
    counted = {int(page): int(count) for page, count in box.hashes["pages"].items()}
    if counted != pages:
        yield f"pages: they say {sum(counted.values())} messages, there are {len(box.contents)}"
    if {int(page): int(score) for page, score in box.sets["index"].items()} != {page: page for page in pages}:
        yield "index: its pages are not those that have messages"


def _one_place(box: Snapshot) -> Iterator[str]:
    """Each message is in the one set of its state; a waiting one can be claimed at some time, or stands in line."""
    for letter, name in SETS.items():
        yield from _differ(name, set(box.members(name)), box.ids_in(letter))
    waiting, pending = box.ids_in("w"), set(box.members("pending"))
    in_line = {id_.decode() for id_ in box.hashes["line"]}
    yield from _differ("pending but not waiting", pending - waiting, set())
    waits = set(box.members("waits"))
    yield from _differ("pending, though it waits for a join", pending & waits, set())
    yield from _differ("waiting but neither pending nor in line", waiting - pending - in_line - waits, set())
    expiring = {id_: float(box.progress(id_).expires) for id_ in waiting if box.progress(id_).expires}
    if box.members("expiring") != expiring:
        yield from _differ("expiring", set(box.members("expiring")), set(expiring))
        yield "expiring: other times than the messages say"
    for id_ in box.ids_in("c"):
        progress = box.progress(id_)
        if not progress.owner or progress.fence < 1 or progress.deliveries < 1:
            yield f"claimed without an owner: {id_}"
    for id_ in box.ids_in("d") | box.ids_in("x"):
        if not box.progress(id_).completed_at:
            yield f"ended at no time: {id_}"
    done = box.members("done")
    if any(done.get(id_, 0) != box.progress(id_).completed_at for id_ in box.ids_in("d")):
        yield "done: other times than the messages say"


def _keys(box: Snapshot) -> Iterator[str]:
    """No message without its key, no key without its message, and no key with two holders."""
    holders: dict[tuple[str, str], str] = {}
    former: set[str] = set()
    for name, value in box.hashes["dedup"].items():
        holders[value[ID:].decode(), name.decode()] = value[:ID].decode()
    for member in box.sets["namesakes"]:
        message_id, flag, source, id_ = _namesake(member)
        if flag == "r":
            former.add(id_)
        elif (source, message_id) in holders:
            yield f"two hold the key of {id_}"
        else:
            holders[source, message_id] = id_
            if message_id.encode() not in box.hashes["dedup"]:
                yield f"a namesake without a first: {id_}"
    for (source, message_id), id_ in holders.items():
        content = box.contents.get(id_)
        if content is None:
            yield f"a key without its message: {id_}"
        elif (content.source, content.message_id) != (source, message_id):
            yield f"the key of {id_} is another's"
    yield from _differ("holders of keys", set(holders.values()) | former, set(box.contents))


def _namesake(member: bytes) -> tuple[str, str, str, str]:
    size = int.from_bytes(member[:4], "big")
    message_id, rest = member[4 : 4 + size], member[4 + size :]
    length = int.from_bytes(rest[1:5], "big")
    return message_id.decode(), rest[:1].decode(), rest[5 : 5 + length].decode(), rest[5 + length :].decode()


def _lines(box: Snapshot) -> Iterator[str]:
    """Lines have unfinished members only; claimed messages lock their group; no message waits for an unlocked group."""
    members = {len(group).to_bytes(4, "big") + group + id_ for id_, group in box.hashes["line"].items()}
    if members != set(box.sets["lines"]):
        yield f"lines: {len(box.sets['lines'])} members, and {len(members)} in line"
    locks = set(box.sets["locks"])
    pending = box.members("pending")
    for group, ids in box.groups.items():
        for id_ in ids:
            if id_ not in box.contents or box.progress(id_).state in "sd":
                yield f"in line, but finished: {id_}"
        claimed = [id_ for id_ in ids if box.progress(id_).state == "c"]
        name = group.encode()
        held = {len(name).to_bytes(4, "big") + name + id_.encode() for id_ in claimed}
        if not held <= locks:
            yield f"a group is not locked by its claimed members: {claimed[:3]}"
        locks -= held
        if len({box.progress(id_).owner for id_ in claimed}) > 1:
            yield f"two owners hold one group: {claimed[:3]}"
        yield from _front(box, ids, pending)
    if locks:
        yield f"{len(locks)} locks of members that are not claimed, or not in line"


def _front(box: Snapshot, ids: list[str], pending: Mapping[str, float]) -> Iterator[str]:
    """The first in line never sleeps, even while a member behind it is claimed: it can be claimed, or is dead and
    blocks. A member that is not due yet is not in line."""
    for id_ in ids:
        progress, time = box.progress(id_), pending.get(id_)
        if progress.delayed and time is not None and time > box.now:
            continue
        if progress.state == "w" and time is None:
            yield f"stuck: {id_} is first in its line and cannot be claimed"
        return


def _other_indexes(box: Snapshot) -> Iterator[str]:
    """Every unfinished message is known by its collapse key."""
    collapse = {key.decode(): _ids(ids) for key, ids in box.hashes["collapse"].items()}
    for id_, content in box.contents.items():
        key = content.collapse_key
        if key is not None and box.progress(id_).state in "wc" and id_ not in collapse.get(key, []):
            yield f"not known by its collapse key: {id_}"
    for ids in collapse.values():
        for id_ in ids:
            if id_ not in box.contents:
                yield f"known by a collapse key, but gone: {id_}"


def _ids(text: bytes) -> list[str]:
    whole = text.decode()
    return [whole[at : at + ID] for at in range(0, len(whole), ID)]
