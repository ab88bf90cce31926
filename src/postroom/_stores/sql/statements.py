"""Statement text is data: `.sql` files, named statements, one common file and one per engine that overrides it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from postroom.errors import ArgumentTypeError, ArgumentValueError

DEFAULT_PREFIX = "postroom_"

_HEADER = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
OUR_NAME = re.compile(rf"\b{DEFAULT_PREFIX}(\w+)")
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)
_VALID_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


class Statement(NamedTuple):
    """A step of a program: run one statement; its rows come back."""

    name: str
    parameters: Mapping[str, Any] = {}
    alone: bool = False
    """It needs no transaction around it: as the first step, it is one by itself, and what follows is another."""


class Many(NamedTuple):
    """A step of a program: run one statement for each row of parameters; the number of changed rows comes back."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]


class Script(NamedTuple):
    """A step of a program: run text that is not in the book, such as a migration."""

    text: str


@dataclass(frozen=True)
class Text:
    """One statement, for drivers that bind by name and for those that bind by position."""

    named: str

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The parameters in the order in which they stand in the text."""
        return tuple(_PARAMETER.findall(self.named))

    @cached_property
    def positional(self) -> str:
        return _PARAMETER.sub("?", self.named)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The parameters, each once."""
        return tuple(dict.fromkeys(self.columns))

    @cached_property
    def numbered(self) -> str:
        """With $1, $2 … in the order of `parameters`."""
        return _PARAMETER.sub(lambda found: f"${self.parameters.index(found[1]) + 1}", self.named)


@dataclass(frozen=True)
class Migration:
    """One step of the schema. The number and the name are the same in every engine."""

    version: int
    name: str
    text: str


def read(folder: str) -> Traversable:
    return files("postroom._stores.sql").joinpath(folder)


def parse(text: str) -> dict[str, str]:
    """The statements of a file by name, without their comments."""
    parts = _HEADER.split(text)
    return {name: _COMMENT.sub("", body).strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def with_prefix(prefix: str) -> Callable[[str], str]:
    """Gives the tables another prefix. The files stay plain SQL, since they use the default one."""
    return lambda text: text if prefix == DEFAULT_PREFIX else OUR_NAME.sub(rf"{prefix}\1", text)


def check_prefix(prefix: object) -> str:
    if not isinstance(prefix, str):
        raise ArgumentTypeError(f"prefix must be a str, not {type(prefix).__name__}")
    if not _VALID_PREFIX.fullmatch(prefix):
        raise ArgumentValueError(
            f"prefix {prefix!r} cannot begin the name of a table or a key: use up to 40 letters, digits and "
            "underscores, and begin with a letter or an underscore"
        )
    return prefix


def load(engine_folder: str, rename: Callable[[str], str]) -> dict[str, Text]:
    """The common statements, overridden by the engine's, with the names that tables have here."""
    common = read("common.sql").read_text("utf-8")
    own = read(f"{engine_folder}/statements.sql").read_text("utf-8")
    return {name: Text(rename(text)) for name, text in {**parse(common), **parse(own)}.items()}


def load_migrations(engine_folder: str, rename: Callable[[str], str]) -> tuple[Migration, ...]:
    found = []
    for file in sorted(read(f"{engine_folder}/migrations").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, rename(file.read_text("utf-8"))))
    return tuple(found)
