"""What a write with a known key means to its caller: `on_duplicate`."""

from __future__ import annotations

from collections.abc import Sequence

from postroom._faces import check
from postroom._kernel.message import Draft, OnDuplicate, Receipt, ReceiptStatus
from postroom._kernel.policy import Box
from postroom.errors import DuplicateMessage

ON_DUPLICATE = ("update", "reject", "raise")


def policy_of(given: OnDuplicate | None, box: Box, *, says_its_id: bool) -> OnDuplicate:
    """What the caller said, else what the box says; else a typed message that has an id in it is not replaced (C-16).

    A message under the same id is then the same event again, and what the first delivery said stands.
    """
    if given is not None:
        return check.choice("on_duplicate", given, ON_DUPLICATE)
    return box.keeping.on_duplicate or ("reject" if says_its_id else "update")


def raise_if_refused(drafts: Sequence[Draft], receipts: Sequence[Receipt]) -> None:
    """Raises where a key was known and its draft says `raise`. The store has kept what was new."""
    refused = [
        receipt
        for draft, receipt in zip(drafts, receipts, strict=True)
        if receipt.status is not ReceiptStatus.NEW and draft.on_duplicate == "raise" and receipt.is_refused
    ]
    if refused:
        first, others = refused[0], len(refused) - 1
        more = f", and so are {others} more of this call" if others else ""
        raise DuplicateMessage(
            f"message {first.message_id!r} of source {first.source!r} is known (it is {first.state}){more}; nothing of "
            'it was changed. Catch DuplicateMessage and read its receipts, or use on_duplicate="reject" to get them '
            "returned",
            refused,
        )
