"""What commands share that do something to chosen messages: they show them first, and say afterwards what they did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import typer

from postroom import Key, Message
from postroom.cli.options import print_json
from postroom.cli.place import AnyBox

PREVIEW = 20


class Act(NamedTuple):
    """What is done, in words."""

    verb: str
    past: str
    state: str
    """Of the messages that it is done to; others are left alone."""


def preview(chosen: Sequence[Message[Any]], lines: Callable[[Sequence[Message[Any]]], str]) -> None:
    typer.echo(lines(chosen[:PREVIEW]))
    if len(chosen) > PREVIEW:
        typer.echo(f"and {len(chosen) - PREVIEW} more")


def report(act: Act, box: AnyBox, chosen: Sequence[Key], done: Sequence[Key], *, dry_run: bool, json: bool) -> None:
    if json:
        shown = [key._asdict() for key in (chosen if dry_run else done)]
        print_json({"box": box.box.key, "dry_run": dry_run, "count": len(shown), "messages": shown})
    elif dry_run:
        typer.echo(f"would {act.verb} {len(chosen)}")
    else:
        alone = len(chosen) - len(done)
        left = f"; {alone} were not {act.state} and left alone" if alone else ""
        typer.echo(f"{act.past} {len(done)}{left}")
