"""What the commands for dead letters share: which letters, and how they are shown."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypedDict

import typer
from rich.table import Table

from postroom import Message
from postroom.cli.place import AnyBox, Place

PAGE = 1000

Topic = Annotated[str | None, typer.Option(help="Only those of this topic.")]
Source = Annotated[str | None, typer.Option(help="Only those of this source.")]
Group = Annotated[str | None, typer.Option(help="Only those of this group.")]


class Fitting(TypedDict):
    """The filters; what is None does not restrict."""

    topic: str | None
    source: str | None
    group: str | None


def letters(place: Place, box: AnyBox, fitting: Fitting, most: int | None) -> Iterator[Message[Any]]:
    """All letters that fit, page by page, without their payloads: there may be many."""
    after = count = 0
    while most is None or count < most:
        size = PAGE if most is None else min(PAGE, most - count)
        page = place.wait(box.dead_letters(**fitting, after=after, limit=size))
        for letter in page:
            yield letter.with_payload(None)
        if len(page) < size:
            return
        after, count = page[-1].id, count + len(page)


def table(found: Sequence[Message[Any]]) -> Table:
    group = ["group"] if any(letter.group for letter in found) else []  # a terminal is narrow
    made = Table("id", "source", "message id", "topic", *group, "attempts", "died, in UTC", "error")
    for column in made.columns:
        column.overflow = "fold"  # an id that is cut cannot be used
    made.columns[0].no_wrap = made.columns[-2].no_wrap = True
    for letter in found:
        made.add_row(
            str(letter.id),
            *map(clean, (letter.source, letter.message_id, letter.topic)),
            *(clean(letter.group or "") for _ in group),
            str(letter.attempt),
            "" if letter.completed_at is None else f"{letter.completed_at:%Y-%m-%d %H:%M:%S}",
            clean(shorten(letter.last_error or "")),
        )
    return made


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
