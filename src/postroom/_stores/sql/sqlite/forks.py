"""Closes idle connections before a fork: a SQLite connection must not be used in another process.

Both processes open new connections when they need them.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """An object with connections."""

    def before_fork(self) -> None:
        """Closes idle connections."""

    def after_fork(self) -> None:
        """Runs in both processes."""


# A fork happens to the process, so this belongs to no object.
_drivers: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def close_at_fork(driver: ForkAware) -> None:
    _drivers.add(driver)


def _before_fork() -> None:
    for driver in list(_drivers):
        driver.before_fork()


def _after_fork() -> None:
    for driver in list(_drivers):
        driver.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
