"""The work queue as programs: each verb yields named statements and receives rows, and knows neither engine nor colour.

The rules are those of the memory store. What is specific to SQL is how a set of rows finds them with few statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from postroom._kernel.line import claimable_front
from postroom._kernel.policy import EXPIRED, cause_of_death
from postroom._kernel.program import Program
from postroom._stores.sql import rows
from postroom._stores.sql.engines.base import Engine
from postroom._stores.sql.statements import Many, Statement
from postroom.errors import AmbiguousMessageId
from postroom.spi import (
    Ask,
    Box,
    Claim,
    Counts,
    Draft,
    Ending,
    Filter,
    Held,
    Key,
    Purge,
    Reaped,
    Receipt,
    ReceiptStatus,
    Settlement,
    State,
    StoredMessage,
)

Row = tuple[Any, ...]
_UNKNOWN = datetime.max.replace(tzinfo=UTC)


class Known(NamedTuple):
    """A row of the statement `known`."""

    id: int
    state: int
    hash: bytes | None
    hash_algorithm: str | None
    first_seen: Any
    revision: int
    group_id: str | None
    line: str | None
    available_at: Any
    fence: int | None


class Member(NamedTuple):
    """A member of a line, with the row it was read from."""

    state: State
    available_at: Any
    fence: int
    topic: str
    row: Row


class QueuePrograms:
    """The verbs of QueueStore, as programs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def moment(self) -> Program[Any]:
        """The moment at which this program runs, as the engine stores it."""
        [(now,)] = yield Statement("moment")
        return now

    # -- put -----------------------------------------------------------------------------------------------------

    def put(self, box: Box, drafts: Sequence[Draft]) -> Program[list[Receipt]]:
        receipts: list[Receipt] = []
        for batch in _batches_of_distinct_keys(drafts):
            receipts += yield from self._put_batch(box, batch)
        return receipts

    def _put_batch(self, box: Box, drafts: Sequence[Draft]) -> Program[list[Receipt]]:
        [(last,)] = yield Statement("reserve", {"count": len(drafts)})
        now = yield from self.moment()
        first = last - len(drafts) + 1
        new = yield from self._insert(box, first, drafts, now)
        # Where known keys take places in lines too, all must take them in the order of the drafts.
        one_by_one = box.order.fifo and len(new) < len(drafts)
        if not one_by_one:
            yield from self._enter(box, new, now)
        receipts: list[Receipt] = []
        for id_, draft in enumerate(drafts, first):
            if id_ in new:
                if one_by_one:
                    yield from self._enter(box, {id_: draft}, now)
                superseded: tuple[int, ...] = ()
                if draft.collapse_key is not None:
                    superseded = yield from self._collapse(box, id_, draft, before=id_)
                receipt = Receipt(ReceiptStatus.NEW, id_, draft.source, draft.message_id, State.WAITING, superseded)
            else:
                receipt = yield from self._meet(box, id_, draft, now)
            receipts.append(receipt)
        return receipts

    def _insert(self, box: Box, first: int, drafts: Sequence[Draft], now: Any) -> Program[dict[int, Draft]]:
        """Write what is new, under ids from `first` on; answers the drafts that were."""
        given = dict(enumerate(drafts, first))
        if any(map(rows.has_options, drafts)):
            inserted = yield Many(
                "insert_message",
                rows.MESSAGE_COLUMNS,
                [
                    rows.message_row(self.engine, box, id_, draft, self._expires(draft, now), now)
                    for id_, draft in given.items()
                ],
            )
        else:
            inserted = yield Many(
                "insert_plain_message",
                rows.PLAIN_COLUMNS,
                [(id_, box.key, *draft[:5], now, now) for id_, draft in given.items()],
            )
        if inserted == len(given):
            return given
        found = yield Statement("inserted", {"first": first, "last": first + len(drafts) - 1})
        return {id_: given[id_] for (id_,) in found}

    def _expires(self, draft: Draft, now: Any) -> Any:
        if draft.expires is None and draft.lifetime is not None:
            return now + self.engine.duration(draft.lifetime)
        return self.engine.time(draft.expires)

    def _enter(self, box: Box, new: dict[int, Draft], now: Any) -> Program[None]:
        """New messages take their places in the queue."""
        if not box.order.fifo and not any(draft.due for draft in new.values()):
            if new:
                yield Statement("enter_plain", {"first": min(new), "last": max(new)})
            return
        places = yield from self._places(box, new.values(), now)
        yield Many(
            "enter",
            ("id", "box", "state", "available_at", "group_id", "collapse_key", "expires"),
            [
                (id_, box.key, rows.WAITING, at, line, draft.collapse_key, self._expires(draft, now))
                for (id_, draft), (at, line) in zip(new.items(), places, strict=True)
            ],
        )

    def _places(self, box: Box, drafts: Iterable[Draft], now: Any) -> Program[list[tuple[Any, str | None]]]:
        """From when each may be claimed, and in which line it stands; behind somebody, it waits for its turn."""
        lines = [draft.group if box.order.fifo else None for draft in drafts]
        standing: set[str] = set()
        if groups := sorted({line for line in lines if line is not None}):
            found = yield Statement("standing_groups", {"box": box.key, "groups": self.engine.array(groups)})
            standing = {group for (group,) in found}
        places: list[tuple[Any, str | None]] = []
        for draft, line in zip(drafts, lines, strict=True):
            due = self.engine.time(draft.due)
            if due is not None and due > now:
                at = due
            elif line in standing:
                at = None
            else:
                at = now
                if line is not None:
                    standing.add(line)
            places.append((at, line))
        return places

    def _collapse(self, box: Box, id_: int, draft: Draft, *, before: int) -> Program[tuple[int, ...]]:
        if draft.collapse_key is None:
            return ()
        found = yield Statement(
            "rivals", {"box": box.key, "collapse_key": draft.collapse_key, "before": before, "id": id_}
        )
        older = tuple(rival for (rival,) in found)
        yield from self.finish(box, older, Ending.SUPERSEDED)
        return older

    def known(self, box: Box, key: Key, now: Any) -> Program[Known | None]:
        """Who holds the key: nobody, once the dedup window of the earlier message has passed."""
        found = yield Statement("known", {"box": box.key, "source": key.source, "message_id": key.message_id})
        if not found:
            return None
        known = Known(*found[0])
        window = box.keeping.dedup_window
        if window is not None and known.first_seen + self.engine.duration(window) <= now:
            yield Statement("retire", {"id": known.id})
            return None
        return known

    def _meet(self, box: Box, reserved: int, draft: Draft, now: Any) -> Program[Receipt]:
        """A key that is known already."""
        known = yield from self.known(box, draft.key, now)
        if known is None:
            new = yield from self._insert(box, reserved, [draft], now)
            yield from self._enter(box, new, now)
            superseded = yield from self._collapse(box, reserved, draft, before=reserved)
            return Receipt(ReceiptStatus.NEW, reserved, *draft.key, State.WAITING, superseded)
        state = rows.STATES[known.state]
        conflict = draft.contradicts(known.hash, known.hash_algorithm)
        if conflict and draft.on_conflict == "reject":
            return Receipt(ReceiptStatus.REJECTED, known.id, *draft.key, state)
        yield Statement("touch", {"id": known.id})
        if state is State.SEEN:
            return (yield from self._meet_seen(box, known, reserved, draft, now, conflict=conflict))
        under_lease = False
        if state is not State.DONE and not (conflict and draft.on_conflict == "keep"):
            under_lease = yield from self._replace(box, known, draft, now)
        if state is State.DEAD and draft.revive_dead:
            yield from self._revive(box, known.id, known.group_id, now)
            return Receipt(ReceiptStatus.REVIVED, known.id, *draft.key, State.WAITING, (), under_lease)
        status = {State.DONE: ReceiptStatus.DONE, State.DEAD: ReceiptStatus.DEAD}.get(state, ReceiptStatus.DUPLICATE)
        return Receipt(ReceiptStatus.CONFLICT if conflict else status, known.id, *draft.key, state, (), under_lease)

    def _meet_seen(
        self, box: Box, known: Known, reserved: int, draft: Draft, now: Any, *, conflict: bool
    ) -> Program[Receipt]:
        """The key was only checked so far: now its message is here."""
        expires = self._expires(draft, now)
        content = dict(
            zip(
                rows.MESSAGE_COLUMNS,
                rows.message_row(self.engine, box, known.id, draft, expires, now),
                strict=True,
            )
        )
        yield Statement("fill_seen", content)
        superseded = yield from self._collapse(box, known.id, draft, before=reserved)
        yield from self.enter_seen(box, known.id, draft, expires, now)
        status = ReceiptStatus.CONFLICT if conflict else ReceiptStatus.NEW
        return Receipt(status, known.id, *draft.key, State.WAITING, superseded)

    def enter_seen(self, box: Box, id_: int, draft: Draft, expires: Any, now: Any) -> Program[None]:
        [(at, line)] = yield from self._places(box, [draft], now)
        yield Statement(
            "enter_seen",
            {
                "id": id_,
                "available_at": at,
                "group_id": line,
                "collapse_key": draft.collapse_key,
                "expires": expires,
            },
        )

    def _replace(self, box: Box, known: Known, draft: Draft, now: Any) -> Program[bool]:
        """New content, old place: group and collapse key stay, and so does whatever a worker has begun."""
        content = dict(
            zip(
                rows.MESSAGE_COLUMNS,
                rows.message_row(self.engine, box, known.id, draft, self.engine.time(draft.expires), now),
                strict=True,
            )
        )
        [(revision,)] = yield Statement("replace", content)
        if draft.expires is not None:
            yield Statement("set_expires", {"id": known.id, "expires": content["expires"]})
        if known.state == rows.WAITING:
            yield from self._reschedule(box, known, content["due"], now)
        claimed = known.state == rows.CLAIMED and revision != known.revision
        if claimed:
            yield Statement("set_stale", {"id": known.id})
        return claimed

    def _reschedule(self, box: Box, known: Known, due: Any, now: Any) -> Program[None]:
        at, ahead = known.available_at, due is not None and due > now
        if known.fence:
            # It has been tried: a new due time may add to its backoff, never shorten it.
            if ahead:
                at = due if at is None else max(at, due)
        elif ahead:
            at = due
        elif at is not None and at > now:
            at = now
        if at != known.available_at:
            yield Statement("offer", {"id": known.id, "at": at})
        yield from self.promote(box, [known.line])

    # -- claim ---------------------------------------------------------------------------------------------------

    def claim(self, box: Box, ask: Ask) -> Program[list[StoredMessage]]:
        now = yield from self.moment()
        until = now + self.engine.duration(ask.lease)
        taken: dict[int, Row] = {}
        groups: set[str] = set()
        # Every candidate that is looked at leaves the ready index, so each round makes progress.
        while len(taken) < ask.limit:
            candidates = yield from self._candidates(box, ask, ask.limit - len(taken))
            if not candidates:
                break
            round_: dict[int, Row] = {}
            for row in candidates:
                room = ask.limit - len(taken) - len(round_)
                if room == 0:
                    break
                if row[rows.LINE] is None and self._cause_of_death(box, row, now) is None:
                    round_[row[rows.ID]] = row
                elif row[rows.ID] not in round_:
                    front = yield from self._front(box, ask, row, groups, now, room)
                    round_.update((member[rows.ID], member) for member in front)
            if round_:
                ids = self.engine.array(list(round_))
                yield Statement("take", {"ids": ids, "owner": str(ask.owner), "until": until})
                taken |= round_
        ends = self.engine.moment(until)
        return [
            rows.message_of(self.engine, row, Claim(row[rows.ID], ask.owner, row[rows.FENCE] + 1, ends))
            for row in taken.values()
        ]

    def _candidates(self, box: Box, ask: Ask, limit: int) -> Program[list[Row]]:
        """Rows whose time has come, whole and in order."""
        if ask.topics is None:
            return (yield Statement("candidates", {"box": box.key, "limit": limit}))
        topics = self.engine.array(sorted(ask.topics))
        return (yield Statement("candidates_on_topics", {"box": box.key, "limit": limit, "topics": topics}))

    def _front(self, box: Box, ask: Ask, row: Row, groups: set[str], now: Any, limit: int) -> Program[list[Row]]:
        """What can be claimed at a candidate that is not simply free: the front of its group, or nothing."""
        group = row[rows.LINE]
        if group is None:
            yield from self.bury(box, row[rows.ID], None, self._cause_of_death(box, row, now) or EXPIRED)
            return []
        front: list[Row] = []
        if group not in groups:  # `groups` are those that this very claim holds
            front = yield from self._line_front(box, ask, group, now, limit)
        if front:
            groups.add(group)
            # Who held the group before has lost all of it, not only what is taken now.
            yield Statement("end_batch", {"box": box.key, "group_id": group, "id": front[-1][rows.ID]})
        if row[rows.ID] not in {member[rows.ID] for member in front}:
            yield Statement("back_in_line", {"id": row[rows.ID]})
        return front

    def _line_front(self, box: Box, ask: Ask, group: str, now: Any, limit: int) -> Program[list[Row]]:
        while True:
            if (yield Statement("group_is_held", {"box": box.key, "group_id": group})):
                return []
            line = yield Statement("line", {"box": box.key, "group_id": group, "limit": limit})
            members = [
                Member(rows.STATES[row[rows.STATE]], row[rows.AVAILABLE_AT], row[rows.FENCE], row[rows.TOPIC], row)
                for row in line
            ]
            front = [member.row for member in claimable_front(members, now, limit, ask.topics)]
            doomed = [(row, cause) for row in front if (cause := self._cause_of_death(box, row, now))]
            if not doomed:
                return front
            row, cause = doomed[0]
            yield from self.bury(box, row[rows.ID], group, cause)

    def _cause_of_death(self, box: Box, row: Row, now: Any) -> str | None:
        return cause_of_death(box, deliveries=row[rows.DELIVERIES], expires=row[rows.EXPIRES], now=now)

    def renew(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> Program[list[bool]]:
        now = yield from self.moment()
        until = now + self.engine.duration(lease)
        kept: list[bool] = []
        for claim in claims:
            found = yield Statement("renew", {**_proof(box, claim), "until": until})
            kept.append(bool(found))
        return kept

    def reap(self, box: Box, limit: int) -> Program[Reaped]:
        late = yield Statement("late", {"box": box.key, "limit": limit})
        yield Many("free", ("id",), late)
        expired = yield Statement("expired", {"box": box.key, "limit": limit})
        for id_, group in expired:
            yield from self.bury(box, id_, group, EXPIRED)
        return Reaped(len(late), len(expired))

    def turn(
        self, box: Box, settlements: Sequence[Settlement], ask: Ask
    ) -> Program[tuple[list[bool], list[StoredMessage]]]:
        """Settle, then claim: a worker's round in one transaction."""
        settled = yield from self.settle(box, settlements)
        return settled, (yield from self.claim(box, ask))

    # -- settle --------------------------------------------------------------------------------------------------

    def settle(self, box: Box, settlements: Sequence[Settlement]) -> Program[list[bool]]:
        now = yield from self.moment()
        kept = [False] * len(settlements)
        done: list[tuple[int, Claim]] = []
        give_back: list[tuple[int, Claim]] = []
        requeues = box.delivery.on_stale_ack == "requeue"
        for index, settlement in enumerate(settlements):
            target = settlement.target
            claim: Claim | None = (yield from self._named(box, target)) if isinstance(target, Held) else target
            if claim is not None:
                # An ack of content that has changed meanwhile is none, where the box says so: it is given back.
                is_stale = settlement.verdict == "done" and requeues and (yield from self._is_stale(box, claim))
                (done if settlement.verdict == "done" and not is_stale else give_back).append((index, claim))
        # What is not a success comes first, from the back: it ends the batches of its groups, so that a success
        # further behind in the same line no longer holds. Giving a whole batch back then keeps every item.
        for index, claim in sorted(give_back, key=lambda item: -item[1].id):
            kept[index] = yield from self._give_back(box, claim, settlements[index], now)
        for index in (yield from self._complete(box, done)):
            kept[index] = True
        return kept

    def _is_stale(self, box: Box, claim: Claim) -> Program[bool]:
        found = yield Statement("hold", _proof(box, claim))
        return any(stale for _, _, stale in found)

    def _named(self, box: Box, held: Held) -> Program[Claim | None]:
        found = yield Statement(
            "held_by_name", {"box": box.key, "message_id": held.message_id, "owner": str(held.owner)}
        )
        if held.source is None and len(found) > 1:
            raise AmbiguousMessageId
        for source, id_, fence in found:
            if id_ is not None and held.source in {None, source}:
                return Claim(id_, held.owner, fence, _UNKNOWN)
        return None

    def _give_back(self, box: Box, claim: Claim, settlement: Settlement, now: Any) -> Program[bool]:
        """Retry, release or dead."""
        found = yield Statement("hold", _proof(box, claim))
        if not found:
            return False
        [(attempt, group, _)] = found
        if group is not None:
            yield Statement("end_batch", {"box": box.key, "group_id": group, "id": claim.id})
        if settlement.verdict == "dead":
            yield from self.bury(box, claim.id, group, settlement.error or "", counts=settlement.counts)
            return True
        delay = settlement.delay
        if settlement.verdict == "retry":
            attempt += 1
            delay = box.delivery.backoff.delay(attempt) if delay is None else delay
        yield from self._wait(box, claim.id, group, attempt, delay, settlement.error, now)
        return True

    def _wait(
        self, box: Box, id_: int, group: str | None, attempt: int, delay: timedelta | None, error: str | None, now: Any
    ) -> Program[None]:
        at = now + self.engine.duration(delay or timedelta())
        if group is not None and not delay:
            at = None
        yield Statement("wait", {"id": id_, "attempt": attempt, "at": at, "error": error})
        yield from self.promote(box, [group])

    def _complete(self, box: Box, done: Sequence[tuple[int, Claim]]) -> Program[list[int]]:
        """Successes, with their indexes; answers the indexes of those that were settled."""
        settled: list[int] = []
        for owner, held in _batches_of_one_owner(done):
            fences = {id_: claim.fence for id_, (_, claim) in held.items()}
            completed = yield Statement(
                "complete", {"box": box.key, "owner": str(owner), "claims": self.engine.pairs(fences)}
            )
            ids = [id_ for (id_,) in completed]
            yield from self._dequeue(box, ids, blank=box.keeping.on_success == "delete")
            settled += [held[id_][0] for id_ in ids]
        return settled

    def _dequeue(self, box: Box, ids: Sequence[int], *, blank: bool) -> Program[None]:
        if not ids:
            return
        parameters = {"ids": self.engine.array(list(ids))}
        lines = yield Statement("dequeue", parameters)
        if blank:
            yield Statement("blank", parameters)
        yield from self.promote(box, [group for (group,) in lines])

    def finish(self, box: Box, ids: Sequence[int], ending: Ending, *, blank: bool = False) -> Program[None]:
        """Done without a claim: superseded, marked or discarded."""
        if ids:
            yield Statement("finish", {"ids": self.engine.array(list(ids)), "ending": ending.value})
            yield from self._dequeue(box, ids, blank=blank)

    def bury(self, box: Box, id_: int, group: str | None, error: str, *, counts: bool = False) -> Program[None]:
        if box.keeping.dead_letter == "discard":
            yield Statement("set_error", {"id": id_, "error": error, "counted": int(counts)})
            yield from self.finish(box, [id_], Ending.DISCARDED, blank=True)
            return
        stays = group if box.order.on_dead == "block" else None
        yield Statement("bury", {"id": id_, "error": error, "group_id": stays, "counted": int(counts)})
        yield from self.promote(box, [group])

    def promote(self, box: Box, groups: Iterable[str | None]) -> Program[None]:
        """Offer the first of each line, if it waits only for its turn."""
        for group in sorted({group for group in groups if group is not None}):
            yield Statement("promote", {"box": box.key, "group_id": group})

    # -- replay and purge ----------------------------------------------------------------------------------------

    def replay(self, box: Box, which: Filter) -> Program[list[Key]]:
        now = yield from self.moment()
        dead = yield from self.find(box, which._replace(states=frozenset({State.DEAD})))
        for message in dead:
            yield from self._revive(box, message.id, message.group, now)
        return [message.key for message in dead]

    def _revive(self, box: Box, id_: int, group: str | None, now: Any) -> Program[None]:
        """Dead → waiting, in its old place. The fence goes on: a claim from its former life proves nothing."""
        line = group if box.order.fifo else None
        yield Statement("revive", {"id": id_, "group_id": line, "at": now if line is None else None})
        yield Statement("forget_expires", {"id": id_})
        yield from self.promote(box, [line])

    def purge(self, box: Box, purge: Purge) -> Program[int]:
        now = yield from self.moment()
        window = box.keeping.dedup_window
        deleted = yield Statement(
            f"purge_{purge.state.value}",
            {
                "box": box.key,
                "cutoff": now - self.engine.duration(purge.older_than),
                "limit": purge.limit,
                "sliding": int(box.keeping.retention_from == "last_seen"),
                # Cleaning up must not shorten the memory that deduplicates.
                "window": None if window is None else self.engine.duration(window),
            },
        )
        if deleted:
            yield Statement("forget", {"ids": self.engine.array([row[0] for row in deleted])})
            if purge.state is State.DEAD:
                yield from self.promote(box, [group for _, group in deleted])
        return len(deleted)

    # -- find and counts -----------------------------------------------------------------------------------------

    def find(self, box: Box, which: Filter) -> Program[list[StoredMessage]]:
        if which.blocking:  # whoever blocks a line is dead, and stands in it
            which = which._replace(states=frozenset({State.DEAD}))
        if which.ids is not None or which.message_id is not None:
            found = yield from self._look_up(box, which)
            standing = [row for row in found if not which.blocking or row[rows.LINE] is not None]
            messages = [message for row in standing if which.fits(message := rows.message_of(self.engine, row))]
            return messages[: which.limit]
        parameters = {
            "box": box.key,
            "after": which.after,
            "limit": which.limit,
            "topic": which.topic,
            "source": which.source,
            "group_id": which.group,
            "correlation_id": which.correlation_id,
            "blocking": int(which.blocking),
            **{state.value: int(which.states is None or state in which.states) for state in State},
        }
        only_dead = which.states == frozenset({State.DEAD})
        found = yield Statement("find_dead" if only_dead else "find", parameters)
        return [rows.message_of(self.engine, row) for row in found]

    def _look_up(self, box: Box, which: Filter) -> Program[list[Row]]:
        """What is named is few: the rest of the filter is applied to what was found."""
        if which.ids is not None:
            ids = self.engine.array(sorted(set(which.ids)))
            return (yield Statement("find_listed", {"box": box.key, "ids": ids}))
        return (yield Statement("find_named", {"box": box.key, "message_id": which.message_id}))

    def counts(self, box: Box) -> Program[Counts]:
        found = yield Statement("count_queue", {"box": box.key})
        [(done,)] = yield Statement("count_done", {"box": box.key})
        counted = {rows.STATES[code]: count for code, count in found}
        return {state: counted.get(state, 0) for state in State} | {State.DONE: done}


def _proof(box: Box, claim: Claim) -> dict[str, Any]:
    return {"box": box.key, "id": claim.id, "owner": str(claim.owner), "fence": claim.fence}


def _batches_of_one_owner(done: Sequence[tuple[int, Claim]]) -> Iterator[tuple[UUID, dict[int, tuple[int, Claim]]]]:
    """Claims by id, all of one owner. An id that stands twice goes in a batch of its own: only one claim can hold."""
    while done:
        owner, batch, rest = done[0][1].owner, dict[int, tuple[int, Claim]](), list[tuple[int, Claim]]()
        for item in done:
            claim = item[1]
            if (claim.owner is owner or claim.owner == owner) and claim.id not in batch:
                batch[claim.id] = item
            else:
                rest.append(item)
        yield owner, batch
        done = rest


def _batches_of_distinct_keys(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """Runs in which no key stands twice, so that a batch insert decides as one by one would."""
    start, keys = 0, set[tuple[str, str]]()
    for index, draft in enumerate(drafts):
        key = (draft.message_id, draft.source)
        if key in keys:
            yield drafts[start:index]
            start, keys = index, set()
        keys.add(key)
    if start < len(drafts):
        yield drafts[start:]
