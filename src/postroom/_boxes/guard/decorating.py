"""What a decorated function needs: its name in the guard, the key of a call, and what a duplicate returns."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

from postroom._boxes import check
from postroom._boxes.guard.key import AnyKey
from postroom._boxes.guard.options import GuardPolicy
from postroom._boxes.guard.run import NO_HASHES, Run, RunRequest
from postroom._kernel.guard import BeginStatus
from postroom._kernel.texts import escape
from postroom.errors import ArgumentTypeError, ArgumentValueError, HandlerExists, ResultNotKept

_log = logging.getLogger("postroom")

KeyOf: TypeAlias = str | Callable[..., AnyKey]
"""The name of a parameter, or a function that takes the arguments of a call."""


def check_function(function: Callable[..., object], *, is_async: bool) -> None:
    """Raises for a function whose body has not run when its call returns: its key would be processed before."""
    called = getattr(function, "__call__", None)  # noqa: B004 - of an object, to look at
    if any(map(inspect.isgeneratorfunction, (function, called))) or any(
        map(inspect.isasyncgenfunction, (function, called))
    ):
        raise ArgumentTypeError("a guard cannot run a generator: its body would run after the key is processed")
    if is_async and not inspect.iscoroutinefunction(function):
        raise ArgumentTypeError("this guard is for async functions: use postroom.sync for a plain one")
    if not is_async and any(map(inspect.iscoroutinefunction, (function, called))):
        raise ArgumentTypeError("this guard is for plain functions: use the guard of postroom for an async one")


def check_result(result: object) -> None:
    """Raises for a result of a plain function that is still to run."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ArgumentTypeError(
            f"the function returned a {type(result).__name__}, which has not run yet: its key would be processed "
            "before. Use the guard of postroom for async functions"
        )


class Handlers:
    """The names of the functions that a guard protects in this process."""

    def __init__(self, guard: str, policy: GuardPolicy) -> None:
        self._guard = guard
        self._policy = policy
        self._names: list[str] = []

    def name_of(self, function: Callable[..., object], name: str | None) -> str:
        """Returns the name of a function. Raises if a record of it could be taken for one of another function."""
        given = getattr(function, "__qualname__", None) if name is None else name
        if given is None:
            raise ArgumentTypeError(f"a {type(function).__name__} has no name of its function: pass handler= with one")
        named = check.text("handler", given)
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
        return named

    def add(self, name: str) -> None:
        """Adds the name of a function that fits the guard."""
        self._names.append(name)


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
        if hash_of is not None and policy.mode == "mark_after":
            raise ArgumentValueError(NO_HASHES)
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
        """Keeps the result of a call. If it cannot be kept, that is logged: the handler has run, and must not again."""
        if not self._policy.keep_results:
            return
        try:
            run.keep(result)
        except (ArgumentTypeError, ArgumentValueError) as error:
            _log.error("the result of %s is not kept: %s", escape(self._name), error)

    def result_of_duplicate(self, run: Run) -> Any:
        """Returns what a call returns whose message is not handled again."""
        if not self._policy.keep_results:
            return None
        if run.status is not BeginStatus.PROCESSED:
            raise ResultNotKept("the message has begun before and has no result")
        return run.result
