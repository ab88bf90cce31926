"""Bearer tokens: who may call the service."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from postroom.errors import ArgumentValueError

_log = logging.getLogger("postroom.service")

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
SHORTEST_TOKEN = 16
CHECK_SECONDS = 1.0
"""How long the time of the file is taken as known."""


def parse_tokens(text: str, origin: str) -> dict[str, bytes]:
    """Returns the digest of each token by its name. Lines of comma-separated parts `name=token`.

    A line that begins with `#` is a comment, all of it: a token that was put into a comment is no longer one.

    `origin` names the text in errors, which contain no token.
    """
    tokens: dict[str, bytes] = {}
    lines = [line for line in text.split("\n") if not line.lstrip().startswith("#")]
    for number, part in enumerate(",".join(lines).split(","), 1):
        entry = part.strip()
        if not entry:
            continue
        name, equals, token = entry.partition("=")
        name, token = name.strip(), token.strip()
        if not equals or not _NAME.fullmatch(name):
            raise ArgumentValueError(
                f"{origin}, entry {number}: write name=token, with a name of letters, digits, dots, - and _"
            )
        if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            raise ArgumentValueError(
                f"{origin}: the token of {name!r} needs at least {SHORTEST_TOKEN} visible ASCII characters"
            )
        if name in tokens:
            raise ArgumentValueError(f"{origin}: the name {name!r} is there twice")
        tokens[name] = _digest(token)
    return tokens


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class Tokens:
    """Fixed tokens, and those of a file that is read again when it changes."""

    def __init__(self, fixed: Mapping[str, bytes], file: Path | None, now: Callable[[], float]) -> None:
        """`now`: a monotonic clock, in seconds."""
        self._fixed = dict(fixed)
        self._file = file
        self._now = now
        self._from_file: dict[str, bytes] = {}
        self._state: tuple[int, int, int] | None = None
        self._checked_at = float("-inf")
        if file is not None:
            self._read(file)
        if not self._fixed and not self._from_file:
            raise ArgumentValueError("there is no token: give one, or set auth to none")

    def name_of(self, header: str | None) -> str | None:
        """Returns the name of the token in an Authorization header; None if it is missing or unknown.

        Compares all digests in constant time.
        """
        scheme, _, token = (header or "").partition(" ")
        given = _digest(token.strip())
        found = None
        for name, digest in self._current().items():
            if hmac.compare_digest(digest, given):
                found = name
        return found if scheme.lower() == "bearer" and token else None

    def _current(self) -> Mapping[str, bytes]:
        if self._file is not None and self._now() - self._checked_at >= CHECK_SECONDS:
            try:
                self._read(self._file)
            except (OSError, ArgumentValueError, UnicodeDecodeError) as error:
                if self._state is not None:
                    _log.error("the token file could not be read; the tokens stay as they are: %s", _reason(error))
                    self._state = None
        return {**self._fixed, **self._from_file}

    def _read(self, file: Path) -> None:
        self._checked_at = self._now()
        status = file.stat()
        state = (status.st_mtime_ns, status.st_size, status.st_ino)
        if state != self._state:
            self._from_file = parse_tokens(file.read_text(encoding="utf-8"), f"token file {file.name}")
            if self._state is not None:
                _log.info("the token file has changed: it has %d tokens", len(self._from_file))
            self._state = state


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ArgumentValueError) else type(error).__name__
