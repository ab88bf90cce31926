"""What the documents ask of a Redis store, seen in the server's keys. What is met differently: decision 0009.

That the verbs mean the same here as elsewhere is the conformance suite's to show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from tools.servers.base import ServerMissing, missing
from tools.servers.redis import RedisServer

from postroom import (
    ArgumentTypeError,
    Ending,
    FeatureMissing,
    NewMessage,
    OwnerToken,
    ReceiptStatus,
    State,
    StorageRetry,
    sync,
)
from postroom import Postroom as AsyncPostroom
from postroom._kernel.clock import to_microseconds
from postroom._stores.redis.codec import decode
from postroom._stores.retrying import RetryingStore
from postroom._stores.wrapper import find_wrapper
from postroom.testing import FrozenClock
from tests.postgres import create_database
from tests.redis import new_prefix, server

WORKER = OwnerToken.new()
QUICK = StorageRetry(initial_delay=0.001, jitter=False)


class Keys:
    """The keys of one box, by their short names."""

    def __init__(self, client: Any, tag: str) -> None:
        self._client = client
        self._tag = tag

    def hash(self, name: str) -> dict[str, bytes]:
        found: dict[bytes, bytes] = self._client.hgetall(f"{self._tag}:{name}")
        return {field.decode(): value for field, value in found.items()}

    def scores(self, name: str) -> dict[str, int]:
        """Of a sorted set; a key of another type is an error of the server."""
        found = self._client.zrange(f"{self._tag}:{name}", 0, -1, withscores=True)
        return {member.decode(): int(score) for member, score in found}

    def progress(self, id_: int) -> Any:
        return decode(self.hash("states")[_member(id_)])


def _member(id_: int) -> str:
    return f"{id_:016}"


def _ids(text: bytes) -> set[int]:
    return {int(text[at : at + 16]) for at in range(0, len(text), 16)}


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def prefix() -> str:
    return new_prefix()


@pytest.fixture
def room(prefix: str, clock: FrozenClock) -> Iterator[sync.Postroom]:
    with sync.Postroom(server(), prefix=prefix, clock=clock) as room:
        yield room


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server()) as client:
        yield client


@pytest.fixture
def keys(client: redis.Redis, prefix: str) -> Keys:
    """Of the inbox `orders`."""
    return Keys(client, f"{{{prefix}:inbox:orders}}")


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server of this test alone, which may be stopped."""
    try:
        private = RedisServer(appendonly=True, appendfsync="always")
    except ServerMissing as error:
        missing(error)
    with private:
        yield private


def put(inbox: sync.Inbox, name: str = "1", **options: Any) -> int:
    return inbox.enqueue("t", "payload", source="s", message_id=name, **options).id


# -- the provider and its options ------------------------------------------------------------------------------------


@pytest.mark.req("RHI-002")
@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis"])
def test_one_program_runs_on_every_supplied_store(store: str, prefix: str, tmp_path: Path) -> None:
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/room.db",
        "postgres": create_database,
        "redis": server,
    }
    with sync.Postroom(urls[store](), prefix=prefix) as room:
        room.migrate()
        inbox = room.inbox()
        statuses = [inbox.enqueue("t", "p", source="s", message_id="1").status for _ in range(2)]
        [message] = inbox.claim(WORKER)
        assert inbox.ack(WORKER, [message]) == [True]
        statuses.append(inbox.enqueue("t", "p", source="s", message_id="1").status)
    assert statuses == [ReceiptStatus.NEW, ReceiptStatus.DUPLICATE, ReceiptStatus.DONE]


@pytest.mark.req("RHI-047")
def test_there_is_no_room_without_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROOM_URL", raising=False)
    with pytest.raises(ArgumentTypeError, match="pass a URL"):
        sync.Postroom()


@pytest.mark.req("RHI-047")
def test_the_url_says_which_server_and_which_database(own: RedisServer) -> None:
    with sync.Postroom(own.url(0)) as here, sync.Postroom(own.url(1)) as there:
        put(here.inbox())
        assert here.inbox().counts()[State.WAITING] == 1
        assert there.inbox().counts()[State.WAITING] == 0


def test_all_keys_begin_with_the_prefix_and_the_box(own: RedisServer) -> None:
    for given, expected in (({}, "{postroom"), ({"prefix": "shop"}, "{shop")):
        own.query("FLUSHALL")
        with sync.Postroom(own.url(), **given) as room:  # type: ignore[arg-type]
            put(room.inbox("orders"))
        found = set(own.query("KEYS", "*"))
        of_the_box = {key for key in found if key.startswith(f"{expected}:inbox:orders}}:")}
        assert f"{expected}:inbox:orders}}:pending" in of_the_box
        assert all(key.startswith(f"{expected}}}:") for key in found - of_the_box), found


def test_rooms_of_different_prefixes_share_nothing(room: sync.Postroom) -> None:
    put(room.inbox("orders"))
    with sync.Postroom(server(), prefix=new_prefix()) as other:
        assert other.inbox("orders").find() == []


@pytest.mark.req("C-57")
def test_a_message_that_outlives_its_lifetime_is_dead_and_not_gone(
    room: sync.Postroom, keys: Keys, clock: FrozenClock
) -> None:
    inbox = room.inbox("orders", lifetime=timedelta(hours=24))
    id_ = put(inbox)
    assert keys.scores("expiring") == {_member(id_): to_microseconds(clock.now() + timedelta(hours=24))}
    clock.advance(timedelta(hours=24) - timedelta(microseconds=1))
    assert inbox.reap().expired == 0
    clock.advance(timedelta(microseconds=1))
    assert inbox.claim(WORKER) == []
    [letter] = inbox.dead_letters()
    assert (letter.id, letter.last_error, letter.payload) == (id_, "expired", "payload")
    assert keys.scores("expiring") == {}


def test_what_should_vanish_must_be_asked_for(room: sync.Postroom, keys: Keys, clock: FrozenClock) -> None:
    inbox = room.inbox("orders", lifetime=timedelta(hours=24), dead_letter="discard", retention=timedelta(hours=1))
    id_ = put(inbox)
    clock.advance(timedelta(hours=25))
    inbox.reap()
    message = inbox.get("1", "s")
    assert (message.state, message.ending, message.payload) == (State.DONE, Ending.DISCARDED, "")
    clock.advance(timedelta(hours=2))
    put(inbox, "2")  # sweeps
    assert _member(id_) not in keys.hash("messages")


def _with_waits(url: str, waits: list[float], at_second: Callable[[], None] | None = None) -> sync.Postroom:
    room = sync.Postroom(url, storage_retry=QUICK)

    async def note(seconds: float) -> None:
        waits.append(seconds)
        if at_second is not None and len(waits) == 2:
            at_second()

    find_wrapper(room.store, RetryingStore)._sleep = note
    return room


@pytest.mark.req("RHI-050", "C-56")
def test_a_server_that_is_away_is_tried_again(own: RedisServer) -> None:
    waits: list[float] = []
    with _with_waits(own.url(), waits, own.start) as room:
        put(room.inbox(), "before")
        own.kill()
        assert room.inbox().enqueue("t", "p", source="s", message_id="after").is_new
        assert room.inbox().counts()[State.WAITING] == 2
    assert waits == [0.001, 0.002]


@pytest.mark.req("RHI-050", "C-56")
def test_after_the_last_retry_the_error_reaches_the_caller(own: RedisServer) -> None:
    waits: list[float] = []
    with _with_waits(own.url(), waits) as room:
        put(room.inbox(), "before")
        own.kill()
        with pytest.raises(redis.ConnectionError):
            put(room.inbox(), "after")
    assert waits == [0.001, 0.002, 0.004]


# -- the keys --------------------------------------------------------------------------------------------------------


@pytest.mark.req("RHI-150", "RHI-161", "C-43")
def test_pending_is_scored_by_the_time_from_which_a_message_may_be_claimed(
    room: sync.Postroom, keys: Keys, clock: FrozenClock
) -> None:
    inbox = room.inbox("orders")
    began, due = clock.now(), clock.now() + timedelta(minutes=5)
    now, later = put(inbox, "now"), put(inbox, "later", due=due)
    assert keys.scores("pending") == {_member(now): to_microseconds(began), _member(later): to_microseconds(due)}
    inbox.abandon(WORKER, inbox.claim(WORKER), delay=timedelta(seconds=7))
    assert keys.scores("pending")[_member(now)] == to_microseconds(began + timedelta(seconds=7))


@pytest.mark.req("RHI-162", "C-43")
def test_a_capture_moves_messages_to_captured_scored_by_the_end_of_the_lease(
    room: sync.Postroom, keys: Keys, clock: FrozenClock
) -> None:
    inbox = room.inbox("orders")
    ids = [put(inbox, str(number)) for number in range(3)]
    taken = inbox.claim(WORKER, lease_seconds=40, batch_size=2)
    end = to_microseconds(clock.now() + timedelta(seconds=40))
    assert keys.scores("captured") == {_member(message.id): end for message in taken}
    assert keys.scores("pending").keys() == {_member(ids[2])}


def test_message_data_are_in_one_hash_and_stay_whatever_happens(
    room: sync.Postroom, keys: Keys, clock: FrozenClock
) -> None:
    inbox = room.inbox("orders")
    waiting, claimed, dead = (put(inbox, name) for name in ("waiting", "claimed", "dead"))
    inbox.mark_dead("dead", "s")
    inbox.claim(WORKER, batch_size=1)
    clock.advance(timedelta(days=1000))
    put(inbox, "another")
    inbox.purge()
    assert {_member(id_) for id_ in (waiting, claimed, dead)} <= keys.hash("messages").keys()
    assert [message.payload for message in inbox.find()] == ["payload"] * 4


@pytest.mark.req("RHI-153")
def test_collapse_leads_from_a_collapse_key_to_its_message(room: sync.Postroom, keys: Keys) -> None:
    inbox = room.inbox("orders")
    put(inbox, "1", collapse_key="k")
    newer = put(inbox, "2", collapse_key="k")
    other = put(inbox, "3", collapse_key="another")
    assert {key: _ids(ids) for key, ids in keys.hash("collapse").items()} == {"k": {newer}, "another": {other}}


def test_a_key_deduplicates_for_its_window_to_the_microsecond(
    room: sync.Postroom, keys: Keys, clock: FrozenClock
) -> None:
    inbox = room.inbox("orders", dedup_window=timedelta(minutes=10))
    first = put(inbox)
    assert keys.hash("dedup") == {"1": f"{_member(first)}s".encode()}
    clock.advance(timedelta(minutes=10) - timedelta(microseconds=1))
    assert put(inbox) == first
    clock.advance(timedelta(microseconds=1))
    second = put(inbox)
    assert second != first
    assert keys.hash("dedup") == {"1": f"{_member(second)}s".encode()}


@pytest.mark.req("RHI-162", "RHI-165")
def test_a_group_is_locked_by_its_capture_and_free_when_that_is_settled(room: sync.Postroom, keys: Keys) -> None:
    inbox = room.inbox("orders", order="fifo")
    first, second = put(inbox, "1", group="g"), put(inbox, "2", group="g")
    taken = inbox.claim(WORKER, batch_size=1)
    assert keys.scores("locks").keys() == {f"\0\0\0\1g{_member(first)}"}
    assert inbox.claim(WORKER) == []
    inbox.ack(WORKER, taken)
    assert keys.scores("locks") == {}
    assert [message.id for message in inbox.claim(WORKER)] == [second]


@pytest.mark.req("RHI-165")
def test_the_lock_of_a_crashed_worker_ends_with_its_lease(room: sync.Postroom, keys: Keys, clock: FrozenClock) -> None:
    inbox = room.inbox("orders", order="fifo")
    first = put(inbox, "1", group="g")
    put(inbox, "2", group="g")
    inbox.claim(WORKER, batch_size=1, lease_seconds=30)
    clock.advance(30)
    assert [message.id for message in inbox.claim(OwnerToken.new(), batch_size=1)] == [first]
    assert keys.scores("locks").keys() == {f"\0\0\0\1g{_member(first)}"}


@pytest.mark.req("RHI-156", "RHI-164")
def test_a_dead_letter_is_in_dlq_and_its_data_are_kept(room: sync.Postroom, keys: Keys) -> None:
    inbox = room.inbox("orders")
    id_ = put(inbox)
    inbox.fail(WORKER, inbox.claim(WORKER), "no such item")
    assert keys.scores("dlq").keys() == {_member(id_)}
    assert keys.scores("captured") == {}
    [letter] = inbox.dead_letters()
    assert (letter.payload, letter.last_error) == ("payload", "no such item")
    inbox.replay()
    assert keys.scores("dlq") == {}


@pytest.mark.req("RHI-164")
def test_a_failure_counts_an_attempt_and_ends_the_capture(room: sync.Postroom, keys: Keys) -> None:
    inbox = room.inbox("orders")
    id_ = put(inbox)
    inbox.abandon(WORKER, inbox.claim(WORKER))
    assert keys.scores("captured") == {}
    assert keys.scores("pending").keys() == {_member(id_)}
    state, _, attempt, *_ = keys.progress(id_)
    assert (state, attempt) == ("w", 1)


def test_success_ends_the_capture_and_removes_the_content_if_asked(room: sync.Postroom, keys: Keys) -> None:
    inbox = room.inbox("orders", on_success="delete")
    id_ = put(inbox)
    assert b"payload" in keys.hash("messages")[_member(id_)]
    inbox.ack(WORKER, inbox.claim(WORKER))
    assert keys.scores("captured") == {}
    assert b"payload" not in keys.hash("messages")[_member(id_)]
    assert put(inbox) == id_  # its key is still known
    inbox.purge(State.DONE, older_than=timedelta(0))
    assert keys.hash("messages") == {}
    assert keys.hash("dedup") == {}


def test_nothing_has_a_ttl_and_a_box_without_a_janitor_does_not_grow(
    room: sync.Postroom, client: redis.Redis, prefix: str, clock: FrozenClock
) -> None:
    inbox = room.inbox("orders", retention=timedelta(hours=1))
    sizes = []
    for number in range(20):
        put(inbox, str(number))
        inbox.ack(WORKER, inbox.claim(WORKER))
        clock.advance(timedelta(minutes=30))
        sizes.append(len(inbox.find()))
    assert max(sizes) <= 4
    found = list(client.scan_iter(f"{{{prefix}*", count=1000))
    assert {client.ttl(key) for key in found} == {-1}


# -- scripts ---------------------------------------------------------------------------------------------------------


def _sent(own: RedisServer, work: Callable[[], object]) -> list[str]:
    """The commands that clients send meanwhile, without those that scripts run."""
    with redis.Redis.from_url(own.url()) as watcher, watcher.monitor() as monitor:
        work()
        own.query("ECHO", "the end")
        commands: list[str] = []
        while True:
            received = monitor.next_command()
            if "the end" in received["command"]:
                return [command for command in commands if not command.startswith(("CLIENT", "HELLO", "SELECT"))]
            if received["client_type"] != "lua":
                commands.append(received["command"].partition(" ")[0])


@pytest.mark.req("RHI-158", "RHI-162", "C-40")
def test_a_verb_is_one_script_for_however_many_messages(own: RedisServer) -> None:
    with sync.Postroom(own.url()) as room:
        inbox = room.inbox(order="fifo")

        def everything(number: int) -> None:
            drafts = [
                NewMessage("t", "p", source="s", message_id=f"{number}-{n}", group=f"g{n % 7}", collapse_key=f"k{n}")
                for n in range(500)
            ]
            inbox.enqueue_many(drafts)
            taken = inbox.claim(WORKER, batch_size=400)
            inbox.renew(WORKER, taken)
            inbox.ack(WORKER, taken[:200])
            inbox.fail(WORKER, taken[200:], "no")
            inbox.mark_processed(f"{number}-499", "s")

        everything(1)  # scripts are loaded, and ids are fetched
        assert _sent(own, lambda: everything(2)) == ["EVALSHA"] * 6


@pytest.mark.req("RHI-158", "C-40")
def test_a_put_that_fails_changes_nothing(own: RedisServer) -> None:
    """All or nothing: the server refuses the script, not a part of it."""
    with sync.Postroom(own.url(), storage_retry=StorageRetry.NONE) as room:
        inbox = room.inbox(order="fifo")
        put(inbox, "before", group="g")
        before = _dump(own)
        own.query("CONFIG", "SET", "maxmemory", "1")
        drafts = [NewMessage("t", "p", source="s", message_id=str(n), group="g") for n in range(100)]
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            inbox.enqueue_many(drafts)
        own.query("CONFIG", "SET", "maxmemory", "0")
        assert _dump(own) == before


def _dump(own: RedisServer) -> dict[bytes, bytes | None]:
    with redis.Redis.from_url(own.url()) as client:
        found: dict[bytes, bytes | None] = {key: client.dump(key) for key in client.scan_iter(count=1000)}
    return found


@pytest.mark.req("C-40")
def test_what_redis_cannot_do_is_refused_before_any_command() -> None:
    room = AsyncPostroom("redis://nowhere.invalid")  # no server is contacted
    with pytest.raises(FeatureMissing, match="without transactions"):

        @room.inbox().handler("t", transactional=True)
        async def handle(message: Any, tx: Any) -> None: ...

    outbox = sync.Postroom("redis://nowhere.invalid").outbox()
    with pytest.raises(FeatureMissing, match="leave out tx, or use a store on your SQL database"):
        outbox.enqueue("t", "p", tx=object())


@pytest.mark.req("C-40")
def test_durability_can_be_required(own: RedisServer) -> None:
    with sync.Postroom(own.url(), require_durable=True) as room:
        put(room.inbox())
    own.query("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    with sync.Postroom(own.url(), require_durable=True) as room, pytest.raises(FeatureMissing, match="noeviction"):
        put(room.inbox(), "2")
    with sync.Postroom(own.url()) as room:
        assert room.inbox().counts()[State.WAITING] == 1
