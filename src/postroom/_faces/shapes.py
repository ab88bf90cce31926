"""What a type checker knows of handlers: what each kind takes and returns, so that a mistake is found before it runs.

A handler takes a message, or with `batch` a list; a transactional one also takes the transaction, and is async. For a
topic that is a str, a decorator returns what it was given, with its exact type. For a message type T the messages are
`Message[T]`, which no bound of a type variable can say; there a function is returned as a `Callable`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, overload

from postroom._kernel.decide import Outcome
from postroom._kernel.message import Key, Message

Result = Outcome | Exception | None
"""What a handler of one message returns: None is success."""
Results = Result | Sequence[Result] | Mapping[str, Result] | Mapping[Key, Result]
"""What a handler of a list returns: one result for all, one for each in order, or by message id or key."""

T = TypeVar("T")
R = TypeVar("R", bound=Result | Awaitable[Result])
Rs = TypeVar("Rs", bound=Results | Awaitable[Results])
Later = TypeVar("Later", bound=Awaitable[Result])
Laters = TypeVar("Laters", bound=Awaitable[Results])

Given_contra = TypeVar("Given_contra", contravariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)


class Handles(Protocol[Given_contra, Answer_co]):
    """An object that can be registered as a handler."""

    def handle(self, given: Given_contra, /) -> Answer_co: ...


class HandlesInTransaction(Protocol[Given_contra, Answer_co]):
    """An object that can be registered as a transactional handler."""

    def handle(self, given: Given_contra, tx: Any, /) -> Answer_co: ...


One = Message[Any]
Many = list[Message[Any]]
F1 = TypeVar(
    "F1", bound=Callable[[One], Result | Awaitable[Result]] | Handles[One, Result] | Handles[One, Awaitable[Result]]
)
FN = TypeVar(
    "FN",
    bound=Callable[[Many], Results | Awaitable[Results]] | Handles[Many, Results] | Handles[Many, Awaitable[Results]],
)
F1Tx = TypeVar("F1Tx", bound=Callable[[One, Any], Awaitable[Result]] | HandlesInTransaction[One, Awaitable[Result]])
FNTx = TypeVar("FNTx", bound=Callable[[Many, Any], Awaitable[Results]] | HandlesInTransaction[Many, Awaitable[Results]])


class HandlesAnything(Protocol):
    @property
    def handle(self) -> Callable[..., Any]: ...


F = TypeVar("F", bound=Callable[..., Any] | HandlesAnything)


class ForAny(Protocol):
    """Where `batch` or `transactional` is a variable, nothing more is known."""

    def __call__(self, function: F, /) -> F: ...


class ForOne(Protocol):
    def __call__(self, function: F1, /) -> F1: ...


class ForMany(Protocol):
    def __call__(self, function: FN, /) -> FN: ...


class ForOneInTransaction(Protocol):
    def __call__(self, function: F1Tx, /) -> F1Tx: ...


class ForManyInTransaction(Protocol):
    def __call__(self, function: FNTx, /) -> FNTx: ...


class ForOneOf(Protocol[T]):
    @overload
    def __call__(self, function: Callable[[Message[T]], R], /) -> Callable[[Message[T]], R]: ...
    @overload
    def __call__(self, function: Handles[Message[T], R], /) -> Handles[Message[T], R]: ...


class ForManyOf(Protocol[T]):
    @overload
    def __call__(self, function: Callable[[list[Message[T]]], Rs], /) -> Callable[[list[Message[T]]], Rs]: ...
    @overload
    def __call__(self, function: Handles[list[Message[T]], Rs], /) -> Handles[list[Message[T]], Rs]: ...


class ForOneOfInTransaction(Protocol[T]):
    @overload
    def __call__(self, function: Callable[[Message[T], Any], Later], /) -> Callable[[Message[T], Any], Later]: ...
    @overload
    def __call__(
        self, function: HandlesInTransaction[Message[T], Later], /
    ) -> HandlesInTransaction[Message[T], Later]: ...


class ForManyOfInTransaction(Protocol[T]):
    @overload
    def __call__(
        self, function: Callable[[list[Message[T]], Any], Laters], /
    ) -> Callable[[list[Message[T]], Any], Laters]: ...
    @overload
    def __call__(
        self, function: HandlesInTransaction[list[Message[T]], Laters], /
    ) -> HandlesInTransaction[list[Message[T]], Laters]: ...
