"""Stores of the other mode: a sync store with coroutines, and an async store with plain methods.

The wrappers are written for async stores. For a sync room, `CoroutineStore` gives the store coroutines that never
suspend, and outside of all wrappers `PlainStore` runs each coroutine to its end in one step.
"""

from __future__ import annotations

from collections.abc import Callable

from postroom._stores.wrapper import AsyncVerb, StoreWrapper
from postroom.spi import Verb


class CoroutineStore(StoreWrapper):
    """A sync store whose verbs are coroutine functions. They never suspend."""

    def around(self, verb: Verb, function: Callable[..., object]) -> AsyncVerb:
        async def call(*args: object, **kwargs: object) -> object:
            return function(*args, **kwargs)

        return call


class PlainStore(StoreWrapper):
    """An async store whose coroutines never suspend, as a sync store."""

    def around(self, verb: Verb, function: AsyncVerb) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            try:
                function(*args, **kwargs).send(None)
            except StopIteration as stop:
                return stop.value
            raise RuntimeError(f"{verb.name} of a sync store waits for an event loop")

        return run
