"""The programs in a page of documentation.

The rule: the `python` blocks of a page, from top to bottom, are one program. It runs in an empty directory, as a file.
A `text` block right behind a block is what that block prints; a block without one prints nothing.
`<!-- new program -->` before a block begins another program, in another empty directory. A `sql` block runs on shop.db,
which the program has made; it prints its rows, with | between the columns.

`<!-- file: NAME -->` right before a block of any language: it is not run, but written into the directory under that
name. `<!-- run -->` right before a `console` block: its commands are run. Other blocks are for reading only.

Where a program has written `postgresql://localhost/shop`, with or without a driver, that is a PostgreSQL database of
its own, which is new and empty; its `sql` blocks run there. Where it has written `redis://localhost:6379/0`, that is a
Redis that is empty, and that no other program uses meanwhile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARK = "\x1e"
"""Printed behind each block, to separate the outputs."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NEW = "<!-- new program -->"
_FILE = re.compile(r"<!-- file: (\S+) -->\s*\Z")
_RUN = re.compile(r"<!-- run -->\s*\Z")
_POSTGRES_ADDRESS = re.compile(r"(postgresql(?:\+\w+)?)://localhost/shop\b")
_REDIS_ADDRESS = re.compile(r"\bredis://localhost:6379/0\b")

_SQLITE = """\
import sqlite3 as _sqlite3
for _row in _sqlite3.connect("shop.db").execute({text!r}):
    print(*_row, sep=" | ")
"""
_POSTGRES = """\
import psycopg as _psycopg
with _psycopg.connect("postgresql://localhost/shop") as _connection:
    for _row in _connection.execute({text!r}):
        print(*_row, sep=" | ")
"""
_WRITE = """\
import pathlib as _pathlib
_pathlib.Path({name!r}).parent.mkdir(parents=True, exist_ok=True)
_pathlib.Path({name!r}).write_text({text!r}, "utf-8")
"""
_COMMANDS = """\
import subprocess as _subprocess
_subprocess.run({text!r}, shell=True, check=True)
"""


@dataclass
class Block:
    """One block of code and what it prints."""

    line: int
    code: str
    output: str = ""


@dataclass
class Program:
    """Blocks that run one after the other."""

    page: Path
    blocks: list[Block] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.blocks[0].line}"

    @property
    def text(self) -> str:
        return "\n".join(
            f"# {self.page.name}, line {block.line}\n{block.code}\nprint({MARK!r}, end='')" for block in self.blocks
        )

    @property
    def uses_postgres(self) -> bool:
        return _POSTGRES_ADDRESS.search(self.text) is not None

    @property
    def uses_redis(self) -> bool:
        return _REDIS_ADDRESS.search(self.text) is not None

    def text_on(self, *, postgres: str | None = None, redis: str | None = None) -> str:
        """With the addresses of real servers in place of those on the page."""
        text = self.text
        if postgres is not None:
            database = postgres.partition("://")[2]
            text = _POSTGRES_ADDRESS.sub(lambda found: f"{found[1]}://{database}", text)
        if redis is not None:
            text = _REDIS_ADDRESS.sub(lambda _: redis, text)
        return text


def programs_in(page: Path, text: str) -> list[Program]:
    programs, end = [Program(page)], 0
    output_of: Block | None = None
    for fence in _FENCE.finditer(text):
        language, body = fence[1], fence[2]
        between, end = text[end : fence.start()], fence.end()
        if _NEW in between:
            programs.append(Program(page))
        code = _code(language, body, between, programs[-1])
        if code is not None:
            output_of = Block(text.count("\n", 0, fence.start()) + 2, code)
            programs[-1].blocks.append(output_of)
        else:
            if language == "text" and output_of is not None and not between.strip():
                output_of.output = body
            output_of = None
    return [program for program in programs if program.blocks]


def _code(language: str, body: str, before: str, program: Program) -> str | None:
    """What a block does in its program; None is nothing."""
    if file := _FILE.search(before):
        return _WRITE.format(name=file[1], text=body)
    if language == "console" and _RUN.search(before):
        return _COMMANDS.format(text=f"set -e\n{body}")
    if language == "sql":
        return (_POSTGRES if program.uses_postgres else _SQLITE).format(text=body)
    return body if language == "python" else None


def files_in(page: Path) -> dict[str, str]:
    """The files that a page shows, by name."""
    text, end, files = page.read_text("utf-8"), 0, {}
    for fence in _FENCE.finditer(text):
        if file := _FILE.search(text[end : fence.start()]):
            files[file[1]] = fence[2]
        end = fence.end()
    return files
