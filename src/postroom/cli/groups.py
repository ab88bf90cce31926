"""`postroom groups`: groups that a dead letter holds up, in boxes with `on_dead="block"`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer

from postroom import Key, Message, State
from postroom._kernel.texts import escape
from postroom._stores.sql.statements import DEFAULT_PREFIX
from postroom.cli.acts import PREVIEW
from postroom.cli.dead.letters import describe, lines
from postroom.cli.dead.replay import check_order, replay_all
from postroom.cli.options import Inbox, Json, Outbox, Prefix, RoomOption, Schema, Url, Yes, counted, print_json
from postroom.cli.place import AnyBox, Place, pages

Groups = Annotated[list[str] | None, typer.Argument(help="Which groups.")]
All = Annotated[bool, typer.Option("--all", help="All blocked groups of the box.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]


class Blocked(NamedTuple):
    """A group, and the dead letters that hold it up, the first of them first."""

    group: str
    letters: list[Message[Any]]


def list_groups(
    *,
    inbox: Inbox = None,
    outbox: Outbox = None,
    limit: Annotated[int, typer.Option(min=1, help="How many groups at most.")] = 50,
    room: RoomOption = None,
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """List blocked groups: which dead letters hold each of them up, and how many messages wait behind."""
    with Place.of(room, url, prefix, schema) as place:
        box = place.box(inbox, outbox)
        found = blocked(place, box)
        shown = [(each, count_waiting(place, box, each)) for each in found[:limit]]
    if json:
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


def skip(
    groups: Groups = None,
    *,
    inbox: Inbox = None,
    outbox: Outbox = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    room: RoomOption = None,
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Let blocked groups go on without the dead letters that hold them up. These stay dead."""
    check_named(groups, everything=everything)
    with Place.of(room, url, prefix, schema) as place:
        box = place.box(inbox, outbox)
        unblock = partial(_skip, place, box)
        report = Report("skip", "skipped", dry_run=dry_run, json=json)
        settle(place, box, groups, unblock, report, everything=everything, yes=yes)


def replay(
    groups: Groups = None,
    *,
    inbox: Inbox = None,
    outbox: Outbox = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    room: RoomOption = None,
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Let the dead letters that hold up groups be tried again, in their old place. The groups go on behind them."""
    check_named(groups, everything=everything)
    with Place.of(room, url, prefix, schema) as place:
        box = place.box(inbox, outbox)
        unblock = partial(_replay, place, box)
        report = Report("replay", "replayed", dry_run=dry_run, json=json)
        settle(place, box, groups, unblock, report, everything=everything, yes=yes)


def check_named(groups: Sequence[str] | None, *, everything: bool) -> None:
    if bool(groups) is everything:
        raise typer.BadParameter("name groups, or say --all")


class Report(NamedTuple):
    """How a command reports what it did."""

    verb: str
    past: str
    dry_run: bool
    json: bool


def settle(
    place: Place,
    box: AnyBox,
    groups: Sequence[str] | None,
    unblock: Callable[[Sequence[Blocked]], list[Key]],
    report: Report,
    *,
    everything: bool,
    yes: bool,
) -> None:
    """Unblock the groups that are named, or all. Asks before it unblocks what was not named."""
    found = blocked(place, box)
    chosen = found if everything else [each for each in found if each.group in (groups or ())]
    letters = [letter for each in chosen for letter in each.letters]
    check_order(place, letters)
    if letters and not report.json:
        show([(each, count_waiting(place, box, each)) for each in chosen[:PREVIEW]])
    if letters and everything and not yes and not report.dry_run:
        these = f"{counted(len(letters), 'dead letter')} of {counted(len(chosen), 'group')}"
        typer.confirm(f"{report.verb} {these} of {box.box.kind} {box.name!r}?", abort=True, err=True)
    done = [letter.key for letter in letters] if report.dry_run else unblock(chosen)
    if report.json:
        shown = [key._asdict() for key in done]
        print_json({"box": box.box.key, "dry_run": report.dry_run, "count": len(shown), "messages": shown})
        return
    unblocked = 0 if everything else len(set(groups or ())) - len(chosen)
    typer.echo(
        f"{'would ' + report.verb if report.dry_run else report.past} {counted(len(done), 'dead letter')}"
        f" of {counted(len(chosen), 'group')}"
        + (f"; {counted(unblocked, 'group')} not blocked and left alone" if unblocked else "")
    )


def _skip(place: Place, box: AnyBox, chosen: Sequence[Blocked]) -> list[Key]:
    return [key for each in chosen for key in place.wait(box.skip_blocked(each.group))]


def _replay(place: Place, box: AnyBox, chosen: Sequence[Blocked]) -> list[Key]:
    return replay_all(place, box, [letter for each in chosen for letter in each.letters])


def blocked(place: Place, box: AnyBox) -> list[Blocked]:
    """All blocked groups; the one that has been blocked by the oldest message is the first."""
    found: dict[str, list[Message[Any]]] = {}
    for letter in pages(place, partial(box.dead_letters, blocking=True)):
        if letter.group is not None:
            found.setdefault(letter.group, []).append(letter)
    return [Blocked(*each) for each in found.items()]


def count_waiting(place: Place, box: AnyBox, each: Blocked) -> int:
    """How many messages wait behind the first letter of a group."""
    find = partial(box.find, states=[State.WAITING], group=each.group)
    return sum(1 for _ in pages(place, find, after=each.letters[0].id))


def show(found: Sequence[tuple[Blocked, int]]) -> None:
    for each, waiting in found:
        typer.echo(f"group {escape(each.group)}: {counted(waiting, 'message')} waiting behind")
        typer.echo("\n".join(f"  {line}" for line in lines(each.letters).splitlines()))
