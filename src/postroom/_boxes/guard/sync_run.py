"""Runs of a sync guard: the context manager, and a thread that renews the leases of all runs of a process."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, cast

from postroom._boxes.guard.run import Run
from postroom._kernel.local import PerProcess
from postroom._kernel.message import Claim
from postroom._kernel.program import Program, sync_runner

_log = logging.getLogger("postroom")
_run_program: Callable[[Program[Any]], Any] = sync_runner(lambda program: program)


class SyncRun(Run):
    """One execution of a guarded handler. Use it with `with`."""

    def __enter__(self) -> Self:
        _run_program(self._begin(time.sleep))
        if not self.acquired:
            return self
        try:
            self._stop_renewal = self._renew_while_running()
            if self._guard.policy.mode == "transactional":
                self._transaction = self._guard.store.transaction()  # type: ignore[attr-defined]
                self.tx = self._transaction.__enter__()
                self._open_scope()
        except BaseException as error:
            self._leave(self._give_up(error))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.acquired:
            return
        error = self._error_of(error)
        if self._transaction is not None:
            self._end_transaction(error, trace)
        elif error is not None:
            self._leave(self._give_up(error))
        else:
            self._leave(self._succeed())

    def _end_transaction(self, error: BaseException | None, trace: TracebackType | None) -> None:
        """Commits the completion together with the writes of the handler, or rolls both back."""
        self._close_scope()
        completed = False
        try:
            if error is None:
                try:
                    self._check_refusal()
                    _run_program(self._succeed(self.tx))
                    completed = True
                except BaseException as failure:
                    self._transaction.__exit__(type(failure), failure, failure.__traceback__)
                    raise
            self._transaction.__exit__(None if error is None else type(error), error, trace)
        except BaseException as failure:
            after = self._settle_unknown(failure) if completed else self._give_up(failure)
            if not self._leave(after) or not isinstance(failure, Exception):
                raise  # a cancellation is passed on, even if the commit has taken place
            return
        self._leave(None if error is None else self._give_up(error))

    def _leave(self, program: Program[Any] | None) -> Any:
        """Ends the renewal, and stores the outcome."""
        stop, self._stop_renewal = self._stop_renewal, None
        if stop is not None:
            stop()
        return None if program is None else _run_program(program)

    def _renew_while_running(self) -> Callable[[], None] | None:
        claim, work = self._claim, self._guard.box.work
        if claim is None or not work.renew or not self._guard.policy.has_lease_end:
            return None
        return _keepers.get().add(lambda: self._renew(claim), work.lease.total_seconds() * work.renew)

    def _renew(self, claim: Claim) -> bool:
        renew = cast("Callable[..., list[bool]]", self._guard.store.renew)  # a sync room has plain methods
        [renewed] = renew(self._guard.box, [claim], self._guard.box.work.lease)
        if not renewed:
            self._lease_lost = True
            _log.warning("the lease was lost while the handler runs: %s", self._guard.where(claim))
        return bool(renewed)


class _Keeper:
    """Renews leases in a thread, which starts with the first lease that is old enough to be renewed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int]] = []
        self._renewals: dict[int, tuple[Callable[[], bool], float]] = {}
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def add(self, renew: Callable[[], bool], seconds: float) -> Callable[[], None]:
        """Calls `renew` each time so many seconds have passed, until it returns False. Returns what ends this."""
        number = next(self._numbers)
        with self._changed:
            self._renewals[number] = renew, seconds
            heapq.heappush(self._due, (time.monotonic() + seconds, number))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="postroom guard", daemon=True)
                self._thread.start()
            elif self._due[0][1] == number:
                self._changed.notify()
        return lambda: self._remove(number)

    def _remove(self, number: int) -> None:
        with self._changed:
            self._renewals.pop(number, None)

    def _run(self) -> None:
        while True:
            self._renew_one(self._wait())

    def _wait(self) -> int:
        """Returns the number of the next lease that is due."""
        with self._changed:
            while True:
                while self._due and self._due[0][1] not in self._renewals:
                    heapq.heappop(self._due)
                left = self._due[0][0] - time.monotonic() if self._due else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._due)[1]
                self._changed.wait(left)

    def _renew_one(self, number: int) -> None:
        with self._changed:
            found = self._renewals.get(number)
        if found is None:
            return
        renew, seconds = found
        holds = True
        try:
            holds = renew()
        except Exception as error:  # noqa: BLE001 - the store may recover before the lease ends
            _log.warning("a lease could not be renewed (%s)", type(error).__name__)
        with self._changed:
            if holds and number in self._renewals:
                heapq.heappush(self._due, (time.monotonic() + seconds, number))
            else:
                self._renewals.pop(number, None)


_keepers = PerProcess(_Keeper)
