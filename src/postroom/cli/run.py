"""`postroom run`: a process that handles messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from postroom import Inbox, Outbox, Postroom
from postroom.cli.modules import load
from postroom.cli.options import Inboxes, Json, Outboxes, counted, print_json
from postroom.cli.session import has_many_stores, named_boxes
from postroom.errors import ArgumentValueError


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def run(
    room: Annotated[str, typer.Argument(metavar="MODULE:ROOM", help="A room in a module, such as shop:room.")],
    *,
    inbox: Inboxes = None,
    outbox: Outboxes = None,
    health: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve the HTTP checks /live and /ready there.")
    ] = None,
    heartbeat: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Touch this file every 5 seconds while the event loop runs.")
    ] = None,
    migrate: Annotated[bool, typer.Option("--migrate", help="Make or update the tables first.")] = False,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged, to stderr.")] = LogLevel.INFO,
    json: Json = False,
) -> None:
    """Handle messages until SIGINT or SIGTERM; then let handlers end, and exit with 0. Without names: in all boxes."""
    loaded = load(room)
    chosen = named_boxes(loaded, inbox, outbox)
    if not any(each.topics for each in chosen or loaded.boxes):
        raise ArgumentValueError(f"{room} has no handlers: there is nothing to run")
    set_up_logging(log_level)
    loaded.on_start(lambda: check_database(loaded, room, chosen or loaded.boxes, json=json))
    loaded.run(chosen or None, health=health, heartbeat=heartbeat, first=partial(_migrate, loaded) if migrate else None)


def set_up_logging(level: LogLevel) -> None:
    """Plain lines on stderr, unless the module has set up logging in its own way."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiosqlite").setLevel(logging.INFO)  # for debugging it logs parameters, and so payloads


async def _migrate(room: Postroom) -> None:
    """Of many stores, those that fail are logged. Their messages are handled once their tables fit."""
    if not has_many_stores(room):
        await room.migrate()
        return
    for migrated in await room.migrate_stores():
        if migrated.error is not None:
            text = room.store.errors.of(migrated.error)
            logging.getLogger("postroom").warning("store=%s was not migrated: %s", migrated.store, text)


async def check_database(room: Postroom, path: str, boxes: Sequence[Inbox | Outbox], *, json: bool) -> None:
    """The last hook on start, since one of the room's may make the tables. An error of the database ends the command
    here; later, a worker would log it and try again. With many stores, an error of one is always logged.
    """
    if has_many_stores(room):
        await room.refresh()
        emit(path, counted(len(room.router), "store"), {"stores": len(room.router)}, boxes, json=json)
    else:
        await boxes[0].find(limit=1)
        emit(path, room.store.name, {"store": room.store.name}, boxes, json=json)


def emit(
    path: str, where: str, where_json: Mapping[str, object], boxes: Sequence[Inbox | Outbox], *, json: bool
) -> None:
    """Which boxes there are, and what is handled in them."""
    if json:
        rows = [{"kind": each.box.kind, "name": each.name, "topics": each.topics} for each in boxes]
        print_json({**where_json, "boxes": rows}, one_line=True)
        return
    typer.echo(f"{path} on {where}")
    for each in boxes:
        typer.echo(f"  {each.box.kind} {each.name}: {', '.join(each.topics) or 'no handlers'}")
