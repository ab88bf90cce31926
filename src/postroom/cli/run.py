"""`postroom run`: a process that handles messages."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Annotated, Any

import typer

from postroom import Postroom
from postroom.cli.options import Json, print_json
from postroom.cli.place import load
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
    migrate: Annotated[bool, typer.Option("--migrate", help="Make or update the tables first.")] = False,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged, to stderr.")] = LogLevel.INFO,
    json: Json = False,
) -> None:
    """Handle messages until SIGINT or SIGTERM; then let handlers end, and exit with 0."""
    loaded = load(room)
    set_up_logging(log_level)
    if not any(len(face.handlers) for face in loaded.boxes):
        raise ArgumentValueError(f"{room} has no handlers: there is nothing to run")
    loaded.run(first=lambda: prepare(loaded, room, migrate=migrate, json=json))


def set_up_logging(level: LogLevel) -> None:
    """Plain lines on stderr, unless the module has set up logging in its own way."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiosqlite").setLevel(logging.INFO)  # for debugging it logs parameters, and so payloads


async def prepare(room: Postroom, path: str, *, migrate: bool, json: bool) -> None:
    """What is wrong with the database is told now: later, a worker would try again and again."""
    if migrate:
        await room.migrate()
    for face in room.boxes[:1]:
        await face.find(limit=1)
    tell(path, room, json=json)


def tell(path: str, room: Postroom, *, json: bool) -> None:
    """Which boxes there are, and what is handled in them."""
    boxes: list[dict[str, Any]] = [
        {"kind": face.box.kind, "name": face.name, "topics": [handler.topic for handler in face.handlers]}
        for face in room.boxes
    ]
    if json:
        print_json({"store": room.store.name, "boxes": boxes}, one_line=True)
        return
    typer.echo(f"{path} on {room.store.name}")
    for box in boxes:
        typer.echo(f"  {box['kind']} {box['name']}: {', '.join(box['topics']) or 'no handlers'}")
