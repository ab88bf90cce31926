"""How late and how long: the same on every store, so that a program means the same on each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

LATEST = datetime(2255, 1, 1, tzinfo=UTC)
"""Before this. A number of microseconds that is larger is not exact in Lua, with which Redis computes."""
LONGEST = timedelta(days=36_600)
"""A hundred years: what begins now and takes as long ends before `LATEST`."""
