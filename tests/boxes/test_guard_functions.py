"""What a guard can decorate, and what it refuses before a message could be lost."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import postroom
import postroom.sync
from postroom import (
    ArgumentTypeError,
    ArgumentValueError,
    GuardKey,
    MessageNotFound,
    ResultNotKept,
    State,
    TransactionRefused,
)
from tests.support import settled


def is_async(room: Any) -> bool:
    return inspect.iscoroutinefunction(type(room).migrate)


def in_mode(room: Any, function: Any) -> Any:
    """Returns the function, or a coroutine function that calls it, as the room needs it."""
    if not is_async(room):
        return function

    async def in_task(key: str, **tx: Any) -> Any:
        return await settled(function(key, **tx))

    return in_task


def generator(key: str) -> Iterator[str]:
    yield key


async def async_generator(key: str) -> AsyncIterator[str]:
    yield key


class Callable:
    """An object with an async call."""

    async def __call__(self, key: str) -> None:
        """Handles a message."""


@pytest.mark.parametrize("function", [generator, async_generator])
async def test_a_generator_is_refused(room: Any, function: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="generator"):
        room.guard("billing").once("key")(function)


async def test_a_plain_guard_does_not_process_what_has_not_run(room: Any) -> None:
    if is_async(room):
        pytest.skip("an async guard awaits what it gets")
    guard = room.guard("billing")
    with pytest.raises(ArgumentTypeError, match="plain functions"):
        guard.once("key", handler="object")(Callable())
    late = guard.once("key", handler="late")(lambda key: asyncio.sleep(0, key))
    with pytest.raises(ArgumentTypeError, match="coroutine, which has not run"):
        late("1")
    assert guard.get("1", handler="late").state is State.WAITING


async def test_a_refused_function_does_not_use_up_its_name(room: Any) -> None:
    guard, function = room.guard("billing"), in_mode(room, lambda key: key)
    with pytest.raises(ArgumentValueError, match="no parameter"):
        guard.once("id", handler="charge")(function)
    assert await settled(guard.once("key", handler="charge")(function)("1")) == "1"


async def test_a_partial_function_needs_a_name(room: Any) -> None:
    guard, function = room.guard("billing"), functools.partial(in_mode(room, lambda key: key))
    with pytest.raises(ArgumentTypeError, match="handler="):
        guard.once("key")(function)
    assert await settled(guard.once("key", handler="charge")(function)("1")) == "1"


@pytest.mark.parametrize("mode", ["lease", "mark_before"])
async def test_a_result_that_cannot_be_kept_is_no_second_run(
    room: Any, mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    guard, calls = room.guard("billing", mode=mode, keep_results=True), list[str]()

    def charge(key: str) -> object:
        calls.append(key)
        return object()

    charged = guard.once("key", handler="charge")(in_mode(room, charge))
    with caplog.at_level(logging.ERROR, logger="postroom"):
        assert await settled(charged("1")) is not None
    assert "the result of charge is not kept" in caplog.text
    assert (await settled(guard.get("1", handler="charge"))).state is State.DONE
    with pytest.raises(ResultNotKept):
        await settled(charged("1"))
    assert calls == ["1"]


async def test_mark_after_compares_no_contents_and_says_so(room: Any) -> None:
    guard = room.guard("billing", mode="mark_after")
    with pytest.raises(ArgumentValueError, match="hash needs a claim"):
        guard.once("key", hash=str.encode)(in_mode(room, lambda key: key))
    run = guard.run("1", hash=b"1")
    enter = run.__aenter__ if is_async(room) else run.__enter__
    with pytest.raises(ArgumentValueError, match="hash needs a claim"):
        await settled(enter())


def sent(key: str, **_tx: object) -> str:
    return f"sent {key}"


@pytest.mark.parametrize("inner_mode", ["lease", "mark_after", "transactional"])
async def test_a_guard_inside_a_transactional_handler(room: Any, inner_mode: Any) -> None:
    """The inner guard commits by itself. If the outer handler holds the only write lock, it refuses at once."""
    if not room.features.transactional:
        pytest.skip("the store has no transactions")
    inner = room.guard("mails", mode=inner_mode)
    send = inner.once("key", handler="send")(in_mode(room, sent))

    def charge(key: str, tx: object = None) -> Any:
        return send(key)

    charged = room.guard("billing", mode="transactional").once("key", handler="charge")(in_mode(room, charge))
    if not room.features.concurrent:
        with pytest.raises(TransactionRefused, match="only write lock"):
            await settled(charged("1"))
        with pytest.raises(MessageNotFound):
            await settled(inner.get("1", handler="send"))
        return
    assert await settled(charged("1")) == "sent 1"
    assert (await settled(inner.get("1", handler="send"))).state is State.DONE


class Keys:
    """A provider for sync code."""

    def __init__(self) -> None:
        self.keys = {"known"}

    def is_processed(self, key: str) -> bool:
        return key in self.keys

    def mark_processed(self, key: str) -> None:
        self.keys.add(key)


class AsyncKeys:
    """A provider for async code."""

    async def is_processed(self, key: str) -> bool:
        return False

    async def mark_processed(self, key: str) -> None:
        """Does nothing."""


class LateKeys(Keys):
    """A provider whose plain method returns an awaitable."""

    def is_processed(self, key: str) -> Any:
        return AsyncKeys().is_processed(key)


def test_a_provider_has_one_handler_for_its_keys() -> None:
    guard = postroom.sync.ProviderGuard(Keys())
    guard.once("key", handler="charge")(lambda key: key)
    with pytest.raises(ArgumentValueError, match="a second one would find each message processed"):
        guard.once("key", handler="ship")(lambda key: key)


def test_a_provider_for_async_code_is_refused_by_a_sync_guard() -> None:
    with pytest.raises(ArgumentTypeError, match="coroutine function"):
        postroom.sync.ProviderGuard(AsyncKeys())
    charge = postroom.sync.ProviderGuard(LateKeys()).once("key", handler="charge")(lambda key: key)
    with pytest.raises(ArgumentTypeError, match="coroutine, which has not run"):
        charge("1")


def test_a_header_that_is_no_text_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="UTF-8"):
        GuardKey.of_delivery("a", "b", "c", headers={"Idempotency-Key": b"\xff"}, message_id="1")
