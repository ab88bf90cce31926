"""The latest time and the longest duration. They are the same for every store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

LATEST = datetime(2255, 1, 1, tzinfo=UTC)
"""Times must be before this. Redis computes in Lua, whose numbers are exact up to 2**53: microseconds until 2255."""
LONGEST = timedelta(days=36_600)
"""A hundred years: a duration that starts now ends before `LATEST`."""
