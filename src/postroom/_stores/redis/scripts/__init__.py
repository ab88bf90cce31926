"""The scripts, as text: one per verb, and what they share in `lib`.

The first line of a verb's script says which parts of the library it needs; the loader puts them in front.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_NEEDS = "-- needs:"
VERBS = (
    *("put", "claim", "settle", "turn", "renew", "reap", "replay", "purge", "find", "counts"),
    *("record", "mark", "cancel", "attempts"),
)
NEEDS_IDS, AMBIGUOUS = b"ids", b"ambiguous"
"""Answers of scripts that have changed nothing."""


class Script(NamedTuple):
    """A script, and the name under which the server knows it once it is loaded."""

    verb: str
    text: str
    sha: str


@cache
def script(verb: str) -> Script:
    folder = files(__name__)
    text = folder.joinpath(f"{verb}.lua").read_text("utf-8")
    first = text.partition("\n")[0]
    if not first.startswith(_NEEDS):
        raise ValueError(f"the script of {verb} does not say what it needs")
    parts = ["base", *first.removeprefix(_NEEDS).split()]
    library = [folder.joinpath("lib", f"{part}.lua").read_text("utf-8") for part in parts]
    whole = "\n".join([*library, text])
    return Script(verb, whole, hashlib.sha1(whole.encode()).hexdigest())  # noqa: S324 - the server's own choice
