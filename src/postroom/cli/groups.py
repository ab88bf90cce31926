"""`postroom groups`: groups that a dead letter blocks, in boxes with `on_dead="block"`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import typer

from postroom import Key, State
from postroom._kernel.message import AnyMessage
from postroom._kernel.texts import escape
from postroom.cli.actions import PREVIEW, Action, ActionOptions, ask, by_pages, check_order, print_keys, title
from postroom.cli.dead.formatting import describe, lines
from postroom.cli.dead.replay import REPLAY
from postroom.cli.option_sets import Consent, OneBox, Target
from postroom.cli.options import counted, print_json
from postroom.cli.session import AnyBox, Session, pages

SKIP = Action("skip", "skipped", "dead letter", "blocked")


@dataclass(frozen=True, kw_only=True)
class WhichGroups:
    """The groups that a command works on."""

    groups: Annotated[list[str] | None, typer.Argument(help="Which groups.")] = None
    everything: Annotated[bool, typer.Option("--all", help="All blocked groups of the box.")] = False

    def check(self) -> None:
        if bool(self.groups) is self.everything:
            raise typer.BadParameter("name groups, or say --all")

    def choose(self, found: list[Blocked]) -> list[Blocked]:
        return found if self.everything else [each for each in found if each.group in (self.groups or ())]

    def count_others(self, chosen: Sequence[Blocked]) -> int:
        """How many named groups are not blocked."""
        return 0 if self.everything else len(set(self.groups or ())) - len(chosen)


class Blocked(NamedTuple):
    """A group, and the dead letters that hold it up, the first of them first."""

    group: str
    letters: list[AnyMessage]


Unblock = Callable[[Session, AnyBox, Sequence[Blocked]], list[Key]]


def list_groups(
    *,
    one: OneBox,
    limit: Annotated[int, typer.Option(min=1, help="How many groups at most.")] = 50,
    target: Target,
) -> None:
    """List blocked groups: which dead letters hold each of them up, and how many messages wait behind."""
    with target.open() as session:
        box = one.of(session)
        found = blocked(session, box)
        shown = [(each, count_waiting(session, box, each)) for each in found[:limit]]
    if target.json:
        rows = [
            {"group": each.group, "waiting": waiting, "dead": [describe(letter) for letter in each.letters]}
            for each, waiting in shown
        ]
        print_json({"box": box.box.key, "blocked": len(found), "groups": rows})
    elif not found:
        typer.echo("no group is blocked")
    else:
        show(shown)
        if len(found) > limit:
            typer.echo(f"and {len(found) - limit} more: raise --limit")


def skip(*, which: WhichGroups, one: OneBox, consent: Consent, target: Target) -> None:
    """Unblock groups without the dead letters that block them. These stay dead."""
    settle(SKIP, _skip, which, one, consent, target)


def replay(*, which: WhichGroups, one: OneBox, consent: Consent, target: Target) -> None:
    """Make the dead letters that block groups wait again, in their old place. The groups continue behind them."""
    settle(REPLAY, _replay, which, one, consent, target)


def settle(action: Action, unblock: Unblock, which: WhichGroups, one: OneBox, consent: Consent, target: Target) -> None:
    """Unblock the groups that are named, or all. Without names, it asks for confirmation."""
    which.check()
    options = ActionOptions(not which.everything, consent, target.json)
    options.check()
    with target.open() as session:
        box = one.of(session)
        chosen = which.choose(blocked(session, box))
        confirm_groups(action, session, box, chosen, options)
        done = _keys(chosen) if consent.dry_run else unblock(session, box, chosen)
    if target.json:
        print_keys(box, done, dry_run=consent.dry_run)
        return
    others = which.count_others(chosen)
    left = f"; {counted(others, 'group')} not blocked and left alone" if others else ""
    past = f"would {action.verb}" if consent.dry_run else action.past
    typer.echo(f"{past} {counted(len(done), action.noun)} of {counted(len(chosen), 'group')}{left}")


def confirm_groups(
    action: Action, session: Session, box: AnyBox, chosen: Sequence[Blocked], options: ActionOptions
) -> None:
    """Show the groups, named or not, and ask about those that were not named."""
    letters = [letter for each in chosen for letter in each.letters]
    check_order(session, letters)
    if letters and not options.json:
        show([(each, count_waiting(session, box, each)) for each in chosen[:PREVIEW]])
        if len(chosen) > PREVIEW:
            typer.echo(f"and {len(chosen) - PREVIEW} more")
    if letters and options.is_asked:
        ask(f"{action.verb} {counted(len(letters), action.noun)} of {counted(len(chosen), 'group')} of {title(box)}?")


def _keys(chosen: Sequence[Blocked]) -> list[Key]:
    return [letter.key for each in chosen for letter in each.letters]


def _skip(session: Session, box: AnyBox, chosen: Sequence[Blocked]) -> list[Key]:
    return [key for each in chosen for key in session.wait(box.skip_blocked(each.group))]


def _replay(session: Session, box: AnyBox, chosen: Sequence[Blocked]) -> list[Key]:
    return by_pages(session, box.replay, [letter for each in chosen for letter in each.letters])


def blocked(session: Session, box: AnyBox) -> list[Blocked]:
    """All blocked groups; the one that has been blocked by the oldest message is the first."""
    found: dict[str, list[AnyMessage]] = {}
    for letter in pages(session, partial(box.dead_letters, blocking=True)):
        if letter.group is not None:
            found.setdefault(letter.group, []).append(letter)
    return [Blocked(*each) for each in found.items()]


def count_waiting(session: Session, box: AnyBox, each: Blocked) -> int:
    """How many messages wait behind the first letter of a group."""
    find = partial(box.find, states=[State.WAITING], group=each.group)
    return sum(1 for _ in pages(session, find, after=each.letters[0].id))


def show(found: Sequence[tuple[Blocked, int]]) -> None:
    for each, waiting in found:
        typer.echo(f"group {escape(each.group)}: {counted(waiting, 'message')} waiting behind")
        typer.echo("\n".join(f"  {line}" for line in lines(each.letters).splitlines()))
