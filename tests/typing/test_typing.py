"""What a type checker tells users: right answers for right code, and an error for each mistake."""

from __future__ import annotations

from pathlib import Path

import mypy.api
import pytest

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
}
HEAD = """\
from postroom import OwnerToken
from postroom.sync import Postroom

room = Postroom("memory://")
inbox, outbox, owner = room.inbox(), room.outbox(), OwnerToken.new()
"""
FORGOTTEN_AWAIT = """
from postroom import Inbox, OwnerToken

async def work(inbox: Inbox) -> None:
    inbox.ack(OwnerToken.new(), [])
"""


def check(tmp_path: Path, *files: Path) -> str:
    """mypy --strict, apart from this project's configuration; an own cache, so that it is not in anybody's way."""
    out, err, _ = mypy.api.run(
        ["--strict", "--config-file=", f"--cache-dir={tmp_path}/cache", "--hide-error-context", *map(str, files)]
    )
    return out + err


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """What mypy says of each mistake, by line. One run for all, since starting mypy is what takes time."""
    folder = tmp_path_factory.mktemp("typing")
    file = folder / "mistakes.py"
    file.write_text(HEAD + "\n".join(MISTAKES) + "\n" + FORGOTTEN_AWAIT)
    told: dict[int, str] = {}
    for line in check(folder, SAMPLES, file).splitlines():
        path, _, rest = line.partition(":")
        number, _, text = rest.partition(":")
        if path.endswith(("mistakes.py", "samples.py")) and number.isdigit():
            key = int(number) if path.endswith("mistakes.py") else -int(number)
            told[key] = told.get(key, "") + text + "\n"
    return told


def test_right_code_is_right(answers: dict[int, str]) -> None:
    assert {-number: text for number, text in answers.items() if number < 0} == {}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, answers: dict[int, str]) -> None:
    line = HEAD.count("\n") + 1 + list(MISTAKES).index(mistake)
    assert f"[{MISTAKES[mistake]}]" in answers.get(line, ""), answers.get(line, "nothing was found")


def test_a_forgotten_await_is_found(answers: dict[int, str]) -> None:
    line = HEAD.count("\n") + len(MISTAKES) + FORGOTTEN_AWAIT.count("\n")
    assert "[unused-coroutine]" in answers.get(line, ""), answers
