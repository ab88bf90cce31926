"""The verbs of the store, as programs that run scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from postroom._kernel.clock import Clock
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._stores.coalesced import Sharing
from postroom._stores.redis import codec
from postroom._stores.redis.attending import AttendVerbs
from postroom._stores.redis.joins import JoinVerbs, checked
from postroom._stores.redis.layout import box_key, boxes_key
from postroom._stores.redis.messages import claimed_messages, found_messages
from postroom._stores.redis.outcomes import Outcomes
from postroom._stores.redis.redis_py import Reply
from postroom._stores.redis.replication import WaitFor
from postroom._stores.redis.scripts import AMBIGUOUS
from postroom.errors import AmbiguousMessageId, NotReplicated
from postroom.spi import (
    Begin,
    Begun,
    Box,
    Claim,
    ClaimRequest,
    Counts,
    Draft,
    Filter,
    Key,
    KeyStatus,
    Mark,
    Purge,
    Reaped,
    Receipt,
    Settlement,
    State,
    StoredMessage,
    Tx,
)

if TYPE_CHECKING:
    from postroom._stores.redis.client import RedisClient

MAX_CHANGES = 1000
"""Messages that one script changes, if the verb may be split: a script blocks the server while it runs."""
MAX_READS = 2000
"""Messages that one script reads to find those that match a filter."""


class RedisVerbs(JoinVerbs, AttendVerbs):
    """The verbs, for both modes."""

    # -- the work queue ------------------------------------------------------------------------------------------

    @verb
    def put(self, box: Box, drafts: Sequence[Draft], *, tx: Tx = None) -> Program[list[Receipt]]:
        if not drafts:
            return []
        arguments, contents = codec.draft_arguments(drafts, fifo=box.order.fifo)
        return codec.receipts(checked((yield from self._run_with_ids("put", box, arguments, contents))), drafts)

    @verb
    def claim(self, box: Box, request: ClaimRequest, *, tx: Tx = None) -> Program[list[StoredMessage]]:
        return (yield from self._claim(box, request, (0, 0), []))

    def _claim(
        self, box: Box, request: ClaimRequest, skip: Sequence[int], claimed: list[StoredMessage]
    ) -> Program[list[StoredMessage]]:
        """Runs the claim script until it has read all candidates. `skip` is what it returned last."""
        while True:
            arguments = codec.claim_arguments(request, request.limit - len(claimed), skip)
            messages, next_skip = claimed_messages(
                (yield from self._run("claim", box, arguments, wait="nothing")), request.owner
            )
            claimed += messages
            if next_skip is None:
                return claimed
            skip, request = next_skip, request._replace(suspects=not claimed)

    @verb
    def begin(self, box: Box, begins: Sequence[Begin]) -> Program[list[Begun]]:
        if not begins:
            return []
        arguments, contents = codec.draft_arguments([begin.draft for begin in begins], fifo=False)
        arguments |= codec.begin_arguments(begins)
        return codec.begun((yield from self._run_with_ids("begin", box, arguments, contents)), begins)

    @verb
    def settle(self, box: Box, settlements: Sequence[Settlement], *, tx: Tx = None) -> Program[list[bool]]:
        if not settlements:
            return []
        outcomes = yield from self._outcomes(box, settlements)
        reply = yield from self._run("settle", box, outcomes.arguments, outcomes.contents, wait="attempted")
        return outcomes.kept(_unambiguous(reply))

    @verb
    def exchange(
        self, box: Box, settlements: Sequence[Settlement], request: ClaimRequest
    ) -> Program[tuple[list[bool], list[StoredMessage]]]:
        outcomes = yield from self._outcomes(box, settlements)
        arguments = outcomes.arguments | {"request": codec.claim_arguments(request, request.limit, (0, 0))}
        *reply, lost = _unambiguous((yield from self._run("exchange", box, arguments, wait="attempted")))
        claimed, skip = claimed_messages(reply, request.owner)
        if skip is not None:
            claimed = yield from self._claim(box, request._replace(suspects=not claimed), skip, claimed)
        return outcomes.kept(lost), claimed

    def _outcomes(self, box: Box, settlements: Sequence[Settlement]) -> Program[Outcomes]:
        """Converts settlements. Computes the delays of retries without one: the backoff of the box is Python code."""
        ordered = box.delivery.on_stale_ack == "requeue"
        without_delay = [s for s in settlements if s.verdict == "retry" and s.delay is None]
        if not without_delay:
            return Outcomes(settlements, ordered=ordered)
        targets = [codec.target_arguments(settlement.target) for settlement in without_delay]
        attempts = iter(_unambiguous((yield from self._run("attempts", box, targets, wait="nothing"))))
        backoff = box.delivery.backoff
        delays = [
            backoff.delay(next(attempts) + 1) if s.verdict == "retry" and s.delay is None else s.delay
            for s in settlements
        ]
        return Outcomes(settlements, delays, ordered=ordered)

    @verb
    def renew(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> Program[list[bool]]:
        if not claims:
            return []
        arguments = {
            "ids": codec.id_texts(claim.id for claim in claims),
            "owners": [claim.owner.hex for claim in claims],
            "fences": [claim.fence for claim in claims],
            "lease": codec.microseconds(lease),
        }
        return codec.kept((yield from self._run("renew", box, arguments, wait="nothing")))

    @verb
    def reap(self, box: Box, limit: int) -> Program[Reaped]:
        # Leases first: a message whose lease has ended may have expired, too.
        released = yield from self._reap(box, "free", limit)
        expired = yield from self._reap(box, "bury", limit)
        return Reaped(released, expired)

    def _reap(self, box: Box, duty: str, limit: int) -> Program[int]:
        reaped = 0
        while reaped < limit:
            size = min(limit - reaped, MAX_CHANGES)
            now_reaped = yield from self._run("reap", box, {"duty": duty, "limit": size}, wait="attempted")
            reaped += now_reaped
            if now_reaped < size:
                break
        return reaped

    @verb
    def replay(self, box: Box, which: Filter, *, tx: Tx = None) -> Program[list[Key]]:
        return (yield from self._move("replay", box, which._replace(states=frozenset({State.DEAD}))))

    def _move(self, name: str, box: Box, which: Filter) -> Program[list[Key]]:
        """Runs a script that moves the messages that match a filter. Returns their keys."""
        keys: list[Key] = []

        def collect(blob: bytes) -> int:
            moved = [Key(*pair) for pair in codec.decode(blob)]
            keys.extend(moved)
            return len(moved)

        yield from self._page(name, box, which, collect, wait="acknowledged")
        return keys

    @verb
    def purge(self, box: Box, purge: Purge) -> Program[int]:
        gone = skip = 0
        while gone < purge.limit:
            size = min(purge.limit - gone, MAX_CHANGES)
            arguments = {
                "state": codec.LETTERS[purge.state],
                "age": codec.microseconds(purge.older_than),
                "limit": size,
                "skip": skip,
            }
            deleted, skip, read, has_more_joins = yield from self._run("purge", box, arguments, wait="attempted")
            gone += deleted
            if read < size and not has_more_joins:
                break
        return gone

    @verb
    def find(self, box: Box, which: Filter) -> Program[list[StoredMessage]]:
        messages: list[StoredMessage] = []

        def collect(ids: bytes, contents: Sequence[bytes]) -> int:
            found = found_messages(ids, contents)
            messages.extend(found)
            return len(found)

        yield from self._page("find", box, which, collect, wait="nothing")
        return messages

    def _page(self, name: str, box: Box, which: Filter, collect: Callable[..., int], *, wait: WaitFor) -> Program[None]:
        """Runs a script that finds messages until `which.limit` are found or there are no more."""
        after, left = str(which.after), which.limit
        while left > 0:
            arguments = codec.filter_arguments(which, after=after, limit=min(left, MAX_CHANGES), reads=MAX_READS)
            *found, next_after = yield from self._run(name, box, arguments, wait=wait)
            left -= collect(*found)
            if not next_after:
                return
            after = next_after.decode()

    @verb
    def counts(self, box: Box) -> Program[Counts]:
        seen, claimed, done, dead, total = yield from self._run("counts", box, None, wait="nothing")
        return {
            State.SEEN: seen,
            State.WAITING: total - seen - claimed - done - dead,
            State.CLAIMED: claimed,
            State.DONE: done,
            State.DEAD: dead,
        }

    @verb
    def boxes(self) -> Program[list[str]]:
        if not self._client.is_ready:
            yield call(self._client.ready)
        known = yield call(self._client.execute, "SMEMBERS", boxes_key(self._prefix))
        found: list[str] = []
        for key in sorted(each.decode() for each in known):
            messages = box_key(self._prefix, key, "messages")
            if (yield call(self._client.execute, "HLEN", messages)):  # an empty box is still in the set
                found.append(key)
        return found

    @verb
    def record_order(self, box: Box, *, change: bool = False, tx: Tx = None) -> Program[bool | None]:
        if not self._client.is_ready:
            yield call(self._client.ready)
        meta, fifo = box_key(self._prefix, box.key, "meta"), int(box.order.fifo)
        recorded = yield call(self._client.execute, "HGET", meta, "fifo")
        if recorded is None or (change and int(recorded) != fifo):
            # Of two processes that record an order at the same time, the first decides.
            yield call(self._client.execute, "HSET" if change else "HSETNX", meta, "fifo", fifo)
            recorded = yield call(self._client.execute, "HGET", meta, "fifo")
        return bool(int(recorded))

    # -- keys ----------------------------------------------------------------------------------------------------

    @verb
    def record(self, box: Box, drafts: Sequence[Draft], *, tx: Tx = None) -> Program[list[KeyStatus]]:
        if not drafts:
            return []
        arguments, contents = codec.draft_arguments(drafts, fifo=False)
        return codec.key_statuses((yield from self._run_with_ids("record", box, arguments, contents)))

    @verb
    def mark(
        self, box: Box, keys: Sequence[Key], mark: Mark, *, error: str | None = None, tx: Tx = None
    ) -> Program[list[bool]]:
        if not keys:
            return []
        arguments, contents = codec.draft_arguments([Draft(*key) for key in keys], fifo=False)
        arguments |= {"mark": mark, "error": error or ""}
        return codec.kept((yield from self._run_with_ids("mark", box, arguments, contents)))

    @verb
    def cancel(self, box: Box, which: Filter, *, tx: Tx = None) -> Program[list[Key]]:
        return (yield from self._move("cancel", box, which._replace(states=frozenset({State.WAITING}))))

    # -- the rest ------------------------------------------------------------------------------------------------

    def is_transient(self, error: BaseException) -> bool:
        return self._client.is_transient(error)

    @verb
    def close(self) -> Program[None]:
        yield call(self._client.close)


def _unambiguous(reply: Reply) -> Reply:
    if reply == AMBIGUOUS:
        raise AmbiguousMessageId
    return reply


class RedisStore(RedisVerbs, Async):
    """The store for async code. Concurrent calls of a verb may share a script call."""

    _listens = True

    _client: RedisClient

    def __init__(self, client: RedisClient, *, prefix: str, clock: Clock | None = None, notify: bool = True) -> None:
        super().__init__(client, prefix=prefix, clock=clock, notify=notify)
        self.sharing = Sharing(is_shared_error=self._is_shared_error)

    def _is_shared_error(self, error: BaseException) -> bool:
        """Returns True for an error of the server, which concerns all callers of a shared call."""
        return isinstance(error, NotReplicated) or self.is_transient(error)

    async def wait(self) -> frozenset[str]:
        """Waits for wake-ups: see `postroom.spi.Waker`. Only with `features.notify`."""
        return await self._client.wait()


class SyncRedisStore(RedisVerbs, Sync):
    """The store for sync code."""
