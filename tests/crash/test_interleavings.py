"""Two stores on one file: the second begins at every point of the first one's program.

SQLite has one writer. So the orders that are possible are few, and each is tested here: the second store finds the
file busy or waits, sees no uncommitted change, and decides on what the first has committed.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from postroom._kernel.states import BoxKind
from postroom._stores.sql.statements import Step
from postroom.spi import Box, Claim, ClaimRequest, Draft, ReceiptStatus, Settlement, State
from postroom.testing import FrozenClock
from tests.crash.scenarios import ALICE, BOB, HOUR, MINUTE, Scene
from tests.crash.stepping import SteppingStore, dump, dump_file

pytestmark = pytest.mark.store("sqlite")


class Pair(NamedTuple):
    """Two calls that want the same messages, and a check of their results that holds in either order."""

    name: str
    first: Callable[[SteppingStore, Box, list[Claim]], Any]
    second: Callable[[SteppingStore, Box, list[Claim]], Any]
    check: Callable[[Any, Any], None]
    proves: dict[BoxKind, tuple[str, ...]]


def claim_for(owner: Any) -> Callable[[SteppingStore, Box, list[Claim]], list[int]]:
    return lambda store, box, _claims: [message.id for message in store.claim(box, ClaimRequest(owner, HOUR, 3))]


def settle(store: SteppingStore, box: Box, claims: list[Claim]) -> list[bool]:
    return list(store.settle(box, [Settlement.done(claim) for claim in claims]))


def put(store: SteppingStore, box: Box, _claims: list[Claim]) -> list[ReceiptStatus]:
    drafts = [Draft("shop", id_, "topic", "text") for id_ in ("new", "newer")]
    return [receipt.status for receipt in store.put(box, drafts)]


def each_message_once(first: list[int], second: list[int]) -> None:
    assert len(first) == 3
    assert not set(first) & set(second)


def one_is_new(first: list[ReceiptStatus], second: list[ReceiptStatus]) -> None:
    assert first == [ReceiptStatus.NEW] * 2
    assert second == [ReceiptStatus.DUPLICATE] * 2


def the_late_ack_was_in_time(first: list[bool], second: list[int]) -> None:
    """No other worker had claimed the messages yet, so the ack is stored, and none of them can be claimed."""
    assert first == [True] * 3
    assert second == []


def the_late_ack_is_refused(first: list[int], second: list[bool]) -> None:
    assert len(first) == 3
    assert second == [False] * 3


CLAIMS: dict[BoxKind, tuple[str, ...]] = {
    "inbox": ("IBX-030", "IBX-103", "IBX-106"),
    "outbox": ("OBX-011", "OBX-092", "OBX-095"),
}
ISOLATION: dict[BoxKind, tuple[str, ...]] = {"inbox": ("IBX-103",), "outbox": ("OBX-092",)}
PAIRS = (
    Pair("claim, claim", claim_for(BOB), claim_for(ALICE), each_message_once, CLAIMS),
    Pair("put, put", put, put, one_is_new, {"inbox": ("IBX-014",), "outbox": ("OBX-091",)}),
    Pair("settle, claim", settle, claim_for(BOB), the_late_ack_was_in_time, ISOLATION),
    Pair("claim, settle", claim_for(BOB), settle, the_late_ack_is_refused, ISOLATION),
)
every_pair = pytest.mark.parametrize(
    ("pair", "kind"),
    [
        pytest.param(pair, kind, marks=pytest.mark.req(*ids), id=f"{pair.name}-{kind}")
        for pair in PAIRS
        for kind, ids in pair.proves.items()
    ],
)


class Sandbox:
    """A file with three messages whose leases have passed, so that everybody may want them."""

    def __init__(self, folder: Path, kind: BoxKind, name: str) -> None:
        self.file, self.box, self.clock = folder / name, Box(kind, "shared"), FrozenClock()
        self.first, self.second = SteppingStore(self.file, self.clock), SteppingStore(self.file, self.clock)
        self.first.migrate()
        scene = Scene(self.first, self.box, self.clock)
        scene.put("a", "b", "c")
        self.claims = list(scene.claims(lease=MINUTE).values())
        self.clock.advance(HOUR)
        self.second.counts(self.box)  # so that its first verb need not look at the schema

    def close(self) -> None:
        self.first.close()
        self.second.close()


def points(kind: BoxKind, pair: Pair, folder: Path) -> Iterator[int]:
    """The points of the first program: before its first statement, and after each."""
    steps: list[int] = []
    with closing(Sandbox(folder, kind, "measured.db")) as sandbox:
        sandbox.first.stepping.hook = lambda done, _step: steps.append(done)
        pair.first(sandbox.first, sandbox.box, sandbox.claims)
    yield from steps


@every_pair
def test_a_writer_that_does_not_wait_finds_the_file_busy_and_changes_nothing(
    pair: Pair, kind: BoxKind, tmp_path: Path
) -> None:
    with closing(Sandbox(tmp_path, kind, "shared.db")) as sandbox:
        sandbox.second.stepping.connection.execute("PRAGMA busy_timeout = 0")
        before, counts = dump(sandbox.second.stepping.connection), sandbox.second.counts(sandbox.box)
        tried: list[int] = []

        def intrude(done: int, _step: Step | None) -> None:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                pair.second(sandbox.second, sandbox.box, sandbox.claims)
            assert sandbox.second.counts(sandbox.box) == counts  # a reader is let in, and sees nothing half done
            assert dump(sandbox.second.stepping.connection) == before
            tried.append(done)

        sandbox.first.stepping.hook = intrude
        first = pair.first(sandbox.first, sandbox.box, sandbox.claims)
        assert len(tried) > 2
        pair.check(first, pair.second(sandbox.second, sandbox.box, sandbox.claims))


@every_pair
def test_a_writer_that_waits_sees_what_the_first_has_committed(pair: Pair, kind: BoxKind, tmp_path: Path) -> None:
    for point in points(kind, pair, tmp_path):
        with closing(Sandbox(tmp_path, kind, f"from-{point}.db")) as sandbox:
            first, second, order = run_beside(sandbox, pair, point)
        pair.check(first, second)
        assert order == sorted(order)  # all statements of the first, then all of the second


def run_beside(sandbox: Sandbox, pair: Pair, point: int) -> tuple[Any, Any, list[str]]:
    """Starts the second call at a point of the first. Returns both results, and the order of the statements."""
    order: list[str] = []
    waits = threading.Event()
    second: Future[Any]

    def note(_done: int, _step: Step | None) -> None:
        order.append("second")

    def start_the_second(done: int, _step: Step | None) -> None:
        nonlocal second
        order.append("first")
        if done == point:
            second = pool.submit(pair.second, sandbox.second, sandbox.box, sandbox.claims)
            assert waits.wait(timeout=30)  # its BEGIN has been given to SQLite, which now lets it wait

    sandbox.first.stepping.hook, sandbox.second.stepping.hook = start_the_second, note
    sandbox.second.stepping.connection.set_trace_callback(lambda _text: waits.set())
    with ThreadPoolExecutor(max_workers=1) as pool:
        first = pair.first(sandbox.first, sandbox.box, sandbox.claims)
        return first, second.result(), order


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("inbox", marks=pytest.mark.req("IBX-104")),
        pytest.param("outbox", marks=pytest.mark.req("OBX-093")),
    ],
)
def test_a_callers_transaction_that_has_read_too_early_fails_and_can_be_repeated(kind: BoxKind, tmp_path: Path) -> None:
    """SQLite's deadlock: the caller read before another wrote, so its transaction can no longer write at all."""
    with (
        closing(Sandbox(tmp_path, kind, "shared.db")) as sandbox,
        closing(sqlite3.connect(sandbox.file, isolation_level=None)) as caller,
    ):
        caller.execute("BEGIN")
        caller.execute("SELECT count(*) FROM postroom_message").fetchall()
        sandbox.second.put(sandbox.box, [Draft("shop", "theirs", "topic", "text")])
        before = dump_file(sandbox.file)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            sandbox.first.put(sandbox.box, [Draft("shop", "ours", "topic", "text")], tx=caller)
        assert caller.in_transaction
        caller.execute("ROLLBACK")
        assert dump_file(sandbox.file) == before
        caller.execute("BEGIN IMMEDIATE")
        sandbox.first.put(sandbox.box, [Draft("shop", "ours", "topic", "text")], tx=caller)
        caller.execute("COMMIT")
        assert sandbox.second.counts(sandbox.box)[State.WAITING] == 2
