"""`postroom bench`: what this database does on this machine, in a minute."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from postroom._kernel.prefix import DEFAULT_PREFIX
from postroom.cli.bench_runs import Measured, Plan, measure
from postroom.cli.options import Json, Prefix, console, print_json


def bench(
    *,
    url: Annotated[
        str | None, typer.Option(help="The database to measure, with its tables made. By default, a new SQLite file.")
    ] = None,
    prefix: Prefix = DEFAULT_PREFIX,
    messages: Annotated[int, typer.Option(min=1, max=1_000_000, help="Messages per measurement.")] = 2000,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Messages at once, where it is in bulk.")] = 100,
    samples: Annotated[int, typer.Option(min=1, max=10_000, help="Messages to measure the latency with.")] = 200,
    idle: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds of idling to count calls in.")] = 10.0,
    json: Json = False,
) -> None:
    """Measure enqueueing, draining, the latency when idle, and what idling costs. Leaves nothing behind."""
    screen = console(quiet=json)
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") if url is None else nullcontext() as folder:
        plan = Plan(url or f"sqlite:///{folder}/bench.db", prefix, messages, batch, samples, idle, make=url is None)
        with screen.status("measuring") as line:
            measured = asyncio.run(measure(plan, line.update))
    if json:
        print_json(asdict(measured))
    else:
        screen.print(table(measured))


def table(measured: Measured) -> Table:
    made = Table("", "measured", title=measured.store if measured.given else "a new SQLite file", title_justify="left")
    made.columns[1].justify = "right"
    at_once = f"{measured.batch} at once"
    for name, value in (
        ("enqueue, one by one", f"{measured.enqueue_single_per_second:,.0f} /s"),
        (f"enqueue, {at_once}", f"{measured.enqueue_bulk_per_second:,.0f} /s"),
        ("drain, one by one", f"{measured.drain_single_per_second:,.0f} /s"),
        (f"drain, {at_once}", f"{measured.drain_batch_per_second:,.0f} /s"),
        ("latency when idle, p50", f"{measured.latency_p50_ms:,.2f} ms"),
        ("latency when idle, p99", f"{measured.latency_p99_ms:,.2f} ms"),
        (f"calls of the store in {measured.idle_seconds:g} s of idling", f"{measured.idle_calls_per_second:,.2f} /s"),
    ):
        made.add_row(name, value)
    return made
