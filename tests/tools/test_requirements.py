"""The traceability of requirements: the tool, and the plugin in tests/conftest.py that feeds it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools.requirements import (
    ROOT,
    Problem,
    check,
    expand,
    known_ids,
    read_catalog,
    read_conformance,
    read_missing_servers,
    read_stores,
)

from postroom.testing import conformance
from tests.conformance.test_stores import STORES

CATALOG = """
[documents]
"000" = "The inbox"

[[requirement]]
id = "IBX-001"
title = "Key | pair"
level = "must"
source = "000"
verify = "store-conformance"

[[requirement]]
id = "IBX-002"
title = "Atomic"
level = "must"
source = "000"
verify = "engine"

[[requirement]]
id = "IBX-003"
title = "Nice"
level = "should"
source = "000"
verify = "engine"

[[requirement]]
id = "IBX-SCH-01"
title = "Shape"
level = "must"
source = "000"
verify = "engine"
"""
CONFLICTS = "# Conflicts\n\n### C-01 (X, I) What is guaranteed\ntext\n\n### C-02 (X) When\n"
STATUS = """
[built]
requirements = ["IBX-001..003"]
conflicts = ["C-02"]

[stores]
memory = ["memory"]
SQLite = ["sqlite3", "aiosqlite"]
PostgreSQL = ["asyncpg", "postgres"]

[[narrowed]]
ids = ["IBX-SCH-01"]
stores = ["SQLite"]
why = "A view."

[[differently]]
ids = ["IBX-SCH-01"]
decision = 3
how = "By a view."
"""
PROOFS = {
    "IBX-001": {
        "tests/a.py::TestQueue::test_key": ["memory", "sqlite3"],
        "tests/b.py::TestQueue::test_key": ["aiosqlite", "asyncpg"],
    },
    "IBX-002": {"tests/a.py::test_atomic": []},
    "C-02": {"tests/a.py::test_when": ["memory"]},
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project with everything proven."""
    for folder in ("requirements", "docs/decisions", ".build"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "requirements/catalog.toml").write_text(CATALOG)
    (tmp_path / "requirements/conflicts.md").write_text(CONFLICTS)
    (tmp_path / "requirements/status.toml").write_text(STATUS)
    (tmp_path / "docs/decisions/0003-tables.md").write_text("# 0003\n")
    prove(tmp_path, PROOFS)
    return tmp_path


def prove(project: Path, proofs: Any, missing: tuple[str, ...] = ()) -> None:
    record = {"proofs": proofs, "servers_missing": missing}
    (project / ".build/requirements.json").write_text(json.dumps(record))


def page(project: Path) -> list[str]:
    return (project / "requirements/coverage.md").read_text("utf-8").splitlines()


class TestTool:
    def test_the_page_lists_tests_stores_and_differences(self, project: Path) -> None:
        assert check(project) == "requirements: 3 proven, 0 in part, 1 met differently, 2 not yet"
        lines = page(project)
        assert "| IBX-001 | must | Key \\| pair | `TestQueue::test_key` (PostgreSQL, SQLite, memory) |" in lines
        assert "| IBX-002 | must | Atomic | `a::test_atomic` |" in lines
        assert "| IBX-003 | should | Nice | not yet |" in lines
        assert (
            "| IBX-SCH-01 | must | Shape | met differently ([0003](../docs/decisions/0003-tables.md)): By a view. |"
            in lines
        )
        assert "| C-01 | resolution | What is guaranteed | not yet |" in lines

    def test_the_page_counts(self, project: Path) -> None:
        check(project)
        assert "| The inbox | 2 | 0 | 1 | 1 | 4 |" in page(project)
        assert "| **all** | 3 | 0 | 1 | 2 | 6 |" in page(project)
        assert "| of these in built areas | 3 | 0 | 0 | 1 | 4 |" in page(project)

    @pytest.mark.parametrize("id_", ["IBX-002", "C-02"])
    def test_an_unproven_must_of_a_built_area_stops_the_build(self, project: Path, id_: str) -> None:
        prove(project, {key: value for key, value in PROOFS.items() if key != id_})
        with pytest.raises(Problem, match=f"(?s)1 requirements.*{id_}"):
            check(project)
        assert any(id_ in line and "**not proven**" in line for line in page(project))

    @pytest.mark.parametrize("built", [True, False])
    def test_a_requirement_of_every_store_needs_a_test_on_each(self, project: Path, built: bool) -> None:
        if not built:
            (project / "requirements/status.toml").write_text(STATUS.replace("IBX-001", "IBX-002"))
        tests = {"tests/a.py::test_key": ["memory", "sqlite3"]}
        prove(project, {**PROOFS, "IBX-001": tests})
        with pytest.raises(Problem, match=r"IBX-001  Key . pair \(not on PostgreSQL\)"):
            check(project)
        assert any("IBX-001" in line and "**not proven on PostgreSQL**" in line for line in page(project))

    def test_a_requirement_of_some_stores_needs_a_test_on_these(self, project: Path) -> None:
        narrowed = STATUS.replace('ids = ["IBX-SCH-01"]\nstores', 'ids = ["IBX-001"]\nstores')
        (project / "requirements/status.toml").write_text(narrowed)
        prove(project, {**PROOFS, "IBX-001": {"tests/a.py::test_key": ["aiosqlite"]}})
        check(project)
        prove(project, {**PROOFS, "IBX-001": {"tests/a.py::test_key": ["memory"]}})
        with pytest.raises(Problem, match="not on SQLite"):
            check(project)

    def test_a_store_that_does_not_exist_is_refused(self, project: Path) -> None:
        (project / "requirements/status.toml").write_text(STATUS.replace('stores = ["SQLite"]', 'stores = ["Oracle"]'))
        with pytest.raises(Problem, match="no store Oracle"):
            check(project)

    def test_what_is_met_differently_must_not_have_a_test_that_names_it(self, project: Path) -> None:
        prove(project, {**PROOFS, "IBX-SCH-01": {"tests/a.py::test_view": []}})
        with pytest.raises(Problem, match=r"(?s)both proven .*IBX-SCH-01  Shape \(a::test_view\)"):
            check(project)

    def test_what_is_built_in_part_is_not_counted_as_proven(self, project: Path) -> None:
        partly = '[[partly]]\nids = ["C-02"]\nmissing = "the guard"\n'
        (project / "requirements/status.toml").write_text(STATUS + partly)
        assert check(project) == "requirements: 2 proven, 1 in part, 1 met differently, 2 not yet"
        assert any("C-02" in line and "in part; not built: the guard |" in line for line in page(project))
        (project / "requirements/status.toml").write_text(STATUS + partly.replace("C-02", "IBX-SCH-01"))
        with pytest.raises(Problem, match=r"in part and as met differently: IBX-SCH-01"):
            check(project)

    def test_the_page_counts_the_requirements_of_each_store(self, project: Path) -> None:
        check(project)
        assert {"| memory | 2 |", "| SQLite | 1 |", "| PostgreSQL | 1 |"} <= set(page(project))

    def test_what_is_not_built_stops_nothing(self, project: Path) -> None:
        (project / "requirements/status.toml").write_text("[built]\nrequirements = []\nconflicts = []\n[stores]\n")
        prove(project, {})
        assert check(project) == "requirements: 0 proven, 0 in part, 0 met differently, 6 not yet"

    def test_two_runs_write_the_same_page(self, project: Path) -> None:
        check(project)
        before = page(project)
        prove(project, dict(reversed(PROOFS.items())))
        check(project, ci=True)
        assert page(project) == before

    def test_ci_wants_the_page_committed(self, project: Path) -> None:
        check(project)
        prove(project, {**PROOFS, "IBX-003": {"tests/a.py::test_nice": []}})
        with pytest.raises(Problem, match="run `make requirements` and commit"):
            check(project, ci=True)

    def test_without_a_test_run_it_says_what_to_do(self, project: Path) -> None:
        (project / ".build/requirements.json").unlink()
        with pytest.raises(Problem, match="make unit"):
            check(project)

    def test_without_a_server_it_names_the_server_and_leaves_the_page(self, project: Path) -> None:
        check(project)
        before = page(project)
        prove(project, {"IBX-002": {"tests/a.py::test_atomic": []}}, ("PostgreSQL: not installed",))
        assert "\n  PostgreSQL: not installed\n" in check(project)
        assert page(project) == before
        with pytest.raises(Problem, match="PostgreSQL: not installed"):
            check(project, ci=True)

    def test_a_server_that_nothing_depends_on_may_be_missing(self, project: Path) -> None:
        prove(project, PROOFS, ("PgBouncer: not installed",))
        assert check(project).startswith("requirements: 3 proven")

    def test_a_decision_that_does_not_exist_is_refused(self, project: Path) -> None:
        (project / "docs/decisions/0003-tables.md").unlink()
        with pytest.raises(Problem, match="decision 0003"):
            check(project)

    def test_an_unknown_id_in_the_status_is_refused(self, project: Path) -> None:
        (project / "requirements/status.toml").write_text(STATUS.replace("001..003", "001..004"))
        with pytest.raises(Problem, match="IBX-004"):
            check(project)

    def test_ranges(self) -> None:
        known = ["IBX-009", "IBX-010", "IBX-SCH-01", "IBX-SCH-02", "C-12"]
        assert expand(["IBX-009..010", "IBX-SCH-01..02", "C-12"], known) == known

    def test_the_real_catalog_is_complete(self) -> None:
        requirements, documents = read_catalog()
        assert len(requirements) == 665 + 65
        assert len(known_ids()) == len(requirements)
        assert {requirement.document for requirement in requirements} == set(documents)

    def test_the_ids_of_the_public_suite_are_outside_of_the_wheel(self) -> None:
        assert set(read_conformance()) <= set(conformance.__all__)
        assert {id_ for tests in read_conformance().values() for ids in tests.values() for id_ in ids} <= known_ids()
        wheel = [file for file in (ROOT / "src").rglob("*") if file.suffix in {".py", ".sql", ".lua"}]
        assert [
            file for file in wheel if re.search(r"\b((IBX|OBX|RHI|CEB|KOAN)-\d|C-\d\d\b)", file.read_text("utf-8"))
        ] == []

    def test_the_status_knows_every_store_of_the_conformance_tests(self) -> None:
        assert set(STORES) - set(read_stores().names) == set()


SAMPLE = """
import pytest

@pytest.fixture(params=["asyncpg"])
def any_name(request):
    return request.param

@pytest.mark.req("IBX-SCH-01")
def test_fixture(any_name):
    pass

@pytest.mark.req("IBX-SCH-01")
@pytest.mark.store("memory", "sqlite3")
def test_marker():
    pass

@pytest.mark.req("IBX-001")
@pytest.mark.parametrize("store", ["memory", "sqlite3", "broken"])
def test_key(store):
    assert store != "broken"

@pytest.mark.req("IBX-002", "C-02")
class TestClass:
    def test_one(self):
        pass

    @pytest.mark.req("IBX-003")
    def test_two(self):
        pytest.skip("SERVER MISSING: no server")
"""

PUBLIC_SUITE = """
class SampleConformance:
    __module__ = "postroom.testing.conformance.sample"

    def test_inherited(self):
        pass

    def test_overridden(self):
        pass

class TestStore(SampleConformance):
    def test_overridden(self):
        pass
"""
PUBLIC_IDS = """
[SampleConformance]
test_inherited = ["IBX-003"]
test_overridden = ["IBX-002"]
"""


class TestPlugin:
    """The plugin, in a pytest of its own."""

    @pytest.fixture
    def suite(self, project: Path) -> Path:
        (project / ".build/requirements.json").unlink()
        for folder in ("tests", "tools"):
            (project / folder).mkdir()
        shutil.copy(ROOT / "tests/conftest.py", project / "tests/conftest.py")
        shutil.copy(ROOT / "tools/requirements.py", project / "tools/requirements.py")
        (project / "pytest.ini").write_text(
            "[pytest]\ntestpaths = tests\npythonpath = .\naddopts = --strict-markers --import-mode=importlib\n"
        )
        (project / "tests/test_sample.py").write_text(SAMPLE)
        return project

    def run(self, suite: Path, *arguments: str) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        plugins = ("-p", "xdist") if "-n" in arguments else ()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugins, *arguments],
            cwd=suite,
            env={
                **environment,
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            },  # no plugin but xdist is needed, and most are slow
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout + done.stderr

    def proofs(self, suite: Path) -> Any:
        file = suite / ".build/requirements.json"
        return json.loads(file.read_text())["proofs"] if file.exists() else None

    @pytest.mark.parametrize("arguments", [(), ("tests",), ("-n", "1")], ids=["alone", "named", "xdist"])
    def test_a_full_run_records_what_passed_and_where(self, suite: Path, arguments: tuple[str, ...]) -> None:
        output = self.run(suite, *arguments)
        assert self.proofs(suite) == {
            "IBX-001": {"tests/test_sample.py::test_key": ["memory", "sqlite3"]},
            "IBX-002": {"tests/test_sample.py::TestClass::test_one": []},
            "C-02": {"tests/test_sample.py::TestClass::test_one": []},
            "IBX-SCH-01": {
                "tests/test_sample.py::test_fixture": ["asyncpg"],
                "tests/test_sample.py::test_marker": ["memory", "sqlite3"],
            },
        }, output
        assert read_missing_servers(suite) == ["no server"]

    def test_the_path_of_a_test_names_its_store(self, suite: Path) -> None:
        sample = SAMPLE.replace("def any_name", "def no_name").replace("any_name", "capsys")
        (suite / "tests/test_sample.py").rename(suite / "tests/test_postgres_life.py")
        (suite / "tests/test_postgres_life.py").write_text(sample)
        output = self.run(suite)
        assert self.proofs(suite)["IBX-SCH-01"] == {
            "tests/test_postgres_life.py::test_fixture": ["postgres"],
            "tests/test_postgres_life.py::test_marker": ["memory", "sqlite3"],
        }, output

    @pytest.mark.parametrize(
        "arguments",
        [
            ("-k", "one"),
            ("tests/test_sample.py",),
            ("--collect-only",),
            ("-x",),
            ("--deselect", "tests/test_sample.py"),
        ],
        ids=" ".join,
    )
    def test_a_run_of_some_tests_leaves_the_file_alone(self, suite: Path, arguments: tuple[str, ...]) -> None:
        prove(suite, {"IBX-001": {"before": []}})
        self.run(suite, *arguments)
        assert self.proofs(suite) == {"IBX-001": {"before": []}}

    def test_a_store_that_does_not_exist_is_an_error(self, suite: Path) -> None:
        (suite / "tests/test_sample.py").write_text(SAMPLE.replace('store("memory"', 'store("oracle"'))
        assert "test_marker: the marker store names no store" in self.run(suite)
        assert self.proofs(suite) is None

    @pytest.fixture
    def public_suite(self, suite: Path) -> Path:
        (suite / "tests/test_sample.py").write_text(PUBLIC_SUITE)
        (suite / "requirements/conformance.toml").write_text(PUBLIC_IDS)
        return suite

    def test_a_test_of_the_public_suite_has_the_ids_of_the_file(self, public_suite: Path) -> None:
        output = self.run(public_suite)
        assert self.proofs(public_suite) == {"IBX-003": {"tests/test_sample.py::TestStore::test_inherited": []}}, output

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            (("test_inherited", "test_renamed"), "names SampleConformance::test_renamed, which does not exist"),
            (("IBX-003", "IBX-999"), "test_inherited: there is no requirement 'IBX-999'"),
        ],
        ids=["test", "id"],
    )
    def test_an_unknown_name_in_the_file_is_an_error(
        self, public_suite: Path, change: tuple[str, str], complaint: str
    ) -> None:
        (public_suite / "requirements/conformance.toml").write_text(PUBLIC_IDS.replace(*change))
        output = self.run(public_suite)
        assert complaint in output
        assert self.proofs(public_suite) is None

    @pytest.mark.parametrize("arguments", [(), ("-n", "1")], ids=["alone", "xdist"])
    @pytest.mark.parametrize(
        ("marker", "complaint"), [('"IBX-999"', "no requirement 'IBX-999'"), ("", "names no requirement")]
    )
    def test_a_wrong_marker_is_an_error(
        self, suite: Path, marker: str, complaint: str, arguments: tuple[str, ...]
    ) -> None:
        (suite / "tests/test_sample.py").write_text(SAMPLE.replace('"IBX-001"', marker))
        output = self.run(suite, *arguments)
        assert complaint in output
        assert "passed" not in output
        assert self.proofs(suite) is None
