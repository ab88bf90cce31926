"""What commands share that change chosen messages: they show the messages, ask, and report what they have changed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import NamedTuple

import typer

from postroom import Key
from postroom._kernel.message import AnyMessage
from postroom.cli.option_sets import Consent
from postroom.cli.options import counted, print_json
from postroom.cli.session import PAGE, AnyBox, Session
from postroom.errors import ArgumentValueError

PREVIEW = 20


class Action(NamedTuple):
    """What a command does, in the words of its questions and reports."""

    verb: str
    past: str
    noun: str
    """The kind of message that it changes, such as dead letter."""
    state: str
    """The state of the messages that it changes; others are left alone."""


class ActionOptions(NamedTuple):
    """How a command runs."""

    named: bool
    """True if the user named the messages: then no question is needed."""
    consent: Consent
    json: bool

    def check(self) -> None:
        """Raises if a question is needed and the output is for a program."""
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
    """Returns how a question names a box."""
    return f"{box.box.kind} {box.name!r}"


def check_order(session: Session, chosen: Sequence[AnyMessage]) -> None:
    """Raises for messages with a group if the room is not declared: whether their box is FIFO is unknown."""
    if not session.is_declared and any(message.group is not None for message in chosen):
        raise ArgumentValueError(
            "some of these have a group, and a URL does not say whether its box is FIFO: pass --room MODULE:ROOM"
        )


def confirm(
    action: Action,
    session: Session,
    box: AnyBox,
    chosen: Sequence[AnyMessage],
    options: ActionOptions,
    lines: Callable[[Sequence[AnyMessage]], str],
) -> None:
    """Shows messages that were chosen but not named, and asks whether to change them."""
    check_order(session, chosen)
    if options.named or not chosen:
        return
    if not options.json:
        preview(chosen, lines)
    if options.is_asked:
        ask(f"{action.verb} {counted(len(chosen), action.noun)} of {title(box)}?")


def preview(chosen: Sequence[AnyMessage], lines: Callable[[Sequence[AnyMessage]], str]) -> None:
    typer.echo(lines(chosen[:PREVIEW]))
    if len(chosen) > PREVIEW:
        typer.echo(f"and {len(chosen) - PREVIEW} more")


def by_pages(
    session: Session,
    verb: Callable[[Sequence[AnyMessage]], Coroutine[object, None, list[Key]]],
    chosen: Sequence[AnyMessage],
) -> list[Key]:
    """Calls a verb with the chosen messages, page by page. Returns the keys of those that it has changed."""
    done: list[Key] = []
    for start in range(0, len(chosen), PAGE):
        done += session.wait(verb(chosen[start : start + PAGE]))
    return done


def report(action: Action, box: AnyBox, chosen: Sequence[Key], done: Sequence[Key], options: ActionOptions) -> None:
    dry_run = options.consent.dry_run
    if options.json:
        print_keys(box, chosen if dry_run else done, dry_run=dry_run)
    elif dry_run:
        typer.echo(f"would {action.verb} {len(chosen)}")
    else:
        alone = len(chosen) - len(done)
        left = f"; {alone} were not {action.state} and left alone" if alone else ""
        typer.echo(f"{action.past} {len(done)}{left}")


def print_keys(box: AnyBox, keys: Sequence[Key], *, dry_run: bool) -> None:
    shown = [key._asdict() for key in keys]
    print_json({"box": box.box.key, "dry_run": dry_run, "count": len(shown), "messages": shown})
