"""Writes requirements/coverage.md: which test proves which requirement. Fails if a built requirement is not proven.

    python tools/requirements.py

Reads the catalog, the conflicts and the status in requirements/, and .build/requirements.json, which a full run of
pytest writes (tests/conftest.py). The page depends on nothing else, so two runs write the same text.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

ROOT = Path(__file__).resolve().parent.parent

Status = Literal["proven", "partly", "differently", "missing", "not yet"]
Proofs = Mapping[str, Mapping[str, Iterable[str]]]
"""Requirement id → test → the stores on which it passed."""

PROPERTY = "requirement"
"""The name of the property of a test and of its report (tests/conftest.py): requirement id, test, names of stores."""
SERVER_MISSING = "SERVER MISSING:"
"""The beginning of the reason of a test that was skipped because it found no server."""
CONFORMANCE = "store-conformance"
"""The `verify` of what every store must do."""

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
    verify: str = ""


class Difference(NamedTuple):
    """A requirement that is met in another way."""

    decision: int
    how: str


@dataclass(frozen=True)
class Stores:
    """The stores of the table `[stores]`, and which of them each requirement must be proven on."""

    names: Mapping[str, str] = field(default_factory=dict)
    """The value of a test's parameter, such as "asyncpg" → the store, such as "PostgreSQL"."""
    narrowed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Requirement id → its stores, where these are not all."""

    @property
    def all(self) -> frozenset[str]:
        return frozenset(self.names.values())

    def needed(self, requirement: Requirement) -> frozenset[str]:
        if requirement.verify != CONFORMANCE:
            return frozenset()
        return self.narrowed.get(requirement.id, self.all)

    def passed(self, tests: Mapping[str, Iterable[str]]) -> frozenset[str]:
        """Returns the stores on which these tests passed."""
        return frozenset(self.names[name] for names in tests.values() for name in names)


@dataclass(frozen=True)
class Situation:
    """Everything that the page is made of."""

    requirements: tuple[Requirement, ...]
    built: frozenset[str]
    differently: Mapping[str, Difference]
    documents: Mapping[str, str]
    decisions: Mapping[int, str]
    stores: Stores = field(default_factory=Stores)
    partly: Mapping[str, str] = field(default_factory=dict)
    """Requirement id → what of it is not built."""
    proofs: Proofs = field(default_factory=dict)

    def status(self, requirement: Requirement) -> Status:
        if requirement.id in self.differently:
            return "differently"
        if self.proofs.get(requirement.id):
            if self.unproven_stores(requirement):
                return "missing"
            return "partly" if requirement.id in self.partly else "proven"
        if requirement.id in self.built and requirement.level in {"must", "resolution"}:
            return "missing"
        return "not yet"

    def unproven_stores(self, requirement: Requirement) -> list[str]:
        """Returns the stores on which the requirement must be proven and no test that names it passed."""
        return sorted(self.stores.needed(requirement) - self.stores.passed(self.proofs.get(requirement.id, {})))

    def problems(self) -> list[str]:
        """Returns the reasons for which the build must stop, in sentences."""
        entries = self.requirements
        untested = [entry for entry in entries if self.status(entry) == "missing" and not self.proofs.get(entry.id)]
        partly = [entry for entry in entries if self.status(entry) == "missing" and self.proofs.get(entry.id)]
        both = [entry for entry in entries if entry.id in self.differently and self.proofs.get(entry.id)]
        return [
            *_listed("requirements of built areas have no test that names them", untested),
            *_listed(
                "requirements have no test on some of their stores: add one, or name their stores in "
                "requirements/status.toml",
                partly,
                lambda entry: f" (not on {', '.join(self.unproven_stores(entry))})",
            ),
            *_listed(
                "requirements are both proven by a test and met differently: remove the marker, or the entry in "
                "requirements/status.toml",
                both,
                lambda entry: f" ({', '.join(sorted(map(_short, self.proofs[entry.id])))})",
            ),
        ]


def _listed(
    complaint: str, entries: list[Requirement], detail: Callable[[Requirement], str] = lambda _: ""
) -> Iterator[str]:
    if entries:
        lines = [f"  {entry.id}  {entry.title}{detail(entry)}" for entry in entries]
        yield "\n".join([f"{len(entries)} {complaint}:", *lines])


# -- reading -----------------------------------------------------------------------------------------------------------


def read_catalog(root: Path = ROOT) -> tuple[tuple[Requirement, ...], dict[str, str]]:
    """Returns all requirements and conflicts, and the names of their documents."""
    catalog = tomllib.loads((root / "requirements/catalog.toml").read_text("utf-8"))
    conflicts = (root / "requirements/conflicts.md").read_text("utf-8")
    entries = [
        Requirement(row["id"], row["level"], row["title"], row["source"], row["verify"])
        for row in catalog["requirement"]
    ]
    entries += [Requirement(number, "resolution", title, "conflicts") for number, title in _CONFLICT.findall(conflicts)]
    return tuple(entries), {**catalog["documents"], "conflicts": "Conflicts between the documents, resolved"}


def known_ids(root: Path = ROOT) -> frozenset[str]:
    return frozenset(requirement.id for requirement in read_catalog(root)[0])


def read_conformance(root: Path = ROOT) -> dict[str, dict[str, list[str]]]:
    """Returns the requirement ids of the public conformance tests: class name, test name, ids."""
    file = root / "requirements/conformance.toml"
    return tomllib.loads(file.read_text("utf-8")) if file.exists() else {}


def expand(texts: Iterable[str], known: Iterable[str]) -> list[str]:
    """Returns the ids of a list that has ranges, such as IBX-001..071. Raises Problem for an unknown id."""
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
    partly = {id_: entry["missing"] for entry in status.get("partly", []) for id_ in expand(entry["ids"], known)}
    if both := sorted(partly.keys() & differently.keys()):
        raise Problem(f"requirements/status.toml has these as built in part and as met differently: {', '.join(both)}")
    stores = read_stores(root, known)
    proofs = read_proofs(root)
    return Situation(requirements, frozenset(built), differently, documents, decisions, stores, partly, proofs)


def read_stores(root: Path = ROOT, known: Iterable[str] | None = None) -> Stores:
    """Returns the tables `[stores]` and `[[narrowed]]`: which store the parameter of a test names."""
    status = tomllib.loads((root / "requirements/status.toml").read_text("utf-8"))
    names = {name: store for store, values in status["stores"].items() for name in values}
    narrowed: dict[str, frozenset[str]] = {}
    for entry in status.get("narrowed", []):
        if unknown := sorted(set(entry["stores"]) - set(status["stores"])):
            raise Problem(f"requirements/status.toml has no store {', '.join(unknown)} in [stores]")
        ids = expand(entry["ids"], known_ids(root) if known is None else known)
        narrowed |= dict.fromkeys(ids, frozenset(entry["stores"]))
    return Stores(names, narrowed)


def read_proofs(root: Path = ROOT) -> Proofs:
    return cast("Proofs", _read_record(root)["proofs"])


def read_missing_servers(root: Path = ROOT) -> list[str]:
    """Returns why tests were skipped in the full run, one line per missing server."""
    return cast("list[str]", _read_record(root)["servers_missing"])


def _read_record(root: Path) -> Mapping[str, Any]:
    file = root / ".build/requirements.json"
    record: Mapping[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if "proofs" not in record:
        raise Problem(".build/requirements.json is missing or old: run all tests first, with `make unit`")
    return record


# -- writing -----------------------------------------------------------------------------------------------------------

_PREFACE = """\
# Requirements

Made by `make requirements`; do not edit. The texts are in `requirements/catalog.toml` and `requirements/conflicts.md`.

* **proven**: the tests named here passed, on the stores named behind them. What every store must do has a test that
  passed on each of them, or on those that `requirements/status.toml` names.
* **in part**: the tests named here passed; the rest of it is not built.
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
    rows = ["| | proven | in part | met differently | not yet | all |", "|---|---:|---:|---:|---:|---:|"]
    total: Counter[str] = Counter()
    for document, name in situation.documents.items():
        count = Counter(
            _column(situation.status(entry)) for entry in situation.requirements if entry.document == document
        )
        total += count
        rows.append(_counts(name, count))
    built = Counter(_column(situation.status(entry)) for entry in situation.requirements if entry.id in situation.built)
    rows += [_counts("**all**", total), _counts("of these in built areas", built)]
    rows += ["", "| store | requirements with a test that passed there |", "|---|---:|"]
    for store in sorted(situation.stores.all):
        proven = [entry for entry in situation.proofs.values() if store in situation.stores.passed(entry)]
        rows.append(f"| {store} | {len(proven)} |")
    return "\n".join(rows) + "\n"


def _column(status: Status) -> str:
    return "not yet" if status == "missing" else status


def _counts(name: str, count: Counter[str]) -> str:
    cells = [count["proven"], count["partly"], count["differently"], count["not yet"], count.total()]
    return f"| {name} | " + " | ".join(map(str, cells)) + " |"


def _row(situation: Situation, requirement: Requirement) -> str:
    cells = []
    if proofs := situation.proofs.get(requirement.id):
        cells.append(_tests(proofs, situation.stores))
    if missing := situation.partly.get(requirement.id):
        cells.append(f"in part; not built: {missing}")
    if difference := situation.differently.get(requirement.id):
        file = situation.decisions[difference.decision]
        cells.append(f"met differently ([{file[:4]}](../docs/decisions/{file})): {difference.how}")
    if situation.status(requirement) == "missing":
        stores = situation.unproven_stores(requirement) if cells else []
        cells.append("**not proven" + (f" on {', '.join(stores)}" if stores else "") + "**")
    return (
        f"| {requirement.id} | {requirement.level} | {_cell(requirement.title)} | {'<br>'.join(cells) or 'not yet'} |"
    )


def _tests(proofs: Mapping[str, Iterable[str]], stores: Stores) -> str:
    """Returns each test once, without its folder, with all the stores on which it passed."""
    passed: dict[str, set[str]] = {}
    for test, names in proofs.items():
        passed.setdefault(_short(test), set()).update(stores.passed({test: names}))
    return "<br>".join(
        f"`{test}`" + (f" ({', '.join(sorted(found))})" if found else "") for test, found in sorted(passed.items())
    )


def _short(test: str) -> str:
    path, *names = test.split("::")
    return "::".join([Path(path).stem, *names] if len(names) == 1 else names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# -- running -----------------------------------------------------------------------------------------------------------


def check(root: Path = ROOT, *, ci: bool = False) -> str:
    """Writes the page and returns a summary. Raises Problem if the build must stop.

    If tests were skipped because a server was missing, the requirements that they prove are unknown: the page is not
    changed. In CI this is a problem.
    """
    situation = read_situation(root)
    problems = situation.problems()
    if problems and (servers := read_missing_servers(root)):
        text = "requirements: not checked, because tests were skipped that need a server:\n" + "\n".join(
            f"  {reason}" for reason in servers
        )
        if ci:
            raise Problem(text)
        return text + "\nInstall it, or name one in POSTROOM_TEST_POSTGRES or POSTROOM_TEST_REDIS; then `make unit`."
    page, file = render(situation), root / "requirements/coverage.md"
    changed = not file.exists() or file.read_text("utf-8") != page
    file.write_text(page, "utf-8")
    if problems:
        raise Problem("\n".join(problems))
    if changed and ci:
        raise Problem("requirements/coverage.md was not up to date: run `make requirements` and commit it")
    count = Counter(situation.status(entry) for entry in situation.requirements)
    return (
        f"requirements: {count['proven']} proven, {count['partly']} in part, {count['differently']} met differently, "
        f"{count['not yet']} not yet"
    )


def main() -> int:
    try:
        print(check(ci=os.environ.get("CI") == "true"))
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
