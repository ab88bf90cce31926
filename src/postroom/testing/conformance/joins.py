"""Joins, for stores with `features.joins`."""

from __future__ import annotations

from postroom.testing.conformance.join_continuations import JoinContinuationConformance
from postroom.testing.conformance.join_ends import JoinEndConformance
from postroom.testing.conformance.join_failures import JoinFailureConformance
from postroom.testing.conformance.join_steps import JoinStepConformance


class JoinConformance(JoinStepConformance, JoinContinuationConformance, JoinFailureConformance, JoinEndConformance):
    """Stores with `features.joins`."""
