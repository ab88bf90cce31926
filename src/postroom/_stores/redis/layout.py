"""The names of keys: as layout.md says, in its order."""

from __future__ import annotations

NAMES = (
    *("meta", "messages", "states", "dedup", "namesakes", "index", "seen", "pending"),
    *("captured", "expiring", "done", "dlq", "line", "lines", "locks", "collapse", "pages"),
)
BLOCK = 1 << 20
"""So many ids a box takes at once."""


def tag(prefix: str, box: str) -> str:
    """What keeps the keys of a box together on one node of a cluster."""
    return f"{{{prefix}:{box}}}"


def box_keys(prefix: str, box: str) -> tuple[bytes, ...]:
    return tuple(f"{tag(prefix, box)}:{name}".encode() for name in NAMES)


def ids_key(prefix: str) -> str:
    return f"{{{prefix}}}:ids"


def boxes_key(prefix: str) -> str:
    return f"{{{prefix}}}:boxes"


def channel(prefix: str, box: str, *, sharded: bool) -> str:
    """Where wake-ups are published: a sharded channel lives where its box does."""
    return f"{tag(prefix, box)}:wake" if sharded else f"{prefix}:wake"
