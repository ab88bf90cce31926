"""`postroom join`: the joins of one outbox."""

from __future__ import annotations

import json as to_json
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, NamedTuple
from uuid import UUID

import typer

from postroom import Join, JoinStatus, JoinStep
from postroom._kernel.message import AnyMessage
from postroom._kernel.policy import Box
from postroom._kernel.texts import escape
from postroom.cli.actions import ask, check_silent
from postroom.cli.dead.formatting import clean
from postroom.cli.option_sets import Page, Target
from postroom.cli.options import Yes, counted
from postroom.cli.session import AnyOutbox, ChosenStore, Visited
from postroom.errors import MessageNotFound

JoinArgument = Annotated[UUID, typer.Argument(metavar="JOIN_ID", help="The id that start_join returned.")]


@dataclass(frozen=True, kw_only=True)
class OneOutbox:
    """The outbox that a command works on."""

    outbox: Annotated[str, typer.Option(metavar="NAME", help="The outbox of this name.")] = "outbox"

    async def of(self, store: ChosenStore) -> AnyOutbox:
        return await store.outbox(self.outbox)


class Joins(NamedTuple):
    """A page of the joins of an outbox."""

    box: Box
    found: list[Join]
    next: int | None

    def as_json(self) -> dict[str, object]:
        return {"box": self.box.key, "joins": [describe(join) for join in self.found], "next": self.next}

    def as_text(self) -> str:
        return Page.text("\n".join(map(lines, self.found)), self.next)


class JoinSteps(NamedTuple):
    """A join, its continuation, and a page of its steps."""

    box: Box
    join: Join
    continuation: AnyMessage | None
    """None: it was not stored yet, or was purged."""
    steps: list[JoinStep]
    next: int | None

    @property
    def known(self) -> dict[str, object]:
        return describe(self.join) | {"metadata": self.join.metadata}

    def as_json(self) -> dict[str, object]:
        shown = [_describe_step(step) for step in self.steps]
        described = self.continuation and _describe_continuation(self.continuation)
        return {"box": self.box.key, **self.known, "continuation": described, "steps": shown, "next": self.next}

    def as_text(self) -> str:
        width = max(map(len, self.known))
        texts = [
            f"{name:<{width}}  {_as_text(value)}".rstrip().replace("\n", f"\n{'':<{width}}  ")
            for name, value in self.known.items()
        ]
        texts.append(f"{'continuation':<{width}}  {_continuation_line(self.continuation)}")
        texts.append(f"{'steps':<{width}}  {'' if self.steps else 'there are none'}".rstrip())
        texts += [f"  {_step_line(step)}" for step in self.steps]
        return Page.text("\n".join(texts), self.next)


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

    async def find(store: ChosenStore) -> Joins:
        box = await one.of(store)
        found = await box.joins(tenant_id=tenant, statuses=statuses or None, after=page.after, limit=page.limit)
        return Joins(box.box, found, found[-1].number if len(found) == page.limit else None)

    with target.open() as session:
        page.check(session)
        found = session.each(find)
        if target.json:
            session.print_json([Visited(key, value.as_json()) for key, value in found])
        else:
            session.print_each([Visited(key, value.as_text()) for key, value in found], empty="there are none")


def show_join(join_id: JoinArgument, *, one: OneOutbox, page: Page, target: Target) -> None:
    """Show a join, its continuation and its steps."""

    async def find(store: ChosenStore) -> JoinSteps:
        box = await one.of(store)
        join = await box.get_join(join_id)
        steps = await box.join_steps(join_id, after=page.after, limit=page.limit)
        following = steps[-1].id if len(steps) == page.limit else None
        return JoinSteps(box.box, join, await _continuation(box, join_id), steps, following)

    with target.open() as session:
        session.check_one("a join")
        found = session.each(find)
        if target.json:
            session.print_json([Visited(key, value.as_json()) for key, value in found])
        else:
            session.print_each([Visited(key, value.as_text()) for key, value in found], empty="")


async def _continuation(box: AnyOutbox, join_id: UUID) -> AnyMessage | None:
    """Returns the continuation of a join, or None if it was not stored yet, or was purged."""
    try:
        return await box.get(str(join_id), box.name)
    except MessageNotFound:
        return None


def cancel_join(join_id: JoinArgument, *, one: OneOutbox, yes: Yes = False, target: Target) -> None:
    """Cancel a join: its continuation is not sent. Its steps are handled as before. It asks for confirmation."""
    check_silent(json=target.json, yes=yes)

    async def find(store: ChosenStore) -> Join:
        return await (await one.of(store)).get_join(join_id)

    async def cancel(store: ChosenStore) -> dict[str, object]:
        box = await one.of(store)
        cancelled = await box.cancel_join(join_id)
        status = JoinStatus.CANCELLED if cancelled else (await box.get_join(join_id)).status
        return {"box": box.box.key, "id": str(join_id), "cancelled": cancelled, "status": status}

    with target.open() as session:
        session.check_one("a join")
        found = session.each(find)
        if found and not yes:
            typer.echo(lines(found[0].value))
            ask(f"cancel this join of outbox {one.outbox!r}? its continuation is then never sent")
        done = session.each(cancel, only=[key for key, _ in found])
        if target.json:
            session.print_json(done)
        for _, each in done if not target.json else ():
            typer.echo("cancelled" if each["cancelled"] else f"the join is {each['status']} and left alone")


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
