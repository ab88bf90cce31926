"""Values of the runtime that users see. This module imports no asyncio, since `import postroom` imports it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple


class BoxHealth(NamedTuple):
    """The health of the worker of one box, from `room.health()`."""

    running: bool
    """True while the worker runs."""
    in_hand: int
    """How many messages it holds."""
    claimed: int
    """How many messages it has claimed since it started."""
    last_error: str | None
    """The type of the error that its last exchange with the store raised; None after a successful one."""


class Cleaned(NamedTuple):
    """What a cleanup did in one box, from `room.cleanup()`."""

    reaped: int
    """How many leases were freed and how many messages have expired, together."""
    done: int
    """How many done messages were deleted."""
    dead: int
    """How many dead letters were deleted."""


@dataclass(frozen=True, slots=True)
class Cleaning:
    """How a room cleans its boxes while it runs.

    Args:
        interval: the pause between two purges of a box: 5 minutes by default.
        reap_interval: the pause between two reaps of a box: 30 seconds by default.
        batch_size: how many messages one transaction deletes: 1000 by default.
        restart_delay: the pause after an error: 30 seconds by default.
        automatic: False: nothing is cleaned until `room.cleanup()` is called, here or in another process.
    """

    interval: timedelta = timedelta(minutes=5)
    reap_interval: timedelta = timedelta(seconds=30)
    batch_size: int = 1000
    restart_delay: timedelta = timedelta(seconds=30)
    automatic: bool = True
