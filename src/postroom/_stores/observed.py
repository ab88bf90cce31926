"""Emits an event for each verb: logs, metrics, wake-ups of workers and tests are observers."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from postroom._kernel.observer import Event, Observer, is_observed
from postroom._kernel.texts import ErrorTexts
from postroom._stores.wrapper import AnyStore, AsyncVerb, StoreWrapper
from postroom.spi import (
    VERBS,
    Box,
    ClaimRequest,
    GuardStore,
    JoinStore,
    KeyStore,
    QueueStore,
    Settled,
    Settlement,
    StoredMessage,
    Verb,
)

_OBSERVED = {QueueStore, KeyStore, JoinStore, GuardStore}
OBSERVED = frozenset(verb.name for verb in VERBS.values() if verb.protocol in _OBSERVED)
"""The verbs that emit an event of their name."""


class ObservedStore(StoreWrapper):
    """Emits events of the verbs of queues, keys, joins and guards, and of an exchange as `settle` and `claim`.

    A verb that no observer wants is forwarded as it is.
    """

    def __init__(self, inner: AnyStore, observers: Sequence[Observer], errors: ErrorTexts) -> None:
        self.errors = errors
        self._observers = tuple(observers)
        self._observers_by_verb: dict[str, tuple[Observer, ...]] = {}
        super().__init__(inner)

    def is_observed(self, verb: str) -> bool:
        """Returns True if an observer receives events of this verb."""
        return bool(self._observers_of(verb))

    def emit(self, event: Event) -> None:
        """Passes an event to the observers of its verb. Logs what an observer raises."""
        for observer in self._observers_by_verb.get(event.verb) or self._observers_of(event.verb):
            try:
                observer(event)
            except Exception as error:  # noqa: BLE001 - an observer must not break the verb that it observes
                self.errors.log(logging.ERROR, "an observer failed on %s", event.verb, error=error)

    def _observers_of(self, verb: str) -> tuple[Observer, ...]:
        if verb not in self._observers_by_verb:
            self._observers_by_verb[verb] = tuple(each for each in self._observers if is_observed(verb, each))
        return self._observers_by_verb[verb]

    def around(self, verb: Verb, function: AsyncVerb) -> AsyncVerb:
        if verb.name == "exchange":
            return self._around_exchange(function)
        if verb.name not in OBSERVED or not self.is_observed(verb.name):
            return function
        name, store, emit, clock = verb.name, self.name, self.emit, time.perf_counter
        main = verb.parameters[1] if len(verb.parameters) > 1 else ""  # `counts` has none

        async def observed(box: Box, *args: object, **kwargs: object) -> object:
            given, in_transaction = args[0] if args else kwargs.get(main), kwargs.get("tx") is not None
            started = clock()
            try:
                result = await function(box, *args, **kwargs)
            except BaseException as error:
                emit(Event(name, store, box, given, None, error, clock() - started, in_transaction))
                raise
            emit(Event(name, store, box, given, result, None, clock() - started, in_transaction))
            return result

        return observed

    def _around_exchange(self, function: AsyncVerb) -> AsyncVerb:
        store, emit, clock = self.name, self.emit, time.perf_counter

        async def observed_exchange(
            box: Box, settlements: Sequence[Settlement], request: ClaimRequest
        ) -> tuple[Settled, list[StoredMessage]]:
            """Its two parts share a transaction: they take the same time, and both fail if it fails."""
            started = clock()
            try:
                settled, messages = await function(box, settlements, request)
            except BaseException as error:
                seconds = clock() - started
                emit(Event("settle", store, box, settlements, None, error, seconds))
                emit(Event("claim", store, box, request, None, error, seconds))
                raise
            seconds = clock() - started
            emit(Event("settle", store, box, settlements, settled, None, seconds))
            emit(Event("claim", store, box, request, messages, None, seconds))
            return settled, messages

        return observed_exchange
