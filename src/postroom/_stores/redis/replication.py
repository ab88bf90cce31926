"""Whether a write waits until replicas have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Replication:
    """How many replicas must acknowledge a write, and for how many milliseconds the write waits for them."""

    replicas: int = 0
    timeout: int = 1000


WaitFor = Literal["acknowledged", "attempted", "nothing"]
"""How a script waits for replicas.

* `acknowledged`: what a sender writes. The verb raises NotReplicated if too few replicas acknowledge it.
* `attempted`: what a worker settles. Too few acknowledgements are logged. If the write is lost, a message is handled
  again, which an error would not prevent.
* `nothing`: a claim, or a script that only reads. An error after a claim would make its messages unavailable until
  their leases end.
"""
