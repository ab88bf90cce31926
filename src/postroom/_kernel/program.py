"""Programs: code without colour.

A program is a generator. It yields *steps* (a call to make, a statement to run) and receives their results, so it
never knows whether it is run by sync or by async code. Two trampolines run programs; `verb` turns a method that
returns a program into a method of the colour of its object. Everything that must exist in both colours is a program,
and is therefore written once.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import MethodType
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")

Program = Generator[Any, Any, R]


class Call(NamedTuple):
    """A step: call this function; where the code is async, await what it returns."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012 - never changed; a NamedTuple default is not per instance


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
    return Call(function, args, kwargs)


def run(program: Program[R], execute: Callable[[Any], Any]) -> R:
    """The sync trampoline. An error of a step is raised inside the program, at its `yield`."""
    try:
        step = next(program)
        while True:
            try:
                result = execute(step)
            except BaseException as error:  # noqa: BLE001 - it is raised again, inside the program
                step = program.throw(error)
            else:
                step = program.send(result)
    except StopIteration as stop:
        return stop.value


async def run_async(program: Program[R], execute: Callable[[Any], Awaitable[Any]]) -> R:
    """The async trampoline: `run`, with an await."""
    try:
        step = next(program)
        while True:
            try:
                result = await execute(step)
            except BaseException as error:  # noqa: BLE001 - it is raised again, inside the program
                step = program.throw(error)
            else:
                step = program.send(result)
    except StopIteration as stop:
        return stop.value


def _make_call(step: Call) -> Any:
    return step.function(*step.args, **step.kwargs)


class Sync:
    """The colour of an object whose verbs return their results."""

    __slots__ = ()

    def _run(self, program: Program[R]) -> R:
        return run(program, _make_call)


class Async:
    """The colour of an object whose verbs are awaited."""

    __slots__ = ()

    def _run(self, program: Program[R]) -> Coroutine[Any, Any, R]:
        return run_async(program, _make_call)


class instant(Generic[P, R]):  # noqa: N801 - used as a decorator
    """A method that never waits, as a verb of its object's colour: the twin of `verb` for plain functions."""

    def __init__(self, function: Callable[Concatenate[Any, P], R]) -> None:
        self._function = function
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: None, owner: Any = None) -> instant[P, R]: ...
    @overload
    def __get__(self, instance: Async, owner: Any = None) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, instance: Sync, owner: Any = None) -> Callable[P, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        if isinstance(instance, Sync):
            return functools.partial(self._function, instance)
        return functools.partial(_awaitable, self._function, instance)


async def _awaitable(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    return function(*args, **kwargs)


class verb(Generic[P, R]):  # noqa: N801 - used as a decorator
    """A method written as a program; calling it runs the program in the colour of its object."""

    def __init__(self, function: Callable[Concatenate[Any, P], Program[R]]) -> None:
        @functools.wraps(function)
        def run_it(instance: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
            return instance._run(function(instance, *args, **kwargs))  # noqa: SLF001

        self._method = run_it
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: None, owner: Any = None) -> verb[P, R]: ...
    @overload
    def __get__(self, instance: Async, owner: Any = None) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, instance: Sync, owner: Any = None) -> Callable[P, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self._method, instance)
