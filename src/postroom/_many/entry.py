"""The entry of a store in the schedule."""

from __future__ import annotations

import math
import random

from postroom._many.breaker import Breaker
from postroom._many.tenant import Tenant

DAY_SECONDS = 86400.0
"""How often an idle store is cleaned."""


class Entry:
    """When to look at one store."""

    __slots__ = (
        "active",
        "again",
        "asked_at",
        "at",
        "breaker",
        "cleaned_at",
        "free_at",
        "held_until",
        "helps_until",
        "hinted_at",
        "is_fit",
        "is_looking",
        "left_at",
        "not_before",
        "pause",
        "spared_at",
        "tenant",
        "uncommitted_since",
    )

    def __init__(self, tenant: Tenant, at: float) -> None:
        self.tenant = tenant
        self.at = math.inf
        """The time of the next look; infinite while one waits or is under way."""
        self.is_looking = False
        self.again = math.inf
        """When to look again after the look that waits or is under way."""
        self.breaker = Breaker()
        self.is_fit = False
        """Whether the store can do what the boxes need."""
        self.free_at = 0.0
        """When the soft lease of another process ends."""
        self.asked_at = 0.0
        """When the last look began."""
        self.held_until = 0.0
        """When the soft lease of this process ends."""
        self.helps_until = 0.0
        """Until when this process looks at the store although another one attends it, which seems to have ended."""
        self.hinted_at: float | None = None
        """When the first hint came since the last look, while another process attends the store."""
        self.spared_at = self.left_at = -math.inf
        """When such a look found that the other process needs no help, and when the last visit ended."""
        self.pause = self.not_before = 0.0
        """After a visit that found nothing: the pause, and its end."""
        self.uncommitted_since: float | None = None
        """When a message was put in a transaction that may be open."""
        self.active = False
        """Whether messages were claimed since it was cleaned."""
        self.cleaned_at = at - random.uniform(0, DAY_SECONDS)  # noqa: S311 - spreads load, guards nothing
