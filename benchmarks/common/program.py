"""The command line of a benchmark, and what becomes of its results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.common.report import Results

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "reference"


@dataclass(frozen=True)
class Program:
    name: str
    """Such as "postgres": of the module, of the page and of the pictures."""
    summary: str
    cases: Sequence[str]
    drawn: tuple[str, ...]
    """Which cases say more as a picture."""

    def options(self, *more: tuple[str, dict[str, Any]]) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{self.name}", description=self.summary)
        names = ", ".join(self.cases)
        parser.add_argument("--quick", action="store_true", help="fewer rounds, backlogs of at most 100,000: minutes")
        parser.add_argument("--only", nargs="+", choices=self.cases, metavar="CASE", help=f"some cases only: {names}")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here too")
        parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the figures there")
        parser.add_argument("--publish", action="store_true", help="write text and plots into the documentation")
        for flag, settings in more:
            parser.add_argument(flag, **settings)
        return parser.parse_args()

    def deliver(self, results: Results, options: argparse.Namespace) -> None:
        """To standard output, and wherever the options say."""
        text = results.text()
        print(text)
        if options.json is not None:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(results.as_json(), indent=2) + "\n", "utf-8")
        if self.drawn and (options.plots is not None or options.publish):
            from benchmarks.common import plots

            plots.draw(results, self.drawn, options.plots or DOCUMENTATION / "plots", self.name)
        if options.publish:
            _publish(text, DOCUMENTATION / f"benchmarks-{self.name}.md")


def _publish(text: str, page: Path) -> None:
    """Between the marks of the page."""
    before, rest = page.read_text("utf-8").split("<!-- begin -->", 1)
    after = rest.split("<!-- end -->", 1)[1]
    page.write_text(f"{before}<!-- begin -->\n\n{text}\n<!-- end -->{after}", "utf-8")


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
