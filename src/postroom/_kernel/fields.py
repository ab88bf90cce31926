"""The fields of a message, in order. Stores derive their columns, records and readers from this module.

`Message` and `Draft` define the fields; the names below only divide them. The content is what a sender gives. The
progress is what a store adds and changes. A new optional text that stores only keep and return is one line in `Draft`
and one in `Message`, before `group`, and a column in the migrations: it is a *passive label*, and no store names these
one by one. SQL files have `<<m.{label}>>` where all of them belong.

`tests/unit/test_fields.py` compares every store with these definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter

from postroom._kernel.message import Draft, Message

MESSAGE_FIELDS: tuple[str, ...] = tuple(name for name in Message._fields if name != "lease")
"""All fields of a stored message, in the order of `Message`. Its lease belongs to the worker."""

CONTENT_FIELDS: tuple[str, ...] = tuple(name for name in MESSAGE_FIELDS if name in Draft._fields)
"""What the sender gives. `Draft` has the same order."""

PROGRESS_FIELDS: tuple[str, ...] = tuple(name for name in MESSAGE_FIELDS if name not in CONTENT_FIELDS)
"""What the store adds: the id, times, counters, state, claim and ending."""

TIME_FIELDS: frozenset[str] = frozenset({"due", "expires", "received_at", "first_seen", "last_seen", "completed_at"})
"""Fields that are datetimes. A store converts them to its representation of time."""


def _between(names: tuple[str, ...], first: str, last: str) -> slice:
    return slice(names.index(first) + 1, names.index(last))


DRAFT_LABELS = _between(Draft._fields, "headers", "hash")
"""The position of the labels in a `Draft`."""

MESSAGE_LABELS = _between(Message._fields, "headers", "hash")
"""The position of the labels in a `Message`."""

labels_of: Callable[[Draft], tuple[str | None, ...]] = itemgetter(DRAFT_LABELS)
"""Returns the labels of a draft."""

LABELS: tuple[str, ...] = tuple(Draft._fields)[DRAFT_LABELS]
"""Optional texts that a store keeps and returns without a conversion, in the order of `Draft` and `Message`."""

PASSIVE_LABELS: tuple[str, ...] = LABELS[: LABELS.index("group")]
"""The labels that no rule of a store uses. The group and the collapse key come after them."""

COLUMNS: Mapping[str, str] = {name: name for name in MESSAGE_FIELDS if name != "claim"} | {"group": "group_id"}
"""Field → column in SQL. `GROUP` is a keyword of SQL. The claim is stored as several columns."""
