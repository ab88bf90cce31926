"""The work queue as programs: each verb yields named statements and receives rows, and knows neither engine nor colour.

The rules are those of the memory store. What is specific to SQL is how a set of rows finds them with few statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from postroom._kernel.policy import EXPIRED, cause_of_death, is_suspect, suspect_from
from postroom._kernel.program import Program
from postroom._stores.sql import rows
from postroom._stores.sql.engines.base import Engine
from postroom._stores.sql.lines import LONGEST_LOOK, MOST_HINTS, Doomed, LinePrograms, Look, Picked
from postroom._stores.sql.statements import Many, Statement
from postroom.errors import AmbiguousMessageId, refuse
from postroom.spi import (
    EARLY,
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
Indexed = tuple[int, Claim]
"""A claim, with the index at which its answer goes."""
_UNKNOWN = datetime.max.replace(tzinfo=UTC)
LOOKS = 10_000
"""Messages of all boxes among which a page is looked for, before all of its box is read."""


class Arrived(NamedTuple):
    """What a put has written, and what it has not."""

    ids: Sequence[int]
    """One for each draft."""
    known: frozenset[int]
    """Those that were not used, because the key was known."""


class Taken(NamedTuple):
    """What a part of a claim has brought."""

    messages: list[StoredMessage]
    doomed: list[Doomed]
    """Messages that must not be claimed again: they are buried, and the claim goes on."""
    alone: bool
    """It is a suspect: the claim ends."""
    passed_over: bool = False
    """Suspects took the place of others that could be claimed: the claim goes on without them."""

    def rest_of(self, ask: Ask) -> Ask:
        left = 0 if self.alone else ask.limit - len(self.messages)
        return ask._replace(limit=left, suspects=ask.suspects and not self.messages)


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
    topic: str


class QueuePrograms:
    """The verbs of QueueStore, as programs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.lines = LinePrograms(engine)

    def moment(self) -> Program[Any]:
        """The moment at which this program runs, as the engine stores it."""
        [(now,)] = yield Statement("moment")
        return now

    # -- put -----------------------------------------------------------------------------------------------------

    def put(self, box: Box, drafts: Sequence[Draft], *, joined: bool = False) -> Program[list[Receipt]]:
        """`joined`: in the caller's transaction, which may last, so that no lock must be taken that others need."""
        receipts: list[Receipt] = []
        for batch in _batches_of_distinct_keys(drafts):
            receipts += yield from self._put_batch(box, batch, joined=joined, alone=len(drafts) == 1)
        return receipts

    def _put_batch(self, box: Box, drafts: Sequence[Draft], *, joined: bool, alone: bool) -> Program[list[Receipt]]:
        if keys := sorted({draft.collapse_key for draft in drafts if draft.collapse_key is not None}):
            yield from self._lock_collapse_keys(box, keys)
        ids, known = yield from self._arrive(box, drafts, joined=joined, alone=alone)
        if not keys and not known:
            return list(map(Receipt.of_new, ids, drafts))
        met = [draft.key for id_, draft in zip(ids, drafts, strict=True) if id_ in known]
        yield from self.lock_keys(box, met, in_passing=joined)
        receipts: list[Receipt] = []
        for id_, draft in zip(ids, drafts, strict=True):
            if id_ in known:
                receipts.append((yield from self._meet(box, id_, draft, joined=joined)))
            else:
                superseded = yield from self._collapse(box, id_, draft, before=id_)
                receipts.append(Receipt.of_new(id_, draft)._replace(superseded=superseded))
        return receipts

    def _lock_collapse_keys(self, box: Box, keys: list[str]) -> Program[None]:
        """Where writers work side by side, those that collapse the same key do it one after the other."""
        yield from ()

    def lock_keys(self, box: Box, keys: Sequence[Key], *, in_passing: bool = False) -> Program[None]:
        """Where writers work side by side, those that meet the same known keys do it one after the other."""
        yield from ()

    def _arrive(self, box: Box, drafts: Sequence[Draft], *, joined: bool, alone: bool) -> Program[Arrived]:
        """Write what is new, and let it enter the queue. `alone`: this is all that is put."""
        [(last,)] = yield Statement("reserve", {"count": len(drafts)})
        now = yield from self.moment()
        first = last - len(drafts) + 1
        new = yield from self._insert(box, first, drafts, now)
        yield from self._enter(box, new, now)
        ids = range(first, last + 1)
        return Arrived(ids, frozenset(ids) - new.keys())

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
                [
                    (id_, box.key, *draft[:3], self.engine.content(draft.payload), draft.format, now, now)
                    for id_, draft in given.items()
                ],
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
        if not new:
            return
        if not box.order.fifo and not any(draft.due for draft in new.values()):
            yield Statement("enter_plain", {"first": min(new), "last": max(new)})
            return
        sleeping = yield from self._sleeping(box, new)
        yield Many(
            "enter",
            rows.ENTRY_COLUMNS,
            [
                (
                    id_,
                    box.key,
                    rows.WAITING,
                    self._available_at(draft, now, sleeps=sleeps),
                    self._first_fence(box, draft, now),
                    line_of(box, draft),
                    draft.collapse_key,
                    self._expires(draft, now),
                )
                for (id_, draft), sleeps in zip(new.items(), sleeping, strict=True)
            ],
        )

    def _sleeping(self, box: Box, new: dict[int, Draft]) -> Program[list[bool]]:
        """Which of these messages stand behind another, which wakes them when it leaves. A due message wakes by itself.

        A message does not always have the largest id: a key that is free again is put after others of the same call.
        """
        lines = {id_: line for id_, draft in new.items() if (line := line_of(box, draft)) is not None}
        groups = sorted(set(lines.values()))
        first = (yield from self._first_in_lines(box, groups)) if groups else {}
        sleeping: list[bool] = []
        for id_, draft in new.items():
            line = lines.get(id_)
            sleeping.append(line is not None and first.get(line, id_) < id_)
            if line is not None and draft.due is None:
                first[line] = min(first.get(line, id_), id_)
        return sleeping

    def _first_in_lines(self, box: Box, groups: list[str]) -> Program[dict[str, int]]:
        """The first in the line of each group that has one."""
        found = yield Statement("first_in_lines", {"box": box.key, "groups": self.engine.array(groups)})
        return dict(found)

    def _available_at(self, draft: Draft, now: Any, *, sleeps: bool) -> Any:
        due = self.engine.time(draft.due)
        if due is not None and due > now:
            return due
        return None if sleeps else now

    def _first_fence(self, box: Box, draft: Draft, now: Any) -> int:
        due = self.engine.time(draft.due)
        return EARLY if due is not None and due > now and line_of(box, draft) is not None else 0

    def _collapse(self, box: Box, id_: int, draft: Draft, *, before: int) -> Program[tuple[int, ...]]:
        if draft.collapse_key is None:
            return ()
        found = yield Statement(
            "rivals", {"box": box.key, "collapse_key": draft.collapse_key, "before": before, "id": id_}
        )
        older = tuple(rival for (rival,) in found)
        yield from self.finish(box, older, Ending.SUPERSEDED)
        return older

    def known(self, box: Box, key: Key, now: Any, *, in_passing: bool = False) -> Program[Known | None]:
        """Who holds the key: nobody, once the dedup window of the earlier message has passed.

        `in_passing`: a worker that has the message must not have to wait for the end of this transaction.
        """
        found = yield from self._look_up_key(box, key, in_passing=in_passing)
        if not found:
            return None
        known = Known(*found[0])
        window = box.keeping.dedup_window
        if window is not None and known.first_seen + self.engine.duration(window) <= now:
            yield Statement("retire", {"id": known.id})
            return None
        return known

    def _look_up_key(self, box: Box, key: Key, *, in_passing: bool) -> Program[list[Row]]:
        return (yield Statement("known", {"box": box.key, "source": key.source, "message_id": key.message_id}))

    def _meet(self, box: Box, reserved: int, draft: Draft, *, joined: bool) -> Program[Receipt]:
        """A key that is known already."""
        now = yield from self.moment()
        # Only where an ack depends on it must a worker learn at once that the content has changed. Where it cannot
        # change, no worker has to wait.
        in_passing = draft.on_duplicate != "update" or (joined and box.delivery.on_stale_ack == "done")
        known = yield from self.known(box, draft.key, now, in_passing=in_passing)
        while known is None:  # its window has passed
            new = yield from self._insert(box, reserved, [draft], now)
            if new:
                yield from self._enter(box, new, now)
                superseded = yield from self._collapse(box, reserved, draft, before=reserved)
                return Receipt(ReceiptStatus.NEW, reserved, *draft.key, State.WAITING, superseded)
            known = yield from self.known(box, draft.key, now, in_passing=in_passing)  # somebody else was faster
        state = rows.STATES[known.state]
        conflict = draft.contradicts(known.hash, known.hash_algorithm, known.topic)
        if conflict and draft.on_conflict == "reject":
            return Receipt(ReceiptStatus.REJECTED, known.id, *draft.key, state)
        yield Statement("touch", {"id": known.id})
        if state is State.SEEN:
            return (yield from self._meet_seen(box, known, reserved, draft, now, conflict=conflict))
        updated = state is not State.DONE and draft.replaces(conflict=conflict)
        under_lease = updated and (yield from self._replace(box, known, draft, now))
        if state is State.DEAD and draft.revive_dead:
            yield from self._revive(box, [(known.id, known.group_id)], now)
            return Receipt(ReceiptStatus.REVIVED, known.id, *draft.key, State.WAITING, (), under_lease, updated)
        status = {State.DONE: ReceiptStatus.DONE, State.DEAD: ReceiptStatus.DEAD}.get(state, ReceiptStatus.DUPLICATE)
        status = ReceiptStatus.CONFLICT if conflict else status
        return Receipt(status, known.id, *draft.key, state, (), under_lease, updated)

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
        return Receipt(status, known.id, *draft.key, State.WAITING, superseded, updated=conflict)

    def enter_seen(self, box: Box, id_: int, draft: Draft, expires: Any, now: Any) -> Program[None]:
        yield Statement(
            "enter_seen",
            {
                "id": id_,
                "available_at": self._available_at(draft, now, sleeps=False),
                "fence": self._first_fence(box, draft, now),
                "group_id": line_of(box, draft),
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
        if claimed and box.delivery.on_stale_ack == "requeue":
            yield Statement("set_stale", {"id": known.id})
        return claimed

    def _reschedule(self, box: Box, known: Known, due: Any, now: Any) -> Program[None]:
        at, fence, ahead = known.available_at, known.fence or 0, due is not None and due > now
        if fence > 0:
            # It has been tried: a new due time may add to its backoff, never shorten it.
            if ahead:
                at = due if at is None else max(at, due)
        elif ahead:
            at, fence = due, 0 if known.line is None else EARLY
        elif at is not None and at > now:
            at, fence = now, 0
        if at != known.available_at:
            yield Statement("offer", {"id": known.id, "at": at, "fence": fence, "was": known.fence})
            yield from self.promote(box, [known.line])

    # -- claim ---------------------------------------------------------------------------------------------------

    def claim(self, box: Box, ask: Ask) -> Program[list[StoredMessage]]:
        take = self._claim_hinted if box.order.fifo else self._claim_due
        taken: list[StoredMessage] = []
        while ask.limit:
            found = yield from take(box, ask)
            taken += found.messages
            if not (found.doomed or found.passed_over):
                break
            yield from self.bury(box, found.doomed)
            ask = found.rest_of(ask)
        return taken

    def _claim_due(self, box: Box, ask: Ask) -> Program[Taken]:
        """Take what is due, where order does not matter."""
        now = yield from self.moment()
        topics = None if ask.topics is None else self.engine.array(sorted(ask.topics))
        statement = "candidates" if topics is None else "candidates_on_topics"
        asked = {"box": box.key, "limit": ask.limit, "topics": topics, "in_hand": self.engine.array(list(ask.in_hand))}
        found = yield Statement(statement, {**asked, **suspicion(box, ask)})
        fit: list[Row] = []
        suspects: list[Row] = []
        doomed: list[Doomed] = []
        for row in found:
            deliveries, lost = row[rows.DELIVERIES], row[rows.LOST_LEASES]
            cause = cause_of_death(box, deliveries=deliveries, lost_leases=lost, expires=row[rows.EXPIRES], now=now)
            if cause is not None:
                doomed.append(Doomed(row[rows.ID], row[rows.LINE], cause))
            elif is_suspect(box, deliveries=deliveries, lost_leases=lost):
                suspects.append(row)
                if ask.suspects and not fit:
                    break
            else:
                fit.append(row)
        alone = ask.suspects and bool(suspects) and not fit
        taken = yield from self._take_rows(ask, suspects[:1] if alone else fit, now)
        return Taken(taken, doomed, alone, bool(suspects) and not alone)

    def _take_rows(self, ask: Ask, found: Sequence[Row], now: Any) -> Program[list[StoredMessage]]:
        """Take rows of the view postroom_work; answers their messages."""
        if not found:
            return []
        until = now + self.engine.duration(ask.lease)
        ids = self.engine.array([row[rows.ID] for row in found])
        yield Statement("take", {"ids": ids, "owner": self.engine.token(ask.owner), "until": until})
        ends = self.engine.moment(until)
        return [
            rows.message_of(self.engine, row, Claim(row[rows.ID], ask.owner, max(row[rows.FENCE], 0) + 1, ends))
            for row in found
        ]

    def _claim_hinted(self, box: Box, ask: Ask) -> Program[Taken]:
        """Take the fronts of lines, and what stands in none."""
        taken: list[StoredMessage] = []
        held: dict[str, int] = {}
        seen: list[int] = list(ask.in_hand)
        look = self._first_look(box, ask)
        while len(taken) < ask.limit and len(seen) < MOST_HINTS + len(ask.in_hand):
            room = ask.limit - len(taken)
            hints = yield from self.lines.hints(box, ask, look, seen)
            if not hints:
                break
            if not hints[0].is_current:
                raise refuse("it claims from FIFO lines by an old snapshot: use isolation level READ COMMITTED")
            now = hints[0].now
            groups = list(dict.fromkeys(hint.group for hint in hints if hint.group and hint.group not in held))
            read = yield from self.lines.read(box, ask, groups, room)
            looking = Look(box, ask, now, held, room)
            picked = looking.pick(hints, read)
            if picked.doomed is not None:
                return Taken(taken, (yield from self._to_bury(box, picked.doomed)), alone=False)
            messages = yield from self._take_picked(box, ask, picked, now)
            taken += messages
            if looking.took_suspect:
                return Taken(taken, [], alone=True)
            ask = ask._replace(suspects=ask.suspects and not taken)
            for message in messages:
                if message.group is not None:
                    held.setdefault(message.group, message.id)
            seen += [hint.id for hint in hints if hint.id not in picked.unread]
            yield from self.lines.let_sleep(picked.asleep)
            look = max(look, min(2 * look, LONGEST_LOOK))
        self._has_looked(box, sum(message.group is None for message in taken) + len(held))
        return Taken(taken, [], alone=False)

    def _to_bury(self, box: Box, doomed: Doomed) -> Program[list[Doomed]]:
        """What was found in a line and must not be claimed again, if that is still so."""
        yield from ()
        return [doomed]

    def _first_look(self, box: Box, ask: Ask) -> int:
        """How many hints to look at together, to begin with."""
        return min(ask.limit, MOST_HINTS)

    def _has_looked(self, box: Box, useful: int) -> None:
        """After a claim, in which so many hints were of use."""

    def _take_picked(self, box: Box, ask: Ask, picked: Picked, now: Any) -> Program[list[StoredMessage]]:
        """Take what was picked. Who held a group before has lost all of it, not only what is taken now."""
        ids = [*picked.free, *(member.id for front in picked.fronts.values() for member in front)]
        if not ids:
            return []
        found = yield Statement("listed", {"ids": self.engine.array(ids)})
        ends = [(box.key, group, front[-1].id) for group, front in sorted(picked.fronts.items())]
        yield Many("end_batch", ("box", "group_id", "id"), ends)
        return (yield from self._take_rows(ask, found, now))

    def renew(
        self, box: Box, claims: Sequence[Claim], lease: timedelta, *, waits: bool = False
    ) -> Program[list[bool | None]]:
        """True where a lease was renewed, False where its claim no longer holds; None where the claim holds and another
        transaction has locked the row. `waits`: for such locks."""
        now = yield from self.moment()
        until = now + self.engine.duration(lease)
        kept: list[bool | None] = [False] * len(claims)
        for owner, held in batches_of_one_owner(list(enumerate(claims))):
            statement = "renew_locked" if waits else "renew"
            found = yield Statement(statement, {**self._proof(box, owner, held), "until": until})
            for id_, renewed in found:
                kept[held[id_][0]] = True if renewed else None
        return kept

    def reap(self, box: Box, limit: int) -> Program[Reaped]:
        late = yield from self._late(box, limit)
        if late:
            yield Many("free", ("id",), late)
        expired = yield Statement("expired", {"box": box.key, "limit": limit})
        yield from self.bury(box, [Doomed(id_, group, EXPIRED) for id_, group in expired])
        return Reaped(len(late), len(expired))

    def _late(self, box: Box, limit: int) -> Program[Sequence[Row]]:
        """Rows whose leases have passed."""
        return (yield Statement("late", {"box": box.key, "limit": limit}))

    def turn(
        self, box: Box, settlements: Sequence[Settlement], ask: Ask
    ) -> Program[tuple[list[bool], list[StoredMessage]]]:
        """Settle, then claim: a worker's round in one transaction."""
        settled = yield from self.settle(box, settlements)
        return settled, (yield from self.claim(box, ask))

    # -- settle --------------------------------------------------------------------------------------------------

    def settle(self, box: Box, settlements: Sequence[Settlement]) -> Program[list[bool]]:
        kept = [False] * len(settlements)
        done: list[tuple[int, Claim]] = []
        give_back: list[tuple[int, Claim]] = []
        for index, settlement in enumerate(settlements):
            target = settlement.target
            claim: Claim | None = (yield from self._named(box, target)) if isinstance(target, Held) else target
            if claim is not None:
                (done if settlement.verdict == "done" else give_back).append((index, claim))
        if box.delivery.on_stale_ack == "requeue":
            done, stale = yield from self._sort_out_stale(box, done)
            give_back = sorted(give_back + stale)
        # What is not a success comes first: it ends the batches of its groups, so that a success further behind in the
        # same line no longer holds.
        if give_back:
            for index in (yield from self._give_back(box, give_back, settlements)):
                kept[index] = True
        for index in (yield from self._complete(box, done)):
            kept[index] = True
        return kept

    def _named(self, box: Box, held: Held) -> Program[Claim | None]:
        found = yield Statement(
            "held_by_name",
            {"box": box.key, "message_id": held.message_id, "owner": self.engine.token(held.owner)},
        )
        if held.source is None and len(found) > 1:
            raise AmbiguousMessageId
        for source, id_, fence in found:
            if id_ is not None and held.source in {None, source}:
                return Claim(id_, held.owner, fence, _UNKNOWN)
        return None

    def _sort_out_stale(self, box: Box, done: Sequence[Indexed]) -> Program[tuple[list[Indexed], list[Indexed]]]:
        """An ack of content that has changed meanwhile is none, where the box says so: it is given back."""
        stale: set[int] = set()
        for owner, held in batches_of_one_owner(done):
            found = yield Statement("hold", self._proof(box, owner, held))
            stale.update(held[id_][0] for id_, _, _, is_stale in found if is_stale)
        return [item for item in done if item[0] not in stale], [item for item in done if item[0] in stale]

    def _give_back(self, box: Box, given: Sequence[Indexed], settlements: Sequence[Settlement]) -> Program[list[int]]:
        """Retry, release or dead; answers the indexes of those that were settled."""
        now = yield from self.moment()
        # Id → the index of its outcome, and its row. All of them before anything changes: a claim that does not hold
        # must not come between those that do.
        held: dict[int, tuple[int, Row]] = {}
        for owner, batch in batches_of_one_owner(given):
            for row in (yield Statement("hold", self._proof(box, owner, batch))):
                held.setdefault(row[0], (batch[row[0]][0], row))
        groups = {id_: row[2] for id_, (_, row) in held.items() if row[2] is not None}
        # From the first of each group on, the batch has ended.
        firsts = {group: id_ for id_, group in sorted(groups.items(), reverse=True)}
        yield Many("end_batch", ("box", "group_id", "id"), [(box.key, *item) for item in sorted(firsts.items())])
        waiting: list[Row] = []
        doomed: list[Doomed] = []
        for id_, (index, (_, attempt, group, _)) in sorted(held.items()):
            settlement = settlements[index]
            if settlement.verdict == "dead":
                doomed.append(Doomed(id_, group, settlement.error or "", counts=settlement.counts))
            else:
                waiting.append((id_, *self._waits(box, settlement, attempt, group, now)))
        yield Many("wait", ("id", "attempt", "at", "error"), waiting)
        yield from self.bury(box, doomed)
        yield from self.promote(box, firsts)
        return [index for index, _ in held.values()]

    def _waits(
        self, box: Box, settlement: Settlement, attempt: int, group: str | None, now: Any
    ) -> tuple[int, Any, str | None]:
        """Attempts, from when it can be claimed, and the error."""
        delay = settlement.delay
        if settlement.verdict == "retry":
            attempt += 1
            delay = box.delivery.backoff.delay(attempt) if delay is None else delay
        if group is not None and not delay:
            return attempt, None, settlement.error
        return attempt, now + self.engine.duration(delay or timedelta()), settlement.error

    def _complete(self, box: Box, done: Sequence[Indexed]) -> Program[list[int]]:
        """Successes, with their indexes; answers the indexes of those that were settled."""
        settled: list[int] = []
        for owner, held in batches_of_one_owner(done):
            completed = yield Statement("complete", self._proof(box, owner, held))
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
            yield Statement("finish", {"ids": self.engine.array(sorted(ids)), "ending": ending.value})
            yield from self._dequeue(box, sorted(ids), blank=blank)

    def bury(self, box: Box, doomed: Sequence[Doomed]) -> Program[None]:
        if not doomed:
            return
        if box.keeping.dead_letter == "discard":
            errors = [(item.id, item.cause, int(item.counts)) for item in doomed]
            yield Many("set_error", ("id", "error", "counted"), sorted(errors))
            yield from self.finish(box, [item.id for item in doomed], Ending.DISCARDED, blank=True)
            return
        blocks = box.order.on_dead == "block"
        buried = [(item.id, item.cause, item.group if blocks else None, int(item.counts)) for item in doomed]
        yield Many("bury", ("id", "error", "group_id", "counted"), sorted(buried, key=lambda row: row[0]))
        yield from self.promote(box, [item.group for item in doomed])

    def promote(self, box: Box, groups: Iterable[str | None]) -> Program[None]:
        """Offer the first of each line, if it waits only for its turn."""
        if lines := sorted({group for group in groups if group is not None}):
            yield Statement("promote", {"box": box.key, "groups": self.engine.array(lines)})

    def _proof(self, box: Box, owner: UUID, held: Mapping[int, Indexed]) -> dict[str, Any]:
        fences = {id_: held[id_][1].fence for id_ in sorted(held)}
        return {"box": box.key, "owner": self.engine.token(owner), **self.engine.claims(fences)}

    def notify_of_lines(self, box: Box) -> Program[None]:
        """Where an engine notifies: the next of a group may be for a worker of another process."""
        yield from ()

    # -- replay and purge ----------------------------------------------------------------------------------------

    def lock_writes(self) -> Program[None]:
        """Where an engine has one writer: take the lock before anything is read. A caller's transaction that reads
        first cannot write once another has written."""
        yield Statement("reserve", {"count": 0})

    def replay(self, box: Box, which: Filter) -> Program[list[Key]]:
        yield from self.lock_writes()
        now = yield from self.moment()
        found = yield from self.find(box, which._replace(states=frozenset({State.DEAD})))
        dead = {message.id: message for message in found}
        locked = yield Statement("lock_dead", {"ids": self.engine.array(list(dead))})
        revived = [dead[id_] for (id_,) in locked]
        yield from self._revive(box, [(message.id, message.group) for message in revived], now)
        return [message.key for message in revived]

    def _revive(self, box: Box, dead: Sequence[tuple[int, str | None]], now: Any) -> Program[None]:
        """Dead → waiting, in its old place. The fence goes on: a claim from its former life proves nothing."""
        lines = sorted((id_, group if box.order.fifo else None) for id_, group in dead)
        yield Many("revive", ("id", "group_id", "at"), [(id_, line, None if line else now) for id_, line in lines])
        yield Many("forget_expires", ("id",), [(id_,) for id_, _ in lines])
        yield from self.promote(box, [line for _, line in lines])

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
        if which.is_by_name:
            found = yield from self._look_up(box, which)
            standing = [row for row in found if not which.blocking or row[rows.LINE] is not None]
            messages = [message for row in standing if which.fits(message := rows.message_of(self.engine, row))]
            return messages[: which.limit]
        parameters = _filter_parameters(box, which)
        if which.states == frozenset({State.DEAD}):
            found = yield Statement("find_dead", parameters)
        else:
            found = yield Statement("find", parameters | {"looks": LOOKS})
            if len(found) < which.limit:
                found = yield Statement("find_far", parameters)
        return [rows.message_of(self.engine, row) for row in found]

    def lock_waiting(self, box: Box, which: Filter) -> Program[list[StoredMessage]]:
        """The waiting messages that fit. They are locked until this transaction ends."""
        if which.is_by_name:
            return (yield from self.find(box, which))
        found = yield Statement("find_waiting", _filter_parameters(box, which))
        return [rows.message_of(self.engine, row) for row in found]

    def _look_up(self, box: Box, which: Filter) -> Program[list[Row]]:
        """What is named is few: the rest of the filter is applied to what was found, in id order."""
        if which.ids is None and which.keys is None:
            return (yield Statement("find_named", {"box": box.key, "message_id": which.message_id}))
        found: dict[int, Row] = {}
        if which.ids:
            ids = self.engine.array(sorted(set(which.ids)))
            found |= {row[rows.ID]: row for row in (yield Statement("find_listed", {"box": box.key, "ids": ids}))}
        for message_id in sorted({key.message_id for key in which.keys or ()}):
            named = yield Statement("find_named", {"box": box.key, "message_id": message_id})
            found |= {row[rows.ID]: row for row in named}
        return [found[id_] for id_ in sorted(found)]

    def boxes(self) -> Program[list[str]]:
        found = yield Statement("boxes")
        return [box for (box,) in found]

    def counts(self, box: Box) -> Program[Counts]:
        found = yield Statement("count_queue", {"box": box.key})
        [(done,)] = yield Statement("count_done", {"box": box.key})
        counted = {rows.STATES[code]: count for code, count in found}
        return {state: counted.get(state, 0) for state in State} | {State.DONE: done}


def _filter_parameters(box: Box, which: Filter) -> dict[str, Any]:
    return {
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


def suspicion(box: Box, ask: Ask) -> dict[str, Any]:
    """Parameters by which a statement knows suspects: see is_suspect in the kernel."""
    delivery = box.delivery
    return {
        "suspects": int(ask.suspects),
        "suspect_from": suspect_from(delivery),
        "most": delivery.max_deliveries,
        "most_lost": delivery.max_lost_leases,
    }


def line_of(box: Box, draft: Draft) -> str | None:
    """The line in which a message stands, if any."""
    return draft.group if box.order.fifo else None


def batches_of_one_owner(done: Sequence[Indexed]) -> Iterator[tuple[UUID, dict[int, Indexed]]]:
    """Claims by id, all of one owner. An id that stands twice goes in a batch of its own: only one claim can hold."""
    while done:
        owner, batch, rest = done[0][1].owner, dict[int, Indexed](), list[Indexed]()
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
