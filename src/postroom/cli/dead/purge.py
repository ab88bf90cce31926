"""`postroom dead purge`."""

from __future__ import annotations

import typer

from postroom import State
from postroom._stores.sql.statements import DEFAULT_PREFIX
from postroom.cli.options import Age, Inbox, Json, Outbox, Prefix, RoomOption, Schema, Url, Yes, print_json
from postroom.cli.place import Place


def purge(
    *,
    inbox: Inbox = None,
    outbox: Outbox = None,
    older_than: Age = None,
    yes: Yes = False,
    room: RoomOption = None,
    url: Url = None,
    schema: Schema = None,
    prefix: Prefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Delete dead letters that died longer ago than that. There is no way back."""
    if older_than is None:
        raise typer.BadParameter("say how old, such as --older-than 30d", param_hint="--older-than")
    with Place.of(room, url, prefix, schema) as place:
        box = place.box(inbox, outbox)
        if not yes:
            question = f"delete dead letters of {box.box.kind} {box.name!r} that died more than {older_than} ago?"
            typer.confirm(question, abort=True, err=True)
        deleted = place.wait(box.purge(State.DEAD, older_than=older_than))
    if json:
        print_json({"box": box.box.key, "deleted": deleted})
    else:
        typer.echo(f"deleted {deleted}")
