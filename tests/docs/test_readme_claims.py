"""What the README says beside its programs is so."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from postroom import FeatureMissing, Message, Postroom, State, TransactionRefused
from postroom.testing import FrozenClock
from tests.docs.pages import ROOT, programs_in
from tests.docs.servers import empty_redis
from tests.docs.test_snippets import ENVIRONMENT

README = ROOT / "README.md"
TEXT = " ".join(README.read_text("utf-8").split())


def says(sentence: str) -> None:
    """The sentence that a test is about stands in the README."""
    assert sentence in TEXT


def test_the_first_program_run_again_books_nothing(tmp_path: Path) -> None:
    says("Run the file again: it prints `done` twice, and nothing is booked.")
    first = programs_in(README, README.read_text("utf-8"))[0].blocks[0]
    (tmp_path / "first.py").write_text(first.code, "utf-8")
    outputs = [
        subprocess.run(
            [sys.executable, "first.py"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert outputs == [first.output, "done\ndone\n"]


async def test_a_handler_that_raises_is_called_again_after_these_pauses_and_then_the_message_is_dead() -> None:
    says("after 2 seconds, then 4, then 8, up to ten times in total. Then the message is a dead letter.")
    clock, calls = FrozenClock(), list[float]()
    room = Postroom("memory://", clock=clock)
    box, begun = room.inbox(), clock.now()

    @box.handler("t")
    async def fail(message: Message[Any]) -> None:
        calls.append((clock.now() - begun).total_seconds())
        raise ValueError

    await box.enqueue("t", {}, source="s", message_id="1")
    while (await box.get("1")).state is State.WAITING:
        await room.drain()
        clock.advance(1)
    pauses = [after - before for before, after in itertools.pairwise(calls)]
    assert pauses[:3] == [2, 4, 8]
    assert len(calls) == 10
    assert [letter.message_id for letter in await box.dead_letters()] == ["1"]


async def test_a_verb_without_tx_in_a_transactional_handler_is_refused(tmp_path: Path) -> None:
    says("**every verb that writes needs `tx=tx`**; without it, it raises `TransactionRefused`.")
    async with Postroom(f"sqlite:///{tmp_path}/shop.db", deploy_schema=True) as room:
        inbox, outbox = room.inbox(), room.outbox()

        @inbox.handler("t", transactional=True)
        async def forget(message: Message[Any], tx: Any) -> None:
            await outbox.enqueue("u", {})

        await inbox.enqueue("t", {}, source="s", message_id="1")
        with pytest.raises(TransactionRefused):
            await room.drain(raise_errors=True)


async def test_redis_refuses_transactions() -> None:
    says("`tx=` and transactional handlers raise `FeatureMissing`")
    async with Postroom(empty_redis()) as room:
        with pytest.raises(FeatureMissing):
            await room.outbox().enqueue("t", {}, tx=object())
        with pytest.raises(FeatureMissing):
            room.inbox().handler("t", transactional=True)(print)  # type: ignore[type-var]


def test_the_commands_are_those_that_exist() -> None:
    [line] = re.findall(r"^\* \[Command line\].*$", README.read_text("utf-8"), re.MULTILINE)
    shown = subprocess.run(
        [sys.executable, "-m", "postroom", "--help"], env=ENVIRONMENT, capture_output=True, text=True, check=True
    ).stdout
    commands = re.findall(r"^│ (\w+) ", shown.partition("Commands")[2], re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", line)) == sorted(commands)
