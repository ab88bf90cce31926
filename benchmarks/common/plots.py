"""The figures as pictures: plain SVG that changes only where the figures do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.common.report import Results, Section

COLOURS = {
    "raw": "#888888",
    "raw, unordered": "#888888",
    "postroom": "#1b6ca8",
    "postroom, unordered": "#1b6ca8",
    "postroom, lists": "#6fb1e0",
    "postroom, fifo": "#12436a",
    "pgqueuer": "#d1603d",
    "procrastinate": "#7a9e3a",
    "saq": "#9163a8",
    "awa": "#c9a227",
    "streaq": "#d1603d",
    "arq": "#7a9e3a",
    "dramatiq": "#c9a227",
    "taskiq": "#3a9e8f",
    "taskiq, lists": "#8fd0c6",
    "free": "#1b6ca8",
    "xmin held": "#12436a",
}

WIDE = 30
"""From this factor on, the scale is logarithmic."""

mpl.use("svg")
mpl.rcParams.update(
    {
        "svg.hashsalt": "postroom",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)


def draw(results: Results, names: tuple[str, ...], folder: Path, prefix: str) -> list[Path]:
    """One picture per section that says more as a picture; where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name in names:
        if name in results.sections:
            path = folder / f"{prefix}-{name}.svg"
            _draw(results.sections[name], path)
            drawn.append(path)
    return drawn


def _draw(section: Section, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    contenders = section.contenders
    width = 0.8 / len(contenders)
    for index, name in enumerate(contenders):
        databases, heights = [], []
        for number, case in enumerate(section.cases):
            if (rate := case.rate(name)) is not None:
                databases.append(number + (index - (len(contenders) - 1) / 2) * width)
                heights.append(rate)
        bars: Any = axes.bar(databases, heights, width * 0.92, label=name, color=COLOURS.get(name, "#444444"))
        axes.bar_label(bars, [_short(height) for height in heights], fontsize=6, rotation=90, padding=2)
    rates = [rate for case in section.cases for name in contenders if (rate := case.rate(name))]
    if max(rates) > WIDE * min(rates):
        axes.set_yscale("log")
        axes.set_ylim(10 ** math.floor(math.log10(min(rates))), max(rates) * 4)
    else:
        axes.set_ylim(0, max(rates) * 1.3)
    axes.set_xticks(range(len(section.cases)), [case.name for case in section.cases])
    axes.set_ylabel(section.unit)
    axes.set_title(section.title, fontsize=10)
    axes.legend(fontsize=7, ncols=min(len(contenders), 7), frameon=False, loc="upper center")
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)
    path.write_text("\n".join(line.rstrip() for line in path.read_text("utf-8").splitlines()) + "\n", "utf-8")


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:.0f}k"
    if value >= 1000:
        return f"{value / 1000:.1f}k"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
