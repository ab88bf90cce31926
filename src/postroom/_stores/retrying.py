"""Retries verbs that fail with a transient error.

Stores have no retry loops. A verb in a caller's transaction is never retried: the transaction has failed, and
only the caller can repeat all of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from postroom._kernel.retry import StorageRetry
from postroom._room_store import handling, on_same_database
from postroom._stores.wrapper import AnyStore, AsyncVerb, StoreWrapper
from postroom.errors import TransactionRefused
from postroom.spi import ErrorClassifier, Verb

_log = logging.getLogger("postroom")

MAX_SECONDS = 5.0
"""A call that fails after this time is not retried: the next one would time out as well, and its caller has waited."""


class RetryingStore(StoreWrapper):
    """Retries the verbs that take a box."""

    def __init__(self, inner: AnyStore, retry: StorageRetry, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._retry = retry
        self._sleep = sleep
        super().__init__(inner)

    def is_transient(self, error: BaseException) -> bool:
        """Returns what the store inside says, or False if it does not classify errors."""
        return isinstance(self.inner, ErrorClassifier) and self.inner.is_transient(error)

    def around(self, verb: Verb, function: AsyncVerb) -> AsyncVerb:
        if not verb.takes_box:
            return function

        async def retrying(*args: object, **kwargs: object) -> object:
            retries, started = 0, time.monotonic()
            while True:
                try:
                    return await function(*args, **kwargs)
                except Exception as error:
                    if type(error) is TransactionRefused:
                        self._note_refusal(error)
                    retries += 1
                    in_transaction = kwargs.get("tx") is not None
                    if in_transaction or not self._should_retry(error, retries, time.monotonic() - started):
                        raise
                    _log.info("store=%s: %s; trying again", self.name, type(error).__name__)
                await self._sleep(self._retry.delay(retries))

        return retrying

    def _should_retry(self, error: Exception, retries: int, seconds: float) -> bool:
        return retries <= self._retry.max_retries and seconds <= MAX_SECONDS and self.is_transient(error)

    def _note_refusal(self, refusal: TransactionRefused) -> None:
        """Notes a refused write in the transactional handler around it, so that a handler that catches the error fails.

        After `TransactionAborted` a handler may continue: the savepoint around the verb undoes the failed statement.
        """
        handler = handling.entry()
        if handler is not None and on_same_database(self, handler.owner):
            handler.note(refusal)
