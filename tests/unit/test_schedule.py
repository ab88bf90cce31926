"""When a worker claims again."""

from __future__ import annotations

import math

from postroom._runtime import schedule
from postroom._runtime.schedule import PollSchedule, StoreBackoff


def claim(paced: PollSchedule, found: int, *, at: float, limit: int = 10, polls: bool = True) -> None:
    begun = paced.begin()
    paced.end()
    paced.learn(begun, found, limit, at, polls=polls)


def test_at_once_after_a_full_claim_and_soon_after_one_that_found_something() -> None:
    paced = PollSchedule(0.5, 5.0)
    assert paced.is_due(100.0)
    claim(paced, 10, at=100.0)
    assert (paced.has_more, paced.next_at) == (True, 100.0)
    claim(paced, 3, at=101.0)
    assert (paced.has_more, paced.next_at) == (False, 101.5)


def test_pauses_double_while_claims_are_empty() -> None:
    paced = PollSchedule(0.5, 5.0)
    pauses = []
    for _ in range(6):
        claim(paced, 0, at=100.0)
        pauses.append(paced.next_at - 100.0)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    claim(paced, 1, at=100.0)
    claim(paced, 0, at=100.0)
    assert paced.next_at == 100.5


def test_without_polling_an_empty_claim_is_repeated_after_a_wake_up() -> None:
    paced = PollSchedule(0.5, 5.0)
    claim(paced, 0, at=100.0, polls=False)
    assert paced.next_at == math.inf
    paced.wake()
    assert paced.is_due(0.0)
    claim(paced, 3, at=100.0, polls=False)
    assert paced.next_at == 100.0


def test_a_wake_up_during_a_claim_makes_another_claim_due() -> None:
    paced = PollSchedule(0.5, 5.0)
    begun = paced.begin()
    paced.wake()
    paced.end()
    paced.learn(begun, 0, 10, 100.0, polls=True)
    assert paced.is_due(100.0)


def test_an_empty_claim_beside_another_proves_nothing() -> None:
    for first_ends_first in (True, False):
        paced = PollSchedule(0.5, 5.0)
        first, second = paced.begin(), paced.begin()
        ending, other = (first, second) if first_ends_first else (second, first)
        paced.end()
        paced.learn(ending, 0, 10, 100.0, polls=True)
        assert paced.is_due(100.0)
        assert paced.under_way == 1
        paced.end()
        paced.learn(other, 0, 10, 100.0, polls=True)
        assert paced.is_due(100.0)


def test_a_claim_is_due_when_a_known_message_is() -> None:
    paced = PollSchedule(0.5, 5.0)
    claim(paced, 0, at=100.0)
    assert paced.expect(100.3)
    assert paced.expect(100.1)
    assert (paced.next_at, paced.is_due(100.0)) == (100.1, False)
    assert paced.is_due(100.2)
    claim(paced, 0, at=100.2)
    assert paced.next_at == 100.3


def test_a_limited_number_of_due_times_is_remembered() -> None:
    paced = PollSchedule(0.5, 5.0)
    assert all(paced.expect(float(number)) for number in range(schedule.MAX_DUE_TIMES))
    assert not paced.expect(1.0)


def test_the_backoff_doubles_until_the_store_works() -> None:
    backoff = StoreBackoff()
    pauses = []
    for _ in range(8):
        pauses.append(backoff.seconds)
        backoff.begin(100.0)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.until == 105.0
    backoff.end()
    assert (backoff.seconds, backoff.until) == (0.1, 0.0)
