"""The `tx` argument of the verbs that write: an open transaction, not given, or `SEPARATE`."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from postroom._kernel.scope import Entry, are_same, handling
from postroom.errors import FeatureMissing, TransactionRefused


class _Tx(Enum):
    """Values of `tx` that are no transaction. An enum, since its members are singletons, also after a copy."""

    NOT_GIVEN = "<not given>"
    SEPARATE = "SEPARATE"

    def __repr__(self) -> str:
        return str(self.value)


NOT_GIVEN: Final[Any] = _Tx.NOT_GIVEN
"""The default of `tx`: None cannot be it, since None is what a mistake looks like."""

SEPARATE: Final[Any] = _Tx.SEPARATE
"""As `tx`: the write commits by itself, also where it is made inside of a transactional handler."""


def resolve(tx: Any, store: Any) -> Any:
    """The transaction that the store joins, or None where the write commits by itself."""
    if tx is NOT_GIVEN or tx is SEPARATE or tx is None:
        handler = handling.entry()
        if handler is not None and are_same(store, handler.owner):
            _check_in_handler(tx, handler)
        elif tx is None:
            raise TransactionRefused(
                "tx is None, so the write would commit outside your transaction: pass the open connection, session or "
                "cursor itself (Django's atomic() and asyncpg's transaction() yield None in `with ... as tx`), or "
                "leave out tx"
            )
        return None
    if not store.features.transactional:
        raise FeatureMissing(
            f"{store.name} cannot join your transaction: leave out tx, or use a store on your SQL database"
        )
    return tx


def _check_in_handler(tx: Any, handler: Entry[Any]) -> None:
    """Refuse a write beside the transaction of the handler, unless the caller asks for it and the store can do it."""
    refusal = _refusal(tx, handler.owner)
    if refusal is not None:
        handler.note(refusal)
        raise refusal


def _refusal(tx: Any, store: Any) -> TransactionRefused | None:
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
