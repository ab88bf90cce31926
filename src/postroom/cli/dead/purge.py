"""`postroom dead purge`."""

from __future__ import annotations

import typer

from postroom import State
from postroom.cli.actions import ask, check_silent, title
from postroom.cli.option_sets import OneBox, Target
from postroom.cli.options import Age, Yes, print_json


def purge(*, one: OneBox, older_than: Age = None, yes: Yes = False, target: Target) -> None:
    """Delete dead letters that died longer ago than that. There is no way back."""
    if older_than is None:
        raise typer.BadParameter("say how old, such as --older-than 30d", param_hint="--older-than")
    check_silent(json=target.json, yes=yes)
    with target.open() as session:
        box = one.of(session)
        if not yes:
            ask(f"delete dead letters of {title(box)} that died more than {older_than} ago?")
        deleted = session.wait(box.purge(State.DEAD, older_than=older_than))
    if target.json:
        print_json({"box": box.box.key, "deleted": deleted})
    else:
        typer.echo(f"deleted {deleted}")
