"""The rules for when a waiting message can be claimed."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from postroom._kernel.availability import Availability, GivenBack, first_availability, give_back, reschedule
from postroom._kernel.backoff import Backoff
from postroom._kernel.clock import EPOCH
from postroom.spi import Claim, Delivery, Settlement

NOW = 100
CLAIM = Claim(1, uuid4(), 1, EPOCH)
SECOND = timedelta(seconds=1)


class TestFirst:
    def test_a_message_without_a_due_time_can_be_claimed_now(self) -> None:
        assert first_availability(None, NOW, in_line=False) == Availability(NOW)
        assert first_availability(NOW, NOW, in_line=True) == Availability(NOW)

    def test_a_message_behind_another_sleeps(self) -> None:
        assert first_availability(None, NOW, in_line=True, sleeps=True) == Availability(None)

    def test_a_due_time_ahead_delays_only_a_member_of_a_line(self) -> None:
        assert first_availability(150, NOW, in_line=False) == Availability(150)
        assert first_availability(150, NOW, in_line=True, sleeps=True) == Availability(150, delayed=True)

    def test_times_may_be_datetimes(self) -> None:
        due = EPOCH + SECOND
        assert first_availability(due, EPOCH, in_line=True) == Availability(due, delayed=True)


class TestReschedule:
    @pytest.mark.parametrize("due", [None, 90, NOW])
    def test_without_a_due_time_ahead_a_delayed_message_can_be_claimed_now(self, due: int | None) -> None:
        current = Availability(150, delayed=True)
        assert reschedule(current, due, NOW, was_claimed=False, in_line=True) == Availability(NOW)

    @pytest.mark.parametrize("current", [Availability(50), Availability[int](None)])
    def test_without_a_due_time_ahead_a_message_keeps_its_time(self, current: Availability[int]) -> None:
        assert reschedule(current, None, NOW, was_claimed=False, in_line=True) == current

    def test_a_due_time_ahead_delays(self) -> None:
        assert reschedule(Availability(50), 150, NOW, was_claimed=False, in_line=True) == Availability(
            150, delayed=True
        )
        assert reschedule(Availability(50), 150, NOW, was_claimed=False, in_line=False) == Availability(150)

    @pytest.mark.parametrize(("available_at", "due", "new"), [(200, 150, 200), (120, 150, 150), (None, 150, 150)])
    def test_a_due_time_extends_a_retry_delay_and_never_shortens_it(
        self, available_at: int | None, due: int, new: int
    ) -> None:
        current = Availability(available_at)
        assert reschedule(current, due, NOW, was_claimed=True, in_line=True) == Availability(new)

    def test_no_due_time_keeps_a_retry_delay(self) -> None:
        assert reschedule(Availability(200), None, NOW, was_claimed=True, in_line=True) == Availability(200)


class TestGiveBack:
    delivery = Delivery(backoff=Backoff.constant(5))

    def test_a_retry_counts_and_waits_for_the_backoff(self) -> None:
        settlement = Settlement.retry(CLAIM)
        assert give_back(self.delivery, settlement, 2, in_line=True) == GivenBack(3, timedelta(seconds=5))

    def test_a_delay_replaces_the_backoff(self) -> None:
        settlement = Settlement.retry(CLAIM, delay=SECOND)
        assert give_back(self.delivery, settlement, 0, in_line=False) == GivenBack(1, SECOND)

    def test_a_release_does_not_count(self) -> None:
        settlement = Settlement.release(CLAIM)
        assert give_back(self.delivery, settlement, 2, in_line=False) == GivenBack(2, timedelta())

    def test_without_a_delay_a_member_of_a_line_waits_until_it_is_the_front(self) -> None:
        assert give_back(self.delivery, Settlement.release(CLAIM), 2, in_line=True) == GivenBack(2, None)
        none = Settlement.retry(CLAIM, delay=timedelta())
        assert give_back(self.delivery, none, 2, in_line=True) == GivenBack(3, None)
