"""Programs and their two trampolines."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from postroom._kernel.program import Async, Call, Program, Sync, call, instant, run, run_async, verb


class Verbs:
    """A counter, written once."""

    def __init__(self, read: Any) -> None:
        self.read = read

    @verb
    def add(self, amount: int, *, times: int = 1) -> Program[int]:
        """Reads, then adds."""
        total = 0
        for _ in range(times):
            total += (yield call(self.read)) + amount
        return total

    @instant
    def plain(self, amount: int) -> int:
        return amount * 2


class Red(Verbs, Sync): ...


class Blue(Verbs, Async): ...


async def read_later() -> int:
    await asyncio.sleep(0)
    return 10


def test_a_verb_of_a_sync_object_returns() -> None:
    assert Red(lambda: 10).add(1, times=2) == 22
    assert Red(lambda: 10).plain(4) == 8


async def test_a_verb_of_an_async_object_is_awaited() -> None:
    assert await Blue(read_later).add(1, times=2) == 22
    assert await Blue(read_later).plain(4) == 8


def test_a_verb_keeps_its_name_and_documentation() -> None:
    assert Red(lambda: 1).add.__name__ == "add"
    assert inspect.getdoc(Red.add) == "Reads, then adds."
    assert list(inspect.signature(Red(lambda: 1).add).parameters) == ["amount", "times"]


def recovering() -> Program[str]:
    try:
        yield "bad"
    except KeyError:
        return (yield "good")
    return "not reached"


def test_errors_are_raised_inside_the_program() -> None:
    def execute(step: str) -> str:
        if step == "bad":
            raise KeyError(step)
        return f"did {step}"

    assert run(recovering(), execute) == "did good"

    async def execute_later(step: str) -> str:
        return execute(step)

    assert asyncio.run(run_async(recovering(), execute_later)) == "did good"


def test_errors_that_a_program_does_not_catch_reach_the_caller() -> None:
    def execute(step: str) -> str:
        raise LookupError(step)

    with pytest.raises(LookupError):
        run(recovering_nothing(), execute)


def recovering_nothing() -> Program[None]:
    yield "anything"


def test_programs_compose() -> None:
    def outer() -> Program[list[Any]]:
        first = yield from recovering_nothing_but("a")
        second = yield from recovering_nothing_but("b")
        return [first, second]

    def recovering_nothing_but(step: str) -> Program[Any]:
        return (yield step)

    assert run(outer(), str.upper) == ["A", "B"]


def test_a_call_names_what_to_call() -> None:
    assert call(print, 1, end="") == Call(print, (1,), {"end": ""})
