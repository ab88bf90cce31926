"""The Lua scripts: one per verb, and the parts that they share in `lib`.

The first line of a script names the parts that it needs. The loader puts them in front of it, and constants from
`layout.py` in front of them. It leaves out the functions that the script does not use: a script creates its functions
on every call, which takes a large part of the time of a small one.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from postroom._stores.redis.layout import CONTENT, KEYS, PROGRESS, READ_BY_SCRIPTS

_NEEDS = "-- needs:"
NEEDS_IDS, AMBIGUOUS = b"ids", b"ambiguous"
NO_JOIN, NO_MESSAGE, NO_STEP, JOIN_ENDED, JOIN_FULL = b"no join", b"no message", b"no step", b"join ended", b"join full"
CIRCLE = b"waits for itself"
WITHOUT_WRITES = (NEEDS_IDS, AMBIGUOUS, NO_JOIN, NO_MESSAGE, NO_STEP, JOIN_ENDED, JOIN_FULL, CIRCLE)
"""Replies of scripts that have written nothing: see lib/arrivals.lua, lib/settlements.lua and lib/joins.lua."""


class Script(NamedTuple):
    """A script and its SHA1 digest, by which the server runs it once it is loaded."""

    verb: str
    text: str
    sha: str


@cache
def script(verb: str) -> Script:
    """Returns the script of a verb with all parts that it needs."""
    folder = files(__name__)
    text = folder.joinpath(f"{verb}.lua").read_text("utf-8")
    first = text.partition("\n")[0]
    if not first.startswith(_NEEDS):
        raise ValueError(f"the first line of {verb}.lua does not begin with {_NEEDS}")
    parts = ["base", *first.removeprefix(_NEEDS).split()]
    library = [folder.joinpath("lib", f"{part}.lua").read_text("utf-8") for part in parts]
    whole = _without_unused_functions("\n".join([constants(), *library, text]))
    return Script(verb, whole, hashlib.sha1(whole.encode()).hexdigest())  # noqa: S324 - EVALSHA requires SHA1


def constants() -> str:
    """Returns the constants of `layout.py` in Lua."""
    lines = [f"local {name.upper()} = KEYS[{position}]" for position, name in enumerate(KEYS, 1)]
    lines += [f"local {name.upper()} = {position}" for position, name in enumerate(PROGRESS, 1)]
    names = ", ".join(f"'{name}'" for name in READ_BY_SCRIPTS)
    lines += [f"local CONTENT, CONTENT_FIELDS = {{{names}}}, {len(CONTENT)}"]
    lines += [f"local TOPIC = {CONTENT.index('topic') + 1}"]
    return "\n".join(lines)


_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end\n", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)


def _without_unused_functions(text: str) -> str:
    """Returns a script without comments and without functions that nothing uses, directly or through others."""
    text = _COMMENT.sub("", text)
    functions = {found[1]: found[0] for found in _FUNCTION.finditer(text)}
    used: set[str] = set()
    found = functions.keys() & set(re.findall(r"\w+", _FUNCTION.sub("", text)))
    while found:
        used |= found
        names = set(re.findall(r"\w+", "".join(functions[name] for name in found)))
        found = (functions.keys() & names) - used
    return _FUNCTION.sub(lambda function: function[0] if function[1] in used else "", text)
