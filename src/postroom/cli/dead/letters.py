"""What the commands for dead letters share: which letters, and how they are shown."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any

from postroom import Message
from postroom._kernel.texts import escape
from postroom.cli.option_sets import Fitting
from postroom.cli.place import AnyBox, Place, pages


def letters(place: Place, box: AnyBox, fitting: Fitting, most: int | None) -> Iterator[Message[Any]]:
    """All letters that fit, without their payloads."""
    return islice(pages(place, partial(box.dead_letters, **asdict(fitting))), most)


def lines(found: Sequence[Message[Any]]) -> str:
    """Two lines for each: a table with ids and errors in it would be too wide for a terminal, and an id that is cut
    cannot be used. It is the message id, which the other commands ask for.
    """
    return "\n".join(f"{escape(letter.message_id)}  {about(letter)}\n    {_death(letter)}" for letter in found)


def about(message: Message[Any]) -> str:
    group = f", group {escape(message.group)}" if message.group else ""
    return f"from {escape(message.source)}, topic {escape(message.topic)}{group}"


def _death(letter: Message[Any]) -> str:
    error = clean(shorten(letter.last_error or "no reason given")).replace("\n", " ")
    return f"died {letter.completed_at:%Y-%m-%d %H:%M:%S} UTC, {_tries(letter)}: {error}"


def _tries(letter: Message[Any]) -> str:
    """A letter without a counted attempt may have been claimed: its handler never ended, or it was failed by a verb."""
    if letter.attempt:
        return f"tried {_times(letter.attempt)}"
    return f"claimed {_times(letter.deliveries)}" if letter.deliveries else "not tried"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def shorten(text: str, most: int = 120) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def clean(text: str) -> str:
    """Nothing of a message may steer the terminal; lines and tabs are harmless."""
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode() for sign in text
    )


def describe(letter: Message[Any], *, payload: bool = False) -> dict[str, Any]:
    """Everything that is known of a message, as JSON values; the payload only on request."""
    known: dict[str, Any] = {
        name: value if isinstance(value, str | int | None) else _as_text(value)
        for name, value in letter._asdict().items()
        if name not in {"payload", "headers", "claim", "lease"}
    }
    known["headers"] = dict(letter.headers)
    if payload:
        known["payload"] = _in_base64(letter.payload) if isinstance(letter.payload, bytes) else letter.payload
    return known


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _in_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
