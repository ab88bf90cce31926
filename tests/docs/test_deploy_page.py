"""What the page on deployment says, where it can be tried here: commands, times, the probe of the heartbeat."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from datetime import timedelta
from inspect import signature
from pathlib import Path

from typer.main import get_command

from postroom import Postroom
from postroom._runtime.health_reporter import READY_SECONDS
from postroom.cli.app import app
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/how-to/deploy-workers.md").read_text("utf-8")
LISTS = [json.loads(text) for text in re.findall(r"(?:CMD|command:) (\[.*\])$", PAGE, re.MULTILINE)]


def test_every_command_can_be_parsed() -> None:
    lines = re.findall(r"^(?:ExecStart=\S*/)?(postroom .*)$", PAGE, re.MULTILINE)
    commands = [shlex.split(line) for line in lines] + [each for each in LISTS if each[0] == "postroom"]
    assert len(commands) == 6
    for _, name, *arguments in commands:
        command = get_command(app).commands[name]  # type: ignore[attr-defined]
        assert command.make_context(name, list(arguments)).params["room"] == "shop:room"


def test_the_grace_periods_are_longer_than_the_shutdown_timeout() -> None:
    default = signature(Postroom.__init__).parameters["shutdown_timeout"].default
    stated = re.findall(r"(?:TimeoutStopSec=|--time |stop_grace_period: |terminationGracePeriodSeconds: )(\d+)", PAGE)
    assert len(stated) == 4
    assert all(timedelta(seconds=int(seconds)) > default for seconds in stated)


def test_the_readiness_probe_waits_for_the_check() -> None:
    [seconds] = re.findall(r"path: /ready.*\n.*\n *timeoutSeconds: (\d+)", PAGE)
    assert int(seconds) > READY_SECONDS


def test_the_heartbeat_probe_distinguishes_a_fresh_file_from_an_old_one(tmp_path: Path) -> None:
    [probe] = [each for each in LISTS if each[0] == "sh"]
    file = tmp_path / "beat"
    command = [part.replace("/tmp/beat", str(file)) for part in probe]
    missing = subprocess.run(command, check=False, capture_output=True).returncode
    file.touch()
    fresh = subprocess.run(command, check=False).returncode
    os.utime(file, (0, 0))
    old = subprocess.run(command, check=False).returncode
    assert (missing, fresh, old) == (1, 0, 1)
