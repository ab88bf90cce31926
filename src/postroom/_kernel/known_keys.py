"""Rules for a write whose key is known: what the store changes, and which receipt the caller gets."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple, overload

from postroom._kernel.message import Draft, Receipt, ReceiptStatus
from postroom._kernel.states import State


class KnownKeyDecision(NamedTuple):
    """What a put does with a message that has the key of the draft."""

    status: ReceiptStatus
    state: State
    """The state of the message after the put."""
    touches: bool = True
    """Set `last_seen`. False: the draft was rejected, and nothing changes."""
    fills: bool = False
    """The key was only seen: store the content of the draft, and let the message enter the queue."""
    replaces: bool = False
    """Replace the content by that of the draft."""
    revives: bool = False
    """Make the dead message wait again."""
    updated: bool = False
    """The receipt reports that earlier content was replaced."""

    def receipt(
        self, id_: int, draft: Draft, *, superseded: tuple[int, ...] = (), replaced_under_lease: bool = False
    ) -> Receipt:
        """Returns the receipt for the draft. `id_` is the id of the message that has its key."""
        return Receipt(self.status, id_, *draft.key, self.state, superseded, replaced_under_lease, self.updated)


def decide_known_key(draft: Draft, state: State, *, conflict: bool, is_continuation: bool = False) -> KnownKeyDecision:
    """Returns what to do with a draft whose key belongs to a message in `state`.

    `conflict`: the message has another topic or another content hash (`Draft.contradicts`). `is_continuation`: it is
    the continuation of a join. What it becomes was decided when it was stored, and no put changes it.
    """
    if conflict and draft.on_conflict == "reject":
        return KnownKeyDecision(ReceiptStatus.REJECTED, state, touches=False)
    if state is State.SEEN:
        status = ReceiptStatus.CONFLICT if conflict else ReceiptStatus.NEW
        return KnownKeyDecision(status, State.WAITING, fills=True, updated=conflict)
    replaces = state is not State.DONE and not is_continuation and draft.replaces(conflict=conflict)
    if state is State.DEAD and draft.revive_dead:
        return KnownKeyDecision(ReceiptStatus.REVIVED, State.WAITING, replaces=replaces, revives=True, updated=replaces)
    status = ReceiptStatus.CONFLICT if conflict else _STATUS_OF_KNOWN.get(state, ReceiptStatus.DUPLICATE)
    return KnownKeyDecision(status, state, replaces=replaces, updated=replaces)


_STATUS_OF_KNOWN = {State.DONE: ReceiptStatus.DONE, State.DEAD: ReceiptStatus.DEAD}


@overload
def is_outside_dedup_window(first_seen: int, window: int | None, now: int) -> bool: ...
@overload
def is_outside_dedup_window(first_seen: datetime, window: timedelta | None, now: datetime) -> bool: ...
def is_outside_dedup_window(first_seen: Any, window: Any, now: Any) -> bool:
    """Returns True if the deduplication window of a message has passed: its key is then free for a new message.

    `window` None: the key is taken until the message is purged.
    """
    return window is not None and bool(first_seen + window <= now)
