"""Who waits for replicas."""

from __future__ import annotations

from typing import Literal

Wait = Literal["must", "should", "need not"]
"""What a sender writes *must* be on the replicas, or the sender is told. What a worker settles *should* be: if it is
lost, work is done again, and an error would not change that. A claim *need not* be: by an error, its messages would be
lost until their leases end.
"""
