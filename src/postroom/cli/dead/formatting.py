"""How the commands for dead letters print them."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from postroom._kernel.message import AnyMessage
from postroom._kernel.texts import escape


def lines(found: Sequence[AnyMessage]) -> str:
    """Returns two lines for each message. A table would be too wide for a terminal, and would cut ids, which the user
    copies into other commands.
    """
    return "\n".join(f"{escape(letter.message_id)}  {about(letter)}\n    {_death(letter)}" for letter in found)


def about(message: AnyMessage) -> str:
    group = f", group {escape(message.group)}" if message.group else ""
    return f"from {escape(message.source)}, topic {escape(message.topic)}{group}"


def _death(letter: AnyMessage) -> str:
    error = clean(shorten(letter.last_error or "no reason given")).replace("\n", " ")
    return f"died {letter.completed_at:%Y-%m-%d %H:%M:%S} UTC, {_tries(letter)}: {error}"


def _tries(letter: AnyMessage) -> str:
    """Without a counted attempt, a letter may have been claimed: its handler never ended, or a caller has failed it."""
    if letter.attempt:
        return f"tried {_times(letter.attempt)}"
    return f"claimed {_times(letter.deliveries)}" if letter.deliveries else "not tried"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def shorten(text: str, most: int = 120) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def clean(text: str) -> str:
    """Escapes control characters, which could control the terminal, except line breaks and tabs."""
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode() for sign in text
    )


def describe(letter: AnyMessage, *, payload: bool = False) -> dict[str, object]:
    """Returns all fields of a message as JSON values; the payload only on request."""
    known: dict[str, object] = {
        name: value if isinstance(value, str | int | None) else _as_text(value)
        for name, value in letter._asdict().items()
        if name not in {"payload", "headers", "claim", "lease"}
    }
    known["headers"] = dict(letter.headers)
    if payload:
        known["payload"] = _in_base64(letter.payload) if isinstance(letter.payload, bytes) else letter.payload
    return known


def _as_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _in_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
