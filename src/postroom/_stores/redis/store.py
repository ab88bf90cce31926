"""The verbs, as programs that run scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from postroom._kernel.clock import Clock, to_microseconds
from postroom._kernel.local import PerLoop
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._stores.coalesced import Coalescer
from postroom._stores.redis import codec
from postroom._stores.redis.layout import BLOCK, NAMES, box_keys, boxes_key, channel, ids_key
from postroom._stores.redis.scripts import AMBIGUOUS, NEEDS_IDS, script
from postroom._stores.redis.waiting import Wait
from postroom.errors import AmbiguousMessageId, NotReplicated
from postroom.spi import (
    Ask,
    Box,
    Claim,
    Counts,
    Draft,
    Features,
    Filter,
    Key,
    Mark,
    Purge,
    Reaped,
    Receipt,
    Settlement,
    Sighting,
    State,
    StoredMessage,
)

AT_ONCE = 1000
"""Messages that one script changes where a verb may be cut in pieces: no script keeps the server for long."""
LOOKS = 2000
"""Messages that one script looks at to find some."""


class _Place(NamedTuple):
    """What every script of a box is given."""

    box: Box
    keys: tuple[bytes, ...]
    policy: bytes


class RedisVerbs:
    """The verbs of both colours."""

    _hears = False
    """Whether this colour has workers, which need to hear of work."""

    def __init__(self, wire: Any, *, prefix: str, clock: Clock | None = None, notify: bool = True) -> None:
        self.name = wire.name
        self.features = Features(
            durable=True, transactional=False, concurrent=True, notify=self._hears and notify and wire.hears
        )
        self._wire = wire
        self._prefix = prefix
        self._clock = clock
        self._notify = notify
        self._places: dict[str, _Place] = {}

    # -- running scripts -----------------------------------------------------------------------------------------

    def _place(self, box: Box) -> _Place:
        place = self._places.get(box.key)
        if place is None or place.box is not box:
            told = codec.policy(box)
            if self._notify:
                sharded = self._wire.sharded
                where = channel(self._prefix, box.key, sharded=sharded)
                told |= {"channel": where, "publish": "SPUBLISH" if sharded else "PUBLISH"}
                self._wire.want(where)
            place = self._places[box.key] = _Place(box, box_keys(self._prefix, box.key), codec.encode(told))
        return place

    def _script(self, name: str, box: Box, given: Any, *more: bytes, wait: Wait = "must") -> Program[Any]:
        if not self._wire.is_ready:
            yield call(self._wire.ready)
        place = self._place(box)
        now = b"" if self._clock is None else str(to_microseconds(self._clock.now())).encode()
        arguments = (now, place.policy, codec.encode(given), *more)
        return (yield call(self._wire.run, script(name), place.keys, arguments, wait))

    def _script_with_ids(self, name: str, box: Box, given: dict[str, Any], *more: bytes) -> Program[Any]:
        """A script that may need ids: it changes nothing where there are too few, and gets a block of them."""
        while (answer := (yield from self._script(name, box, given, *more))) == NEEDS_IDS:
            size = max(BLOCK, len(given["message_ids"]))
            # A box that has messages has had ids, so it is known from here on.
            yield call(self._wire.execute, "SADD", boxes_key(self._prefix), box.key)
            last = yield call(self._wire.execute, "INCRBY", ids_key(self._prefix), size)
            given = {**given, "block": (last - size, size)}
        return answer

    # -- the work queue ------------------------------------------------------------------------------------------

    @verb
    def _put(self, box: Box, drafts: Sequence[Draft], *, tx: Any = None) -> Program[list[Receipt]]:
        if not drafts:
            return []
        given, bodies = codec.drafts_given(drafts, fifo=box.order.fifo)
        return codec.receipts((yield from self._script_with_ids("put", box, given, bodies)), drafts)

    @verb
    def claim(self, box: Box, ask: Ask, *, tx: Any = None) -> Program[list[StoredMessage]]:
        return (yield from self._claim(box, ask, (0, 0), []))

    def _claim(
        self, box: Box, ask: Ask, skip: Sequence[int], claimed: list[StoredMessage]
    ) -> Program[list[StoredMessage]]:
        """Goes on where a script has stopped because it had looked at enough."""
        while True:
            given = codec.ask_given(ask, ask.limit - len(claimed), skip)
            blob, lease_end, again = yield from self._script("claim", box, given, wait="need not")
            claimed += codec.claimed(blob, ask.owner, lease_end)
            if not again:
                return claimed
            skip = codec.decode(again)
            ask = ask._replace(suspects=not claimed)

    @verb
    def settle(self, box: Box, settlements: Sequence[Settlement], *, tx: Any = None) -> Program[list[bool]]:
        if not settlements:
            return []
        outcomes = yield from self._outcomes(box, settlements)
        return outcomes.kept(*_unambiguous((yield from self._script("settle", box, outcomes.given, wait="should"))))

    @verb
    def turn(
        self, box: Box, settlements: Sequence[Settlement], ask: Ask
    ) -> Program[tuple[list[bool], list[StoredMessage]]]:
        outcomes = yield from self._outcomes(box, settlements)
        given = outcomes.given | {"ask": codec.ask_given(ask, ask.limit, (0, 0))}
        acks, others, blob, lease_end, again = _unambiguous(
            (yield from self._script("turn", box, given, wait="should"))
        )
        claimed = codec.claimed(blob, ask.owner, lease_end)
        if again:
            claimed = yield from self._claim(box, ask._replace(suspects=not claimed), codec.decode(again), claimed)
        return outcomes.kept(acks, others), claimed

    def _outcomes(self, box: Box, settlements: Sequence[Settlement]) -> Program[codec.Outcomes]:
        """With delays for those that leave it to the box's backoff, which only Python knows."""
        ordered = box.delivery.on_stale_ack == "requeue"
        open_ = [s for s in settlements if s.verdict == "retry" and s.delay is None]
        if not open_:
            return codec.Outcomes(settlements, ordered=ordered)
        targets = [codec.target_given(settlement.target) for settlement in open_]
        attempts = iter(_unambiguous((yield from self._script("attempts", box, targets, wait="need not"))))
        backoff = box.delivery.backoff
        delays = [
            backoff.delay(next(attempts) + 1) if s.verdict == "retry" and s.delay is None else s.delay
            for s in settlements
        ]
        return codec.Outcomes(settlements, delays, ordered=ordered)

    @verb
    def renew(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> Program[list[bool]]:
        if not claims:
            return []
        given = {
            "ids": [codec.id_text(claim.id) for claim in claims],
            "owners": [claim.owner.hex for claim in claims],
            "fences": [claim.fence for claim in claims],
            "lease": codec.microseconds(lease),
        }
        return codec.kept((yield from self._script("renew", box, given, wait="need not")))

    @verb
    def reap(self, box: Box, limit: int) -> Program[Reaped]:
        # First all leases: a message whose lease has passed may have expired, too.
        freed = yield from self._reap(box, "free", limit)
        expired = yield from self._reap(box, "bury", limit)
        return Reaped(freed, expired)

    def _reap(self, box: Box, duty: str, limit: int) -> Program[int]:
        reaped = 0
        while reaped < limit:
            size = min(limit - reaped, AT_ONCE)
            now_reaped = yield from self._script("reap", box, {"duty": duty, "limit": size}, wait="should")
            reaped += now_reaped
            if now_reaped < size:
                break
        return reaped

    @verb
    def replay(self, box: Box, which: Filter, *, tx: Any = None) -> Program[list[Key]]:
        return (yield from self._move("replay", box, which._replace(states=frozenset({State.DEAD}))))

    def _move(self, name: str, box: Box, which: Filter) -> Program[list[Key]]:
        """A script that finds messages and moves them; returns their keys."""
        keys: list[Key] = []

        def collect(blob: bytes) -> int:
            moved = [Key(*pair) for pair in codec.decode(blob)]
            keys.extend(moved)
            return len(moved)

        yield from self._page(name, box, which, collect, wait="must")
        return keys

    @verb
    def purge(self, box: Box, purge: Purge) -> Program[int]:
        gone = skip = 0
        while gone < purge.limit:
            size = min(purge.limit - gone, AT_ONCE)
            given = {
                "state": codec.LETTERS[purge.state],
                "age": codec.microseconds(purge.older_than),
                "limit": size,
                "skip": skip,
            }
            deleted, skip, looked = yield from self._script("purge", box, given, wait="should")
            gone += deleted
            if looked < size:
                break
        return gone

    @verb
    def find(self, box: Box, which: Filter) -> Program[list[StoredMessage]]:
        messages: list[StoredMessage] = []

        def collect(blob: bytes) -> int:
            found = codec.found(blob)
            messages.extend(found)
            return len(found)

        yield from self._page("find", box, which, collect, wait="need not")
        return messages

    def _page(
        self, name: str, box: Box, which: Filter, collect: Callable[[bytes], int], *, wait: Wait
    ) -> Program[None]:
        """A script that looks for messages, again and again until there are enough of them or no more."""
        after, left = str(which.after), which.limit
        while left > 0:
            given = codec.filter_given(which, after=after, limit=min(left, AT_ONCE), looks=LOOKS)
            blob, next_after = yield from self._script(name, box, given, wait=wait)
            left -= collect(blob)
            if not next_after:
                return
            after = next_after.decode()

    @verb
    def counts(self, box: Box) -> Program[Counts]:
        seen, claimed, done, dead, everything = yield from self._script("counts", box, None, wait="need not")
        return {
            State.SEEN: seen,
            State.WAITING: everything - seen - claimed - done - dead,
            State.CLAIMED: claimed,
            State.DONE: done,
            State.DEAD: dead,
        }

    @verb
    def boxes(self) -> Program[list[str]]:
        if not self._wire.is_ready:
            yield call(self._wire.ready)
        known = yield call(self._wire.execute, "SMEMBERS", boxes_key(self._prefix))
        found: list[str] = []
        for key in sorted(each.decode() for each in known):
            messages = box_keys(self._prefix, key)[NAMES.index("messages")]
            if (yield call(self._wire.execute, "HLEN", messages)):  # a box that was emptied is still known
                found.append(key)
        return found

    @verb
    def record_order(self, box: Box, *, change: bool = False, tx: Any = None) -> Program[bool | None]:
        if not self._wire.is_ready:
            yield call(self._wire.ready)
        meta, fifo = box_keys(self._prefix, box.key)[NAMES.index("meta")], int(box.order.fifo)
        recorded = yield call(self._wire.execute, "HGET", meta, "fifo")
        if recorded is None or (change and int(recorded) != fifo):
            # Of two that record at the same time, the first decides.
            yield call(self._wire.execute, "HSET" if change else "HSETNX", meta, "fifo", fifo)
            recorded = yield call(self._wire.execute, "HGET", meta, "fifo")
        return bool(int(recorded))

    # -- keys ----------------------------------------------------------------------------------------------------

    @verb
    def record(self, box: Box, drafts: Sequence[Draft], *, tx: Any = None) -> Program[list[Sighting]]:
        if not drafts:
            return []
        given, bodies = codec.drafts_given(drafts, fifo=False)
        return codec.sightings((yield from self._script_with_ids("record", box, given, bodies)))

    @verb
    def mark(
        self, box: Box, keys: Sequence[Key], mark: Mark, *, error: str | None = None, tx: Any = None
    ) -> Program[list[bool]]:
        if not keys:
            return []
        given, bodies = codec.drafts_given([Draft(*key) for key in keys], fifo=False)
        given |= {"mark": mark, "error": error or ""}
        return codec.kept((yield from self._script_with_ids("mark", box, given, bodies)))

    @verb
    def cancel(self, box: Box, which: Filter, *, tx: Any = None) -> Program[list[Key]]:
        return (yield from self._move("cancel", box, which._replace(states=frozenset({State.WAITING}))))

    # -- the rest ------------------------------------------------------------------------------------------------

    def is_transient(self, error: BaseException) -> bool:
        return bool(self._wire.is_transient(error))

    @verb
    def close(self) -> Program[None]:
        yield call(self._wire.close)


def _unambiguous(answer: Any) -> Any:
    if answer == AMBIGUOUS:
        raise AmbiguousMessageId
    return answer


class RedisStore(RedisVerbs, Async):
    """For async code, where many tasks may put at the same time."""

    _hears = True

    def __init__(self, wire: Any, **options: Any) -> None:
        super().__init__(wire, **options)
        self._coalescers = PerLoop(lambda: Coalescer(self._put, self._is_everybodys))

    @verb
    def put(self, box: Box, drafts: Sequence[Draft], *, tx: Any = None) -> Program[list[Receipt]]:
        return (yield call(self._coalescers.get().put, box, drafts))

    def _is_everybodys(self, error: BaseException) -> bool:
        """Whether an error is the server's trouble, and that of all whose puts went together."""
        return isinstance(error, NotReplicated) or self.is_transient(error)

    async def wait(self) -> frozenset[str]:
        """Where `features.notify` is so."""
        heard: frozenset[str] = await self._wire.wait()
        return heard


class SyncRedisStore(RedisVerbs, Sync):
    """For sync code."""

    put = RedisVerbs._put  # noqa: SLF001 - the same, under its public name
