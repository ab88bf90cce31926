"""The programs in a page of documentation.

The rule: the `python` blocks of a page, from top to bottom, are one program. It runs in an empty directory, as a file.
A `text` block right behind a block is what that block prints; a block without one prints nothing.
`<!-- new program -->` before a block begins another program, in another empty directory. A `sql` block runs on shop.db,
which the program has made; it prints its rows, with | between the columns. Other blocks (`console`) are not run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARK = "\x1e"
"""Printed behind each block, to tell whose output is whose."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NEW = "<!-- new program -->"
_SQL = """\
import sqlite3 as _sqlite3
for _row in _sqlite3.connect("shop.db").execute({text!r}):
    print(*_row, sep=" | ")
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


def programs_in(page: Path, text: str) -> list[Program]:
    programs, end = [Program(page)], 0
    output_of: Block | None = None
    for fence in _FENCE.finditer(text):
        language, body = fence[1], fence[2]
        between, end = text[end : fence.start()], fence.end()
        if _NEW in between:
            programs.append(Program(page))
        if language in {"python", "sql"}:
            line = text.count("\n", 0, fence.start()) + 2
            output_of = Block(line, body if language == "python" else _SQL.format(text=body))
            programs[-1].blocks.append(output_of)
        else:
            if language == "text" and output_of is not None and not between.strip():
                output_of.output = body
            output_of = None
    return [program for program in programs if program.blocks]
