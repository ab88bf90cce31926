"""The types of handlers: what each kind takes and returns, so that a type checker finds mistakes.

A handler takes a message, or with `batch` a list; a transactional one also takes the transaction, and is async. For a
topic that is a str, a decorator returns its argument with its exact type. For a message type T the messages are
`Message[T]`, which no bound of a type variable can express; there a function is returned as a `Callable`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, overload

from postroom._kernel.decide import Outcome
from postroom._kernel.message import AnyMessage, Key, Message
from postroom.spi import Tx

Result = Outcome | Exception | None
"""What a handler of one message returns: None is success."""
Results = Result | Sequence[Result] | Mapping[str, Result] | Mapping[Key, Result]
"""What a handler of a list returns: one result for all, one for each in order, or by message id or key."""

# Type checkers name these variables in their errors, so their names say what is expected.
T = TypeVar("T")
NoneOrOutcome = TypeVar("NoneOrOutcome", bound=Result | Awaitable[Result])
NoneOrOutcomes = TypeVar("NoneOrOutcomes", bound=Results | Awaitable[Results])
AwaitableNoneOrOutcome = TypeVar("AwaitableNoneOrOutcome", bound=Awaitable[Result])
AwaitableNoneOrOutcomes = TypeVar("AwaitableNoneOrOutcomes", bound=Awaitable[Results])

Given_contra = TypeVar("Given_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class Handles(Protocol[Given_contra, Result_co]):
    """An object that can be registered as a handler."""

    def handle(self, given: Given_contra, /) -> Result_co: ...


class HandlesInTransaction(Protocol[Given_contra, Result_co]):
    """An object that can be registered as a transactional handler."""

    def handle(self, given: Given_contra, tx: Tx, /) -> Result_co: ...


One = AnyMessage
Many = list[AnyMessage]
HandlerOfMessage = TypeVar(
    "HandlerOfMessage",
    bound=Callable[[One], Result | Awaitable[Result]] | Handles[One, Result] | Handles[One, Awaitable[Result]],
)
HandlerOfList = TypeVar(
    "HandlerOfList",
    bound=Callable[[Many], Results | Awaitable[Results]] | Handles[Many, Results] | Handles[Many, Awaitable[Results]],
)
TransactionalHandlerOfMessage = TypeVar(
    "TransactionalHandlerOfMessage",
    bound=Callable[[One, Tx], Awaitable[Result]] | HandlesInTransaction[One, Awaitable[Result]],
)
TransactionalHandlerOfList = TypeVar(
    "TransactionalHandlerOfList",
    bound=Callable[[Many, Tx], Awaitable[Results]] | HandlesInTransaction[Many, Awaitable[Results]],
)


HandlerFunction: TypeAlias = Callable[..., Any]
"""A handler as a worker calls it: with a message or a list, and with the transaction if it is transactional."""


class HandlesAnything(Protocol):
    @property
    def handle(self) -> HandlerFunction: ...


AnyHandler = TypeVar("AnyHandler", bound=HandlerFunction | HandlesAnything)


class ForAny(Protocol):
    """If `batch` or `transactional` is a variable, any handler is accepted."""

    def __call__(self, function: AnyHandler, /) -> AnyHandler: ...


class ForOne(Protocol):
    def __call__(self, function: HandlerOfMessage, /) -> HandlerOfMessage: ...


class ForMany(Protocol):
    def __call__(self, function: HandlerOfList, /) -> HandlerOfList: ...


class ForOneInTransaction(Protocol):
    def __call__(self, function: TransactionalHandlerOfMessage, /) -> TransactionalHandlerOfMessage: ...


class ForManyInTransaction(Protocol):
    def __call__(self, function: TransactionalHandlerOfList, /) -> TransactionalHandlerOfList: ...


class ForOneOf(Protocol[T]):
    @overload
    def __call__(self, function: Callable[[Message[T]], NoneOrOutcome], /) -> Callable[[Message[T]], NoneOrOutcome]: ...
    @overload
    def __call__(self, function: Handles[Message[T], NoneOrOutcome], /) -> Handles[Message[T], NoneOrOutcome]: ...


class ForManyOf(Protocol[T]):
    @overload
    def __call__(
        self, function: Callable[[list[Message[T]]], NoneOrOutcomes], /
    ) -> Callable[[list[Message[T]]], NoneOrOutcomes]: ...
    @overload
    def __call__(
        self, function: Handles[list[Message[T]], NoneOrOutcomes], /
    ) -> Handles[list[Message[T]], NoneOrOutcomes]: ...


class ForOneOfInTransaction(Protocol[T]):
    @overload
    def __call__(
        self, function: Callable[[Message[T], Tx], AwaitableNoneOrOutcome], /
    ) -> Callable[[Message[T], Tx], AwaitableNoneOrOutcome]: ...
    @overload
    def __call__(
        self, function: HandlesInTransaction[Message[T], AwaitableNoneOrOutcome], /
    ) -> HandlesInTransaction[Message[T], AwaitableNoneOrOutcome]: ...


class ForManyOfInTransaction(Protocol[T]):
    @overload
    def __call__(
        self, function: Callable[[list[Message[T]], Tx], AwaitableNoneOrOutcomes], /
    ) -> Callable[[list[Message[T]], Tx], AwaitableNoneOrOutcomes]: ...
    @overload
    def __call__(
        self, function: HandlesInTransaction[list[Message[T]], AwaitableNoneOrOutcomes], /
    ) -> HandlesInTransaction[list[Message[T]], AwaitableNoneOrOutcomes]: ...
