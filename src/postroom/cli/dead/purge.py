"""`postroom dead purge`."""

from __future__ import annotations

import typer

from postroom import State
from postroom.cli.actions import ask, check_silent, in_stores
from postroom.cli.option_sets import OneBox, Target
from postroom.cli.options import Age, Yes
from postroom.cli.session import ChosenStore, Visited


def purge(*, one: OneBox, older_than: Age = None, yes: Yes = False, target: Target) -> None:
    """Delete dead letters that died longer ago than that. There is no way back."""
    if older_than is None:
        raise typer.BadParameter("say how old, such as --older-than 30d", param_hint="--older-than")
    check_silent(json=target.json, yes=yes)

    async def delete(store: ChosenStore) -> tuple[str, int]:
        box = await one.of(store)
        return box.box.key, await box.purge(State.DEAD, older_than=older_than)

    with target.open() as session:
        one.check(session)
        if not yes:
            where = in_stores(session, len(session.wait(session.chosen())) if session.is_many else 1)
            kind, name = one.key
            ask(f"delete dead letters of {kind} {name!r}{where} that died more than {older_than} ago?")
        deleted = session.each(delete)
        if target.json:
            session.print_json([Visited(key, {"box": box, "deleted": count}) for key, (box, count) in deleted])
        else:
            counts = [count for _, (_, count) in deleted if count]
            typer.echo(f"deleted {sum(counts)}{in_stores(session, len(counts))}")
