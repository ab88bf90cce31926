"""The pages about the service: their tables fit the code, and their examples run against a running service."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import cast

import pytest
from msgspec import Struct
from starlette.routing import Route
from typer.main import get_command

from postroom._stores.http import wire as shared
from postroom.cli.app import app
from postroom.service import wire
from postroom.service.app import make_service
from postroom.service.metrics import Metrics
from postroom.service.openapi import describe
from postroom.service.settings import Settings
from tests.docs.pages import ROOT
from tests.service.process import TOKEN, service_process

REFERENCE = (ROOT / "docs/reference/service.md").read_text("utf-8")
COMMANDS = (ROOT / "docs/reference/command-line.md").read_text("utf-8").partition("## `postroom serve`")[2]
PAGE = (ROOT / "docs/how-to/run-the-service.md").read_text("utf-8")
CURLS = re.findall(r"<!-- example: curl -->\n```console\n(.*?)```", PAGE, re.DOTALL)
[NODE] = re.findall(r"<!-- example: node -->\n```javascript\n(.*?)```", PAGE, re.DOTALL)
PYTHON_PAGE = (ROOT / "docs/how-to/use-the-service-from-python.md").read_text("utf-8")
[PYTHON] = re.findall(r"<!-- file: charge.py -->\n```python\n(.*?)```", PYTHON_PAGE, re.DOTALL)
[PYTHON_OUTPUT] = re.findall(r"```text\n(.*?)```", PYTHON_PAGE, re.DOTALL)
[NODE_OUTPUT] = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


def shown(default: object) -> str:
    if default is None or default == "":
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}` "
    return f"`{default:g}` " if isinstance(default, float) else f"`{default}` "


@pytest.mark.parametrize("each", fields(Settings), ids=lambda each: each.name)
def test_the_tables_have_every_setting_with_its_default_and_meaning(each: object) -> None:
    name, default, meaning = each.name, each.default, each.metadata["help"]  # type: ignore[attr-defined]
    assert f"| `{name}` | {shown(default)}| {meaning} |" in REFERENCE
    assert f"| `--{name.replace('_', '-')}` | {shown(default)}| {meaning} |" in COMMANDS


@pytest.mark.req("KOAN-036")
def test_the_reference_has_every_route() -> None:
    service = make_service(Settings(url="memory://"))
    routes: list[Route] = service.app._app._app.routes  # type: ignore[attr-defined]
    cells = re.findall(r"^\| (`.*?`) \|", REFERENCE, re.MULTILINE)
    listed = {path for cell in cells for path in re.findall(r"`(?:[A-Z]+ )?(/[^`?]*)", cell)}
    assert listed == {route.path.replace(":path", "") for route in routes}
    assert set(describe("1")["paths"]) <= listed


@pytest.mark.req("KOAN-036")
def test_the_reference_has_every_status_and_field() -> None:
    statuses = {each.value for kind in (wire.BeginOutcome, wire.SettleOutcome, wire.KeyState) for each in kind}
    values = [*vars(wire).values(), *vars(shared).values()]
    kinds = [value for value in values if isinstance(value, type) and issubclass(value, Struct)]
    names = {name for kind in kinds for name in kind.__struct_encode_fields__}
    assert (statuses | names) - set(re.findall(r"`(\w+)`", REFERENCE)) - {"type"} == set()


def test_the_reference_has_every_problem() -> None:
    problems = describe("1")["components"]["responses"]
    for code, problem in problems.items():
        assert f"| {code} | {problem['description']} |" in REFERENCE


def test_the_reference_has_every_metric() -> None:
    kinds = dict(re.findall(r"^# TYPE (postroom_\w+) (\w+)$", Metrics().text().decode(), re.MULTILINE))
    listed = dict(re.findall(r"^\| `(postroom_service_\w+)` \| (\w+) \|", REFERENCE, re.MULTILINE))
    assert listed == kinds


def test_every_command_can_be_parsed() -> None:
    lines = re.findall(r"^(?:ExecStart=\S*/)?(postroom serve.*)$", PAGE, re.MULTILINE)
    commands = [shlex.split(line) for line in lines] + [json.loads(re.findall(r"^CMD (.*)$", PAGE, re.MULTILINE)[0])]
    assert len(commands) == 5
    for _, name, *arguments in commands:
        get_command(app).commands[name].make_context(name, list(arguments))  # type: ignore[attr-defined]


def test_the_settings_file_can_be_read(tmp_path: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "postroom.toml").write_text(text, "utf-8")
    settings = Settings.read({}, file=tmp_path / "postroom.toml", environment={})
    assert {name: getattr(settings, name) for name in tomllib.loads(text)} == tomllib.loads(text)


def test_the_unit_waits_longer_than_a_stop() -> None:
    [seconds] = re.findall(r"^TimeoutStopSec=(\d+)$", PAGE, re.MULTILINE)
    assert int(seconds) > Settings().stop_seconds + 5


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A running service."""
    with service_process("--url", f"sqlite:///{tmp_path}/postroom.db", "--tokens", f"shop={TOKEN}") as service:
        yield {**os.environ, "POSTROOM": service.addresses(1)[0], "TOKEN": TOKEN}


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_curl_examples(environment: dict[str, str]) -> None:
    def curl(text: str, lease: str = "") -> dict[str, object]:
        script = text.replace("http://127.0.0.1:8025", environment["POSTROOM"])
        reply: dict[str, object] = json.loads(run(["sh", "-c", script], {**environment, "LEASE": lease}))
        return reply

    begin, mark, report, message = CURLS
    begun = curl(begin)
    assert begun["status"] == "Acquired"
    assert curl(mark, str(begun["leaseId"])) == {"status": "Processed"}
    assert curl(begin)["status"] == "Processed"
    assert curl(report)["status"] == "Processed"
    [receipt] = cast("list[dict[str, object]]", curl(message)["receipts"])
    assert (receipt["status"], receipt["source"], receipt["messageId"]) == ("new", "shop", "7")


def test_the_node_example(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "once.mjs").write_text(NODE, "utf-8")
    assert run(["node", str(tmp_path / "once.mjs")], environment) == NODE_OUTPUT


def test_the_python_example(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "charge.py").write_text(PYTHON, "utf-8")
    settings = {**environment, "POSTROOM_URL": environment["POSTROOM"], "POSTROOM_TOKEN": TOKEN}
    assert run([sys.executable, str(tmp_path / "charge.py")], settings) == PYTHON_OUTPUT
