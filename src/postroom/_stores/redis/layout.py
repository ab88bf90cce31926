"""Names of keys, and the order of the values in them. layout.md describes them.

The scripts get this order as constants that `scripts.script` generates, so it is written only here.
"""

from __future__ import annotations

from postroom._kernel.fields import LABELS

KEYS = (
    *("meta", "messages", "states", "dedup", "namesakes", "index", "seen", "pending"),
    *("captured", "expiring", "done", "dlq", "line", "lines", "locks", "collapse", "pages"),
    *("joins", "join_states", "join_index", "ended_joins", "steps", "memberships", "waits", "continuations"),
)
"""The keys of a box, in the order in which scripts get them."""
FIRST_OF_JOINS = KEYS.index("joins")
"""The position from which on the keys belong to joins."""

WITH_TIMES = ("pending", "captured", "waits")
"""The sorted sets of a box whose scores are the times at which a claim may find something."""

CONTENT = (
    *("first_seen", "topic", "source", "message_id", "format", *LABELS, "due", "hash", "hash_algorithm", "received_at"),
    *("headers", "payload"),
)
"""The values of a message in `messages`."""
READ_BY_SCRIPTS = CONTENT[: CONTENT.index("headers")]
"""The content fields that scripts unpack. They come first; scripts copy the rest as it is."""

PROGRESS = (
    *("state", "fence", "attempt", "deliveries", "revision", "last_seen", "expires", "owner", "stale"),
    *("completed_at", "ending", "last_error", "lost_leases", "delayed"),
)
"""The values of a record in `states`."""

BLOCK = 1 << 20
"""Ids that a box takes at once."""


def tag(prefix: str, box: str) -> str:
    """Returns the hash tag of a box: a cluster keeps all keys with the same tag on one node."""
    return f"{{{prefix}:{box}}}"


def box_keys(prefix: str, box: str, *, joins: bool = True) -> tuple[bytes, ...]:
    """Returns the keys of a box; without `joins`, those that a box without joins has.

    Each key costs every call of a script about a microsecond.
    """
    return tuple(box_key(prefix, box, name).encode() for name in (KEYS if joins else KEYS[:FIRST_OF_JOINS]))


def box_key(prefix: str, box: str, name: str) -> str:
    return f"{tag(prefix, box)}:{name}"


def ids_key(prefix: str) -> str:
    return f"{{{prefix}}}:ids"


def boxes_key(prefix: str) -> str:
    return f"{{{prefix}}}:boxes"


def attendant_key(prefix: str) -> str:
    return f"{{{prefix}}}:attendant"


def channel(prefix: str, box: str, *, sharded: bool) -> str:
    """Returns the channel of wake-ups. A sharded channel is on the node that has the box."""
    return f"{tag(prefix, box)}:wake" if sharded else f"{prefix}:wake"
