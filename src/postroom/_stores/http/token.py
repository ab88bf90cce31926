"""The bearer token of a client. It is in no repr, log or error."""

from __future__ import annotations

import os

from postroom.errors import ArgumentTypeError, ArgumentValueError

ENVIRONMENT = "POSTROOM_TOKEN"


class Token:
    """A bearer token, or none."""

    __slots__ = ("_text",)

    def __init__(self, text: str | None) -> None:
        if text is not None and not isinstance(text, str):
            raise ArgumentTypeError(f"a token must be a str, not {type(text).__name__}")
        if text is not None and (not text or not text.isascii() or not text.isprintable() or " " in text):
            raise ArgumentValueError(f"a token has visible ASCII characters only: check {ENVIRONMENT}")
        self._text = text

    @classmethod
    def from_environment(cls) -> Token:
        """Returns the token of POSTROOM_TOKEN; none if it is not set."""
        return cls(os.environ.get(ENVIRONMENT) or None)

    def headers(self) -> dict[str, str]:
        """Returns the header of a request."""
        return {} if self._text is None else {"Authorization": f"Bearer {self._text}"}

    def __repr__(self) -> str:
        return "<Token>" if self._text is not None else "<no Token>"
