"""The file of `--stores`: the stores of a room, and options of the room, in TOML.

    [stores]
    acme = "postgresql://app:${DB_PASSWORD}@db1/acme"
    globex = { url = "postgresql://db2/globex", schema = "mail" }

    [room]
    open_stores = 10

`${NAME}` in a text is the environment variable of this name, and `$$` is a dollar sign.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from postroom import Postroom, StoreConfig
from postroom.errors import ArgumentValueError, PostroomError

SECTIONS = ("stores", "room")
STORE_OPTIONS = tuple(field.name for field in fields(StoreConfig) if field.name != "pool")
ROOM_OPTIONS = ("hub", "open_stores")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\$)|)")


def room_of(path: Path) -> Postroom:
    """Returns a room with the stores of a file. No error contains a value of the file: it may have a password."""
    parsed = _read(path)
    _refuse_unknown(path, "", parsed, SECTIONS)
    stores, options = (_table(path, parsed, name) for name in SECTIONS)
    if not stores:
        raise ArgumentValueError(
            f'{path}: there are no stores: write [stores] and lines such as acme = "sqlite:///a.db"'
        )
    _refuse_unknown(path, "room.", options, ROOM_OPTIONS)
    for key, value in stores.items():
        if isinstance(value, dict):
            _refuse_unknown(path, f"stores.{key}.", value, STORE_OPTIONS)
    stores, options = _filled(path, "stores", stores), _filled(path, "room", options)
    try:
        usable = [_is_usable(key, value) for key, value in stores.items()]
        if any(usable) and not all(usable):
            return Postroom(discover=lambda: stores, **options)  # which leaves out the others, and has their errors
        return Postroom(stores=stores, **options)
    except PostroomError as error:
        raise ArgumentValueError(f"{path}: {error}") from None


def _is_usable(key: str, value: Any) -> bool:
    try:
        Postroom(stores={key: value})
    except PostroomError:
        return False
    return True


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ArgumentValueError(f"{path}: this is not TOML: {error}") from None
    except UnicodeDecodeError:
        raise ArgumentValueError(f"{path}: this is not TOML: it is not in UTF-8") from None


def _table(path: Path, parsed: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = parsed.get(name, {})
    if not isinstance(table, dict):
        raise ArgumentValueError(f"{path}: {name} must be a table: write [{name}]")
    return table


def _refuse_unknown(path: Path, place: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise ArgumentValueError(f"{path}: there is no {place}{name}; there are {', '.join(known)}")


def _filled(path: Path, place: str, value: Any) -> Any:
    """Returns a value of the file with the environment variables that its texts name."""
    if isinstance(value, dict):
        return {name: _filled(path, f"{place}.{name}", each) for name, each in value.items()}
    return _VARIABLE.sub(lambda found: _variable(path, place, found), value) if isinstance(value, str) else value


def _variable(path: Path, place: str, found: re.Match[str]) -> str:
    name, dollar = found.groups()
    if dollar:
        return "$"
    if name is None:
        raise ArgumentValueError(
            f"{path}: {place} has a $ alone: write ${{NAME}} for a variable, or $$ for a dollar sign"
        )
    value = os.environ.get(name)
    if not value:
        raise ArgumentValueError(f"{path}: {place} needs the environment variable {name}, which is not set, or empty")
    return value
