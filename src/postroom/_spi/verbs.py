"""How the protocols of a store declare their verbs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

Tx: TypeAlias = Any
"""An open transaction of the caller, or None: a connection, a cursor or a session of a driver, of SQLAlchemy or of
Django, or what `Transactor.transaction` yields. The store checks it."""

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def reads(verb: FunctionT) -> FunctionT:
    """Marks a verb that changes nothing, so that a store may run it in a read-only transaction."""
    verb.__dict__["reads"] = True
    return verb


class Verb(NamedTuple):
    """A method of a store, as its protocol declares it."""

    name: str
    protocol: type
    """The protocol that declares it."""
    parameters: tuple[str, ...]
    """The names of its parameters, without `self`."""
    is_async: bool
    """Stores for async code have it as a coroutine function. The others are plain methods in all stores."""
    reads: bool
    """It changes nothing."""

    @property
    def takes_box(self) -> bool:
        """It works on one box, its first argument."""
        return self.parameters[:1] == ("box",)

    @property
    def takes_tx(self) -> bool:
        """It can run in the caller's transaction."""
        return "tx" in self.parameters


def declared_verbs(*protocols: type) -> Mapping[str, Verb]:
    """Returns the public methods that these protocols declare, by name."""
    verbs: dict[str, Verb] = {}
    for protocol in protocols:
        for name, function in vars(protocol).items():
            if isinstance(function, FunctionType) and not name.startswith("_"):
                code = function.__code__
                parameters = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
                reads = getattr(function, "reads", False)
                verbs[name] = Verb(name, protocol, parameters, iscoroutinefunction(function), reads)
    return MappingProxyType(verbs)
