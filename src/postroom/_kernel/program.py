"""Programs: code without colour.

A program is a generator. It yields *steps* (a call to make, a statement to run) and receives their results, so it
never knows whether it is run by sync or by async code. `verb` marks a method that is a program; each `Sync` or `Async`
class gets a function made from it, a plain function or a real coroutine function. Everything that must exist in both
colours is a program, and is therefore written once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from types import FunctionType, MethodType
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, overload

from postroom.errors import PostroomError

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
    """Run a program whose steps `execute` carries out. An error of a step is raised at the program's `yield`."""
    try:
        step = program.send(None)
        while True:
            try:
                result = execute(step)
            except BaseException as error:  # noqa: BLE001 - it is raised again, inside the program
                step = program.throw(_without_this_frame(error))
            else:
                step = program.send(result)
    except StopIteration as stop:
        return stop.value


def _without_this_frame(error: BaseException) -> BaseException:
    """Drop the frame of the caller, which the traceback gets again when the program raises the error."""
    trace = error.__traceback__
    return error if trace is None else error.with_traceback(trace.tb_next)


class _Verb(Generic[P, R]):
    """What `verb` and `instant` share: a method of an object without colour, from which coloured ones are made."""

    def __init__(self, function: Callable[Concatenate[Any, P], Any]) -> None:
        self._function: Any = function
        self._signature = _with_result(inspect.signature(function))
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: None, owner: Any = None) -> _Verb[P, R]: ...
    @overload
    def __get__(self, instance: Async, owner: Any = None) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, instance: Sync, owner: Any = None) -> Callable[P, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """At run time only for `super()`: a coloured class has the function itself."""
        return self if instance is None else MethodType(self.made_for(type(instance)), instance)

    def made_for(self, owner: type) -> Any:
        """The function of this verb in a coloured class."""
        # Named after the class: a call with wrong arguments fails in this function, with its name in the text.
        function = _copy(self._function, owner)
        made = self._coloured(function, is_async=issubclass(owner, Async))
        if made is not function:
            made = _copy(made, owner, like=self._function)
        made.__annotations__ = {**function.__annotations__, "return": self._signature.return_annotation}
        made.__signature__ = self._signature
        return made

    def _coloured(self, function: FunctionType, *, is_async: bool) -> Any:
        raise NotImplementedError


def _copy(function: FunctionType, owner: type, like: FunctionType | None = None) -> Any:
    """A function as if it were defined in the class itself, there with the name and the globals of `like`."""
    like = like or function
    code = function.__code__.replace(co_name=like.__name__)  # which tracebacks show
    copy: Any = FunctionType(code, like.__globals__, like.__name__, function.__defaults__, function.__closure__)
    functools.update_wrapper(copy, like)
    del copy.__wrapped__  # a program is a generator function, and who unwraps a verb would take the verb for one
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = f"{owner.__qualname__}.{like.__name__}"
    return copy


class instant(_Verb[P, R]):  # noqa: N801 - used as a decorator
    """A method that never waits, as a verb of its object's colour: the twin of `verb` for plain functions."""

    def __init__(self, function: Callable[Concatenate[Any, P], R]) -> None:
        super().__init__(function)

    def _coloured(self, function: FunctionType, *, is_async: bool) -> Any:
        return _awaited(function) if is_async else function


class verb(_Verb[P, R]):  # noqa: N801 - used as a decorator
    """A method written as a program; calling it runs the program in the colour of its object."""

    def __init__(self, function: Callable[Concatenate[Any, P], Program[R]]) -> None:
        super().__init__(function)

    def _coloured(self, function: FunctionType, *, is_async: bool) -> Any:
        return _run_async(function) if is_async else _run_sync(function)


class Colour:
    """The base of `Sync` and `Async`. It gives each subclass the functions that are made from its verbs."""

    __slots__ = ()

    def __init_subclass__(cls, public: str | None = None, **options: Any) -> None:
        """`public` is the path from which users import the class: errors, `repr` and `help` show no other name."""
        super().__init_subclass__(**options)
        if public is not None:
            cls.__module__, _, cls.__name__ = public.rpartition(".")
            cls.__qualname__ = cls.__name__
        members: dict[str, Any] = {}
        for base in reversed(cls.__mro__[:-1]):
            members.update(vars(base))
        for name, member in members.items():
            if isinstance(member, _Verb):
                setattr(cls, name, member.made_for(cls))
            elif public is not None and isinstance(member, FunctionType):
                setattr(cls, name, _copy(member, cls))


class Sync(Colour):
    """The colour of an object whose verbs return their results."""

    __slots__ = ()


class Async(Colour):
    """The colour of an object whose verbs are awaited."""

    __slots__ = ()


def _with_result(signature: inspect.Signature) -> inspect.Signature:
    """The signature that a caller sees: a program that returns T is a verb that returns T."""
    result = signature.return_annotation
    if isinstance(result, str) and result.startswith("Program["):
        result = result.removeprefix("Program[").removesuffix("]")
    return signature.replace(return_annotation=result)


# The functions below get the globals of the module of their verb, so they use only builtins and what they enclose.
# Their loops are `run` with its calls inlined, since every verb passes here. An error of Postroom says what to do: its
# reader needs the line of the call, and not the way to where it was raised.


def _run_sync(function: Callable[..., Program[Any]]) -> Callable[..., Any]:
    expected, without_this_frame = PostroomError, _without_this_frame

    def run_it(*args: Any, **kwargs: Any) -> Any:
        program = function(*args, **kwargs)
        try:
            step = program.send(None)
            while True:
                try:
                    result = step.function(*step.args, **step.kwargs)
                except BaseException as error:  # noqa: BLE001 - it is raised again, inside the program
                    step = program.throw(without_this_frame(error))
                else:
                    step = program.send(result)
        except StopIteration as stop:
            return stop.value
        except expected as error:
            raise error.with_traceback(None)  # noqa: B904 - it is the same error, with its cause

    return run_it


def _run_async(function: Callable[..., Program[Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    expected, without_this_frame = PostroomError, _without_this_frame

    async def run_it(*args: Any, **kwargs: Any) -> Any:
        program = function(*args, **kwargs)
        try:
            step = program.send(None)
            while True:
                try:
                    result = await step.function(*step.args, **step.kwargs)
                except BaseException as error:  # noqa: BLE001 - it is raised again, inside the program
                    step = program.throw(without_this_frame(error))
                else:
                    step = program.send(result)
        except StopIteration as stop:
            return stop.value
        except expected as error:
            raise error.with_traceback(None)  # noqa: B904 - it is the same error, with its cause

    return run_it


def _awaited(function: Callable[..., R]) -> Callable[..., Coroutine[Any, Any, R]]:
    async def run_it(*args: Any, **kwargs: Any) -> R:
        return function(*args, **kwargs)

    return run_it
