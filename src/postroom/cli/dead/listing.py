"""`postroom dead list`."""

from __future__ import annotations

from dataclasses import asdict
from typing import NamedTuple

from postroom._kernel.message import AnyMessage
from postroom._kernel.policy import Box
from postroom.cli.dead.formatting import describe, lines
from postroom.cli.option_sets import Filters, OneBox, Page, Target
from postroom.cli.session import ChosenStore, Visited


class Letters(NamedTuple):
    """A page of dead letters of a box."""

    box: Box
    found: list[AnyMessage]
    next: int | None
    """What begins the next page; None: this is the last one."""

    def as_json(self) -> dict[str, object]:
        return {"box": self.box.key, "messages": [describe(letter) for letter in self.found], "next": self.next}

    def as_text(self) -> str:
        return Page.text(lines(self.found), self.next)


def list_letters(*, one: OneBox, filters: Filters, page: Page, target: Target) -> None:
    """List dead letters, the oldest first."""

    async def find(store: ChosenStore) -> Letters:
        box = await one.of(store)
        found = await box.dead_letters(**asdict(filters), after=page.after, limit=page.limit)
        return Letters(box.box, found, found[-1].id if len(found) == page.limit else None)

    with target.open() as session:
        page.check(session)
        found = session.each(find)
        if target.json:
            session.print_json([Visited(key, value.as_json()) for key, value in found])
        else:
            session.print_each([Visited(key, value.as_text()) for key, value in found], empty="there are none")
