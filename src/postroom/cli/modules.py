"""Loads the room that a user names as `module:attribute`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from traceback import StackSummary, TracebackException
from types import ModuleType

import typer

import postroom
from postroom import Postroom
from postroom._kernel.decide import describe
from postroom.errors import ArgumentValueError

_OURS = tuple(f"{module.__path__[0]}{os.sep}" for module in (postroom, importlib))
_FROZEN = "<frozen importlib"


def load(path: str) -> Postroom:
    """The room at `module:attribute`; modules in the current directory count."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ArgumentValueError(f"{path!r} names no room: it should look like shop:room, a module and a name in it")
    _check_name(module_name, attribute)
    module = _import(module_name)
    value = _attribute(module, attribute)
    if not isinstance(value, Postroom):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise ArgumentValueError(f"{path} is a {kind}, not a postroom.Postroom")
    return value


def _check_name(name: str, attribute: str) -> None:
    """Refuse paths. For a file below the current directory, the error says which name to write instead."""
    path = PurePath(name)
    if path.suffix == ".py":
        is_below = not path.is_absolute() and ".." not in path.parts
        module = ".".join((*path.parts[:-1], path.stem)) if is_below else path.stem
        place = "" if is_below else f"run this in the folder of {path.name}, and "
        raise ArgumentValueError(
            f"{f'{name}:{attribute}'!r} names a file: {place}write {module}:{attribute}, a module and a name in it"
        )
    if set(name) & set("/\\") or not all(name.split(".")):
        raise ArgumentValueError(
            f"{name!r} is not the name of a module: write a dotted name such as shop or app.shop, "
            "and run this in the folder that it starts from"
        )


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what a module raises when it is imported
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise ArgumentValueError(f"there is no module {error.name!r}, here or installed") from None
        _print_traceback(error)
        raise ArgumentValueError(f"the module {name!r} could not be imported: {describe(error)}") from None


def _attribute(module: ModuleType, path: str) -> object:
    value: object = module
    try:
        for name in path.split("."):
            value = getattr(value, name)
    except AttributeError:
        raise ArgumentValueError(f"there is no {path!r} in the module {module.__name__!r}") from None
    except Exception as error:  # noqa: BLE001 - a property, or the module's `__getattr__`
        _print_traceback(error)
        message = f"{path!r} of the module {module.__name__!r} could not be read: {describe(error)}"
        raise ArgumentValueError(message) from None
    return value


def _print_traceback(error: BaseException) -> None:
    """Prints where the user's code failed. An error without a frame of the user's code is not printed."""
    trace = TracebackException.from_exception(error)
    for each in _chain(trace):
        each.stack = StackSummary.from_list([frame for frame in each.stack if not _is_ours(frame.filename)])
    if trace.stack or isinstance(error, SyntaxError):
        typer.echo("".join(trace.format()), err=True, nl=False)


def _chain(trace: TracebackException) -> Iterator[TracebackException]:
    yield trace
    for each in (trace.__cause__, trace.__context__, *(trace.exceptions or ())):
        if each is not None:
            yield from _chain(each)


def _is_ours(filename: str) -> bool:
    """Frames of postroom and of the import system say nothing about the user's code."""
    return filename.startswith((_FROZEN, *_OURS))
