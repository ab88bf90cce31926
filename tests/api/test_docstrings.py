"""What an editor shows: every public class, method, property and function has a docstring that names its parameters."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import postroom
from postroom import sync
from postroom._boxes.options import BoxOptions
from postroom._room.options import RoomOptions
from postroom.testing import Events
from tests.support import settled

MODULES = [
    "postroom",
    "postroom.sync",
    "postroom.spi",
    "postroom.testing",
    "postroom.sqlalchemy",
    "postroom.web",
    "postroom.cloudevents",
    "postroom.webhooks",
]
API = [postroom.Postroom, postroom.Inbox, postroom.Outbox, sync.Postroom, sync.Inbox, sync.Outbox]
OUR_ERRORS = {name for name in postroom.__all__ if inspect.isclass(getattr(postroom, name)) and issubclass(
    getattr(postroom, name), Exception)}  # fmt: skip


def public_values() -> Iterator[tuple[str, Any]]:
    """The classes and functions that the public modules export."""
    for module in MODULES:
        loaded = importlib.import_module(module)
        for name in loaded.__all__:
            value = getattr(loaded, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{module}.{name}", value


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class that Postroom defines: a tuple, an enum and an error have others."""
    for name in dir(cls):
        owner = next((base for base in cls.__mro__ if name in vars(base)), object)
        if name.startswith("_") or not owner.__module__.startswith("postroom"):
            continue
        value = inspect.getattr_static(cls, name)
        value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(value) or isinstance(value, property):
            yield name, value


HELPERS = [postroom.Backoff, postroom.Outcome, Events]
"""Classes whose methods a user calls, besides those of `API`."""


def functions() -> Iterator[tuple[str, Any]]:
    """The public functions, and the methods of `HELPERS`."""
    for path, value in public_values():
        if inspect.isfunction(value):
            yield path, value
        elif value in HELPERS:
            yield from ((f"{path}.{name}", member) for name, member in members(value) if inspect.isfunction(member))


def test_every_public_class_method_property_and_function_has_a_docstring() -> None:
    undocumented = [path for path, value in public_values() if not inspect.getdoc(value)]
    for path, value in public_values():
        if inspect.isclass(value):
            undocumented += [f"{path}.{name}" for name, member in members(value) if not member.__doc__]
    assert undocumented == []


def documented(function: Any) -> set[str]:
    """The names of the section `Args`, and the names in backticks: a short docstring may name them in a sentence."""
    text = inspect.getdoc(function) or ""
    section = re.search(r"^Args:\n((?: .*\n|\n)*)", text + "\n", re.MULTILINE)
    return set(re.findall(r"^ {4}\*?(\w+):", section[1] if section else "", re.MULTILINE)) | set(
        re.findall(r"`(\w+)(?:=[^`]*)?`", text)
    )


@pytest.mark.parametrize(("path", "function"), [pytest.param(path, value, id=path) for path, value in functions()])
def test_a_docstring_names_every_parameter(path: str, function: Any) -> None:
    parameters = [name for name in inspect.signature(function).parameters if name not in {"self", "cls", "options"}]
    assert [name for name in parameters if name not in documented(function)] == []


VERBS = [(cls, name, function) for cls in API for name, function in members(cls) if inspect.isfunction(function)]


@pytest.mark.parametrize(
    ("cls", "name", "function"),
    [pytest.param(*verb, id=f"{verb[0].__module__}.{verb[0].__name__}.{verb[1]}") for verb in VERBS],
)
def test_a_verb_says_what_it_takes_returns_and_raises(cls: type, name: str, function: Any) -> None:
    text = inspect.getdoc(function) or ""
    parameters = [each for each in inspect.signature(function).parameters if each not in {"self", "options"}]
    assert [each for each in parameters if not re.search(rf"^    \*?{each}: ", text, re.MULTILINE)] == []
    returned = inspect.signature(function).return_annotation
    assert ("Returns:\n" in text) == (returned not in {None, "None"}), returned
    raised = re.findall(r"^    ((?:\w+, )*\w+): ", text.partition("Raises:\n")[2], re.MULTILINE)
    assert {error for line in raised for error in line.split(", ")} <= OUR_ERRORS | {"Exception"}
    assert text.splitlines()[0].endswith(".")


@pytest.mark.parametrize("cls", [postroom.Postroom, sync.Postroom], ids=["async", "sync"])
def test_the_options_of_a_room_are_shown(cls: Any) -> None:
    text = inspect.getdoc(cls.__init__) or ""
    own = {"cleaning", "shutdown_timeout", "selection", "look_interval", "hub"} if cls is postroom.Postroom else set()
    assert set(re.findall(r"^    (\w+): ", text.partition("Raises:")[0], re.MULTILINE)) == {
        "url", *RoomOptions.__annotations__, *own,
    }  # fmt: skip


@pytest.mark.parametrize("cls", [postroom.Postroom, sync.Postroom], ids=["async", "sync"])
def test_the_options_of_a_box_are_shown_with_their_defaults(cls: Any) -> None:
    inbox, outbox = (
        dict(re.findall(r"^    (\w+): (.*)$", (inspect.getdoc(function) or "").partition("Returns:")[0], re.MULTILINE))
        for function in (cls.inbox, cls.outbox)
    )
    assert list(inbox) == ["name", *BoxOptions.__annotations__]
    assert [name for name, text in inbox.items() if "Default: " not in text] == []
    differ = {name for name in inbox if inbox[name] != outbox[name]}
    assert differ == {"name", "retention_from"}


PROPERTIES = {
    postroom.Postroom: "boxes features is_running router store",
    postroom.Inbox: "box is_running name topics",
    postroom.Outbox: "box is_running name topics",
    sync.Postroom: "features router store",
    sync.Inbox: "box name",
    sync.Outbox: "box name",
}
"""What `dir()` shows besides the verbs, which `test_surface.py` pins."""


@pytest.mark.parametrize("cls", API, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
async def test_no_internal_attribute_is_public(cls: Any) -> None:
    module = postroom if cls.__module__ == "postroom" else sync
    room = module.Postroom("memory://")
    instance = room if cls.__name__ == "Postroom" else getattr(room, cls.__name__.lower())()
    shown = {name for name in dir(instance) if not name.startswith("_")}
    verbs = {name for name, member in members(cls) if inspect.isfunction(member)}
    assert shown - verbs == set(PROPERTIES[cls].split())
    await settled(room.close())
