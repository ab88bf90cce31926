"""The verbs of the store, as programs that send requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from datetime import datetime, timedelta
from typing import NoReturn, TypeVar
from urllib.parse import quote

from postroom._kernel.clock import Clock
from postroom._kernel.program import Async, Program, Sync, call, verb
from postroom._stores.coalesced import Sharing
from postroom._stores.http import codec, wire
from postroom._stores.http.transport import SyncTransport, Transport
from postroom.errors import ArgumentValueError, FeatureMissing, ServiceError, ServiceUnavailable
from postroom.spi import (
    Begin,
    Begun,
    Box,
    Claim,
    ClaimRequest,
    Counts,
    Draft,
    Features,
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
    SystemClock,
    Tx,
)

T = TypeVar("T")
ItemT = TypeVar("ItemT")
ItemsT = TypeVar("ItemsT", bound=Sized)


class HttpVerbs:
    """The verbs, for both modes."""

    features = Features(
        durable=True, transactional=False, fifo=False, collapse=False, concurrent=True, guard=True, claims=False
    )

    def __init__(self, transport: Transport | SyncTransport, *, clock: Clock | None = None) -> None:
        self._transport = transport
        self._clock = clock or SystemClock()
        self.name = transport.name
        self.sharing = Sharing(is_shared_error=self.is_transient)

    def is_transient(self, error: BaseException) -> bool:
        """Returns True if the service was not available: the same call may succeed later."""
        return isinstance(error, ServiceUnavailable)

    def _call(self, box: Box, verb_name: str, body: wire.GuardBody, kind: type[T]) -> Program[T]:
        """Calls a verb of a guard."""
        if box.kind != "guard":
            _refuse(box, verb_name)
        body.dedup_seconds = codec.dedup_seconds(box)
        return (yield from self._transport.post(f"/v1/guards/{_segment(box.name)}/{verb_name}", body, kind))

    # -- guards ----------------------------------------------------------------------------------------------------

    @verb
    def begin(self, box: Box, begins: Sequence[Begin]) -> Program[list[Begun]]:
        if not begins:
            return []
        body = wire.BeginCall(begins=_fitting([codec.begin_item(each) for each in begins]))
        reply = yield from self._call(box, "begin", body, wire.BegunItems)
        return self._decoded(codec.begun_of, self._complete(reply.begun, begins))

    @verb
    def settle(self, box: Box, settlements: Sequence[Settlement], *, tx: Tx = None) -> Program[list[bool]]:
        if not settlements:
            return []
        body = wire.SettleCall(settlements=_fitting([codec.settle_item(each) for each in settlements]))
        reply = yield from self._call(box, "settle", body, wire.Kept)
        return self._complete(reply.kept, settlements)

    @verb
    def renew(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> Program[list[bool]]:
        if not claims:
            return []
        proofs = _fitting([codec.proof_of(each) for each in claims])
        body = wire.RenewCall(claims=proofs, lease_seconds=lease.total_seconds())
        reply = yield from self._call(box, "renew", body, wire.Kept)
        return self._complete(reply.kept, claims)

    @verb
    def mark(
        self, box: Box, keys: Sequence[Key], mark: Mark, *, error: str | None = None, tx: Tx = None
    ) -> Program[list[bool]]:
        if not keys:
            return []
        if mark not in {"processed", "dead"}:
            _refuse(box, f"mark as {mark}")
        named = _fitting([codec.record_key(each) for each in keys])
        body = wire.MarkCall(keys=named, mark="dead" if mark == "dead" else "processed", error=error)
        reply = yield from self._call(box, "mark", body, wire.Kept)
        return self._complete(reply.kept, keys)

    @verb
    def record(self, box: Box, drafts: Sequence[Draft], *, tx: Tx = None) -> Program[list[KeyStatus]]:
        if not drafts:
            return []
        body = wire.RecordCall(keys=_fitting([codec.record_item(each) for each in drafts]))
        reply = yield from self._call(box, "record", body, wire.RecordedKeys)
        recorded = self._complete(reply.recorded, drafts)
        return [KeyStatus(each.state, each.is_new, each.conflict) for each in recorded]

    @verb
    def find(self, box: Box, which: Filter) -> Program[list[StoredMessage]]:
        found: list[StoredMessage] = []
        while (left := which.limit - len(found)) > 0:
            after, limit = found[-1].id if found else which.after, min(left, wire.MOST_ITEMS)
            body = codec.selection_of(which, box, after=after, limit=limit)
            reply = yield from self._call(box, "find", body, wire.Records)
            found += self._decoded(codec.message_of, reply.records)
            if len(reply.records) < limit:
                break
        return found

    @verb
    def replay(self, box: Box, which: Filter, *, tx: Tx = None) -> Program[list[Key]]:
        keys: list[Key] = []
        while (left := which.limit - len(keys)) > 0:
            limit = min(left, wire.MOST_ITEMS)
            body = codec.selection_of(which, box, after=which.after, limit=limit)
            reply = yield from self._call(box, "replay", body, wire.ReplayedKeys)
            keys += codec.keys_of(reply.keys)
            if len(reply.keys) < limit:
                break
        return keys

    @verb
    def purge(self, box: Box, purge: Purge) -> Program[int]:
        if purge.state not in {State.DONE, State.DEAD, State.SEEN}:
            _refuse(box, f"purge of {purge.state}")
        gone = 0
        while (left := purge.limit - gone) > 0:
            body = wire.PurgeCall(
                state=str(purge.state),  # type: ignore[arg-type]  # one of the three
                older_than_seconds=purge.older_than.total_seconds(),
                age_from=box.retention.age_from,
                limit=min(left, wire.MOST_ITEMS),
            )
            reply = yield from self._call(box, "purge", body, wire.Changed)
            gone += reply.count
            if reply.count < body.limit:
                break
        return gone

    @verb
    def reap(self, box: Box, limit: int) -> Program[Reaped]:
        body = wire.ReapCall(limit=min(limit, wire.MOST_ITEMS))
        reply = yield from self._call(box, "reap", body, wire.Changed)
        return Reaped(reply.count, reply.expired)

    @verb
    def counts(self, box: Box) -> Program[Counts]:
        reply = yield from self._call(box, "counts", wire.CountsCall(), wire.StateCounts)
        return {state: reply.counts.get(state, 0) for state in State}

    # -- inboxes ---------------------------------------------------------------------------------------------------

    @verb
    def put(self, box: Box, drafts: Sequence[Draft], *, tx: Tx = None) -> Program[list[Receipt]]:
        if not drafts:
            return []
        if box.kind != "inbox":
            _refuse(box, "enqueue")
        body = _fitting([codec.new_message(each) for each in drafts])
        path = f"/v1/inboxes/{_segment(box.name)}/messages"
        reply = yield from self._transport.post(path, body, wire.Receipts)
        return self._complete(codec.receipts_of(reply), drafts)

    @verb
    def claim(self, box: Box, request: ClaimRequest, *, tx: Tx = None) -> Program[list[StoredMessage]]:
        yield from ()
        _refuse(box, "claim")

    @verb
    def cancel(self, box: Box, which: Filter, *, tx: Tx = None) -> Program[list[Key]]:
        yield from ()
        _refuse(box, "cancel")

    # -- the rest --------------------------------------------------------------------------------------------------

    @verb
    def close(self) -> Program[None]:
        yield call(self._transport.close)

    def _decoded(self, decode: Callable[[ItemT, datetime], T], items: Sequence[ItemT]) -> list[T]:
        """Returns the values of a response. Raises ServiceError for one that cannot be."""
        now = self._clock.now()
        try:
            return [decode(each, now) for each in items]
        except (ValueError, OverflowError):  # of base64, hex and times
            raise ServiceError(f"{self.name}: the response has a value that cannot be") from None

    def _complete(self, items: ItemsT, asked: Sized) -> ItemsT:
        """Returns the items of a response. Raises unless there is one for each item of the request."""
        if len(items) != len(asked):
            raise ServiceError(f"{self.name}: the response has {len(items)} items for {len(asked)}")
        return items


def _segment(name: str) -> str:
    """Returns a name as a part of a path. A dot is encoded, since clients and proxies remove `..` from a path."""
    return quote(name, safe="").replace(".", "%2E")


def _fitting(items: list[T]) -> list[T]:
    if len(items) > wire.MOST_ITEMS:
        raise ArgumentValueError(f"over HTTP, one call takes at most {wire.MOST_ITEMS} items, not {len(items)}")
    return items


def _refuse(box: Box, what: str) -> NoReturn:
    raise FeatureMissing(
        f"{box.kind} {box.name!r}: there is no {what} over HTTP, which has guards, and inboxes that accept messages. "
        "Open the database of the service for the rest"
    )


class HttpStore(HttpVerbs, Async):
    """For async code."""


class SyncHttpStore(HttpVerbs, Sync):
    """For sync code."""
