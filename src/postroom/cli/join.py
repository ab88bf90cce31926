"""`postroom join`: the joins of one outbox."""

from __future__ import annotations

import json as to_json
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer

from postroom import Join, JoinStatus, JoinStep, Outbox
from postroom._kernel.message import AnyMessage
from postroom._kernel.texts import escape
from postroom.cli.actions import ask, check_silent, title
from postroom.cli.dead.formatting import clean
from postroom.cli.option_sets import Target
from postroom.cli.options import Yes, counted, print_json
from postroom.cli.session import Session
from postroom.errors import MessageNotFound

JoinArgument = Annotated[UUID, typer.Argument(metavar="JOIN_ID", help="The id that start_join returned.")]


@dataclass(frozen=True, kw_only=True)
class OneOutbox:
    """The outbox that a command works on."""

    outbox: Annotated[str, typer.Option(metavar="NAME", help="The outbox of this name.")] = "outbox"

    def of(self, session: Session) -> Outbox:
        return session.outbox(self.outbox)


@dataclass(frozen=True, kw_only=True)
class Page:
    """Which part of a long list is shown."""

    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many at most.")] = 50
    after: Annotated[int, typer.Option(min=0, help="Only those after this number: see the page before.")] = 0


def list_joins(
    *,
    one: OneOutbox,
    tenant: Annotated[str | None, typer.Option(metavar="ID", help="Only those of this tenant.")] = None,
    statuses: Annotated[
        list[JoinStatus] | None, typer.Option("--status", help="Only those with this status; may be repeated.")
    ] = None,
    page: Page,
    target: Target,
) -> None:
    """List joins, the oldest first."""
    with target.open() as session:
        box = one.of(session)
        found = session.wait(box.joins(tenant_id=tenant, statuses=statuses or None, after=page.after, limit=page.limit))
    following = found[-1].number if len(found) == page.limit else None
    if target.json:
        print_json({"box": box.box.key, "joins": [describe(join) for join in found], "next": following})
    elif not found:
        typer.echo("there are none")
    else:
        typer.echo("\n".join(map(lines, found)))
        _print_next(following)


def show_join(join_id: JoinArgument, *, one: OneOutbox, page: Page, target: Target) -> None:
    """Show a join, its continuation and its steps."""
    with target.open() as session:
        box = one.of(session)
        join = session.wait(box.get_join(join_id))
        continuation = _continuation(session, box, join_id)
        steps = session.wait(box.join_steps(join_id, after=page.after, limit=page.limit))
    following = steps[-1].id if len(steps) == page.limit else None
    known = describe(join) | {"metadata": join.metadata}
    if target.json:
        shown = [_describe_step(step) for step in steps]
        described = continuation and _describe_continuation(continuation)
        print_json({"box": box.box.key, **known, "continuation": described, "steps": shown, "next": following})
        return
    width = max(map(len, known))
    for name, value in known.items():
        typer.echo(f"{name:<{width}}  {_as_text(value)}".rstrip().replace("\n", f"\n{'':<{width}}  "))
    typer.echo(f"{'continuation':<{width}}  {_continuation_line(continuation)}")
    typer.echo(f"{'steps':<{width}}  {'' if steps else 'there are none'}".rstrip())
    for step in steps:
        typer.echo(f"  {_step_line(step)}")
    _print_next(following)


def _continuation(session: Session, box: Outbox, join_id: UUID) -> AnyMessage | None:
    """Returns the continuation of a join, or None if it was not stored yet, or was purged."""
    try:
        return session.wait(box.get(str(join_id), box.name))
    except MessageNotFound:
        return None


def cancel_join(join_id: JoinArgument, *, one: OneOutbox, yes: Yes = False, target: Target) -> None:
    """Cancel a join: its continuation is not sent. Its steps are handled as before. It asks for confirmation."""
    check_silent(json=target.json, yes=yes)
    with target.open() as session:
        box = one.of(session)
        join = session.wait(box.get_join(join_id))
        if not yes:
            typer.echo(lines(join))
            ask(f"cancel this join of {title(box)}? its continuation is then never sent")
        cancelled = session.wait(box.cancel_join(join_id))
        status = JoinStatus.CANCELLED if cancelled else session.wait(box.get_join(join_id)).status
    if target.json:
        print_json({"box": box.box.key, "id": str(join_id), "cancelled": cancelled, "status": status})
    else:
        typer.echo("cancelled" if cancelled else f"the join is {status} and left alone")


def lines(join: Join) -> str:
    """Returns two lines about a join. A table would be too wide for a terminal, and would cut ids."""
    deadline = f", deadline {_time(join.deadline)}" if join.deadline else ""
    return (
        f"{join.id}  {join.status}, {_progress(join)}\n"
        f"    tenant {escape(join.tenant_id)}, started {_time(join.created_at)}{deadline}"
    )


def _progress(join: Join) -> str:
    ended = join.completed_steps + join.failed_steps
    of = join.attached_steps if join.expected_steps is None else join.expected_steps
    is_open = join.expected_steps is None and not join.is_sealed
    failed = f", {join.failed_steps:,} failed" if join.failed_steps else ""
    return f"{ended:,} of {counted(of, 'step')} ended{failed}{', not sealed' if is_open else ''}"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def describe(join: Join) -> dict[str, object]:
    """Returns the fields of a join as JSON values, except its metadata, which may be long."""
    return {name: _as_json(value) for name, value in join._asdict().items() if name != "metadata"}


def _describe_step(step: JoinStep) -> dict[str, object]:
    return {name: _as_json(value) for name, value in step._asdict().items()}


def _describe_continuation(continuation: AnyMessage) -> dict[str, object]:
    return {"id": continuation.id, "state": continuation.state, "topic": continuation.topic}


def _as_json(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return clean(value) if isinstance(value, str) else to_json.dumps(value)


def _continuation_line(continuation: AnyMessage | None) -> str:
    if continuation is None:
        return "there is none"
    return f"{continuation.state}  {continuation.id}  topic {escape(continuation.topic)}"


def _step_line(step: JoinStep) -> str:
    if step.message_id is None or step.source is None:
        return f"{step.status:<9}  {step.id}  purged"
    return f"{step.status:<9}  {step.id}  {escape(step.message_id)} from {escape(step.source)}"


def _print_next(following: int | None) -> None:
    if following is not None:
        typer.echo(f"there may be more: --after {following}")
