"""What commands share that do something to chosen messages: they show them first, ask, and say what they did."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import typer

from postroom import Key, Message
from postroom.cli.option_sets import Consent
from postroom.cli.options import counted, print_json
from postroom.cli.place import PAGE, AnyBox, Place
from postroom.errors import ArgumentValueError

PREVIEW = 20


class Act(NamedTuple):
    """What is done, in words."""

    verb: str
    past: str
    noun: str
    """What it is done to, such as dead letter."""
    state: str
    """Of the messages that it is done to; others are left alone."""


class Ways(NamedTuple):
    """How a command does it: `named` if the user named the messages, and so need not be asked about them."""

    named: bool
    consent: Consent
    json: bool

    def check(self) -> None:
        """Nothing is asked where a program reads the output."""
        if self.is_asked:
            check_silent(json=self.json, yes=self.consent.yes)

    @property
    def is_asked(self) -> bool:
        return self.consent.is_asked_for and not self.named


def check_silent(*, json: bool, yes: bool) -> None:
    if json and not yes:
        raise typer.BadParameter("--json does not ask: add --yes", param_hint="--yes")


def ask(question: str) -> None:
    typer.confirm(question, abort=True, err=True)


def title(box: AnyBox) -> str:
    """A box, as a question names it."""
    return f"{box.box.kind} {box.name!r}"


def check_order(place: Place, chosen: Sequence[Message[Any]]) -> None:
    """Only a room's declaration says whether groups are in order; guessing wrong would break it."""
    if not place.is_declared and any(message.group is not None for message in chosen):
        raise ArgumentValueError(
            "some of these have a group, and a URL does not say whether its box is FIFO: pass --room MODULE:ROOM"
        )


def confirm(
    act: Act,
    place: Place,
    box: AnyBox,
    chosen: Sequence[Message[Any]],
    ways: Ways,
    lines: Callable[[Sequence[Message[Any]]], str],
) -> None:
    """Show what was chosen but not named, and ask whether to do it."""
    check_order(place, chosen)
    if ways.named or not chosen:
        return
    if not ways.json:
        preview(chosen, lines)
    if ways.is_asked:
        ask(f"{act.verb} {counted(len(chosen), act.noun)} of {title(box)}?")


def preview(chosen: Sequence[Message[Any]], lines: Callable[[Sequence[Message[Any]]], str]) -> None:
    typer.echo(lines(chosen[:PREVIEW]))
    if len(chosen) > PREVIEW:
        typer.echo(f"and {len(chosen) - PREVIEW} more")


def by_pages(
    place: Place,
    verb: Callable[[Sequence[Message[Any]]], Coroutine[Any, Any, list[Key]]],
    chosen: Sequence[Message[Any]],
) -> list[Key]:
    """Do it to the chosen messages, and to no others that come to fit meanwhile. Returns what it was done to."""
    done: list[Key] = []
    for start in range(0, len(chosen), PAGE):
        done += place.wait(verb(chosen[start : start + PAGE]))
    return done


def report(act: Act, box: AnyBox, chosen: Sequence[Key], done: Sequence[Key], ways: Ways) -> None:
    dry_run = ways.consent.dry_run
    if ways.json:
        print_keys(box, chosen if dry_run else done, dry_run=dry_run)
    elif dry_run:
        typer.echo(f"would {act.verb} {len(chosen)}")
    else:
        alone = len(chosen) - len(done)
        left = f"; {alone} were not {act.state} and left alone" if alone else ""
        typer.echo(f"{act.past} {len(done)}{left}")


def print_keys(box: AnyBox, keys: Sequence[Key], *, dry_run: bool) -> None:
    shown = [key._asdict() for key in keys]
    print_json({"box": box.box.key, "dry_run": dry_run, "count": len(shown), "messages": shown})
