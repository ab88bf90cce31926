"""Limits of a claim: how many messages, and which topics."""

from __future__ import annotations

from collections.abc import Mapping

from postroom._boxes.handlers import Handler, Handlers
from postroom._kernel.policy import Box
from postroom._runtime.in_hand import InHand
from postroom._runtime.outcomes import Outcomes
from postroom._runtime.schedule import PollSchedule
from postroom._runtime.work import Work

MAX_EXCHANGES = 2
"""Exchanges that may be under way at the same time, if the store runs them concurrently: the server does one while
Python reads the messages of the other."""


class Capacity:
    """Decides whether there is room for another claim, and which topics it may claim."""

    def __init__(
        self,
        box: Box,
        handlers: Handlers,
        topics: frozenset[str] | None,
        in_hand: InHand,
        outcomes: Outcomes,
        schedule: PollSchedule,
        work: Work,
    ) -> None:
        """`topics`: those that the worker claims; None is all."""
        self._batch_size = box.work.batch_size
        self._most_unhandled = 2 * box.work.batch_size
        self._handlers = handlers
        self._topics = topics
        self._in_hand = in_hand
        self._outcomes = outcomes
        self._schedule = schedule
        self._work = work
        self._left_out: frozenset[str] = frozenset()
        """Topics that the last claim did not ask for, because enough of their messages wait for their handlers."""
        self.is_closed = False
        """Set when the worker stops: it claims no more."""

    def has_room(self) -> bool:
        """Returns True if another batch fits, besides the messages that claims under way may return."""
        if self.is_closed or self._in_hand.suspect is not None:
            return False
        if self._schedule.under_way and not self._schedule.has_more:
            return False
        waiting = self._work.waiting_for_handlers()
        topics = self._without(self._full_topics(waiting)) if waiting else self._topics
        if topics is not None and not topics:
            return False
        coming = (self._schedule.under_way + 1) * self._batch_size
        # Messages that wait for a handler which takes no more keep no others from being claimed.
        in_hand = len(self._in_hand) - sum(waiting.values())
        unhandled = in_hand - self._outcomes.unsettled
        # A message that is handled and not settled is handled again after a crash. While an exchange hangs, their
        # number must not grow.
        return unhandled + coming <= self._most_unhandled and in_hand + coming <= MAX_EXCHANGES * self._most_unhandled

    def topics_to_claim(self) -> frozenset[str] | None:
        """Returns the topics for a claim that begins now; None is all."""
        self._left_out = self._full_topics(self._work.waiting_for_handlers())
        return self._without(self._left_out)

    def has_topic_become_free(self) -> bool:
        """Returns True, once, if the last claim left a topic out and its handler takes messages again."""
        if not self._left_out:
            return False
        still_full = self._left_out & self._full_topics(self._work.waiting_for_handlers())
        has_changed = still_full != self._left_out
        self._left_out = still_full
        return has_changed

    def _full_topics(self, waiting: Mapping[Handler, int]) -> frozenset[str]:
        """Topics with enough messages waiting for their handler: a worker must not lease what it cannot begin."""
        return frozenset(handler.topic for handler, count in waiting.items() if count >= self._work.enough_waiting)

    def _without(self, full: frozenset[str]) -> frozenset[str] | None:
        return frozenset(handler.topic for handler in self._handlers) - full if full else self._topics
