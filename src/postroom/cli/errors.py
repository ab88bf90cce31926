"""Which errors a command shows as one line, and in which words."""

from __future__ import annotations

from postroom._connect import is_database_error
from postroom.errors import PostroomError


def is_for_the_user(error: Exception) -> bool:
    """Returns True if an error says what is wrong with a call or a database. All others are bugs of ours."""
    return isinstance(error, PostroomError | OSError) or is_database_error(error)


def text_of(error: Exception) -> str:
    """Returns the text of an error as one line. Some errors have none."""
    return " ".join(str(error).split()) or _name(error)


def _name(error: Exception) -> str:
    return "the database does not respond in time" if isinstance(error, TimeoutError) else type(error).__name__
