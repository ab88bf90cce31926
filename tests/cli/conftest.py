"""The command as a user runs it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `postroom` in an empty folder, without a terminal."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if name != "POSTROOM_URL"}
        return subprocess.run(
            [sys.executable, "-c", "from postroom.cli import main; main()", *arguments],
            cwd=tmp_path,
            env={**inherited, "NO_COLOR": "1", "TMPDIR": str(tmp_path), **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
