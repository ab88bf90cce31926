"""The app: all commands, and the options that come before a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from postroom import __version__
from postroom.cli.bench import bench
from postroom.cli.cancel import cancel
from postroom.cli.dead.listing import list_letters
from postroom.cli.dead.purge import purge as purge_letters
from postroom.cli.dead.replay import replay
from postroom.cli.dead.show import show
from postroom.cli.demo import demo
from postroom.cli.groups import list_groups
from postroom.cli.groups import replay as replay_groups
from postroom.cli.groups import skip as skip_groups
from postroom.cli.join import cancel_join, list_joins, show_join
from postroom.cli.option_sets import with_sets
from postroom.cli.purge import purge
from postroom.cli.run import run
from postroom.cli.schema import migrate, schema
from postroom.cli.serve import serve
from postroom.cli.status import status

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
dead = typer.Typer(no_args_is_help=True, help="List, show, replay and purge the dead letters of one box.")
groups = typer.Typer(no_args_is_help=True, help="List, skip and replay the dead letters that block groups of one box.")
join = typer.Typer(no_args_is_help=True, help="List, show and cancel the joins of one outbox.")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"postroom {__version__}")
        raise typer.Exit


@app.callback()
def postroom(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Reliable messages on the database you already have."""


_COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "run": run,
    "serve": serve,
    "status": status,
    "cancel": cancel,
    "purge": purge,
    "migrate": migrate,
    "schema": schema,
    "bench": bench,
}
_DEAD: dict[str, Callable[..., None]] = {"list": list_letters, "show": show, "replay": replay, "purge": purge_letters}
_GROUPS: dict[str, Callable[..., None]] = {"list": list_groups, "skip": skip_groups, "replay": replay_groups}
_JOIN: dict[str, Callable[..., None]] = {"list": list_joins, "show": show_join, "cancel": cancel_join}

for name, command in _COMMANDS.items():
    app.command(name)(with_sets(command))
for name, command in _DEAD.items():
    dead.command(name)(with_sets(command))
for name, command in _GROUPS.items():
    groups.command(name)(with_sets(command))
for name, command in _JOIN.items():
    join.command(name)(with_sets(command))
app.add_typer(dead, name="dead")
app.add_typer(groups, name="groups")
app.add_typer(join, name="join")
