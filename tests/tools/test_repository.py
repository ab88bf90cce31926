"""The files of the repository agree with each other: metadata, CI, pre-commit, templates."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest
from tools.requirements import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOW = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")


def matrix(name: str) -> list[str]:
    found = re.search(rf"^\s+{name}: \[(.*)\]$", WORKFLOW, re.MULTILINE)
    assert found is not None
    return re.findall(r'"([^"]+)"', found[1])


def test_ci_runs_every_python_of_the_metadata() -> None:
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert matrix("python") == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_ci_runs_every_supported_postgresql() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"PostgreSQL {matrix('postgres')[0]} or later" in " ".join(readme.split())
    assert matrix("postgres") == [str(major) for major in range(13, 19)]


@pytest.mark.parametrize("file", [".github/workflows/ci.yml", "CONTRIBUTING.md", "docs/contributing/release.md"])
def test_every_make_target_exists(file: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / file).read_text("utf-8")))
    assert named
    assert named - targets == set()


def test_pre_commit_runs_what_make_check_runs() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    hooks = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")
    [recipe] = re.findall(r"^check:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    programs = set(re.findall(r"\$\(BIN\)/(\S+)", recipe))
    assert programs == set(re.findall(r"\.venv/bin/(\S+)", hooks))


def test_no_file_names_a_package_registry_or_locks_versions() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert [file for file in files if file.endswith(".lock") or "/uv.lock" in file] == []
    registry = re.compile(r"(pypi\.org|pythonhosted|index-url|devpi|artifactory)")
    found = [
        file
        for file in files
        if file.endswith((".toml", ".txt", ".yml", ".yaml", ".md", "Makefile", ".cfg"))
        and registry.search((ROOT / file).read_text("utf-8"))
    ]
    assert found == []
