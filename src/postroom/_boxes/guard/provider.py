"""Guards on a provider of another system, which only knows which keys are processed."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple, Protocol, cast

from postroom._boxes import check
from postroom._boxes.guard.decorating import check_result
from postroom._boxes.guard.guard import AsyncRuns, SyncRuns
from postroom._boxes.guard.key import AnyKey, key_text
from postroom._boxes.guard.options import GuardPolicy
from postroom._boxes.guard.programs import GuardPrograms
from postroom._boxes.transaction import NOT_GIVEN
from postroom._kernel.policy import Box
from postroom._kernel.program import Program, call
from postroom._kernel.texts import ErrorTexts
from postroom._room_store import RoomStore
from postroom.errors import ArgumentTypeError
from postroom.spi import Tx


class ProcessedKeys(Protocol):
    """A provider. Its methods are coroutine functions, or, for sync code, plain ones."""

    def is_processed(self, key: str) -> Any:
        """Returns True if the key is recorded as processed."""

    def mark_processed(self, key: str) -> Any:
        """Records the key as processed."""


class _Place(NamedTuple):
    """What log records say of the provider."""

    name: str
    errors: ErrorTexts


class _ProviderPrograms(GuardPrograms):
    """Asks the provider in place of a store. It has no claims: only `mode="mark_after"` works."""

    def __init__(self, provider: ProcessedKeys, name: str, *, is_async: bool) -> None:
        for method in ("is_processed", "mark_processed"):
            found = getattr(provider, method, None)
            if not callable(found):
                raise ArgumentTypeError(f"the provider must have a method {method}(key)")
            if not is_async and inspect.iscoroutinefunction(found):
                raise ArgumentTypeError(f"{method} is a coroutine function: use postroom.ProviderGuard for async code")
        place = cast("RoomStore", _Place(type(provider).__name__, ErrorTexts()))
        # A provider has keys and no handlers: the first of two handlers would make the other one skip the message.
        policy = GuardPolicy(mode="mark_after", scope="message")
        super().__init__(Box("guard", check.text("name", name, longest=100)), policy, place)
        self._provider = provider

    def check_writes(self) -> None:
        """Does nothing: the writes of a provider are those of another system."""

    def read_processed(self, key: AnyKey, handler: str | None) -> Program[bool]:
        is_processed = yield call(self._provider.is_processed, key_text(key))
        check_result(is_processed)  # an awaitable would count as True, and the handler would never run
        return bool(is_processed)

    def write_processed(self, key: AnyKey, handler: str | None, tx: Tx = NOT_GIVEN) -> Program[bool]:
        yield call(self._provider.mark_processed, key_text(key))
        return True


class ProviderGuard(AsyncRuns):
    """Runs a handler unless a provider of your own knows its key as processed, and marks the key afterwards.

    Two deliveries at the same time both run: the provider has no claims. Use `room.guard()` where you can.
    """

    def __init__(self, provider: ProcessedKeys, name: str = "provider") -> None:
        """Makes a guard.

        Args:
            provider: an object with the coroutine functions `is_processed(key)` and `mark_processed(key)`.
            name: a name for log records.

        Raises:
            ArgumentTypeError: the provider does not have both methods.
        """
        super().__init__(_ProviderPrograms(provider, name, is_async=True))


class SyncProviderGuard(SyncRuns):
    """Runs a handler unless a provider of your own knows its key as processed, and marks the key afterwards.

    As `postroom.ProviderGuard`, for sync code.
    """

    def __init__(self, provider: ProcessedKeys, name: str = "provider") -> None:
        """Makes a guard.

        Args:
            provider: an object with the methods `is_processed(key)` and `mark_processed(key)`.
            name: a name for log records.

        Raises:
            ArgumentTypeError: the provider does not have both methods.
        """
        super().__init__(_ProviderPrograms(provider, name, is_async=False))


ProviderGuard.__module__ = "postroom"
SyncProviderGuard.__module__, SyncProviderGuard.__name__ = "postroom.sync", "ProviderGuard"
SyncProviderGuard.__qualname__ = "ProviderGuard"
