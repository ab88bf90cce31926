"""What a decorated function needs: its name in the guard, the key of a call, and what a duplicate returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

from postroom._boxes import check
from postroom._boxes.guard.key import AnyKey
from postroom._boxes.guard.options import GuardPolicy
from postroom._boxes.guard.run import Run, RunRequest
from postroom._kernel.guard import BeginStatus
from postroom.errors import ArgumentTypeError, ArgumentValueError, HandlerExists, ResultNotKept

KeyOf: TypeAlias = str | Callable[..., AnyKey]
"""The name of a parameter, or a function that takes the arguments of a call."""


class Handlers:
    """The names of the functions that a guard protects in this process."""

    def __init__(self, guard: str, policy: GuardPolicy) -> None:
        self._guard = guard
        self._policy = policy
        self._names: list[str] = []

    def add(self, function: Callable[..., object], name: str | None) -> str:
        """Returns the name of a function. Raises if a record of it could be taken for one of another function."""
        named = check.text("handler", getattr(function, "__qualname__", None) if name is None else name)
        if named in self._names:
            raise HandlerExists(
                f"guard {self._guard!r} has a handler {named!r}: they would skip each other's messages. Pass another "
                "handler= name, or use another guard"
            )
        if self._names and self._policy.scope == "message":
            raise ArgumentValueError(
                f'guard {self._guard!r} has scope="message" and the handler {self._names[0]!r}: a second one would '
                'find each message processed. Use scope="handler", or another guard'
            )
        self._names.append(named)
        return named


class Guarded:
    """A function that a guard protects."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        policy: GuardPolicy,
        *,
        key: KeyOf,
        topic: str | None,
        hash_of: Callable[..., bytes | None] | None,
        wait: timedelta | None,
    ) -> None:
        self._signature = inspect.signature(function)
        self._name = name
        self._policy = policy
        self._key = key
        self._topic = topic
        self._hash_of = hash_of
        self._wait = check.optional_duration("wait", wait)
        parameters = self._signature.parameters
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
        if isinstance(key, str) and key not in parameters:
            raise ArgumentValueError(f"{name} has no parameter {key!r} to take the key from: it has {list(parameters)}")
        if not isinstance(key, str) and not callable(key):
            raise ArgumentTypeError("key must be the name of a parameter, or a function of the arguments")
        if policy.mode == "transactional" and "tx" not in parameters and not takes_any:
            raise ArgumentTypeError(f"{name} must take tx, since its guard is transactional: def {name}(..., tx)")

    def request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunRequest:
        """Returns what a call is about to run. Raises if it has no key: it would run unguarded."""
        key = self._key(*args, **kwargs) if callable(self._key) else self._argument(self._key, args, kwargs)
        digest = None if self._hash_of is None else self._hash_of(*args, **kwargs)
        return RunRequest(key, self._name, self._topic, digest, self._wait)

    def _argument(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = self._signature.bind_partial(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments.get(name)

    def arguments(self, run: Run, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the keyword arguments of a call, with the transaction."""
        return {**kwargs, "tx": run.tx} if self._policy.mode == "transactional" else kwargs

    def keep(self, run: Run, result: object) -> None:
        if self._policy.keep_results:
            run.keep(result)

    def result_of_duplicate(self, run: Run) -> Any:
        """Returns what a call returns whose message is not handled again."""
        if not self._policy.keep_results:
            return None
        if run.status is not BeginStatus.PROCESSED:
            raise ResultNotKept("the message has begun before and has no result")
        return run.result
