"""The command line. The app is put together in `postroom.cli.app`, from one file per command."""

from __future__ import annotations

import sqlite3
import sys

from postroom.errors import PostroomError


def main() -> None:
    """The entry point. Exits with 0, with 1 and one line about what went wrong, or with 2 for a wrong call."""
    try:
        from postroom.cli.app import app
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package == "postroom":
            raise
        sys.exit(f"postroom: the command line needs {package}: pip install 'postroom[cli]'")
    try:
        app(prog_name="postroom")
    except Exception as error:
        if not _can_be_mended(error):
            raise
        sys.exit(f"postroom: {' '.join(str(error).split()) or _name(error)}")


def _can_be_mended(error: Exception) -> bool:
    """By the user: what is wrong with a call or a database. The rest is ours, with its trace."""
    if isinstance(error, PostroomError | OSError | sqlite3.Error):
        return True
    # Told by name: only one of them may be installed.
    return type(error).__module__.partition(".")[0] in {"asyncpg", "psycopg", "psycopg_pool", "redis"}


def _name(error: Exception) -> str:
    """For errors that say nothing."""
    return "the database does not answer in time" if isinstance(error, TimeoutError) else type(error).__name__
