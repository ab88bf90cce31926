"""The table of mutations fits the code, and the tool that applies it judges well."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tools.marked import MarkedTest, collect
from tools.mutants import Copy, Mutant, Result, read_mutants
from tools.requirements import ROOT, Problem, known_ids

CODE = "def limit():\n    return 10\n"
TESTS = """
import pytest
from code_of_ours import limit

@pytest.mark.req("IBX-001")
def test_limit():
    assert limit() == 10

@pytest.mark.req("IBX-002")
def test_nothing():
    assert limit()

@pytest.mark.req("IBX-003")
def test_slow():
    while limit() != 10:
        pass
"""
MUTANT = Mutant("src/code_of_ours.py", "return 10", "return 11", ("IBX-001",))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project whose tests are marked."""
    root = tmp_path / "tree"
    for name in ("src", "tests", "tools", "requirements"):
        (root / name).mkdir(parents=True)
    for name in ("catalog.toml", "conflicts.md", "status.toml"):
        shutil.copy(ROOT / "requirements" / name, root / "requirements" / name)
    for name in ("requirements.py", "marked.py"):
        shutil.copy(ROOT / "tools" / name, root / "tools" / name)
    shutil.copy(ROOT / "tests/conftest.py", root / "tests/conftest.py")
    (root / "pytest.ini").write_text(
        "[pytest]\ntestpaths = tests\npythonpath = . src\n"
        # These two take most of the start of a pytest process, and no test here needs them.
        "addopts = --strict-markers --import-mode=importlib -p no:hypothesispytest -p no:asyncio\n"
    )
    (root / MUTANT.file).write_text(CODE)
    (root / "tests/test_sample.py").write_text(TESTS)
    return root


class TestTable:
    def test_every_entry_fits_the_code(self) -> None:
        """Where this fails after a change of the code: give the entry the text that does the same now."""
        assert len(read_mutants()) >= 60

    def test_every_store_and_every_layer_has_mutants(self) -> None:
        parts = Counter(mutant.file.split("/")[2] for mutant in read_mutants())
        assert {"_kernel", "_boxes", "_runtime", "_stores"} <= parts.keys()
        stores = Counter(mutant.nearest_store for mutant in read_mutants() if "_stores/" in mutant.file)
        assert {store for store, count in stores.items() if count >= 10} == {"memory", "SQLite", "PostgreSQL", "Redis"}

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"text": "gone"}, "the text occurs 0 times"),
            ({"text": "i"}, "the text occurs 2 times"),
            ({"file": "src/gone.py"}, "the text occurs 0 times"),
            ({"replacement": "return 10"}, "the replacement changes nothing"),
            ({"requirements": ("IBX-999",)}, "names no requirement, or one that does not exist"),
            ({"requirements": ()}, "names no requirement"),
        ],
    )
    def test_an_entry_that_does_not_fit_is_reported(self, tree: Path, change: dict[str, Any], complaint: str) -> None:
        [problem] = replace(MUTANT, **change).problems(tree, known_ids())
        assert complaint in problem

    def test_a_table_that_does_not_fit_is_refused(self, tree: Path) -> None:
        table = (
            "[[mutant]]\nfile = 'src/code_of_ours.py'\ntext = 'gone'\nreplacement = ''\nrequirements = ['IBX-001']\n"
        )
        (tree / "requirements/mutants.toml").write_text(table)
        with pytest.raises(Problem, match="does not fit the code"):
            read_mutants(tree)


class TestJudgement:
    def judge(self, tree: Path, tmp_path: Path, *requirements: str, seconds: float = 60) -> Result:
        copy = Copy(tree, tmp_path / "copy")
        result = copy.judge(replace(MUTANT, requirements=requirements), collect(tree), seconds=seconds)
        assert (copy.root / MUTANT.file).read_text() == CODE
        assert (tree / MUTANT.file).read_text() == CODE
        return result

    def test_a_test_that_fails_kills(self, tree: Path, tmp_path: Path) -> None:
        result = self.judge(tree, tmp_path, "IBX-001", "IBX-002")
        assert (result.verdict, result.detail) == ("killed", "tests/test_sample.py::test_limit")

    def test_where_all_tests_pass_it_survives(self, tree: Path, tmp_path: Path) -> None:
        assert self.judge(tree, tmp_path, "IBX-002").verdict == "survived"

    def test_where_no_test_is_marked_it_survives(self, tree: Path, tmp_path: Path) -> None:
        assert self.judge(tree, tmp_path, "IBX-004").verdict == "survived"

    def test_what_takes_too_long_is_undecided(self, tree: Path, tmp_path: Path) -> None:
        result = self.judge(tree, tmp_path, "IBX-003", seconds=2)
        assert (result.verdict, result.detail) == ("undecided", "the tests took too long")


def test_tests_on_the_store_that_was_changed_come_first() -> None:
    ids = frozenset({"IBX-001"})
    tests = [
        MarkedTest("on memory", ids, frozenset({"memory"})),
        MarkedTest("on a cluster", ids, frozenset({"Redis"})),
        MarkedTest("on redis", ids, frozenset({"Redis"})),
        MarkedTest("of another", frozenset({"IBX-002"}), frozenset({"Redis"})),
    ]
    mutant = replace(MUTANT, file="src/postroom/_stores/redis/scripts/put.lua")
    assert mutant.tests(tests) == ["on redis", "on a cluster", "on memory"]
