"""What was checked of a store, so that it is checked once."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Verified:
    """What is known to fit. It may be shared by store objects of one database, the first of which checks."""

    schema: bool = False
    """The tables are there, and this version of the package can use them."""
    orders: set[str] = field(default_factory=set)
    """The keys of the boxes whose recorded order is the one with which this process opens them."""
