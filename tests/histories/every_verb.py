"""A history of every verb, in a box of any kind."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from postroom.spi import Box, Draft, Filter, Key, NamedTarget, Purge, State
from tests.histories.lines import Lines
from tests.histories.strategies import (
    ANY_TOPICS,
    BOXES,
    ENOUGH,
    UNFINISHED,
    TopicChoices,
    ages,
    delays,
    errors,
    filters,
    keys,
    message_ids,
    numbers,
    owners,
    plans,
    verdicts,
)


class Histories(Lines):
    """One history in one box of any kind, of every verb."""

    @initialize(box=st.sampled_from(BOXES), topics=st.just(ANY_TOPICS))
    def choose(self, box: Box, topics: TopicChoices) -> None:
        self.open_box(box, topics)

    @rule(planned=st.lists(plans(), min_size=1, max_size=4))
    def put(self, planned: list[tuple[Draft, int | None, int | None]]) -> None:
        self._put(planned)

    @rule(wanted=st.lists(st.tuples(keys, st.sampled_from([None, b"1", b"2"])), min_size=1, max_size=3))
    def record(self, wanted: list[tuple[Key, bytes | None]]) -> None:
        drafts = [Draft(*key, hash=hash_) for key, hash_ in wanted]
        expected, actual = self.both(lambda store, _: store.record(self.box, drafts))
        assert actual == expected
        self.compare()

    @precondition(lambda self: self.claims)
    @rule(
        picks=st.lists(st.tuples(numbers, verdicts, delays, errors), min_size=1, max_size=5),
        bare=st.lists(st.tuples(owners, message_ids, st.sampled_from([None, "a", "b"]), verdicts), max_size=2),
    )
    def settle(
        self,
        picks: list[tuple[int, str, timedelta | None, str | None]],
        bare: list[tuple[UUID, str, str | None, str]],
    ) -> None:
        self._settle(
            [(self._pick(number), *rest) for number, *rest in picks]
            + [
                ((held := NamedTarget(owner, id_, source), held), verdict, None, None)
                for owner, id_, source, verdict in bare
            ]
        )

    @precondition(lambda self: self.has(State.DEAD))
    @rule(which=filters | st.just(Filter(blocking=True)))
    def replay(self, which: Filter) -> None:
        expected, actual = self.both(lambda store, _: store.replay(self.box, which))
        assert actual == expected
        self.compare()

    @precondition(lambda self: self.has(State.WAITING))
    @rule(which=filters, named=st.none() | st.lists(keys, min_size=1, max_size=3).map(tuple))
    def cancel(self, which: Filter, named: tuple[Key, ...] | None) -> None:
        self._cancel(lambda _: which._replace(keys=named))

    @precondition(lambda self: len(self.seen) > 3)
    @rule(which=filters, states=st.sampled_from([None, UNFINISHED, frozenset({State.DEAD})]), after=numbers)
    def find(self, which: Filter, states: frozenset[State] | None, after: int) -> None:
        known = sorted(self.ids)
        after_actual = known[after % len(known)] if known and after % 2 else 0
        pages = (self.ids.get(after_actual, 0), after_actual)
        expected, actual = self.both(
            lambda store, is_other: store.find(self.box, which._replace(states=states, after=pages[is_other]))
        )
        assert len(expected) == len(actual)
        assert [self.translate(message, like) for message, like in zip(actual, expected, strict=True)] == expected

    @precondition(lambda self: self.has(State.DEAD))
    @rule()
    def find_blocking(self) -> None:
        which = Filter(states=frozenset({State.DEAD}), blocking=True)
        expected, actual = self.both(lambda store, _: store.find(self.box, which))
        assert len(expected) == len(actual)
        assert [self.translate(message, like) for message, like in zip(actual, expected, strict=True)] == expected

    @precondition(lambda self: self.has(State.DONE, State.DEAD, State.SEEN))
    @rule(number=numbers, age=ages, limit=st.sampled_from([1, 2, ENOUGH]))
    def purge(self, number: int, age: timedelta, limit: int) -> None:
        present = [state for state in (State.DONE, State.DEAD, State.SEEN) if self.has(state)]
        state = present[number % len(present)]
        if self.keeps_places and state is State.DONE:
            limit = ENOUGH
        expected, actual = self.both(lambda store, _: store.purge(self.box, Purge(state, age, limit)))
        assert actual == expected
        self.compare(purged=True)

    @rule(
        wanted=st.lists(keys, min_size=1, max_size=2),
        mark=st.sampled_from(["processing", "processed", "dead", "skipped"]),
    )
    def mark(self, wanted: list[Key], mark: Any) -> None:
        expected, actual = self.both(lambda store, _: store.mark(self.box, wanted, mark, error="marked"))
        assert actual == expected
        self.compare()
