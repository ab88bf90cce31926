"""The guard, for async and for sync code."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from postroom._boxes.guard.decorating import Guarded, Handlers, KeyOf, check_function, check_result
from postroom._boxes.guard.key import AnyKey
from postroom._boxes.guard.options import GuardPolicy
from postroom._boxes.guard.programs import GuardPrograms
from postroom._boxes.guard.run import RunRequest
from postroom._boxes.guard.verbs import GuardVerbs
from postroom._kernel.policy import Box
from postroom._kernel.program import Async, Sync
from postroom._room_store import RoomStore

if TYPE_CHECKING:  # not at run time: the first imports asyncio
    from postroom._boxes.guard.async_run import AsyncRun
    from postroom._boxes.guard.sync_run import SyncRun

P = ParamSpec("P")
R = TypeVar("R")


class AsyncRuns:
    """Runs async functions once for each key."""

    def __init__(self, programs: GuardPrograms) -> None:
        from postroom._boxes.guard.async_run import AsyncRun

        self._programs = programs
        self._run = AsyncRun
        self._handlers = Handlers(programs.box.name, programs.policy)

    def once(
        self,
        key: KeyOf,
        *,
        handler: str | None = None,
        topic: str | None = None,
        hash: Callable[..., bytes | None] | None = None,  # noqa: A002 - the word of the domain
        wait: timedelta | None = None,
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R | None]]]:
        """Decorates an async function: it runs once for each key.

        A call with a processed key returns None, or the kept result. With `mode="transactional"`, the function gets
        the open transaction as `tx`; callers leave it out.

        Args:
            key: the name of the parameter that is the key, or a function of the arguments that returns the key.
            handler: the name of the handler in the records. None: the qualified name of the function.
            topic: the type of the messages, to store in the records. None: the handler.
            hash: a function of the arguments that returns a content hash. None: contents are not compared.
            wait: how long to wait while another caller has the key. None: as the guard has it.

        Returns:
            The decorator.

        Raises:
            ArgumentTypeError, ArgumentValueError: the function does not fit the guard.
            HandlerExists: the guard has a handler of this name.
        """

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R | None]]:
            check_function(function, is_async=True)
            name = self._handlers.name_of(function, handler)
            guarded = Guarded(function, name, self._programs.policy, key=key, topic=topic, hash_of=hash, wait=wait)
            self._handlers.add(name)

            @functools.wraps(function)
            async def once(*args: P.args, **kwargs: P.kwargs) -> R | None:
                async with self._run(self._programs, guarded.request(args, kwargs)) as run:
                    if not run.acquired:
                        duplicate: R | None = guarded.result_of_duplicate(run)
                        return duplicate
                    result: R = await function(*args, **guarded.arguments(run, kwargs))
                    guarded.keep(run, result)
                return result

            return once

        return decorate

    def run(
        self,
        key: AnyKey,
        *,
        handler: str | None = None,
        topic: str | None = None,
        hash: bytes | None = None,  # noqa: A002 - the word of the domain
        wait: timedelta | None = None,
    ) -> AsyncRun:
        """Returns a context manager for one execution: `async with guard.run(key) as run: if run.acquired: ...`.

        At the end of the block the key is processed. An error in the block releases it, or makes it dead, as the mode
        says. The lease is renewed meanwhile.

        Args:
            key: what identifies the message: a text of up to 255 characters, or a `GuardKey`.
            handler: the handler, as for `try_begin`.
            topic: the type of the message, as for `try_begin`.
            hash: a content hash, as for `try_begin`.
            wait: how long to wait while another caller has the key. None: as the guard has it.

        Returns:
            The context manager. It yields a `Run`.

        Raises:
            ArgumentTypeError, ArgumentValueError: when the block begins, also for a missing key.
            GuardBusy: another caller has the key. Give the delivery back to its broker.
            GuardConflict: the key belongs to a message with another content hash.
            LeaseLost: at the end of the block: the lease was lost, and the outcome is not stored.
        """
        return self._run(self._programs, RunRequest(key, handler, topic, hash, wait))


class SyncRuns:
    """Runs plain functions once for each key."""

    def __init__(self, programs: GuardPrograms) -> None:
        from postroom._boxes.guard.sync_run import SyncRun

        self._programs = programs
        self._run = SyncRun
        self._handlers = Handlers(programs.box.name, programs.policy)

    def once(
        self,
        key: KeyOf,
        *,
        handler: str | None = None,
        topic: str | None = None,
        hash: Callable[..., bytes | None] | None = None,  # noqa: A002 - the word of the domain
        wait: timedelta | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
        """Decorates a plain function: it runs once for each key. As `once` of `postroom.Guard`.

        Args:
            key: the name of the parameter that is the key, or a function of the arguments that returns the key.
            handler: the name of the handler in the records. None: the qualified name of the function.
            topic: the type of the messages, to store in the records. None: the handler.
            hash: a function of the arguments that returns a content hash. None: contents are not compared.
            wait: how long to wait while another caller has the key. None: as the guard has it.

        Returns:
            The decorator.

        Raises:
            ArgumentTypeError, ArgumentValueError: the function does not fit the guard.
            HandlerExists: the guard has a handler of this name.
        """

        def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
            check_function(function, is_async=False)
            name = self._handlers.name_of(function, handler)
            guarded = Guarded(function, name, self._programs.policy, key=key, topic=topic, hash_of=hash, wait=wait)
            self._handlers.add(name)

            @functools.wraps(function)
            def once(*args: P.args, **kwargs: P.kwargs) -> R | None:
                with self._run(self._programs, guarded.request(args, kwargs)) as run:
                    if not run.acquired:
                        duplicate: R | None = guarded.result_of_duplicate(run)
                        return duplicate
                    arguments: Any = guarded.arguments(run, kwargs)
                    result = function(*args, **arguments)
                    check_result(result)
                    guarded.keep(run, result)
                return result

            return once

        return decorate

    def run(
        self,
        key: AnyKey,
        *,
        handler: str | None = None,
        topic: str | None = None,
        hash: bytes | None = None,  # noqa: A002 - the word of the domain
        wait: timedelta | None = None,
    ) -> SyncRun:
        """Returns a context manager for one execution: `with guard.run(key) as run: if run.acquired: ...`.

        As `run` of `postroom.Guard`.

        Args:
            key: what identifies the message: a text of up to 255 characters, or a `GuardKey`.
            handler: the handler, as for `try_begin`.
            topic: the type of the message, as for `try_begin`.
            hash: a content hash, as for `try_begin`.
            wait: how long to wait while another caller has the key. None: as the guard has it.

        Returns:
            The context manager. It yields a `Run`.

        Raises:
            ArgumentTypeError, ArgumentValueError: when the block begins, also for a missing key.
            GuardBusy: another caller has the key. Give the delivery back to its broker.
            GuardConflict: the key belongs to a message with another content hash.
            LeaseLost: at the end of the block: the lease was lost, and the outcome is not stored.
        """
        return self._run(self._programs, RunRequest(key, handler, topic, hash, wait))


class Guard(GuardVerbs, AsyncRuns, Async, public="postroom.Guard"):
    """Runs a handler once for each key, for async code. Made by `room.guard()`.

    Decorate a handler with `once`, or use `run` as a context manager, or call `try_begin` and the verbs that follow it.
    """

    def __init__(self, box: Box, policy: GuardPolicy, store: RoomStore) -> None:
        GuardVerbs.__init__(self, box, policy, store)
        AsyncRuns.__init__(self, self._programs)


class SyncGuard(GuardVerbs, SyncRuns, Sync, public="postroom.sync.Guard"):
    """Runs a handler once for each key, for sync code. Made by `room.guard()` of `postroom.sync`.

    It has the verbs of `postroom.Guard`. Decorate a handler with `once`, or use `run` as a context manager.
    """

    def __init__(self, box: Box, policy: GuardPolicy, store: RoomStore) -> None:
        GuardVerbs.__init__(self, box, policy, store)
        SyncRuns.__init__(self, self._programs)


def store_of(guard: Guard) -> RoomStore:
    """Returns the store of a guard, for edges that open transactions by it."""
    return guard._store  # noqa: SLF001 - not one of the verbs that users call
