"""The prefix of all names that a store creates: tables, keys, channels."""

from __future__ import annotations

import re

from postroom.errors import ArgumentTypeError, ArgumentValueError

DEFAULT_PREFIX = "postroom_"
_VALID_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")


def check_prefix(prefix: object) -> str:
    if not isinstance(prefix, str):
        raise ArgumentTypeError(f"prefix must be a str, not {type(prefix).__name__}")
    if not _VALID_PREFIX.fullmatch(prefix):
        raise ArgumentValueError(
            f"prefix {prefix!r} cannot begin the name of a table or a key: use up to 40 letters, digits and "
            "underscores, and begin with a letter or an underscore"
        )
    return prefix
