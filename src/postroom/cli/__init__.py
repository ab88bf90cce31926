"""The command line. The app is put together in `postroom.cli.app`, from one file per command."""

from __future__ import annotations

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
        if not _is_for_the_user(error):
            raise
        sys.exit(f"postroom: {' '.join(str(error).split()) or _name(error)}")


def _is_for_the_user(error: Exception) -> bool:
    """Returns True if an error says what is wrong with a call or a database. All others are bugs of ours."""
    if isinstance(error, PostroomError | OSError):
        return True
    from postroom._connect import is_database_error

    return is_database_error(error)


def _name(error: Exception) -> str:
    """Returns a text for errors that have none."""
    return "the database does not respond in time" if isinstance(error, TimeoutError) else type(error).__name__
