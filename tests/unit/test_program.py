"""Programs, and what runs them in either mode."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Generator
from typing import Any

import pytest

from postroom._kernel.program import Async, Program, Sync, call, instant, interpret, sync_runner, verb
from tests.support import settled


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


@pytest.mark.parametrize("name", ["add", "plain"])
def test_an_async_verb_is_a_coroutine_function(name: str) -> None:
    """Frameworks decide by this whether to await: what is not awaited is lost."""
    assert inspect.iscoroutinefunction(getattr(Blue(read_later), name))
    assert not inspect.iscoroutinefunction(getattr(Red(lambda: 1), name))
    assert not inspect.isgeneratorfunction(inspect.unwrap(getattr(Blue(read_later), name)))


@pytest.mark.parametrize("kind", [Red, Blue])
def test_a_verb_has_the_signature_of_its_program_and_its_result(kind: Any) -> None:
    verb = kind(None).add
    assert str(inspect.signature(verb)) == "(amount: 'int', *, times: 'int' = 1) -> 'int'"
    assert typing.get_type_hints(verb) == {"amount": int, "times": int, "return": int}


def test_a_verb_is_named_after_its_class() -> None:
    pending: Any = Blue(read_later).add(1)
    assert pending.__qualname__ == "Blue.add"
    pending.close()
    with pytest.raises(TypeError, match=r"^Red\.add\(\) missing 1 required positional argument: 'amount'"):
        Red(lambda: 1).add()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Blue\.plain\(\) got an unexpected keyword argument 'other'"):
        Blue(read_later).plain(1, other=2).send(None)  # type: ignore[call-arg]


class Purple(Blue):
    """A class below a sync or async one."""

    async def plain(self, amount: int) -> int:
        return await super().plain(amount) + 1


class Green(Verbs, Async):
    """Calls a verb of its base by super()."""

    async def plain(self, amount: int) -> int:
        return await super().plain(amount) + 1


async def test_a_verb_can_be_overridden() -> None:
    assert await Purple(read_later).plain(4) == 9
    assert await Purple(read_later).add(1) == 11
    assert await Green(read_later).plain(4) == 9


def recovering() -> Generator[str, Any, str]:
    try:
        yield "bad"
    except KeyError:
        return str((yield "good"))
    return "not reached"


def test_errors_are_raised_inside_the_program() -> None:
    def execute(step: str) -> str:
        if step == "bad":
            raise KeyError(step)
        return f"did {step}"

    assert sync_runner(recovering, execute)() == "did good"


class Recovering:
    """The same in a verb of either mode."""

    def __init__(self, read: Any) -> None:
        self.read = read

    @verb
    def recover(self) -> Program[str]:
        try:
            yield call(self.read, "bad")
        except KeyError:
            return str((yield call(self.read, "good")))
        return "not reached"


class RedRecovering(Recovering, Sync): ...


class BlueRecovering(Recovering, Async): ...


async def test_errors_are_raised_inside_the_program_of_a_verb() -> None:
    def read(step: str) -> str:
        if step == "bad":
            raise KeyError(step)
        return f"did {step}"

    async def read_later(step: str) -> str:
        return read(step)

    assert RedRecovering(read).recover() == "did good"
    assert await BlueRecovering(read_later).recover() == "did good"


def test_errors_that_a_program_does_not_catch_reach_the_caller() -> None:
    def execute(step: str) -> str:
        raise LookupError(step)

    with pytest.raises(LookupError):
        sync_runner(recovering_nothing, execute)()


def recovering_nothing() -> Generator[str, Any, None]:
    yield "anything"


def test_programs_compose() -> None:
    def outer() -> Generator[str, Any, list[Any]]:
        first = yield from recovering_nothing_but("a")
        second = yield from recovering_nothing_but("b")
        return [first, second]

    def recovering_nothing_but(step: str) -> Generator[str, Any, Any]:
        return (yield step)

    assert sync_runner(outer, str.upper)() == ["A", "B"]


@pytest.mark.parametrize("kind", [RedRecovering, BlueRecovering])
async def test_a_program_of_other_steps_becomes_one_of_calls(kind: Any) -> None:
    """An error of a call is raised inside the inner program, whatever the mode."""

    def read(step: str) -> str:
        if step == "bad":
            raise KeyError(step)
        return f"did {step}"

    async def read_later(step: str) -> str:
        return read(step)

    class Interpreting(kind):  # type: ignore[misc]
        @verb
        def recover_by_steps(self) -> Program[str]:
            return (yield from interpret(recovering(), self._perform))

        def _perform(self, step: str) -> Program[str]:
            first = yield call(self.read, step)
            return f"{first}, {(yield call(self.read, step))}"

    interpreting = Interpreting(read if kind is RedRecovering else read_later)
    assert await settled(interpreting.recover_by_steps()) == "did good, did good"


def test_a_call_is_made_by_the_runner_and_not_before() -> None:
    made: list[int] = []
    step = call(made.append, 1)
    assert made == []
    step()
    assert made == [1]
