"""Redis for this test process: the shared server, with prefixes of our own that are removed afterwards."""

from __future__ import annotations

import atexit
import functools
import secrets
from collections import Counter
from typing import Any

import redis
from tools.servers.base import ServerMissing, missing
from tools.servers.redis import default_redis
from tools.servers.redis_cluster import RedisCluster

from postroom._connect import Colour, open_store
from postroom._stores.redis.codec import STATES, decode
from postroom._stores.redis.layout import NAMES, box_keys
from postroom.spi import Box, State


@functools.cache
def server() -> str:
    """The URL of a server; without one, the test is skipped, or fails where it must not be."""
    try:
        return default_redis()
    except ServerMissing as error:
        missing(str(error))


@functools.cache
def cluster() -> str:
    """The URL of a real cluster of three nodes, for this process."""
    try:
        nodes = RedisCluster(3)
        nodes.start()
    except ServerMissing as error:
        missing(str(error))
    atexit.register(nodes.close)
    return "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in (node.address for node in nodes.servers))


_PREFIXES: set[str] = set()


def new_prefix(*, of_shared_server: bool = True) -> str:
    """A prefix that nobody else uses. On the shared server, its keys are removed when this process ends."""
    prefix = f"t{secrets.token_hex(8)}"
    if of_shared_server:
        if not _PREFIXES:
            atexit.register(_remove_all)
        _PREFIXES.add(prefix)
    return prefix


def keys_of(prefix: str, url: str | None = None) -> set[str]:
    with redis.Redis.from_url(url or server()) as client:
        return {key.decode() for key in client.scan_iter(f"{{{prefix}*", count=10_000)}


def _remove_all() -> None:
    with redis.Redis.from_url(server()) as client:
        ours = [key for key in client.scan_iter("{t*", count=10_000) if _prefix_of(key) in _PREFIXES]
        for first in range(0, len(ours), 1000):
            client.unlink(*ours[first : first + 1000])


def _prefix_of(key: bytes) -> str:
    return key.decode(errors="replace").lstrip("{").partition(":")[0].partition("}")[0]


def open_at(url: str, colour: Colour, **options: Any) -> Any:
    return open_store(url, colour=colour, **options)


def audit(client: Any, prefix: str, box: Box) -> Counter[State]:
    """Check a box against layout.md, key by key: everything stands where its state says, and nothing else does.

    Answers how many messages stand in each state, counted one by one.
    """
    keys = dict(zip(NAMES, box_keys(prefix, box.key), strict=True))

    def hash_of(name: str) -> dict[bytes, bytes]:
        found: Any = client.hgetall(keys[name])
        return dict(found)

    def set_of(name: str) -> dict[bytes, int]:
        found: Any = client.zrange(keys[name], 0, -1, withscores=True)
        return {member: int(score) for member, score in found}

    messages, records = hash_of("messages"), hash_of("states")
    assert records.keys() <= messages.keys()
    progress: dict[bytes, Any] = {id_: decode(records[id_]) if id_ in records else None for id_ in messages}
    by_state: dict[str, set[bytes]] = {letter: set() for letter in STATES}
    for id_, record in progress.items():
        by_state["w" if record is None else record[0]].add(id_)

    for letter, name in (("s", "seen"), ("c", "captured"), ("d", "done"), ("x", "dlq")):
        assert set_of(name).keys() == by_state[letter], name
    assert all(score == int(id_) for name in ("seen", "dlq") for id_, score in set_of(name).items())
    assert all(score == progress[id_][9] for id_, score in set_of("done").items())
    expiring = {id_: record[6] for id_, record in progress.items() if record and record[0] == "w" and record[6]}
    assert set_of("expiring") == expiring

    line = hash_of("line")
    assert line.keys() <= by_state["w"] | by_state["c"] | by_state["x"]
    assert box.order.on_dead == "block" or not line.keys() & by_state["x"]
    assert set_of("lines").keys() == {_prefixed(group) + id_ for id_, group in line.items()}
    pending = set_of("pending").keys()
    assert pending <= by_state["w"]
    assert by_state["w"] - pending <= line.keys(), "it waits, and nobody will ever look at it"
    assert set_of("locks").keys() == {_prefixed(line[id_]) + id_ for id_ in by_state["c"] & line.keys()}

    pages = Counter(int(id_) // 1024 for id_ in messages)
    assert {int(page): int(count) for page, count in hash_of("pages").items()} == pages
    assert set_of("index").keys() == {str(page).encode() for page in pages}
    named = Counter(value[:16] for value in hash_of("dedup").values())
    named.update(member[-16:] for member in set_of("namesakes"))
    assert named == Counter(messages.keys()), "every message is found by its name, once"
    assert all(set(_ids(ids)) <= messages.keys() for ids in hash_of("collapse").values())
    return Counter({STATES[letter]: len(ids) for letter, ids in by_state.items()})


def _prefixed(text: bytes) -> bytes:
    return len(text).to_bytes(4, "big") + text


def _ids(text: bytes) -> list[bytes]:
    return [text[first : first + 16] for first in range(0, len(text), 16)]
