"""What commands share that change chosen messages: they show the messages, ask, and report what they have changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

import typer

from postroom import Key
from postroom._kernel.message import AnyMessage
from postroom._kernel.policy import Box
from postroom.cli.option_sets import Consent
from postroom.cli.options import counted
from postroom.cli.session import PAGE, AnyBox, ChosenStore, Session, Visited
from postroom.errors import ArgumentValueError

PREVIEW = 20
ChangePage: TypeAlias = Callable[[Sequence[AnyMessage]], Awaitable[list[Key]]]


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


class Found(NamedTuple):
    """A box of a store, and the messages in it that a command has chosen."""

    box: Box
    messages: list[AnyMessage]


class Changed(NamedTuple):
    """The chosen messages of a box, and those that were changed."""

    box: Box
    chosen: list[Key]
    done: list[Key]


def check_silent(*, json: bool, yes: bool) -> None:
    if json and not yes:
        raise typer.BadParameter("--json does not ask: add --yes", param_hint="--yes")


def ask(question: str) -> None:
    typer.confirm(question, abort=True, err=True)


def title(box: Box) -> str:
    """Returns how a question names a box."""
    return f"{box.kind} {box.name!r}"


def in_stores(session: Session, count: int) -> str:
    """Returns in how many stores something is; nothing for a room with one store."""
    return f" in {counted(count, 'store')}" if session.is_many else ""


def check_order(session: Session, chosen: Sequence[AnyMessage]) -> None:
    """Raises for messages with a group if the room is not declared: whether their box is FIFO is unknown."""
    if not session.is_declared and any(message.group is not None for message in chosen):
        raise ArgumentValueError(
            "some of these have a group, and a URL does not say whether its box is FIFO: pass --room MODULE:ROOM"
        )


async def by_pages(change_page: ChangePage, messages: Sequence[AnyMessage]) -> list[Key]:
    """Calls a verb with the messages, page by page. Returns the keys of those that it has changed."""
    done: list[Key] = []
    for start in range(0, len(messages), PAGE):
        done += await change_page(messages[start : start + PAGE])
    return done


def change(
    action: Action,
    session: Session,
    found: Sequence[Visited[Found]],
    options: ActionOptions,
    lines: Callable[[Sequence[AnyMessage]], str],
    verb: Callable[[AnyBox], ChangePage],
    box_of: Callable[[ChosenStore], Awaitable[AnyBox]],
) -> list[Visited[Changed]]:
    """Shows messages that were chosen but not named, asks whether to change them, and calls a verb of their box."""
    chosen = {key: value.messages for key, value in found if value.messages}
    everything = [message for messages in chosen.values() for message in messages]
    check_order(session, everything)
    if everything and not options.named:
        if not options.json:
            preview(session, found, lines)
        if options.is_asked:
            what = counted(len(everything), action.noun)
            ask(f"{action.verb} {what} of {title(found[0].value.box)}{in_stores(session, len(chosen))}?")

    async def work(store: ChosenStore) -> list[Key]:
        return await by_pages(verb(await box_of(store)), chosen[store.key])

    is_real = chosen and not options.consent.dry_run
    done = dict(session.each(work, only=chosen.keys())) if is_real else {}
    return [
        Visited(key, Changed(value.box, [message.key for message in value.messages], done.get(key, [])))
        for key, value in found
        if key not in session.failures
    ]


def preview(session: Session, found: Sequence[Visited[Found]], lines: Callable[[Sequence[AnyMessage]], str]) -> None:
    """Prints the first of the chosen messages, and how many more there are."""
    left, texts = PREVIEW, list[Visited[str]]()
    for key, value in found:
        texts.append(Visited(key, lines(value.messages[:left])))
        left = max(left - len(value.messages), 0)
    session.print_each(texts, empty="")
    more = sum(len(value.messages) for _, value in found) - PREVIEW
    if more > 0:
        typer.echo(f"and {more} more")


def report(action: Action, session: Session, changed: Sequence[Visited[Changed]], options: ActionOptions) -> None:
    dry_run = options.consent.dry_run
    if options.json:
        print_keys(session, changed, dry_run=dry_run)
        return
    chosen = sum(len(value.chosen) for _, value in changed)
    done = sum(len(value.done) for _, value in changed)
    where = in_stores(session, sum(1 for _, value in changed if value.chosen))
    if dry_run:
        typer.echo(f"would {action.verb} {chosen}{where}")
    else:
        left = f"; {chosen - done} were not {action.state} and left alone" if chosen > done else ""
        typer.echo(f"{action.past} {done}{where}{left}")


def print_keys(session: Session, changed: Sequence[Visited[Changed]], *, dry_run: bool) -> None:
    """Prints the messages that were changed, or with `dry_run` would be, in JSON."""
    session.print_json([Visited(key, _as_json(value, dry_run=dry_run)) for key, value in changed])


def _as_json(changed: Changed, *, dry_run: bool) -> dict[str, object]:
    keys = [key._asdict() for key in (changed.chosen if dry_run else changed.done)]
    return {"box": changed.box.key, "dry_run": dry_run, "count": len(keys), "messages": keys}
