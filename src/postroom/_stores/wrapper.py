"""The base of all store wrappers: forwards every verb that the store inside has.

The verbs come from the protocols in `postroom.spi`. Forwarding sets an attribute of the wrapper to a function, so a
verb that a wrapper does not change costs no call, and a verb that the store does not have is missing in the wrapper as
well: `isinstance(wrapper, Migrator)` is true if and only if the store inside is a `Migrator`.

The first use of a verb makes its function. A process may have a thousand stores, of which it uses a few verbs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, cast

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

    verbs: ClassVar[frozenset[str]]
    """The verbs that the wrapper has, as a set of names."""
    features: Features
    errors: ErrorTexts

    def __new__(cls, inner: AnyStore, *_args: object, **_options: object) -> Self:
        """Makes an object of a subclass that has the verbs of the store inside."""
        if isinstance(inner, StoreWrapper):
            verbs = inner.verbs
        else:
            verbs = frozenset(name for name in ROOM_VERBS if hasattr(inner, name))
        made = _with_verbs(cls, verbs)  # type: ignore[arg-type] # mypy 1 does not know that a class is hashable
        return cast("Self", object.__new__(made))

    def __init__(self, inner: AnyStore, *, name: str | None = None) -> None:
        """`name`: another name than the one of the store inside."""
        self.inner = inner
        self.name: str = inner.name if name is None else name
        self.features = inner.features
        self.addresses: frozenset[str] = getattr(inner, "addresses", frozenset({inner.name}))
        if not self.addresses:  # the database is unknown: only a wrapper of the same store has the same address
            self.addresses = frozenset({f"{inner.name} {id(inner)}"})
        self.tx_classes: Sequence[str] = getattr(inner, "tx_classes", ())
        if hasattr(inner, "errors") and not hasattr(self, "errors"):
            self.errors = inner.errors

    def around(self, verb: Verb, function: AsyncVerb) -> Callable[..., object]:
        """Returns what the wrapper has as this verb. `function` is the verb of the store inside."""
        return function


class _ForwardedVerb:
    """A verb in the class of a wrapper. The first use sets an attribute of the wrapper, which hides this one."""

    def __init__(self, verb: Verb) -> None:
        self._verb = verb

    def __get__(self, wrapper: StoreWrapper | None, owner: type) -> object:
        if wrapper is None:
            return self
        verb = self._verb
        function = getattr(wrapper.inner, verb.name)
        made = wrapper.around(verb, function) if verb.is_async else function
        setattr(wrapper, verb.name, made)
        return made


@cache
def _with_verbs(kind: type[StoreWrapper], forwarded: frozenset[str]) -> type[StoreWrapper]:
    """Returns a subclass of a wrapper class. It forwards these verbs, except those that the class defines."""
    own = frozenset(name for name in ROOM_VERBS if hasattr(kind, name))
    members: dict[str, object] = {name: _ForwardedVerb(ROOM_VERBS[name]) for name in forwarded - own}
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**members, **names, "verbs": forwarded | own})


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
