"""The command line. The app is put together in `postroom.cli.app`, from one file per command."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point. Exits with 0, with 1 and one line about what went wrong, or with 2 for a wrong call."""
    try:
        from postroom.cli.app import app
        from postroom.cli.errors import is_for_the_user, text_of
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package == "postroom":
            raise
        sys.exit(f"postroom: the command line needs {package}: pip install 'postroom[cli]'")
    try:
        app(prog_name="postroom")
    except Exception as error:
        if not is_for_the_user(error):
            raise
        sys.exit(f"postroom: {text_of(error)}")
