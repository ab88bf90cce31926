"""The `tx` argument of the verbs that write: an open transaction, not given, or `SEPARATE`."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

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
    if tx is NOT_GIVEN or tx is SEPARATE:
        return None
    if tx is None:
        raise TransactionRefused(
            "tx is None, so the write would commit outside your transaction: pass the open connection, session or "
            "cursor itself (Django's atomic() and asyncpg's transaction() yield None in `with ... as tx`), or leave "
            "out tx"
        )
    if not store.features.transactional:
        raise FeatureMissing(
            f"{store.name} cannot join your transaction: leave out tx, or use a store on your SQL database"
        )
    return tx
