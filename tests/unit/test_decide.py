"""The settlement of a message for each result of its handler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroom import ArgumentValueError, Backoff, Claim, Outcome, OwnerToken
from postroom._kernel.decide import decide
from postroom._kernel.policy import Delivery
from postroom._kernel.settlement import Settlement

CLAIM = Claim(1, OwnerToken.new(), 1, datetime(2030, 1, 1, tzinfo=UTC))
POLICY = Delivery()


def test_none_and_success_mean_done() -> None:
    assert decide(None, CLAIM, 0, POLICY) == Settlement.done(CLAIM)
    assert decide(Outcome.SUCCESS, CLAIM, 0, POLICY) == Settlement.done(CLAIM)


@pytest.mark.req("C-08", "IBX-081")
@pytest.mark.parametrize(("attempt", "seconds"), [(0, 2), (1, 4), (4, 32), (5, 60), (8, 60)])
def test_an_exception_counts_and_backs_off_by_the_incremented_counter(attempt: int, seconds: int) -> None:
    settlement = decide(ValueError("no"), CLAIM, attempt, POLICY)
    assert settlement == Settlement.retry(CLAIM, delay=timedelta(seconds=seconds), error="ValueError: no")


@pytest.mark.req("C-07")
def test_the_tenth_counted_execution_is_the_last() -> None:
    assert decide(Outcome.FAILED, CLAIM, 8, POLICY).verdict == "retry"
    assert decide(Outcome.FAILED, CLAIM, 9, POLICY).verdict == "dead"
    assert decide(KeyError(), CLAIM, 9, POLICY) == Settlement.dead(CLAIM, error="KeyError", counts=True)


@pytest.mark.req("C-05", "C-06")
def test_retry_does_not_count_and_dead_is_final() -> None:
    delay = timedelta(seconds=3)
    assert decide(Outcome.RETRY.after(delay), CLAIM, 9, POLICY) == Settlement.release(CLAIM, delay=delay)
    dead = Settlement.dead(CLAIM, error="poison", counts=True)
    assert decide(Outcome.DEAD.because("poison"), CLAIM, 0, POLICY) == dead


def test_a_result_may_say_its_own_delay_and_reason() -> None:
    outcome = Outcome.FAILED.after(timedelta(seconds=9)).because("busy")
    assert decide(outcome, CLAIM, 0, POLICY) == Settlement.retry(CLAIM, delay=timedelta(seconds=9), error="busy")


class TestBackoff:
    @pytest.mark.req("IBX-081", "OBX-056", "C-08")
    def test_the_default_is_exact(self) -> None:
        delays = [Backoff.exponential().delay(attempt).total_seconds() for attempt in range(1, 9)]
        assert delays == [2, 4, 8, 16, 32, 60, 60, 60]
        assert Backoff.exponential().delay(10**9).total_seconds() == 60

    def test_jitter_only_shortens(self) -> None:
        delays = {Backoff.constant(10, jitter=0.5).delay(1).total_seconds() for _ in range(50)}
        assert len(delays) > 1
        assert all(5 <= delay <= 10 for delay in delays)

    def test_a_curve_of_ones_own_cannot_go_back_in_time(self) -> None:
        assert Backoff(lambda attempt: -attempt).delay(3) == timedelta()

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Backoff.constant(0),
            lambda: Backoff.exponential(cap=-1),
            lambda: Backoff.exponential(base=0),
            lambda: Backoff.constant(1, jitter=2),
        ],
        ids=["zero", "cap", "base", "jitter"],
    )
    def test_bad_values_are_refused(self, make: object) -> None:
        with pytest.raises(ValueError, match="must be"):
            make()  # type: ignore[operator]


@pytest.mark.parametrize("seconds", [1e300, float("inf"), 1e12])
def test_a_backoff_waits_a_hundred_years_at_most(seconds: float) -> None:
    assert Backoff(lambda _attempt: seconds).delay(1) == timedelta(days=36_600)


def test_a_backoff_is_a_number() -> None:
    with pytest.raises(ArgumentValueError, match="seconds must be above 0"):
        Backoff.constant(float("nan"))
