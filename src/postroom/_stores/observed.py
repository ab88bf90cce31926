"""A store that tells observers what happens, and tries again where an error passes by itself.

It wraps any store, so that no store knows that it is watched, and none has a retry loop of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from postroom._kernel.local import PerLoop
from postroom._kernel.observer import Event, Observer, is_heard
from postroom._kernel.program import Async, Call, Program, Sync, call, verb
from postroom._kernel.retry import StorageRetry
from postroom._kernel.scope import are_same, handling
from postroom._kernel.texts import ErrorTexts, Redact
from postroom.errors import OrderMismatch, TransactionRefused
from postroom.spi import (
    Ask,
    Box,
    Claim,
    Counts,
    Draft,
    Filter,
    Key,
    Mark,
    Ordered,
    Purge,
    Reaped,
    Receipt,
    Settlement,
    Sighting,
    StoredMessage,
    Transient,
    Turner,
)

_log = logging.getLogger("postroom")

LONG = 5.0
"""Seconds after which a call that fails is not tried again."""


class ObservedVerbs:
    """The verbs of both colours."""

    _sleep: Callable[[float], Any]
    """Waits, in the object's colour."""
    _agree_in_turn: Callable[[Box], Any]
    """Compares the order of a box, in the object's colour. Of many tasks that write at the same time, one does it."""

    def __init__(
        self,
        store: Any,
        observers: Sequence[Observer],
        retry: StorageRetry = StorageRetry.NONE,
        redact: Redact | None = None,
    ) -> None:
        self.store = store
        self.errors = ErrorTexts(redact)
        """What is stored or logged of an error."""
        self._retry = retry
        self.name = store.name
        self.addresses: frozenset[str] = getattr(store, "addresses", frozenset({store.name}))
        self.features = store.features
        self.tx_classes: Sequence[str] = getattr(store, "tx_classes", ())
        self._observers = tuple(observers)
        self._hearing: dict[str, tuple[Observer, ...]] = {}
        self._agreed: set[str] = set()
        """Boxes whose order is the one that is recorded."""

    def _watch(self, name: str, box: Box, given: Any, step: Call) -> Program[Any]:
        started, result, error = time.perf_counter(), None, None
        try:
            result = yield from self._try(step)
        except BaseException as raised:
            error = raised
            raise
        finally:
            seconds, in_transaction = time.perf_counter() - started, step.kwargs.get("tx") is not None
            self.tell(Event(name, self.name, box, given, result, error, seconds, in_transaction))
        return result

    def _note(self, refusal: TransactionRefused) -> None:
        """A handler that catches this error has not succeeded. (It may go on after `TransactionAborted`: the savepoint
        that it leaves undoes the failed statement.)"""
        handler = handling.entry()
        if handler is not None and are_same(self, handler.owner):
            handler.note(refusal)

    def _try(self, step: Call) -> Program[Any]:
        retry, started = 0, time.monotonic()
        while True:
            try:
                return (yield step)
            except Exception as error:
                if type(error) is TransactionRefused:
                    self._note(error)
                retry += 1
                mine = step.kwargs.get("tx") is None  # half of a caller's transaction cannot be repeated
                # Who was silent for so long will not answer sooner the next time; and the caller has waited enough.
                waited = time.monotonic() - started > LONG
                if retry > self._retry.max_retries or waited or not (mine and self.passes(error)):
                    raise
                _log.info("%s: %s; trying again", self.name, type(error).__name__)
            yield call(self._sleep, self._retry.delay(retry))

    def _agree(self, box: Box, tx: Any = None) -> Program[None]:
        """Before the first verb that depends on the order of a box: compare it with the one that is recorded."""
        if tx is None:
            yield call(self._agree_in_turn, box)
        else:
            yield from self._compare_order(box, tx)

    @verb
    def _agree_alone(self, box: Box) -> Program[None]:
        yield from self._compare_order(box, None)

    def _compare_order(self, box: Box, tx: Any) -> Program[None]:
        if isinstance(self.store, Ordered):
            step = call(self.store.record_order, box, change=box.order.change, tx=tx)
            recorded = yield from self._try(step)
            if recorded is not None and recorded is not box.order.fifo:
                raise _mismatch(self.name, box)
            if recorded is None or (tx is not None and box.order.change):
                return  # not known before the caller's transaction has ended
        self._agreed.add(box.key)

    @verb
    def check_order(self, box: Box) -> Program[None]:
        """Raises OrderMismatch where the box has another order in the store."""
        if box.key not in self._agreed:
            yield from self._agree(box)

    def passes(self, error: Exception) -> bool:
        """Whether an error passes by itself, as far as the store can tell."""
        return isinstance(self.store, Transient) and self.store.is_transient(error)

    def is_heard(self, verb: str) -> bool:
        """Whether anybody wants events of this verb."""
        return bool(self._who_hears(verb))

    def _who_hears(self, verb: str) -> tuple[Observer, ...]:
        if verb not in self._hearing:
            self._hearing[verb] = tuple(observer for observer in self._observers if is_heard(verb, observer))
        return self._hearing[verb]

    def tell(self, event: Event) -> None:
        """Pass an event on to every observer that wants it."""
        for observer in self._who_hears(event.verb):
            try:
                observer(event)
            except Exception as error:  # noqa: BLE001 - an observer must not break what it watches
                self.errors.log(logging.ERROR, "an observer failed on %s", event.verb, error=error)

    @verb
    def put(self, box: Box, drafts: Sequence[Draft], *, tx: Any = None) -> Program[list[Receipt]]:
        if box.key not in self._agreed:
            yield from self._agree(box, tx)
        return (yield from self._watch("put", box, drafts, call(self.store.put, box, drafts, tx=tx)))

    @verb
    def claim(self, box: Box, ask: Ask, *, tx: Any = None) -> Program[list[StoredMessage]]:
        if box.key not in self._agreed:
            yield from self._agree(box, tx)
        return (yield from self._watch("claim", box, ask, call(self.store.claim, box, ask, tx=tx)))

    @verb
    def settle(self, box: Box, settlements: Sequence[Settlement], *, tx: Any = None) -> Program[list[bool]]:
        return (yield from self._watch("settle", box, settlements, call(self.store.settle, box, settlements, tx=tx)))

    @verb
    def turn(
        self, box: Box, settlements: Sequence[Settlement], ask: Ask
    ) -> Program[tuple[list[bool], list[StoredMessage]]]:
        """Settle and claim; in one transaction where the store can. Observers see the two verbs."""
        if box.key not in self._agreed:
            yield from self._agree(box)
        settled: list[bool] = []
        if settlements and isinstance(self.store, Turner):
            started = time.perf_counter()
            settled, messages = yield from self._try(call(self.store.turn, box, settlements, ask))
            seconds = time.perf_counter() - started
            self.tell(Event("settle", self.name, box, settlements, settled, None, seconds))
            self.tell(Event("claim", self.name, box, ask, messages, None, seconds))
            return settled, messages
        if settlements:
            step = call(self.store.settle, box, settlements, tx=None)
            settled = yield from self._watch("settle", box, settlements, step)
        return settled, (yield from self._watch("claim", box, ask, call(self.store.claim, box, ask, tx=None)))

    def transaction(self) -> Any:
        return self.store.transaction()

    @verb
    def renew(self, box: Box, claims: Sequence[Claim], lease: timedelta) -> Program[list[bool]]:
        return (yield from self._watch("renew", box, claims, call(self.store.renew, box, claims, lease)))

    @verb
    def reap(self, box: Box, limit: int) -> Program[Reaped]:
        return (yield from self._watch("reap", box, limit, call(self.store.reap, box, limit)))

    @verb
    def replay(self, box: Box, which: Filter, *, tx: Any = None) -> Program[list[Key]]:
        if box.key not in self._agreed:
            yield from self._agree(box, tx)
        return (yield from self._watch("replay", box, which, call(self.store.replay, box, which, tx=tx)))

    @verb
    def purge(self, box: Box, purge: Purge) -> Program[int]:
        return (yield from self._watch("purge", box, purge, call(self.store.purge, box, purge)))

    @verb
    def find(self, box: Box, which: Filter) -> Program[list[StoredMessage]]:
        return (yield from self._watch("find", box, which, call(self.store.find, box, which)))

    @verb
    def counts(self, box: Box) -> Program[Counts]:
        return (yield from self._watch("counts", box, None, call(self.store.counts, box)))

    @verb
    def record_order(self, box: Box, *, change: bool = False, tx: Any = None) -> Program[bool | None]:
        return (yield call(self.store.record_order, box, change=change, tx=tx))

    @verb
    def boxes(self) -> Program[list[str]]:
        return (yield call(self.store.boxes))

    @verb
    def record(self, box: Box, drafts: Sequence[Draft], *, tx: Any = None) -> Program[list[Sighting]]:
        return (yield from self._watch("record", box, drafts, call(self.store.record, box, drafts, tx=tx)))

    @verb
    def mark(
        self, box: Box, keys: Sequence[Key], mark: Mark, *, error: str | None = None, tx: Any = None
    ) -> Program[list[bool]]:
        step = call(self.store.mark, box, keys, mark, error=error, tx=tx)
        return (yield from self._watch("mark", box, keys, step))

    @verb
    def cancel(self, box: Box, which: Filter, *, tx: Any = None) -> Program[list[Key]]:
        return (yield from self._watch("cancel", box, which, call(self.store.cancel, box, which, tx=tx)))

    @verb
    def migrate(self) -> Program[list[int]]:
        return (yield call(self.store.migrate))

    @verb
    def schema_version(self) -> Program[int]:
        return (yield call(self.store.schema_version))

    def schema_script(self) -> str:
        return str(self.store.schema_script())

    @verb
    def close(self) -> Program[None]:
        yield call(self.store.close)


def _mismatch(store: str, box: Box) -> OrderMismatch:
    opened, has = ("fifo", "none") if box.order.fifo else ("none", "fifo")
    return OrderMismatch(
        f'{box.kind} {box.name!r} has order="{has}" in {store}, and this process opens it with order="{opened}": write '
        f'{box.kind}({box.name!r}, order="{has}"), or, to change the order of the box, pass change_order=True once'
    )


class ObservedStore(ObservedVerbs, Async):
    """For async code."""

    _sleep = staticmethod(asyncio.sleep)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._comparing: PerLoop[dict[str, asyncio.Lock]] = PerLoop(dict)

    async def _agree_in_turn(self, box: Box) -> None:
        async with self._comparing.get().setdefault(box.key, asyncio.Lock()):  # fair: tasks go on in their order
            if box.key not in self._agreed:
                await self._agree_alone(box)

    async def wait(self) -> frozenset[str]:
        keys: frozenset[str] = await self.store.wait()
        return keys


class SyncObservedStore(ObservedVerbs, Sync):
    """For sync code."""

    _sleep = staticmethod(time.sleep)

    def _agree_in_turn(self, box: Box) -> None:
        self._agree_alone(box)
