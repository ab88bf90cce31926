"""Handlers: the function that handles a topic, and how it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from postroom._boxes import check, codec, handler_annotations, transaction_annotations, typed_messages
from postroom._boxes.handler_session import with_session
from postroom._boxes.handler_types import HandlerFunction
from postroom._kernel.policy import Box
from postroom._room_store import RoomStore
from postroom.errors import ArgumentTypeError, ArgumentValueError, FeatureMissing, HandlerExists


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """The handler of a topic, as it was registered."""

    topic: str
    function: HandlerFunction
    decode: codec.Decoder
    """Decodes a payload to the type that the function takes."""
    batch: int | None
    """The longest list of messages that it takes; None: it takes one message, not a list."""
    concurrency: int | None
    transactional: bool
    timeout: timedelta | None
    is_async: bool
    annotated: HandlerFunction
    """The function whose annotations count: `function`, or the one inside of it."""

    @property
    def is_plain(self) -> bool:
        """True if it takes one message, in no transaction."""
        return self.batch is None and not self.transactional

    def check_transaction(self, tx_classes: Sequence[str]) -> None:
        """Raises FeatureMissing if a store with these transactions cannot give what the handler is annotated with."""
        if not self.transactional:
            return
        try:
            session = transaction_annotations.session_class(self.annotated, tx_classes)
        except ArgumentTypeError as error:
            raise FeatureMissing(str(error)) from None
        if session is None and self.function is not self.annotated:
            raise FeatureMissing("the handler needs a SQLAlchemy session, and this store does not declare one")


class Handlers:
    """The handlers of one box: one per topic."""

    def __init__(self, box: Box, store: RoomStore) -> None:
        self._box = box
        self._store = store
        self._by_topic: dict[str, Handler] = {}
        self.get: Callable[[str], Handler | None] = self._by_topic.get
        """Returns the handler of a topic."""

    def add(
        self,
        topic: str | type,
        function: object,
        *,
        batch: int | None,
        concurrency: int | None,
        transactional: bool,
        timeout: timedelta | None,
    ) -> None:
        """Registers a handler. Raises if it cannot be called as it would be, so that no message fails because of it."""
        name = check.text("topic", typed_messages.topic_of(topic) if isinstance(topic, type) else topic)
        if not self._store.features.claims:
            raise FeatureMissing(
                f"{self._box.kind} {self._box.name!r} only accepts messages here, since its store has no work queue: "
                "register the handler in a process that has the database"
            )
        target = _callable(function)
        is_async = _is_async(target)
        if name in self._by_topic:
            raise HandlerExists(f"{self._box.kind} {self._box.name!r} has a handler for {name!r} already")
        if check.flag("transactional", transactional):
            if not self._store.features.transactional:
                raise FeatureMissing(
                    f"{self._box.kind} {self._box.name!r} is on a store without transactions: make the handler "
                    "idempotent, or use a store on your SQL database"
                )
            if not is_async:
                raise ArgumentTypeError("a transactional handler is an async function: its transaction is awaited")
        _check_takes(target, 2 if transactional else 1)
        parameter = handler_annotations.parameter_of(target, batch, topic)
        handler_annotations.check_result(target)
        session = transaction_annotations.session_class(target, self._store.tx_classes) if transactional else None
        self._by_topic[name] = Handler(
            name,
            target if session is None else with_session(target, session),
            codec.Decoder(topic if isinstance(topic, type) else parameter.payload),
            None if batch is None else check.count("batch", batch),
            None if concurrency is None else check.count("concurrency", concurrency),
            transactional,
            check.optional_duration("timeout", timeout),
            is_async,
            target,
        )

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._by_topic.values())

    def __len__(self) -> int:
        return len(self._by_topic)


def _callable(function: object) -> HandlerFunction:
    """Returns the function itself, or the `handle` method of an object."""
    if isinstance(function, type):
        raise ArgumentTypeError(f"pass an instance of {function.__name__}, not the class itself")
    target = getattr(function, "handle", function)
    if not callable(target):
        raise ArgumentTypeError(f"a handler is a function or has a handle method; {type(function).__name__} is neither")
    return target


def _is_async(function: HandlerFunction) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _check_takes(function: HandlerFunction, count: int) -> None:
    """Raises if a function cannot be called with so many arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        raise ArgumentValueError(
            "a handler takes one argument, the message or the list of messages; with transactional=True it takes a "
            "second one, the transaction"
            if count == 1
            else "a transactional handler takes two arguments: the message or the list of messages, and the transaction"
        ) from None
