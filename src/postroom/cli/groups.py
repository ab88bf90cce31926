"""`postroom groups`: groups that a dead letter blocks, in boxes with `on_dead="block"`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import typer

from postroom import Key, State
from postroom._kernel.message import AnyMessage
from postroom._kernel.policy import Box
from postroom._kernel.texts import escape
from postroom.cli.actions import (
    PREVIEW,
    Action,
    ActionOptions,
    Changed,
    ask,
    by_pages,
    check_order,
    in_stores,
    print_keys,
    title,
)
from postroom.cli.dead.formatting import describe, lines
from postroom.cli.dead.replay import REPLAY
from postroom.cli.option_sets import Consent, OneBox, Target
from postroom.cli.options import counted
from postroom.cli.session import AnyBox, ChosenStore, Session, Visited, pages

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
    """A group, the dead letters that hold it up, the first of them first, and how many messages wait behind."""

    group: str
    letters: list[AnyMessage]
    waiting: int | None = None
    """None: not counted."""


class BlockedGroups(NamedTuple):
    """The blocked groups of a box."""

    box: Box
    groups: list[Blocked]

    @property
    def letters(self) -> list[AnyMessage]:
        return [letter for each in self.groups for letter in each.letters]


Unblock = Callable[[AnyBox, Sequence[Blocked]], Awaitable[list[Key]]]


def list_groups(
    *,
    one: OneBox,
    limit: Annotated[int, typer.Option(min=1, help="How many groups at most, of each store.")] = 50,
    target: Target,
) -> None:
    """List blocked groups: which dead letters hold each of them up, and how many messages wait behind."""

    async def find(store: ChosenStore) -> BlockedGroups:
        box = await one.of(store)
        return BlockedGroups(box.box, await with_waiting(box, await blocked(box), limit))

    with target.open() as session:
        found = session.each(find)
        if target.json:
            session.print_json([Visited(key, as_json(value, limit)) for key, value in found])
        else:
            session.print_each(
                [Visited(key, as_text(value, limit)) for key, value in found], empty="no group is blocked"
            )


def as_json(found: BlockedGroups, limit: int) -> dict[str, object]:
    rows = [
        {"group": each.group, "waiting": each.waiting, "dead": [describe(letter) for letter in each.letters]}
        for each in found.groups[:limit]
    ]
    return {"box": found.box.key, "blocked": len(found.groups), "groups": rows}


def as_text(found: BlockedGroups, limit: int) -> str:
    more = len(found.groups) - limit
    return group_lines(found.groups[:limit]) + (f"\nand {more} more: raise --limit" if more > 0 else "")


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

    async def find(store: ChosenStore) -> BlockedGroups:
        box = await one.of(store)
        chosen = which.choose(await blocked(box))
        return BlockedGroups(box.box, chosen if target.json else await with_waiting(box, chosen, PREVIEW))

    with target.open() as session:
        if which.groups:
            session.check_one("a group")
        found = session.each(find)
        confirm_groups(action, session, found, options)
        chosen = {key: value.groups for key, value in found if value.groups}

        async def work(store: ChosenStore) -> list[Key]:
            return await unblock(await one.of(store), chosen[store.key])

        done = dict(session.each(work, only=chosen.keys())) if chosen and not consent.dry_run else {}
        changed = [
            Visited(key, Changed(value.box, [letter.key for letter in value.letters], done.get(key, [])))
            for key, value in found
        ]
        if target.json:
            print_keys(session, changed, dry_run=consent.dry_run)
        else:
            report(action, session, which, found, changed, dry_run=consent.dry_run)


def report(
    action: Action,
    session: Session,
    which: WhichGroups,
    found: Sequence[Visited[BlockedGroups]],
    changed: Sequence[Visited[Changed]],
    *,
    dry_run: bool,
) -> None:
    groups = [group for _, value in found for group in value.groups]
    others = which.count_others(groups)
    left = f"; {counted(others, 'group')} not blocked and left alone" if others else ""
    letters = sum(len(value.chosen if dry_run else value.done) for _, value in changed)
    past = f"would {action.verb}" if dry_run else action.past
    where = in_stores(session, sum(1 for _, value in found if value.groups))
    typer.echo(f"{past} {counted(letters, action.noun)} of {counted(len(groups), 'group')}{where}{left}")


def confirm_groups(
    action: Action, session: Session, found: Sequence[Visited[BlockedGroups]], options: ActionOptions
) -> None:
    """Show the groups, named or not, and ask about those that were not named."""
    letters = [letter for _, value in found for letter in value.letters]
    check_order(session, letters)
    if not letters:
        return
    groups = sum(len(value.groups) for _, value in found)
    if not options.json:
        preview(session, found, groups)
    if options.is_asked:
        where = in_stores(session, sum(1 for _, value in found if value.groups))
        what = f"{counted(len(letters), action.noun)} of {counted(groups, 'group')}"
        ask(f"{action.verb} {what} of {title(found[0].value.box)}{where}?")


def preview(session: Session, found: Sequence[Visited[BlockedGroups]], groups: int) -> None:
    left, texts = PREVIEW, list[Visited[str]]()
    for key, value in found:
        texts.append(Visited(key, group_lines(value.groups[:left])))
        left = max(left - len(value.groups), 0)
    session.print_each(texts, empty="")
    if groups > PREVIEW:
        typer.echo(f"and {groups - PREVIEW} more")


async def _skip(box: AnyBox, chosen: Sequence[Blocked]) -> list[Key]:
    return [key for each in chosen for key in await box.skip_blocked(each.group)]


async def _replay(box: AnyBox, chosen: Sequence[Blocked]) -> list[Key]:
    return await by_pages(box.replay, [letter for each in chosen for letter in each.letters])


async def blocked(box: AnyBox) -> list[Blocked]:
    """All blocked groups; the one that has been blocked by the oldest message is the first."""
    found: dict[str, list[AnyMessage]] = {}
    async for letter in pages(partial(box.dead_letters, blocking=True)):
        if letter.group is not None:
            found.setdefault(letter.group, []).append(letter)
    return [Blocked(*each) for each in found.items()]


async def with_waiting(box: AnyBox, groups: Sequence[Blocked], most: int) -> list[Blocked]:
    """Counts the waiting messages of the first groups, which are shown."""
    shown = [each._replace(waiting=await count_waiting(box, each)) for each in groups[:most]]
    return [*shown, *groups[most:]]


async def count_waiting(box: AnyBox, each: Blocked) -> int:
    """How many messages wait behind the first letter of a group."""
    find = partial(box.find, states=[State.WAITING], group=each.group)
    return sum([1 async for _ in pages(find, after=each.letters[0].id)])


def group_lines(found: Sequence[Blocked]) -> str:
    texts: list[str] = []
    for each in found:
        texts.append(f"group {escape(each.group)}: {counted(each.waiting or 0, 'message')} waiting behind")
        texts += [f"  {line}" for line in lines(each.letters).splitlines()]
    return "\n".join(texts)
