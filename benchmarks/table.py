"""The results as text, which is Markdown too and can be pasted into the documentation, and as JSON."""

from __future__ import annotations

import platform
import sqlite3
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median
from typing import Any

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from benchmarks.rounds import Case

LIMIT = "raw"


@dataclass(frozen=True)
class Aim:
    """What the project set out to reach, and what this run reached."""

    text: str
    value: float
    met: bool


def at_least(wanted: float, value: float, text: str) -> Aim:
    return Aim(f"{text} at least {wanted:g}", value, value >= wanted)


@dataclass(frozen=True)
class Section:
    """Cases that belong together. The ratios are to `limit`, a contender of the same case."""

    title: str
    cases: list[Case]
    contenders: tuple[str, ...]
    limit: str = LIMIT
    unit: str = "messages/s"


def versions() -> dict[str, str]:
    return {
        "postroom": version("postroom"),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "aiosqlite": version("aiosqlite"),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def show(sections: list[Section], aims: list[Aim], about: dict[str, Any]) -> None:
    console = Console(width=130, highlight=False, soft_wrap=True)
    for section in sections:
        console.print(f"### {section.title} ({section.unit})")
        console.print(_table(section))
    console.print("### What was aimed for\n")
    for aim in aims:
        console.print(f"* {'met' if aim.met else 'MISSED'}: {aim.text}: {_number(aim.value)}")
    console.print("\n" + ", ".join(f"{name} {value}" for name, value in about.items()))


def _table(section: Section) -> Table:
    table = Table(box=MARKDOWN)
    table.add_column("case")
    for name in section.contenders:
        table.add_column(name, justify="right")
    others = [name for name in section.contenders if name != section.limit]
    for name in others:
        table.add_column(f"{name} / {section.limit}", justify="right")
    for case in section.cases:
        table.add_row(
            case.name,
            *(_number(case.rate(name)) for name in section.contenders),
            *(_spread(case.ratios(name, section.limit)) for name in others),
        )
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _spread(ratios: list[float]) -> str:
    """The median, and the worst and best round."""
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"


def as_json(sections: list[Section], aims: list[Aim], about: dict[str, Any]) -> dict[str, Any]:
    return {
        "about": about,
        "sections": [
            {
                "title": section.title,
                "unit": section.unit,
                "ratios_to": section.limit,
                "cases": [_case(case, section) for case in section.cases],
            }
            for section in sections
        ],
        "aims": [{"text": aim.text, "value": aim.value, "met": aim.met} for aim in aims],
    }


def _case(case: Case, section: Section) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, rates in case.rates.items():
        found[name] = {"median": case.rate(name), "rounds": rates}
        ratios = case.ratios(name, section.limit)
        if ratios and name != section.limit:
            found[name]["ratio"] = median(ratios)
    return {"name": case.name, "contenders": found}
