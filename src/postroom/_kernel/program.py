"""Programs: code that runs in sync and in async mode.

A program is a generator. It yields *steps* and receives their results, so it does not know whether sync or async code
runs it. There are two kinds of programs:

* A `Program` yields calls. `verb` marks a method that is such a program. Each `Sync` class gets a plain function that
  runs it, each `Async` class a coroutine function.
* A program of other steps, such as SQL statements, is run by `sync_runner` with a function that performs a step, or
  becomes part of a `Program` by `interpret`.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Coroutine, Generator
from types import FunctionType, MethodType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

from postroom.errors import PostroomError

P = ParamSpec("P")
R = TypeVar("R")
Owner = TypeVar("Owner")
Step = TypeVar("Step")

Mode = Literal["sync", "async"]
"""Whether code calls functions or awaits them."""

Call: TypeAlias = functools.partial[Any]
"""A step: call this function; async code awaits what it returns."""
Steps: TypeAlias = Generator[Step, Any, R]
"""A program of any kind of steps. It receives the result of each step, and returns R."""
Program: TypeAlias = Steps[Call, R]
"""A program whose steps are calls. It returns R."""
Pending: TypeAlias = Coroutine[Any, Any, R]
"""What a coroutine function returns: R, if awaited."""

call = functools.partial
"""Makes a step: `yield call(function, argument)`."""


def interpret(program: Steps[Step, R], perform: Callable[[Step], Program[object]]) -> Program[R]:
    """Turns a program of any steps into one of calls: `perform` says which calls make up a step."""
    try:
        step = program.send(None)
        while True:
            try:
                result = yield from perform(step)
            except BaseException as error:  # noqa: BLE001 - it is raised again, inside the program
                step = program.throw(error)
            else:
                step = program.send(result)
    except StopIteration as stop:
        value: R = stop.value
        return value


# The functions that the two runners return get the globals of their verb's module (see `_as_method`), so they use only
# builtins and what they enclose. An error of Postroom says what to do: the reader needs the line of the call, and not
# the frames between the call and the place where it was raised.


def sync_runner(
    start: Callable[P, Steps[Step, R]],
    perform: Callable[[Step], object] = operator.call,  # type: ignore[assignment]
) -> Callable[P, R]:
    """Returns a function that starts a program and runs it. An error of a step is raised at the program's `yield`."""
    expected, without_this_frame = PostroomError, _without_this_frame

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        program = start(*args, **kwargs)
        try:
            step = program.send(None)
            while True:
                try:
                    result = perform(step)
                except BaseException as error:  # noqa: BLE001 - it is raised again, inside the program
                    step = program.throw(without_this_frame(error))
                else:
                    step = program.send(result)
        except StopIteration as stop:
            value: R = stop.value
            return value
        except expected as error:
            raise error.with_traceback(None)  # noqa: B904 - it is the same error, with its cause

    return run


def async_runner(start: Callable[P, Program[R]]) -> Callable[P, Pending[R]]:
    """Returns a coroutine function that starts a program and runs it; the twin of `sync_runner`."""
    expected, without_this_frame = PostroomError, _without_this_frame

    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        program = start(*args, **kwargs)
        try:
            step = program.send(None)
            while True:
                try:
                    result = await step()
                except BaseException as error:  # noqa: BLE001 - it is raised again, inside the program
                    step = program.throw(without_this_frame(error))
                else:
                    step = program.send(result)
        except StopIteration as stop:
            value: R = stop.value
            return value
        except expected as error:
            raise error.with_traceback(None)  # noqa: B904 - it is the same error, with its cause

    return run


def _without_this_frame(error: BaseException) -> BaseException:
    """Removes the frame of the caller. The traceback gets it again when the program raises the error."""
    trace = error.__traceback__
    return error if trace is None else error.with_traceback(trace.tb_next)


class _Verb(Generic[P, R]):
    """The base of `verb` and `instant`: a method from which a sync or an async function is made."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._signature = _with_result(inspect.signature(function))
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> _Verb[P, R]: ...
    @overload
    def __get__(self, instance: Async, owner: type | None = None) -> Callable[P, Pending[R]]: ...
    @overload
    def __get__(self, instance: Sync, owner: type | None = None) -> Callable[P, R]: ...
    def __get__(self, instance: object, owner: type | None = None) -> object:
        """Used by type checkers, and at run time by `super()`: a sync or async class has the function itself."""
        return self if instance is None else MethodType(self.made_for(type(instance)), instance)

    def made_for(self, owner: type) -> FunctionType:
        """Returns the function of this verb in a sync or async class."""
        # The program is a method of the class too: a call with wrong arguments fails in it, with its name in the text.
        program = _as_method(owner, self._function)
        made = _as_method(owner, self._in_mode(program, is_async=issubclass(owner, Async)), like=program)
        made.__annotations__ = {**program.__annotations__, "return": self._signature.return_annotation}
        made.__signature__ = self._signature  # type: ignore[attr-defined]
        return made

    def _in_mode(self, function: FunctionType, *, is_async: bool) -> Callable[..., object]:
        raise NotImplementedError


def _as_method(owner: type, function: Callable[..., object], like: Callable[..., object] | None = None) -> FunctionType:
    """Returns a copy of a function that looks like a method of this class in tracebacks, error texts and `help()`.

    The copy has the name, the docstring and the globals of `like`, by default those of the function itself. The globals
    are those in which `typing.get_type_hints` looks up annotations.
    """
    like = like or function
    name = like.__name__
    # Tracebacks show the name in the code object. It is also the qualified name of the function and its coroutines.
    code = function.__code__.replace(co_name=name, co_qualname=f"{owner.__qualname__}.{name}")
    copy = FunctionType(code, like.__globals__, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = function.__annotations__
    copy.__doc__ = like.__doc__
    copy.__dict__.update(like.__dict__)
    return copy


class instant(_Verb[P, R]):  # noqa: N801 - used as a decorator
    """A method that never waits, as a verb: the counterpart of `verb` for plain functions."""

    def __init__(self, function: Callable[Concatenate[Owner, P], R]) -> None:
        super().__init__(function)

    def _in_mode(self, function: FunctionType, *, is_async: bool) -> Callable[..., object]:
        if not is_async:
            return function

        async def run(*args: object, **kwargs: object) -> object:
            return function(*args, **kwargs)

        return run


class verb(_Verb[P, R]):  # noqa: N801 - used as a decorator
    """A method written as a program. A call runs the program in the mode of its object."""

    def __init__(self, function: Callable[Concatenate[Owner, P], Program[R]]) -> None:
        super().__init__(function)

    def _in_mode(self, function: FunctionType, *, is_async: bool) -> Callable[..., object]:
        return async_runner(function) if is_async else sync_runner(function)


class _Verbs:
    """The base of `Sync` and `Async`. It gives each subclass the functions that are made from its verbs."""

    __slots__ = ()

    def __init_subclass__(cls, public: str | None = None, **options: object) -> None:
        """`public` is the path from which users import the class: errors, `repr` and `help` show no other name."""
        super().__init_subclass__(**options)
        if public is not None:
            cls.__module__, _, cls.__name__ = public.rpartition(".")
            cls.__qualname__ = cls.__name__
        members: dict[str, object] = {}
        for base in reversed(cls.__mro__[:-1]):
            members.update(vars(base))
        for name, member in members.items():
            if isinstance(member, _Verb):
                setattr(cls, name, member.made_for(cls))
            elif public is not None and isinstance(member, FunctionType):
                setattr(cls, name, _as_method(cls, member))


class Sync(_Verbs):
    """The mode of an object whose verbs return their results."""

    __slots__ = ()


class Async(_Verbs):
    """The mode of an object whose verbs are awaited."""

    __slots__ = ()


def _with_result(signature: inspect.Signature) -> inspect.Signature:
    """Returns the signature that a caller sees: a program that returns T is a verb that returns T."""
    result = signature.return_annotation
    if isinstance(result, str) and result.startswith("Program["):
        result = result.removeprefix("Program[").removesuffix("]")
    return signature.replace(return_annotation=result)
