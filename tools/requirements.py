"""Which requirement is proven by which test: writes docs/requirements.md, and fails for what is built but unproven.

    python tools/requirements.py

Reads the catalog, the conflicts and the status in requirements/, and .build/requirements.json, which a full run of
pytest leaves behind (tests/conftest.py). The page depends on nothing else, so two runs write the same text.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).resolve().parent.parent

Status = Literal["proven", "differently", "missing", "not yet"]
Proofs = Mapping[str, Mapping[str, Iterable[str]]]
"""Requirement id → test → the stores on which it passed."""

_RANGE = re.compile(r"(?P<stem>[A-Z]+(?:-[A-Z]+)?-)(?P<first>\d+)\.\.(?P<last>\d+)")
_CONFLICT = re.compile(r"^### (C-\d+) \([^)]*\) (.+)$", re.MULTILINE)


class Problem(Exception):
    """The input is wrong, or something is unproven. The text says what to do."""


@dataclass(frozen=True)
class Requirement:
    """One entry of the page."""

    id: str
    level: str
    title: str
    document: str


class Difference(NamedTuple):
    """A requirement that is met in another way."""

    decision: int
    how: str


@dataclass(frozen=True)
class Situation:
    """Everything that the page is made of."""

    requirements: tuple[Requirement, ...]
    built: frozenset[str]
    differently: Mapping[str, Difference]
    documents: Mapping[str, str]
    decisions: Mapping[int, str]
    proofs: Proofs = field(default_factory=dict)

    def status(self, requirement: Requirement) -> Status:
        if self.proofs.get(requirement.id):
            return "proven"
        if requirement.id in self.differently:
            return "differently"
        if requirement.id in self.built and requirement.level in {"must", "resolution"}:
            return "missing"
        return "not yet"

    def missing(self) -> list[Requirement]:
        return [requirement for requirement in self.requirements if self.status(requirement) == "missing"]


# -- reading -----------------------------------------------------------------------------------------------------------


def read_catalog(root: Path = ROOT) -> tuple[tuple[Requirement, ...], dict[str, str]]:
    """All requirements and conflicts, and the names of their documents."""
    catalog = tomllib.loads((root / "requirements/catalog.toml").read_text("utf-8"))
    conflicts = (root / "requirements/conflicts.md").read_text("utf-8")
    entries = [Requirement(row["id"], row["level"], row["title"], row["source"]) for row in catalog["requirement"]]
    entries += [Requirement(number, "resolution", title, "conflicts") for number, title in _CONFLICT.findall(conflicts)]
    return tuple(entries), {**catalog["documents"], "conflicts": "Conflicts between the documents, resolved"}


def known_ids(root: Path = ROOT) -> frozenset[str]:
    return frozenset(requirement.id for requirement in read_catalog(root)[0])


def expand(texts: Iterable[str], known: Iterable[str]) -> list[str]:
    """Ids from a list that has ranges, such as IBX-001..071; each must exist."""
    ids: list[str] = []
    for text in texts:
        found = _RANGE.fullmatch(text)
        if found is None:
            ids.append(text)
        else:
            first, last = found["first"], found["last"]
            ids += [f"{found['stem']}{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    if unknown := sorted(set(ids) - set(known)):
        raise Problem(f"requirements/status.toml names ids that the catalog does not have: {', '.join(unknown)}")
    return ids


def read_situation(root: Path = ROOT) -> Situation:
    requirements, documents = read_catalog(root)
    known = [requirement.id for requirement in requirements]
    status = tomllib.loads((root / "requirements/status.toml").read_text("utf-8"))
    decisions = {int(file.name[:4]): file.name for file in (root / "docs/decisions").glob("[0-9][0-9][0-9][0-9]-*.md")}
    differently: dict[str, Difference] = {}
    for entry in status.get("differently", []):
        if entry["decision"] not in decisions:
            raise Problem(f"requirements/status.toml names decision {entry['decision']:04}, which does not exist")
        for id_ in expand(entry["ids"], known):
            differently[id_] = Difference(entry["decision"], entry["how"])
    built = expand([*status["built"]["requirements"], *status["built"]["conflicts"]], known)
    return Situation(requirements, frozenset(built), differently, documents, decisions, read_proofs(root))


def read_proofs(root: Path) -> Proofs:
    file = root / ".build/requirements.json"
    if not file.exists():
        raise Problem(".build/requirements.json is not there: run all tests first, with `make unit`")
    proofs: Proofs = json.loads(file.read_text("utf-8"))
    return proofs


# -- writing -----------------------------------------------------------------------------------------------------------

_PREFACE = """\
# Requirements

Made by `make requirements`; do not edit. The texts are in `requirements/catalog.toml` and `requirements/conflicts.md`.

* **proven**: the tests named here passed, on the stores named behind them.
* **met differently**: the aim is met in another way; the decision says why.
* **not yet**: nothing proves it so far.
"""


def render(situation: Situation) -> str:
    parts = [_PREFACE, _summary(situation)]
    for document, name in situation.documents.items():
        entries = [requirement for requirement in situation.requirements if requirement.document == document]
        parts.append(f"## {name}\n\n| id | level | title | status |\n|---|---|---|---|")
        parts += [_row(situation, requirement) for requirement in entries]
        parts.append("")
    return "\n".join(parts)


def _summary(situation: Situation) -> str:
    rows = ["| | proven | met differently | not yet | all |", "|---|---:|---:|---:|---:|"]
    total: Counter[str] = Counter()
    for document, name in situation.documents.items():
        count = Counter(
            _column(situation.status(entry)) for entry in situation.requirements if entry.document == document
        )
        total += count
        rows.append(_counts(name, count))
    built = Counter(_column(situation.status(entry)) for entry in situation.requirements if entry.id in situation.built)
    rows += [_counts("**all**", total), _counts("of these in built areas", built)]
    return "\n".join(rows) + "\n"


def _column(status: Status) -> str:
    return "not yet" if status == "missing" else status


def _counts(name: str, count: Counter[str]) -> str:
    cells = [count["proven"], count["differently"], count["not yet"], count.total()]
    return f"| {name} | " + " | ".join(map(str, cells)) + " |"


def _row(situation: Situation, requirement: Requirement) -> str:
    cells = []
    if proofs := situation.proofs.get(requirement.id):
        cells.append(_tests(proofs))
    if difference := situation.differently.get(requirement.id):
        file = situation.decisions[difference.decision]
        cells.append(f"met differently ([{file[:4]}](decisions/{file})): {difference.how}")
    if situation.status(requirement) == "missing":
        cells.append("**not proven**")
    return (
        f"| {requirement.id} | {requirement.level} | {_cell(requirement.title)} | {'<br>'.join(cells) or 'not yet'} |"
    )


def _tests(proofs: Mapping[str, Iterable[str]]) -> str:
    """Each test once, without its folder, with all the stores on which it passed."""
    stores: dict[str, set[str]] = {}
    for test, names in proofs.items():
        stores.setdefault(_short(test), set()).update(names)
    return "<br>".join(
        f"`{test}`" + (f" ({', '.join(sorted(names))})" if names else "") for test, names in sorted(stores.items())
    )


def _short(test: str) -> str:
    path, *names = test.split("::")
    return "::".join([Path(path).stem, *names] if len(names) == 1 else names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# -- running -----------------------------------------------------------------------------------------------------------


def check(root: Path = ROOT, *, ci: bool = False) -> str:
    """Write the page. Answers a line for people; raises Problem where the build must stop."""
    situation = read_situation(root)
    page, file = render(situation), root / "docs/requirements.md"
    changed = not file.exists() or file.read_text("utf-8") != page
    file.write_text(page, "utf-8")
    if missing := situation.missing():
        lines = [f"  {entry.id}  {entry.title}" for entry in missing]
        raise Problem(f"{len(missing)} requirements of built areas have no test that names them:\n" + "\n".join(lines))
    if changed and ci:
        raise Problem("docs/requirements.md was not up to date: run `make requirements` and commit it")
    count = Counter(situation.status(entry) for entry in situation.requirements)
    return f"requirements: {count['proven']} proven, {count['differently']} met differently, {count['not yet']} not yet"


def main() -> int:
    try:
        print(check(ci=os.environ.get("CI") == "true"))
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
