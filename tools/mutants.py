"""Whether the tests notice when the product is wrong: runs the tests of a requirement against mutations of the code.

    python tools/mutants.py [WORD ...]

requirements/mutants.toml lists the mutations: a file, a text that occurs in it once, its replacement, and the ids of
the requirements that are broken by it. Each is applied alone, to a copy of the tree, and the tests that are marked with
the ids run there. One of them must fail: then the mutant is killed. A mutant that survives shows a marker that claims
more than its test proves. With words, only mutants run whose file, text or ids contain one of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

if __name__ == "__main__":  # run as a program, the folder of this file is on the path, and not the one above it
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.marked import MarkedTest, collect
from tools.requirements import ROOT, Problem, known_ids

TABLE = "requirements/mutants.toml"
AT_ONCE = 2
PATIENCE = 180.0
"""Seconds for the tests of one mutant. One that takes longer is undecided, which is a failure of this program."""

_LEFT_OUT = (".git", ".venv", ".venv-bench", ".build", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache")
_STORES = {
    "_stores/memory": "memory",
    "_stores/redis/": "Redis",
    "sql/postgres/": "PostgreSQL",
    "_stores/sql/": "SQLite",
}
"""Parts of paths → the store whose tests notice a change there. The first that fits counts."""

Verdict = Literal["killed", "survived", "undecided"]


@dataclass(frozen=True)
class Mutant:
    """One entry of the table."""

    file: str
    text: str
    replacement: str
    requirements: tuple[str, ...]
    store: str = ""
    """Whose tests run first, such as "PostgreSQL", where the path does not say it."""

    def __str__(self) -> str:
        return f"{self.file}: {_line(self.text)} -> {_line(self.replacement)} ({', '.join(self.requirements)})"

    def problems(self, root: Path, known: frozenset[str]) -> Iterator[str]:
        """Why the entry is stale or wrong."""
        file = root / self.file
        found = file.read_text("utf-8").count(self.text) if file.is_file() else 0
        if found != 1:
            yield f"{self}: the text occurs {found} times in the file, and must occur once"
        if self.text == self.replacement:
            yield f"{self}: the replacement changes nothing"
        if not self.requirements or not known.issuperset(self.requirements):
            yield f"{self}: names no requirement, or one that does not exist"

    @property
    def nearest_store(self) -> str:
        return self.store or next((store for part, store in _STORES.items() if part in self.file), "memory")

    def tests(self, marked: Sequence[MarkedTest]) -> list[str]:
        """The tests of its requirements, those first that are quick and run on the store that was changed."""
        chosen = [test for test in marked if test.requirements & set(self.requirements)]
        return [test.id for test in sorted(chosen, key=self._rank)]

    def _rank(self, test: MarkedTest) -> tuple[bool, bool]:
        return self.nearest_store not in test.stores, any(word in test.id for word in ("cluster", "valkey", "chaos"))


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    mutant: Mutant
    verdict: Verdict
    detail: str
    """The test that failed, or why nothing can be said."""
    seconds: float


def _line(text: str) -> str:
    words = " ".join(text.split())
    return repr(words if len(words) <= 60 else words[:57] + "...")


def read_mutants(root: Path = ROOT) -> list[Mutant]:
    """The table. An entry that does not fit the code raises Problem."""
    entries = tomllib.loads((root / TABLE).read_text("utf-8"))["mutant"]
    mutants = [
        Mutant(row["file"], row["text"], row["replacement"], tuple(row["requirements"]), row.get("store", ""))
        for row in entries
    ]
    known = known_ids(root)
    if problems := [problem for mutant in mutants for problem in mutant.problems(root, known)]:
        raise Problem("\n".join([f"{TABLE} does not fit the code:", *problems]))
    if len(set(mutants)) < len(mutants):
        raise Problem(f"{TABLE} has the same entry twice")
    return mutants


class Copy:
    """A copy of the tree in which mutants are tried, one after the other."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = folder
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        self._temporary = folder.with_name(f"{folder.name}-temporary")
        self._temporary.mkdir()

    def run(self, tests: Sequence[str], *options: str, seconds: float = PATIENCE) -> tuple[int | None, str]:
        """Run tests; the exit code (None: it took too long) and the output."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        path = os.pathsep.join([str(self.root / "src"), environment.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *options, *tests],
            cwd=self.root,
            env={
                **environment,
                "PYTHONPATH": path,
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTEST_DEBUG_TEMPROOT": str(self._temporary),  # runs that share one remove each other's folders
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return None, output
        return process.returncode, output

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        file = self.root / mutant.file
        original = file.read_text("utf-8")
        file.write_text(original.replace(mutant.text, mutant.replacement), "utf-8")
        try:
            yield
        finally:
            file.write_text(original, "utf-8")

    def judge(self, mutant: Mutant, marked: Sequence[MarkedTest], *, seconds: float = PATIENCE) -> Result:
        began = time.monotonic()
        tests = mutant.tests(marked)
        if not tests:
            return Result(mutant, "survived", "no test is marked with its requirements", 0)
        with self.mutated(mutant):
            code, output = self.run(tests, "-x", "--tb=no", seconds=seconds)
        verdict, detail = _verdict(code, output)
        return Result(mutant, verdict, detail, time.monotonic() - began)


def _verdict(code: int | None, output: str) -> tuple[Verdict, str]:
    if code == 0:
        return "survived", output.strip().rpartition("\n")[2]
    failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if code == 1 and failed:
        return "killed", failed[0].split(" - ")[0].partition(" ")[2]
    return "undecided", "the tests took too long" if code is None else output.strip()[-500:]


def run_all(root: Path, mutants: Sequence[Mutant]) -> Iterator[Result]:
    """Judge mutants, some at once, and give the results in the order of the table."""
    with tempfile.TemporaryDirectory(prefix="postroom-mutants-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(AT_ONCE):
            copies.put(Copy(root, Path(folder, str(number))))
        marked = collect(root)

        def judge(mutant: Mutant) -> Result:
            copy = copies.get()
            try:
                return copy.judge(mutant, marked)
            finally:
                copies.put(copy)

        results = []
        for result in pool.map(judge, mutants):
            results.append(result)
            yield result
        # A test that fails without any mutant kills nothing.
        if killers := sorted({result.detail for result in results if result.verdict == "killed"}):
            _, output = copies.get().run(killers, "--tb=no", "-rfE", seconds=PATIENCE * 5)
            if "FAILED" in output or "ERROR" in output:
                raise Problem("These tests fail without any mutant, so they kill none:\n" + output)


def main(words: Sequence[str]) -> int:
    try:
        mutants = read_mutants()
        chosen = [mutant for mutant in mutants if not words or any(word in str(mutant) for word in words)]
        results = []
        for result in run_all(ROOT, chosen):
            results.append(result)
            mark = "" if result.verdict == "killed" else f"{result.verdict.upper()}: "
            print(f"{result.seconds:5.1f} s  {mark}{result.mutant}\n         {result.detail}", flush=True)
    except Problem as problem:
        print(problem, file=sys.stderr)
        return 1
    alive = [result for result in results if result.verdict != "killed"]
    for result in alive:
        print(f"{result.verdict}: {result.mutant}\n  {result.detail}")
    print(f"mutants: {len(results) - len(alive)} of {len(results)} killed")
    return 1 if alive or not results else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
