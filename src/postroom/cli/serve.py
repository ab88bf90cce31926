"""`postroom serve`: the HTTP service."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from postroom.cli.options import print_json
from postroom.cli.run import LogLevel, set_up_logging
from postroom.errors import ExtraMissing
from postroom.service.settings import ENVIRONMENT, Settings


def _serve(*, config: Path | None, check: bool, **flags: object) -> None:
    """Serve a guard and inboxes over HTTP until SIGINT or SIGTERM."""
    settings = Settings.read(flags, file=config)
    if check:
        print_json(settings.shown())
        return
    set_up_logging(LogLevel(settings.log_level))
    try:
        from postroom.service.server import run
    except ImportError as error:
        raise ExtraMissing("the service needs Starlette and uvicorn: pip install 'postroom[service]'") from error
    run(settings)


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Returns the command with a flag for each setting."""
    hints = get_type_hints(Settings)
    parameters = [
        _flag("config", Path | None, typer.Option(metavar="FILE", help="A TOML file with settings."), None),
        _flag("check", bool, typer.Option("--check", help="Only print the settings, without secrets."), False),
    ]
    for each in fields(Settings):
        name = each.name.replace("_", "-")
        declared = f"--{name}/--no-{name}" if hints[each.name] is bool else f"--{name}"
        kind = hints[each.name] if hints[each.name] in {bool, int, float} else str
        option = typer.Option(declared, help=f"{each.metadata['help']} {ENVIRONMENT}{each.name.upper()}")
        parameters.append(_flag(each.name, kind | None, option, None))

    def call(**given: Any) -> None:
        command(**given)

    call.__doc__ = command.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _flag(name: str, kind: object, option: object, default: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


serve = _with_settings(_serve)
