"""Imports the client library of a database, or says which extra to install."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from postroom.errors import ExtraMissing


def import_client(package: str, *, needed_by: str, extra: str) -> ModuleType:
    """Returns the package. Raises ExtraMissing if it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ExtraMissing(f"{needed_by} needs {package}: pip install 'postroom[{extra}]'") from error
