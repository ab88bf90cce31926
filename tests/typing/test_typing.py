"""What a type checker reports to users: nothing for correct code, and an error for each mistake."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import mypy.api
import pytest

import postroom

SAMPLES = Path(__file__).with_name("samples.py")

MISTAKES = {
    'inbox.claim("me")': "arg-type",
    "inbox.claim(owner, lease_seconds='30')": "arg-type",
    "inbox.claim(owner, batch=10)": "call-arg",
    "inbox.ack(owner)": "call-arg",
    "inbox.ack(owner, 5)": "arg-type",
    'inbox.fail(owner, ["1"])': "call-arg",
    'inbox.abandon(owner, ["1"], delay=5)': "arg-type",
    'inbox.renew(owner, ["1"])': "list-item",
    'inbox.enqueue("paid", {}, source=1, message_id="1")': "call-overload",
    'inbox.enqueue("paid", {}, source="bank", message_id="1", due="tomorrow")': "call-overload",
    'inbox.enqueue("paid", {}, source="bank", message_id="1", on_conflict="ignore")': "call-overload",
    'inbox.enqueue("paid", {}, source="bank", message_id="1", priority=1)': "call-overload",
    'room.inbox("other", order="lifo")': "arg-type",
    'room.inbox("other", max_tries=3)': "call-arg",
    'room.outbox("other", retention=30)': "arg-type",
    'room.inbox("other", on_unhandled="ignore")': "arg-type",
    'room.inbox("other", lease_seconds="30")': "arg-type",
    'inbox.handler("paid")': "attr-defined",
    "room.start()": "attr-defined",
    "inbox.enqueue_later": "attr-defined",
    'outbox.already_processed("1", "bank")': "attr-defined",
    "inbox.get('1').topic = 'other'": "misc",
    'outbox.enqueue("order.placed")': "call-overload",
    "outbox.enqueue(1, {})": "call-overload",
    "outbox.enqueue({})": "call-overload",
    "outbox.enqueue_many([1])": "list-item",
    'outbox.enqueue_many(["order.placed"])': "list-item",
    'inbox.start_join("acme")': "attr-defined",
    "outbox.start_join(1.5)": "arg-type",
    'outbox.start_join("acme", "3")': "arg-type",
    'outbox.seal_join("7")': "arg-type",
    'outbox.enqueue("order.placed", {}, join="7")': "call-overload",
    # handlers: a wrong message, a wrong result, and what does not go with batch= or transactional=
    "orders.handler(Order)(takes_other)": "arg-type",
    "orders.handler(Order, batch=2)(takes_others)": "arg-type",
    "orders.handler(Order)(Object())": "arg-type",
    'orders.handler("order", batch=2)(takes_other)': "type-var",
    "orders.handler(Order, batch=2)(takes_order)": "arg-type",
    'orders.handler("order")(takes_others)': "type-var",
    "orders.handler(Other)(takes_others)": "arg-type",
    'orders.handler("order", transactional=True)(takes_other)': "type-var",
    "orders.handler(Order, transactional=True)(takes_order)": "arg-type",
    'orders.handler("order")(takes_a_transaction)': "type-var",
    "orders.handler(Order)(takes_a_transaction)": "arg-type",
    'orders.handler("order", transactional=True)(is_not_async)': "type-var",
    "orders.handler(Order, transactional=True)(is_not_async)": "type-var",
    'orders.handler("order")(returns_a_bool)': "type-var",
    "orders.handler(Order)(returns_a_bool)": "type-var",
    'orders.handler("order", batch=2)(returns_bools)': "type-var",
    "orders.handler(Order, batch=2)(returns_bools)": "type-var",
    'orders.handler("order")(takes_a_payload)': "type-var",
}
HEAD = """\
from dataclasses import dataclass
from typing import Any

import postroom
from postroom import Message, OwnerToken
from postroom.sync import Postroom

room = Postroom("memory://")
inbox, outbox, owner = room.inbox(), room.outbox(), OwnerToken.new()
orders = postroom.Postroom("memory://").inbox()


@dataclass
class Order: ...


@dataclass
class Other: ...


class Object:
    async def handle(self, message: Message[Other]) -> None: ...


async def takes_order(message: Message[Order]) -> None: ...
async def takes_other(message: Message[Other]) -> None: ...
async def takes_others(messages: list[Message[Other]]) -> None: ...
async def takes_a_payload(payload: Order) -> None: ...
async def takes_a_transaction(message: Message[Order], tx: Any) -> None: ...
def is_not_async(message: Message[Order], tx: Any) -> None: ...
async def returns_a_bool(message: Message[Order]) -> bool: return True
async def returns_bools(messages: list[Message[Order]]) -> list[bool]: return []


"""
FORGOTTEN_AWAIT = """
from postroom import Inbox, OwnerToken

async def work(inbox: Inbox) -> None:
    inbox.ack(OwnerToken.new(), [])
"""


PYRIGHT = next(filter(None, map(shutil.which, ("pyright", "basedpyright"))), None)
needs_pyright = pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed: pip install basedpyright")


def check(tmp_path: Path, *files: Path) -> str:
    """mypy --strict, apart from this project's configuration; a separate cache, which other runs do not use."""
    out, err, _ = mypy.api.run(
        ["--strict", "--config-file=", f"--cache-dir={tmp_path}/cache", "--hide-error-context", *map(str, files)]
    )
    return out + err


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("typing") / "mistakes.py"
    file.write_text(HEAD + "\n".join(MISTAKES) + "\n" + FORGOTTEN_AWAIT)
    return file


@pytest.fixture(scope="module")
def reports(mistakes: Path) -> dict[int, str]:
    """What mypy reports for each mistake, by line. One run for all, because mypy starts slowly."""
    folder, file = mistakes.parent, mistakes
    found: dict[int, str] = {}
    for line in check(folder, SAMPLES, file).splitlines():
        path, _, rest = line.partition(":")
        number, _, text = rest.partition(":")
        if path.endswith(("mistakes.py", "samples.py")) and number.isdigit():
            key = int(number) if path.endswith("mistakes.py") else -int(number)
            found[key] = found.get(key, "") + text + "\n"
    return found


def test_right_code_is_right(reports: dict[int, str]) -> None:
    assert {-number: text for number, text in reports.items() if number < 0} == {}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, reports: dict[int, str]) -> None:
    line = HEAD.count("\n") + 1 + list(MISTAKES).index(mistake)
    assert f"[{MISTAKES[mistake]}]" in reports.get(line, ""), reports.get(line, "nothing was found")


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        ('orders.handler("order")(takes_a_payload)', "HandlerOfMessage"),
        ('orders.handler("order", batch=2)(takes_other)', "HandlerOfList"),
        ('orders.handler("order", transactional=True)(takes_other)', "TransactionalHandlerOfMessage"),
        ("orders.handler(Order)(returns_a_bool)", "NoneOrOutcome"),
    ],
)
def test_an_error_names_what_was_expected(mistake: str, expected: str, reports: dict[int, str]) -> None:
    line = HEAD.count("\n") + 1 + list(MISTAKES).index(mistake)
    assert f'type variable "{expected}"' in reports[line]


@pytest.fixture(scope="module")
def errors_of_pyright(mistakes: Path) -> list[tuple[str, int, str]]:
    """The errors of pyright in both files: the name of the file, the line, and the text."""
    settings = {
        "include": [str(mistakes), str(SAMPLES)],
        "extraPaths": [str(Path(postroom.__file__).parents[1])],
        "venvPath": str(Path(sys.prefix).parent),
        "venv": Path(sys.prefix).name,
        "typeCheckingMode": "standard",
        "reportUnusedCoroutine": "error",
    }
    project = mistakes.with_name("pyrightconfig.json")
    project.write_text(json.dumps(settings))
    done = subprocess.run([str(PYRIGHT), "--outputjson", "-p", str(project)], capture_output=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        (Path(item["file"]).name, item["range"]["start"]["line"] + 1, item["message"])
        for item in found
        if item["severity"] == "error"
    ]


@needs_pyright
def test_right_code_is_right_to_pyright(errors_of_pyright: list[tuple[str, int, str]]) -> None:
    assert [error for error in errors_of_pyright if error[0] == SAMPLES.name] == []


@needs_pyright
def test_pyright_finds_every_mistake(errors_of_pyright: list[tuple[str, int, str]]) -> None:
    found = {line for name, line, _ in errors_of_pyright if name == "mistakes.py"}
    first = HEAD.count("\n") + 1
    assert [mistake for line, mistake in enumerate(MISTAKES, first) if line not in found] == []
    assert found <= {*range(first, first + len(MISTAKES)), first + len(MISTAKES) - 1 + FORGOTTEN_AWAIT.count("\n")}


def test_a_forgotten_await_is_found(reports: dict[int, str]) -> None:
    line = HEAD.count("\n") + len(MISTAKES) + FORGOTTEN_AWAIT.count("\n")
    assert "[unused-coroutine]" in reports.get(line, ""), reports
