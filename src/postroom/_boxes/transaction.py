"""The `tx` argument of the verbs that write: an open transaction, not given, or `SEPARATE`."""

from __future__ import annotations

from enum import Enum
from typing import Final

from postroom._kernel.scope import Entry
from postroom._room_store import RoomStore, handling, on_same_database
from postroom.errors import FeatureMissing, TransactionRefused
from postroom.spi import Tx


class _Tx(Enum):
    """Values of `tx` that are no transaction. The members of an enum stay the same objects after a copy."""

    NOT_GIVEN = "<not given>"
    SEPARATE = "SEPARATE"

    def __repr__(self) -> str:
        return str(self.value)


NOT_GIVEN: Final[Tx] = _Tx.NOT_GIVEN
"""The default of `tx`. It is not None, since None is what a caller passes by mistake."""

SEPARATE: Final[Tx] = _Tx.SEPARATE
"""As `tx`: the write commits by itself, also inside a transactional handler."""


def resolve(tx: Tx, store: RoomStore) -> Tx:
    """Returns the transaction that the store joins, or None if the write commits by itself.

    Raises TransactionRefused or FeatureMissing."""
    if tx is NOT_GIVEN or tx is SEPARATE or tx is None:
        handler = handling.entry()
        if handler is not None and on_same_database(store, handler.owner):
            _check_in_handler(tx, handler)
        elif tx is None:
            raise TransactionRefused(
                "tx is None, so the write would commit outside your transaction: pass the open connection or session "
                "itself (Django's atomic() and asyncpg's transaction() yield None in `with ... as tx`), or "
                "leave out tx"
            )
        return None
    if not store.features.transactional:
        raise FeatureMissing(
            f"{store.name} cannot join your transaction: leave out tx, or use a store on your SQL database"
        )
    return tx


def _check_in_handler(tx: object, handler: Entry[RoomStore]) -> None:
    """Refuses a write outside of the transaction, unless `tx` is SEPARATE and the store has concurrent writers."""
    refusal = _refusal(tx, handler.owner)
    if refusal is not None:
        handler.note(refusal)
        raise refusal


def _refusal(tx: object, store: RoomStore) -> TransactionRefused | None:
    if not store.features.concurrent:
        return TransactionRefused(
            f"this transactional handler holds the only write lock of {store.name}, so a write beside its transaction "
            "would wait for itself: pass tx=tx, or write after the handler has returned"
        )
    if tx is SEPARATE:
        return None
    what = "None" if tx is None else "missing"
    return TransactionRefused(
        f"tx is {what} inside a transactional handler, so the write would commit even if the handler is rolled "
        "back: pass tx=tx; or pass tx=SEPARATE, if that is what you want"
    )
