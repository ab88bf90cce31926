"""The base of all store wrappers: forwards every verb that the store inside has.

The verbs come from the protocols in `postroom.spi`. Forwarding sets an attribute of the wrapper to a function, so a
verb that a wrapper does not change costs no call, and a verb that the store does not have is missing in the wrapper as
well: `isinstance(wrapper, Migrator)` is true if and only if the store inside is a `Migrator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from postroom._kernel.program import Pending
from postroom._kernel.texts import ErrorTexts
from postroom._room_store import ROOM_VERBS
from postroom.spi import Features, Verb

AnyStore: TypeAlias = Any
"""A store or a wrapper, in either mode. Which verbs it has is known at run time only."""
AsyncVerb = Callable[..., Pending[Any]]
"""A verb of a store, bound to the store. What it takes and returns depends on the verb."""


class StoreWrapper:
    """A store around another store, which it calls `inner`."""

    name: str
    features: Features
    errors: ErrorTexts

    def __init__(self, inner: AnyStore) -> None:
        self.inner = inner
        self.name = inner.name
        self.features = inner.features
        self.addresses: frozenset[str] = getattr(inner, "addresses", frozenset({inner.name}))
        if not self.addresses:  # the database is unknown: only a wrapper of the same store has the same address
            self.addresses = frozenset({f"{inner.name} {id(inner)}"})
        self.tx_classes: Sequence[str] = getattr(inner, "tx_classes", ())
        if hasattr(inner, "errors") and not hasattr(self, "errors"):
            self.errors = inner.errors
        for verb in ROOM_VERBS.values():
            if hasattr(inner, verb.name) and not hasattr(type(self), verb.name):
                function = getattr(inner, verb.name)
                setattr(self, verb.name, self.around(verb, function) if verb.is_async else function)

    def around(self, verb: Verb, function: AsyncVerb) -> Callable[..., object]:
        """Returns what the wrapper has as this verb. `function` is the verb of the store inside.

        It is called by `__init__`: a subclass sets its own attributes first.
        """
        return function


WrapperT = TypeVar("WrapperT", bound=StoreWrapper)


def innermost(store: AnyStore) -> AnyStore:
    """Returns the store inside all wrappers."""
    while isinstance(store, StoreWrapper):
        store = store.inner
    return store


def find_wrapper(store: AnyStore, kind: type[WrapperT]) -> WrapperT:
    """Returns the outermost wrapper of this class around a store. Raises LookupError if there is none."""
    while isinstance(store, StoreWrapper):
        if isinstance(store, kind):
            return store
        store = store.inner
    raise LookupError(f"there is no {kind.__name__}")
