"""For tests, yours and ours: a clock that stands still, and the suites that a store must pass.

`postroom.testing.conformance` needs the extra: pip install 'postroom[testing]'.
"""

from __future__ import annotations

from postroom.testing.clock import FrozenClock
from postroom.testing.colour import as_async

__all__ = ["FrozenClock", "as_async"]
