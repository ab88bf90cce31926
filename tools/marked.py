"""Which tests are marked with which requirements, and on which stores they run: from a collection of all tests.

As a plugin of pytest (`-p tools.marked`) it writes this to the file of --marked-tests; `collect` runs that.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tools.requirements import PROPERTY, Problem, read_stores


class MarkedTest(NamedTuple):
    """A test, with the value of its parameters in its id."""

    id: str
    requirements: frozenset[str]
    stores: frozenset[str]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--marked-tests", metavar="FILE", help="write the ids and stores of marked tests to this file")


def pytest_collection_finish(session: pytest.Session) -> None:
    file = session.config.getoption("--marked-tests")
    if file:
        Path(file).write_text(json.dumps([[item.nodeid, _properties(item)] for item in session.items]), "utf-8")


def _properties(item: pytest.Item) -> list[Any]:
    return [value for name, value in item.user_properties if name == PROPERTY]


def collect(root: Path) -> list[MarkedTest]:
    """The marked tests of a tree, in the order in which they run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "marked.json")
        options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "tools.marked", f"--marked-tests={file}"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options], cwd=root, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Problem(f"the tests cannot be collected:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        found: list[tuple[str, list[tuple[str, str, list[str]]]]] = json.loads(file.read_text("utf-8"))
    stores = read_stores(root)
    return [
        MarkedTest(
            id_,
            frozenset(requirement for requirement, _, _ in marks),
            frozenset(stores.names[name] for _, _, names in marks for name in names),
        )
        for id_, marks in found
        if marks
    ]
