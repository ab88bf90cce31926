"""The progress bar of a command over many stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress_bar(total: int, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """Shows a bar on stderr while a command visits stores. Yields the function that counts one of them.

    There is none with `quiet`, for one store, and where stderr is no terminal.
    """
    console = Console(stderr=True)
    columns = (TextColumn("stores"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    is_shown = console.is_terminal and not quiet and total > 1
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as bar:
        task = bar.add_task("stores", total=total)
        yield lambda: bar.advance(task)
