"""The results as text, which is Markdown too, and as JSON."""

from __future__ import annotations

import io
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from benchmarks.rounds import Case
from benchmarks.table import Aim


@dataclass(frozen=True)
class Section:
    """Cases that belong together."""

    title: str
    cases: list[Case]
    unit: str = "messages/s"
    ratios: tuple[tuple[str, str], ...] = ()
    """Which contenders are set against each other, beside the figures of all."""

    @property
    def contenders(self) -> list[str]:
        return list(dict.fromkeys(name for case in self.cases for name in case.rates))

    def best(self, contender: str) -> float:
        """Of all cases."""
        return max((case.rate(contender) or 0.0 for case in self.cases), default=0.0)

    def case(self, name: str) -> Case:
        return next(case for case in self.cases if case.name == name)


@dataclass
class Results:
    about: dict[str, Any]
    sections: dict[str, Section]
    aims: list[Aim]
    notes: list[str]

    def text(self) -> str:
        """Markdown."""
        out = io.StringIO()
        console = Console(file=out, width=320, highlight=False, soft_wrap=True)
        for section in self.sections.values():
            console.print(f"### {section.title} ({section.unit})")
            console.print(_table(section))
        console.print("### What was aimed for\n")
        for aim in self.aims:
            console.print(f"* {'met' if aim.met else 'MISSED'}: {aim.text}: {aim.value:.2f}")
        for note in self.notes:
            console.print(f"* {note}")
        console.print("\n" + ", ".join(f"{name} {value}" for name, value in self.about.items()))
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

    def as_json(self) -> dict[str, Any]:
        return {
            "about": self.about,
            "sections": {
                name: {
                    "title": section.title,
                    "unit": section.unit,
                    "cases": [{"name": case.name, "contenders": _figures(case)} for case in section.cases],
                }
                for name, section in self.sections.items()
            },
            "aims": [{"text": aim.text, "value": aim.value, "met": aim.met} for aim in self.aims],
            "notes": self.notes,
        }


def _figures(case: Case) -> dict[str, Any]:
    return {name: {"median": case.rate(name), "rounds": rates} for name, rates in case.rates.items()}


def _table(section: Section) -> Table:
    table = Table(box=MARKDOWN)
    table.add_column("case")
    for name in section.contenders:
        table.add_column(name, justify="right")
    for one, other in section.ratios:
        table.add_column(f"{one} / {other}", justify="right")
    for case in section.cases:
        table.add_row(
            case.name,
            *(_number(case.rate(name)) for name in section.contenders),
            *(_spread(case.ratios(one, other)) for one, other in section.ratios),
        )
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.4f}"


def _spread(ratios: list[float]) -> str:
    """The median, and the worst and best round."""
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}"
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"
