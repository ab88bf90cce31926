"""Gives a transactional handler a session of SQLAlchemy on the connection of its transaction."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from postroom._boxes.handler_types import HandlerFunction
from postroom._kernel.decide import Outcome
from postroom.errors import TransactionRefused

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession


def _changes_lost_by_close(session: AsyncSession) -> list[object]:
    """Returns a list to which `close` adds the objects whose changes it drops."""
    lost: list[object] = []
    close = session.close

    async def noting_close() -> None:
        lost.extend((*session.new, *session.dirty, *session.deleted))
        await close()

    session.close = noting_close  # type: ignore[method-assign]
    return lost


def with_session(function: HandlerFunction, session_class: type[AsyncSession]) -> HandlerFunction:
    """Returns a handler that gets a session on the connection of its transaction, in which the worker settles."""

    @functools.wraps(function)
    async def handle(given: object, connection: AsyncConnection) -> object:
        # In this mode the session never commits or closes the transaction: the worker does.
        async with session_class(bind=connection, join_transaction_mode="rollback_only") as session:
            lost = _changes_lost_by_close(session)
            await session.begin()
            result: object = await function(given, session)
            if lost:
                raise TransactionRefused(
                    "the handler closed its session, which dropped changes that were not flushed: leave the session "
                    "open (no `async with session`, no close), the room writes and commits them"
                )
            if not isinstance(result, Outcome) or result.result == "success":
                await session.flush()  # writes the objects that the handler has added
            return result

    return handle
