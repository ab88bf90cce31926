"""When a pump claims again."""

from __future__ import annotations

import math

from postroom._runtime import pace
from postroom._runtime.pace import Pace, Rest


def claim(paced: Pace, found: int, *, at: float, limit: int = 10, polls: bool = True) -> None:
    begun = paced.begin()
    paced.end()
    paced.learn(begun, found, limit, at, polls=polls)


def test_at_once_after_a_full_claim_and_soon_after_one_that_found_something() -> None:
    paced = Pace(0.5, 5.0)
    assert paced.is_time(100.0)
    claim(paced, 10, at=100.0)
    assert (paced.is_plenty, paced.next) == (True, 100.0)
    claim(paced, 3, at=101.0)
    assert (paced.is_plenty, paced.next) == (False, 101.5)


def test_later_and_later_while_there_is_nothing() -> None:
    paced = Pace(0.5, 5.0)
    pauses = []
    for _ in range(6):
        claim(paced, 0, at=100.0)
        pauses.append(paced.next - 100.0)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    claim(paced, 1, at=100.0)
    claim(paced, 0, at=100.0)
    assert paced.next == 100.5


def test_who_does_not_poll_waits_for_a_hint() -> None:
    paced = Pace(0.5, 5.0)
    claim(paced, 0, at=100.0, polls=False)
    assert paced.next == math.inf
    paced.hint()
    assert paced.is_time(0.0)
    claim(paced, 3, at=100.0, polls=False)
    assert paced.next == 100.0


def test_a_hint_during_a_claim_is_not_forgotten() -> None:
    paced = Pace(0.5, 5.0)
    begun = paced.begin()
    paced.hint()
    paced.end()
    paced.learn(begun, 0, 10, 100.0, polls=True)
    assert paced.is_time(100.0)


def test_an_empty_claim_beside_another_proves_nothing() -> None:
    for first_ends_first in (True, False):
        paced = Pace(0.5, 5.0)
        first, second = paced.begin(), paced.begin()
        ending, other = (first, second) if first_ends_first else (second, first)
        paced.end()
        paced.learn(ending, 0, 10, 100.0, polls=True)
        assert paced.is_time(100.0)
        assert paced.under_way == 1
        paced.end()
        paced.learn(other, 0, 10, 100.0, polls=True)
        assert paced.is_time(100.0)


def test_what_becomes_ready_is_known_beforehand() -> None:
    paced = Pace(0.5, 5.0)
    claim(paced, 0, at=100.0)
    assert paced.expect(100.3)
    assert paced.expect(100.1)
    assert (paced.next, paced.is_time(100.0)) == (100.1, False)
    assert paced.is_time(100.2)
    claim(paced, 0, at=100.2)
    assert paced.next == 100.3


def test_it_remembers_only_so_much() -> None:
    paced = Pace(0.5, 5.0)
    assert all(paced.expect(float(number)) for number in range(pace.MOST_DUES))
    assert not paced.expect(1.0)


def test_a_rest_is_longer_each_time_until_the_store_answers() -> None:
    rest = Rest()
    told = []
    for _ in range(8):
        told.append(rest.seconds)
        rest.begin(100.0)
    assert told == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert rest.until == 105.0
    rest.end()
    assert (rest.seconds, rest.until) == (0.1, 0.0)
