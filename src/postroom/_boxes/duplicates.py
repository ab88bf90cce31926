"""The policy `on_duplicate`: what a write with a known key does, and whether it raises."""

from __future__ import annotations

from collections.abc import Sequence

from postroom._boxes import check
from postroom._kernel.message import Draft, OnDuplicate, Receipt, ReceiptStatus
from postroom._kernel.policy import Box
from postroom.errors import DuplicateMessage

ON_DUPLICATE = ("update", "reject", "raise")


def policy_of(given: OnDuplicate | None, box: Box, *, has_own_id: bool) -> OnDuplicate:
    """Returns the policy of the caller, else that of the box.

    Without either, a typed message that has its own id is not replaced: a second message with this id is the same
    event again, so the content of the first delivery stands.
    """
    if given is not None:
        return check.choice("on_duplicate", given, ON_DUPLICATE)
    return box.retention.on_duplicate or ("reject" if has_own_id else "update")


def raise_if_refused(drafts: Sequence[Draft], receipts: Sequence[Receipt]) -> None:
    """Raises DuplicateMessage if a key was known and its draft has the policy `raise`. New messages are stored."""
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
