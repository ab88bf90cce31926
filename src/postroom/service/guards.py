"""The routes below `/v1/guards/{guard}`: the verbs of the store of a guard, for clients that are a store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any, NamedTuple

from msgspec import UNSET, Raw

from postroom._boxes import check
from postroom._kernel.clock import Clock
from postroom._room_store import RoomStore
from postroom._stores.http import wire
from postroom._stores.http.results import read_result, show_claim, store_result
from postroom.service.problems import Refused
from postroom.spi import (
    NO_END,
    Begin,
    Begun,
    Box,
    Claim,
    Delivery,
    Draft,
    Filter,
    Key,
    Purge,
    Result,
    Retention,
    Settlement,
    State,
    StoredMessage,
)

PATH = "/v1/guards/{guard}/"


class GuardRoute(NamedTuple):
    """A verb of the store of a guard, as a route."""

    name: str
    body: Any
    reply: Any
    handle: Callable[[Guards, str, Any], Awaitable[Any]]
    summary: str


class Guards:
    """The guards of a store. A guard exists as soon as it has a record."""

    def __init__(self, store: RoomStore, clock: Clock, *, max_lease_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._max_lease = max_lease_seconds

    async def begin(self, guard: str, body: wire.BeginCall) -> wire.BegunItems:
        begun = await self._store.begin(_box(guard, body), [self._begin(each) for each in body.begins])
        return wire.BegunItems([self._begun(each) for each in begun])

    async def settle(self, guard: str, body: wire.SettleCall) -> wire.Kept:
        settlements = [self._settlement(each) for each in body.settlements]
        return wire.Kept(list(await self._store.settle(_box(guard, body), settlements)))

    async def renew(self, guard: str, body: wire.RenewCall) -> wire.Kept:
        lease = self._lease(body.lease_seconds)
        claims = [_claim(each) for each in body.claims]
        return wire.Kept(list(await self._store.renew(_box(guard, body), claims, lease)))

    async def mark(self, guard: str, body: wire.MarkCall) -> wire.Kept:
        error = check.optional_error("error", body.error, self._store.errors.redact)
        keys = [_key(each) for each in body.keys]
        return wire.Kept(list(await self._store.mark(_box(guard, body), keys, body.mark, error=error)))

    async def record(self, guard: str, body: wire.RecordCall) -> wire.RecordedKeys:
        drafts = [
            Draft(*_key(each), hash=_digest(each.hash), hash_algorithm=_text("hashAlgorithm", each.hash_algorithm))
            for each in body.keys
        ]
        statuses = await self._store.record(_box(guard, body), drafts)
        return wire.RecordedKeys([wire.RecordedKey(each.state, each.is_new, each.conflict) for each in statuses])

    async def find(self, guard: str, body: wire.Selection) -> wire.Records:
        found = await self._store.find(_box(guard, body), _filter(body))
        return wire.Records([self._record(each) for each in found])

    async def replay(self, guard: str, body: wire.Selection) -> wire.ReplayedKeys:
        keys = await self._store.replay(_box(guard, body), _filter(body))
        return wire.ReplayedKeys([wire.RecordKey(*key) for key in keys])

    async def purge(self, guard: str, body: wire.PurgeCall) -> wire.Changed:
        purge = Purge(State(body.state), timedelta(seconds=body.older_than_seconds), body.limit)
        return wire.Changed(await self._store.purge(_box(guard, body, body.age_from), purge))

    async def reap(self, guard: str, body: wire.ReapCall) -> wire.Changed:
        reaped = await self._store.reap(_box(guard, body), body.limit)
        return wire.Changed(reaped.freed, reaped.expired)

    async def counts(self, guard: str, body: wire.CountsCall) -> wire.StateCounts:
        return wire.StateCounts(dict(await self._store.counts(_box(guard, body))))

    # -- values ----------------------------------------------------------------------------------------------------

    def _begin(self, item: wire.BeginItem) -> Begin:
        draft = Draft(
            *_key(item),
            topic="" if item.topic is None else _text("topic", item.topic),
            hash=_digest(item.hash),
            hash_algorithm=_text("hashAlgorithm", item.hash_algorithm),
        )
        return Begin(
            draft, check.owner(item.owner), None if item.lease_seconds is None else self._lease(item.lease_seconds)
        )

    def _begun(self, begun: Begun) -> wire.BegunItem:
        now = self._clock.now()
        return wire.BegunItem(
            begun.status,
            claim=None if begun.claim is None else show_claim(begun.claim, now),
            deliveries=begun.deliveries,
            until=begun.until,
            lease_seconds=None if begun.until is None else (begun.until - now).total_seconds(),
            stored=store_result(begun.result, begun.format),
            error=begun.error,
        )

    def _settlement(self, item: wire.SettleItem) -> Settlement:
        error = check.optional_error("error", item.error, self._store.errors.redact)
        return Settlement(
            _claim(item.claim),
            item.verdict,
            None if item.delay_seconds is None else timedelta(seconds=item.delay_seconds),
            error or "failed" if item.verdict == "dead" else error,
            item.counts and item.verdict == "dead",
            _result(item.result, item.result_encoding) if item.verdict == "done" and item.result is not UNSET else None,
        )

    def _record(self, message: StoredMessage) -> wire.RecordReply:
        return wire.RecordReply(
            message.id,
            message.source,
            message.message_id,
            message.topic,
            message.format,
            message.state,
            message.deliveries,
            message.attempt,
            message.revision,
            message.lost_leases,
            message.first_seen,
            message.last_seen,
            claim=None if message.claim is None else show_claim(message.claim, self._clock.now()),
            stored=store_result(message.payload, message.format),
            hash=None if message.hash is None else message.hash.hex(),
            last_error=message.last_error,
            completed_at=message.completed_at,
            completed_by=message.completed_by,
            ending=message.ending,
        )

    def _lease(self, seconds: float) -> timedelta:
        if seconds > self._max_lease:
            raise Refused(HTTPStatus.BAD_REQUEST, f"leaseSeconds may be {self._max_lease:g} at most")
        return check.lease(seconds)


ROUTES = (
    GuardRoute("begin", wire.BeginCall, wire.BegunItems, Guards.begin, "Begin executions."),
    GuardRoute("settle", wire.SettleCall, wire.Kept, Guards.settle, "End executions with their outcomes."),
    GuardRoute("renew", wire.RenewCall, wire.Kept, Guards.renew, "Move the ends of leases."),
    GuardRoute("mark", wire.MarkCall, wire.Kept, Guards.mark, "Mark records as processed or dead, without claims."),
    GuardRoute("record", wire.RecordCall, wire.RecordedKeys, Guards.record, "Record that keys were seen."),
    GuardRoute("find", wire.Selection, wire.Records, Guards.find, "Find records."),
    GuardRoute("replay", wire.Selection, wire.ReplayedKeys, Guards.replay, "Let dead records begin again."),
    GuardRoute("purge", wire.PurgeCall, wire.Changed, Guards.purge, "Delete old records."),
    GuardRoute("reap", wire.ReapCall, wire.Changed, Guards.reap, "Release expired leases."),
    GuardRoute("counts", wire.CountsCall, wire.StateCounts, Guards.counts, "Count records by state."),
)


def _box(guard: str, body: wire.GuardBody, age_from: Any = "completed_at") -> Box:
    window = None if body.dedup_seconds is None else timedelta(seconds=body.dedup_seconds)
    return Box(
        "guard",
        check.text("guard", guard, longest=100),
        delivery=Delivery(max_lost_leases=None),
        retention=Retention(dedup_window=window, age_from=age_from),
    )


def _text(name: str, value: str) -> str:
    return check.text(name, value)


def _key(given: wire.RecordKey | wire.RecordItem | wire.BeginItem) -> Key:
    return Key(_text("source", given.source), _text("messageId", given.message_id))


def _claim(proof: wire.ClaimProof) -> Claim:
    return Claim(proof.id, proof.owner, proof.fence, NO_END)


def _digest(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def _result(raw: Raw, encoding: wire.Encoding) -> Result:
    try:
        return read_result(raw, encoding)
    except ValueError:  # of JSON, UTF-8 and base64
        raise Refused(HTTPStatus.BAD_REQUEST, "result must be valid JSON, or a text in base64") from None


def _filter(body: wire.Selection) -> Filter:
    return Filter(
        states=None if body.states is None else frozenset(body.states),
        ids=None if body.ids is None else tuple(body.ids),
        topic=check.optional_text("topic", body.topic),
        source=check.optional_text("source", body.source),
        message_id=check.optional_text("messageId", body.message_id),
        after=body.after,
        limit=body.limit,
        keys=None if body.keys is None else tuple(_key(each) for each in body.keys),
    )
