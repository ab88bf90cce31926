"""The app: all commands, and the options that come before a command."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom import __version__
from postroom.cli.demo import demo
from postroom.cli.schema import migrate, schema

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


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


for command in (demo, migrate, schema):
    app.command()(command)
