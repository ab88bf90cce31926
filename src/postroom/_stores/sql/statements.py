"""Statements and migrations: SQL text in files, and the steps by which programs refer to it.

`common.sql` in this folder has the statements that engines share. `statements.sql` in the folder of an engine has the
statements that only this engine has, and replaces common ones of the same name. `migrations/` in the folder of an
engine has its tables.

`<<m.{label}>>` in a statement stands for a list of all passive labels (`postroom._kernel.fields`): `m.correlation_id`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias, TypeVar

from postroom._kernel.fields import COLUMNS, PASSIVE_LABELS
from postroom._kernel.prefix import DEFAULT_PREFIX
from postroom._kernel.program import Steps

R = TypeVar("R")

_HEADER = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
OUR_NAME = re.compile(rf"\b{DEFAULT_PREFIX}(\w+)")
_FOR_EACH_LABEL = re.compile(r"<<(.+?)>>")
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


StoredTime: TypeAlias = Any
"""A time as the engine stores it: an int of microseconds, or a datetime. All times of an engine are of one kind."""
Parameters: TypeAlias = dict[str, object]
"""The parameters of a statement by name."""


class Statement(NamedTuple):
    """A step of a program: runs one statement. The program receives its rows."""

    name: str
    parameters: Mapping[str, object] = {}
    autocommit: bool = False
    """As the first step of a program it may run without BEGIN and COMMIT, which saves two round trips. The steps after
    it are then another transaction, so nothing that must be atomic with it may follow."""


class Many(NamedTuple):
    """A step of a program: runs one statement for many rows of parameters. The program receives the number of changed
    rows."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]


class Script(NamedTuple):
    """A step of a program: runs SQL text that has no name, such as a migration."""

    text: str


Step: TypeAlias = Statement | Many | Script
SqlProgram: TypeAlias = Steps[Step, R]
"""A program whose steps are statements of one transaction. It returns R."""


def current_time() -> SqlProgram[StoredTime]:
    """Returns the time at which the program runs, as the engine stores it."""
    [(now,)] = yield Statement("current_time")
    return now


@dataclass(frozen=True)
class Text:
    """The text of a statement, for drivers that bind parameters by name and for those that bind by position."""

    named: str

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the parameters, in the order of the text."""
        return tuple(_PARAMETER.findall(self.named))

    @cached_property
    def positional(self) -> str:
        """The text with a `?` for each parameter, in the order of `columns`."""
        return _PARAMETER.sub("?", self.named)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, each once."""
        return tuple(dict.fromkeys(self.columns))

    @cached_property
    def numbered(self) -> str:
        """The text with $1, $2 … for the parameters, in the order of `parameters`."""
        return _PARAMETER.sub(lambda found: f"${self.parameters.index(found[1]) + 1}", self.named)


@dataclass(frozen=True)
class Migration:
    """A numbered step of the schema. The number and the name are the same in every engine."""

    version: int
    name: str
    text: str


def parse(text: str) -> dict[str, str]:
    """Returns the statements of a file by name, without their comments and with the passive labels."""
    parts = _HEADER.split(text)
    bodies = [_FOR_EACH_LABEL.sub(_label_list, _COMMENT.sub("", body).strip()) for body in parts[2::2]]
    return dict(zip(parts[1::2], bodies, strict=True))


def _label_list(item: re.Match[str]) -> str:
    return ", ".join(item[1].replace("{label}", COLUMNS[name]) for name in PASSIVE_LABELS)


def with_prefix(prefix: str) -> Callable[[str], str]:
    """Returns a function that gives the tables another prefix. The files use the default prefix."""
    return lambda text: text if prefix == DEFAULT_PREFIX else OUR_NAME.sub(rf"{prefix}\1", text)


def load(package: str, rename: Callable[[str], str]) -> dict[str, Text]:
    """Returns the statements of an engine by name. `package`: its folder, as a package. `rename`: gives the tables the
    names that they have in this database."""
    common = files(__package__).joinpath("common.sql").read_text("utf-8")
    own = files(package).joinpath("statements.sql").read_text("utf-8")
    return {name: Text(rename(text)) for name, text in {**parse(common), **parse(own)}.items()}


def load_migrations(package: str, rename: Callable[[str], str]) -> tuple[Migration, ...]:
    """Returns the migrations of an engine, in order. `package` and `rename`: see `load`."""
    found = []
    for file in sorted(files(package).joinpath("migrations").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, rename(file.read_text("utf-8"))))
    return tuple(found)
