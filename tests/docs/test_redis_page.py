"""What the pages about Redis say of settings, rights and keys is so."""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any
from uuid import uuid4

import pytest
import redis
from tools.servers.base import ServerMissing, missing, wait_for
from tools.servers.redis import RedisServer, find_binary

import postroom
from postroom import FeatureMissing, Message, NewMessage, OwnerToken, ReceiptStatus, State
from postroom._stores.redis.layout import KEYS as BOX_KEYS
from postroom._stores.redis.layout import attendant_key, box_keys, boxes_key, channel, ids_key
from postroom._stores.redis.replication import Replication
from postroom._stores.redis.url import POOL_SIZE, SCHEMES
from postroom._stores.wrapper import innermost
from postroom.spi import Box, Draft, JoinDraft, JoinWait, Order
from postroom.sync import Postroom
from tests.docs.pages import ROOT, files_in
from tests.docs.servers import empty_redis

PAGE = ROOT / "docs/how-to/use-redis.md"
TEXT = PAGE.read_text("utf-8")
KEYS = (ROOT / "docs/reference/redis-keys.md").read_text("utf-8")
RIGHTS = files_in(PAGE)["rights.acl"].split()
SETTINGS = dict(line.split(" ", 1) for line in files_in(PAGE)["redis.conf"].splitlines())
WITHOUT_LOG = {**SETTINGS, "appendonly": "no"}

LATER = datetime.now(UTC) + timedelta(hours=1)
ROW = re.compile(r"^\| (?:\d+ \| )?`([\w{}<>:]+)` \| ([a-z ]+) \|", re.MULTILINE)
TYPES = {"hash": "hash", "sorted set": "zset", "set": "set", "number": "string"}


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    try:
        find_binary()
    except ServerMissing as reason:
        missing(reason)


def use(url: str) -> None:
    """Every verb, and a worker that is woken by another room."""
    with Postroom(url) as room:
        inbox, worker = room.inbox("line", order="fifo", on_dead="block"), OwnerToken.new()
        inbox.enqueue_many([NewMessage("t", str(n), source="s", message_id=str(n), group="g") for n in range(4)])
        inbox.enqueue("t", "again", source="s", message_id="2", group="g")
        inbox.enqueue("t", "namesake", source="another", message_id="2", group="h", expires=LATER)
        for number in range(2):
            inbox.enqueue("t", "newer", source="s", message_id=f"c{number}", group="c", collapse_key="k")
        inbox.already_processed("9", "s")
        inbox.mark_processed("8", "s")
        [first] = inbox.claim(worker, batch_size=1)
        inbox.renew(worker, [first])
        inbox.ack(worker, [first])
        inbox.fail(worker, inbox.claim(worker, batch_size=1), "no")
        inbox.skip_blocked("g")
        inbox.replay()
        inbox.reap()
        inbox.abandon(worker, inbox.claim(worker, batch_size=1))
        inbox.find()
        inbox.purge(State.SEEN, older_than=timedelta(0))
        inbox.counts()
        innermost(room.store).boxes()
        add_joins(innermost(room.store))
        innermost(room.store).attend(["inbox:orders"], worker, timedelta(seconds=30))
    asyncio.run(_be_woken(url))


async def _be_woken(url: str) -> None:
    handled = asyncio.Event()
    room = postroom.Postroom(url)
    box = room.inbox("woken", poll_interval=timedelta(minutes=10))  # polling alone would be too late

    @box.handler("t")
    async def handle(message: Message[Any]) -> None:
        handled.set()

    async with room, postroom.Postroom(url) as other:
        await asyncio.to_thread(wait_for, lambda: _subscribers(url) > 0, "a worker to listen")
        await other.inbox("woken").enqueue("t", "x", source="s", message_id="1")
        await asyncio.wait_for(handled.wait(), 30)


def _subscribers(url: str) -> int:
    with redis.Redis.from_url(url.replace("shop_app:secret@", "")) as admin:
        [(_, count)] = admin.pubsub_numsub(channel("postroom", "", sharded=False))
        return int(count)


# -- rights ----------------------------------------------------------------------------------------------------------


def granted(rights: list[str]) -> str:
    """The URL of the page's user, with these rights."""
    url = empty_redis()
    with redis.Redis.from_url(url) as admin:
        admin.execute_command(*rights[:3], "reset", *rights[3:])
    return url.replace("redis://", "redis://shop_app:secret@")


TO_LISTEN = [right for right in RIGHTS[5:] if right[0] == "&" or right == "+@pubsub"]
NEEDED = [right for right in RIGHTS[5:] if right[0] in "~+" and right not in {*TO_LISTEN, "+config|get"}]


def test_the_rights_are_enough() -> None:
    use(granted(RIGHTS))


@pytest.mark.parametrize("lacking", NEEDED)
def test_each_of_them_is_needed(lacking: str) -> None:
    # The error text is another one if a script lacks the right.
    with pytest.raises(redis.exceptions.ResponseError, match=r"permission|can't (run|access|publish)"):
        use(granted([right for right in RIGHTS if right != lacking]))


@pytest.mark.parametrize("lacking", TO_LISTEN)
def test_without_the_right_to_publish_nothing_fails(lacking: str) -> None:
    """A wake-up is optional: the put of a stored message must not raise."""
    with Postroom(granted([right for right in RIGHTS if right != lacking])) as room:
        receipt = room.inbox().enqueue("t", "x", source="s", message_id="1")
        assert receipt.status is ReceiptStatus.NEW


def test_without_the_right_to_config_get_info_is_read() -> None:
    with Postroom(granted([right for right in RIGHTS if right != "+config|get"]), require_durable=True) as room:
        room.inbox().counts()


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "postroom")
    return caplog


@pytest.mark.parametrize(
    "settings",
    [SETTINGS, {**SETTINGS, "appendfsync": "always"}],
    ids=["the page's", "always"],
)
def test_settings_without_complaint(settings: dict[str, str], warnings: pytest.LogCaptureFixture) -> None:
    with RedisServer(settings) as server, Postroom(server.url(), require_durable=True) as room:
        room.inbox().counts()
    assert warnings.messages == []


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({**SETTINGS, "maxmemory-policy": "allkeys-lru"}, "evicts keys"),
        ({**WITHOUT_LOG, "save": ""}, "writes nothing to the disk"),
        ({**WITHOUT_LOG, "save": "3600 1"}, "writes snapshots only"),
    ],
    ids=["evicts", "writes nothing", "snapshots alone"],
)
def test_a_server_that_may_lose_messages_is_logged_or_refused(
    settings: dict[str, str], complaint: str, warnings: pytest.LogCaptureFixture
) -> None:
    with RedisServer(settings) as server:
        with Postroom(server.url()) as room:
            room.inbox().enqueue("t", "x", source="s", message_id="1")
            room.inbox().counts()
        [warning] = warnings.messages
        assert re.match(r"redis:\S+ may lose messages: ", warning)
        assert complaint in warning
        with (
            Postroom(server.url(), require_durable=True) as careful,
            pytest.raises(FeatureMissing, match=complaint),
        ):
            careful.inbox().enqueue("t", "x", source="s", message_id="2")
        assert server.query("HLEN", box_keys("postroom", "inbox:inbox")[1]) == 1


def test_a_full_server_takes_no_more_but_workers_go_on_and_a_purge_makes_room() -> None:
    with RedisServer({**SETTINGS, "maxmemory": "5mb"}) as server, Postroom(server.url()) as room:
        inbox, worker = room.inbox(), OwnerToken.new()
        inbox.enqueue("t", "first", source="s", message_id="first")
        inbox.ack(worker, inbox.claim(worker))
        accepted = _fill(inbox)
        assert accepted > 200
        assert inbox.counts()[State.WAITING] == accepted
        taken = inbox.claim(worker, batch_size=200)
        inbox.renew(worker, taken)
        assert inbox.ack(worker, taken[:150]) == [True] * 150
        assert inbox.abandon(worker, taken[150:]) == [True] * 50
        assert inbox.purge(State.DONE, older_than=timedelta(0)) == 151
        assert inbox.enqueue("t", "x", source="s", message_id="last").is_new


def _fill(inbox: Any) -> int:
    """Puts until the server refuses. Returns how many it took."""
    number = 0
    while True:
        try:
            inbox.enqueue("t", "x" * 10_000, source="s", message_id=str(number))
        except redis.exceptions.OutOfMemoryError:
            return number
        number += 1


# -- words and numbers -----------------------------------------------------------------------------------------------


def test_the_page_names_every_kind_of_url() -> None:
    assert [scheme for scheme in SCHEMES if f"`{scheme}://" not in TEXT] == []


def test_the_parameters_have_the_defaults_of_the_page() -> None:
    said = dict(re.findall(r"^\| `(pool_size|wait_\w+)` \| `(\d+)` \|", TEXT, re.MULTILINE))
    ours = {"pool_size": POOL_SIZE, "wait_replicas": Replication().replicas, "wait_timeout": Replication().timeout}
    assert {name: int(value) for name, value in said.items()} == ours


# -- keys ------------------------------------------------------------------------------------------------------------


def test_the_reference_has_the_keys_of_the_layout() -> None:
    """layout.md in the package is for developers, the page for operators: the same keys, of the same types."""
    layout = files("postroom._stores.redis").joinpath("layout.md").read_text("utf-8")
    page = ROW.findall(KEYS)
    assert page == ROW.findall(layout)
    shared = [make("<prefix>") for make in (ids_key, boxes_key, attendant_key)]
    assert [name for name, _ in page] == [*BOX_KEYS, *shared]


@pytest.mark.req("C-43")
def test_the_server_has_them_under_these_names_and_no_others() -> None:
    url = empty_redis()
    with Postroom(url) as room, redis.Redis.from_url(url, decode_responses=True) as client:
        inbox, worker = room.inbox("orders", order="fifo"), OwnerToken.new()
        drafts = [NewMessage("t", "x", source="s", message_id=str(n), group="g", collapse_key=f"k{n}") for n in "123"]
        inbox.enqueue_many(drafts)
        inbox.enqueue("t", "x", source="another", message_id="1", group="h", expires=LATER)
        inbox.enqueue("t", "x", source="s", message_id="dead", group="h")
        inbox.already_processed("seen", "s")
        inbox.mark_processed("done", "s")
        inbox.mark_dead("dead", "s")
        inbox.claim(worker, batch_size=1)
        add_joins(innermost(room.store))
        innermost(room.store).attend(["inbox:orders"], worker, timedelta(seconds=30))
        keys = list(client.scan_iter(count=1000))
        assert {_name(key): client.type(key) for key in keys} == {name: TYPES[kind] for name, kind in ROW.findall(KEYS)}
        assert {client.ttl(key) for key in keys} == {-1}


def add_joins(store: Any) -> None:
    """A join with a step and a waiting continuation, and one that has ended."""
    box = Box("outbox", "orders", order=Order(fifo=True))
    pending, ended = uuid4(), uuid4()
    for join in (pending, ended):
        store.start_join(box, JoinDraft(join, "tenant"))
    store.put(box, [Draft("s", "step", join=pending)])
    store.put_wait(box, Draft("s", str(pending)), JoinWait(pending))
    store.cancel_join(box, ended)


def _name(key: str) -> str:
    """The name of a key on the page: without the tag of its box, if it belongs to one."""
    return key.replace("{postroom}", "{<prefix>}") if "{postroom}" in key else key.partition("}:")[2]


def test_the_patterns_on_the_pages_are_those_of_the_code() -> None:
    assert f"`{channel('<prefix>', '<kind>:<box name>', sharded=True)}`" in KEYS
    assert f"`{channel('<prefix>', '', sharded=False)}`" in KEYS
    assert f"`{channel('postroom', 'inbox:orders', sharded=True)}`" in TEXT
    assert f"`{channel('postroom', '', sharded=False)}`" in TEXT
