"""For tests: a clock that a test moves, events to wait for, assertions about boxes, and the conformance suites that a
store must pass.

`postroom.testing.conformance` needs the extra: pip install 'postroom[testing]'.
"""

from __future__ import annotations

from postroom.testing.asserts import assert_enqueued, assert_not_enqueued
from postroom.testing.clock import FrozenClock
from postroom.testing.events import Events
from postroom.testing.mode import as_async

__all__ = ["Events", "FrozenClock", "as_async", "assert_enqueued", "assert_not_enqueued"]
