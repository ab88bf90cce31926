"""Cancellations: one that a library has dropped, and one that comes twice.

`asyncio.wait_for` of Python 3.11, which drivers use, drops a cancellation that arrives while it ends. The task then
goes on, but it still counts the request (`Task.cancelling`). A loop without an end checks for this.
"""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Returns True if the current task was asked to end, even if it has seen no CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def check_cancelled() -> None:
    """Raises CancelledError if the current task was asked to end."""
    if is_cancelled():
        raise asyncio.CancelledError


def cancel_once(task: asyncio.Task[object]) -> None:
    """Cancels a task that was not asked to end before.

    `asyncio.run` cancels all tasks when its loop ends. A second cancellation would interrupt the first: psycopg then
    closes a connection whose statement it is cancelling, and logs a warning.
    """
    if not task.cancelling():
        task.cancel()
