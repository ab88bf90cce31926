"""Builds the wheel, installs it into a fresh virtual environment, and tests what is installed.

    python -m tools.check_wheel

Nothing of the working tree is on the import path of the tests, so a file that is missing in the wheel is found. The
checks: the wheel contains every file of src/postroom; the core imports without any extra; the public conformance suite
passes on the memory store and on SQLite through both drivers; the programs of README.md that need no server print what
the page shows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from tests.docs.pages import MARK, PAGES, programs_in

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "sqlite,cli,testing"

CONFORMANCE = '''
"""The public conformance suite on the stores that need no server."""

import pytest

from postroom import Postroom, sync
from postroom.testing import FrozenClock, as_async
from postroom.testing.conformance import StoreConformance


class TestMemory(StoreConformance):
    @pytest.fixture
    def store(self, clock: FrozenClock):
        return Postroom("memory://", clock=clock).store


class TestAiosqlite(StoreConformance):
    @pytest.fixture
    async def store(self, clock: FrozenClock, tmp_path):
        room = Postroom(f"sqlite:///{tmp_path}/a.db", clock=clock, deploy_schema=True)
        yield room.store
        await room.close()


class TestSqlite3(StoreConformance):
    @pytest.fixture
    def store(self, clock: FrozenClock, tmp_path):
        with sync.Postroom(f"sqlite:///{tmp_path}/a.db", clock=clock, deploy_schema=True) as room:
            yield as_async(room.store)
'''
PYTEST_INI = (
    "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\naddopts = --strict-markers\n"
)


class WheelProblem(Exception):
    """The wheel cannot be built, or what is installed from it does not work."""


def check(folder: Path) -> str:
    """Builds and tests the wheel in an empty folder. Returns a line for the terminal."""
    python = _new_environment(folder / "venv")
    _run(folder, python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    [wheel] = folder.glob("postroom-*.whl")
    _check_contents(wheel)
    _run(folder, python, "-m", "pip", "install", "--quiet", str(wheel))
    _run(folder, python, "-c", "import postroom, postroom.sync, postroom.spi")
    _run(folder, python, "-m", "pip", "install", "--quiet", f"{wheel}[{EXTRAS}]")
    conformance = _check_conformance(folder, python)
    programs = _check_readme(folder, python)
    return f"{wheel.name}: conformance {conformance}; {programs} programs of README.md"


def _new_environment(folder: Path) -> str:
    venv.create(folder, with_pip=True)
    python = str(folder / "bin/python")
    _run(folder, python, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25.1")
    return python


def _check_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("postroom/")}
    listed = _run(ROOT, "git", "ls-files", "--cached", "--others", "--exclude-standard", "src/postroom")
    source = {name.removeprefix("src/") for name in listed.splitlines() if (ROOT / name).exists()}
    if packed != source:
        raise WheelProblem(f"the wheel and src/postroom differ: {sorted(packed ^ source)}")


def _check_conformance(folder: Path, python: str) -> str:
    suite = folder / "conformance"
    suite.mkdir()
    (suite / "test_conformance.py").write_text(CONFORMANCE, "utf-8")
    (suite / "pytest.ini").write_text(PYTEST_INI, "utf-8")
    return _run(suite, python, "-m", "pytest", "--quiet", "-p", "no:cacheprovider").splitlines()[-1]


def _check_readme(folder: Path, python: str) -> int:
    readme = PAGES[0]
    programs = [
        program
        for program in programs_in(readme, readme.read_text("utf-8"))
        if not program.uses_postgres and not program.uses_redis
    ]
    for number, program in enumerate(programs):
        place = folder / f"readme-{number}"
        place.mkdir()
        (place / "program.py").write_text(program.text, "utf-8")
        printed = _run(place, python, "-W", "error", "program.py").split(MARK)[:-1]
        if printed != (shown := [block.output for block in program.blocks]):
            raise WheelProblem(f"{program.name} prints {printed}, and the page shows {shown}")
    return len(programs)


def _run(folder: Path, *command: str) -> str:
    """Runs a command that must succeed. Returns what it prints to stdout."""
    ours = ("PYTHON", "PYTEST", "POSTROOM")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WheelProblem(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="postroom-wheel-") as folder:
        try:
            print(check(Path(folder)))
        except WheelProblem as problem:
            print(problem, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
