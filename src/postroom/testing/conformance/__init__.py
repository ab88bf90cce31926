"""The behaviour that every store must have, as tests. Public, for authors of stores.

Write one fixture, and run all tests:

    from postroom.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self, clock):
            store = MyStore(clock=clock)
            yield store
            await store.close()

The suite moves `clock`. A store that uses the clock of its server overrides `elapse` and `now`. Tests of features that
a store does not declare are skipped. Wrap a sync store with `postroom.testing.as_async`. To test one topic, inherit
from the class of that topic. See "Write a store" in the documentation.
"""

from __future__ import annotations

import pytest

_TOPICS = (
    *("attend", "base", "boxes", "cancel", "claim", "collapse", "conflict", "duplicates", "durability", "exchange"),
    *(
        "expiry",
        "fifo",
        "fifo_dead",
        "find",
        "guard",
        "guard_base",
        "guard_ends",
        "join_base",
        "join_continuations",
        "join_ends",
    ),
    *("join_failures", "join_steps", "keys", "orders", "proof", "purge_replay", "put", "renew_reap", "schema"),
    *("settle", "transactions", "window"),
)
# Before they are imported: a failing `assert` then shows its values, in a package as in a test file.
pytest.register_assert_rewrite(*(f"{__name__}.{topic}" for topic in _TOPICS))

from postroom.testing.conformance.attend import AttendConformance  # noqa: E402
from postroom.testing.conformance.base import (  # noqa: E402
    BoxUnderTest,
    Elapse,
    Now,
    OpenBox,
    Reopen,
    Suite,
    Transaction,
)
from postroom.testing.conformance.boxes import BoxesConformance  # noqa: E402
from postroom.testing.conformance.cancel import CancelConformance  # noqa: E402
from postroom.testing.conformance.claim import ClaimConformance  # noqa: E402
from postroom.testing.conformance.collapse import CollapseConformance  # noqa: E402
from postroom.testing.conformance.conflict import ConflictConformance  # noqa: E402
from postroom.testing.conformance.duplicates import DuplicateConformance  # noqa: E402
from postroom.testing.conformance.durability import DurabilityConformance  # noqa: E402
from postroom.testing.conformance.exchange import ExchangeConformance  # noqa: E402
from postroom.testing.conformance.expiry import ExpiryConformance  # noqa: E402
from postroom.testing.conformance.fifo import FifoConformance  # noqa: E402
from postroom.testing.conformance.fifo_dead import FifoDeadLetterConformance  # noqa: E402
from postroom.testing.conformance.find import FindConformance  # noqa: E402
from postroom.testing.conformance.guard import GuardBeginConformance  # noqa: E402
from postroom.testing.conformance.guard_ends import GuardEndConformance  # noqa: E402
from postroom.testing.conformance.join_continuations import JoinContinuationConformance  # noqa: E402
from postroom.testing.conformance.join_ends import JoinEndConformance  # noqa: E402
from postroom.testing.conformance.join_failures import JoinFailureConformance  # noqa: E402
from postroom.testing.conformance.join_steps import JoinStepConformance  # noqa: E402
from postroom.testing.conformance.keys import MarkConformance, RecordConformance  # noqa: E402
from postroom.testing.conformance.orders import OrderConformance  # noqa: E402
from postroom.testing.conformance.proof import ProofConformance  # noqa: E402
from postroom.testing.conformance.purge_replay import PurgeConformance, ReplayConformance  # noqa: E402
from postroom.testing.conformance.put import PutConformance  # noqa: E402
from postroom.testing.conformance.renew_reap import ReapConformance, RenewConformance  # noqa: E402
from postroom.testing.conformance.schema import SchemaConformance  # noqa: E402
from postroom.testing.conformance.settle import AckConformance, FailConformance, RetryConformance  # noqa: E402
from postroom.testing.conformance.transactions import TransactionConformance  # noqa: E402
from postroom.testing.conformance.window import WindowConformance  # noqa: E402

__all__ = [
    "StoreConformance",
    "QueueConformance",
    "KeyConformance",
    # The topics.
    "AckConformance",
    "AttendConformance",
    "BoxesConformance",
    "CancelConformance",
    "ClaimConformance",
    "CollapseConformance",
    "ConflictConformance",
    "DuplicateConformance",
    "DurabilityConformance",
    "ExchangeConformance",
    "ExpiryConformance",
    "FailConformance",
    "FifoConformance",
    "FifoDeadLetterConformance",
    "FindConformance",
    "GuardBeginConformance",
    "GuardConformance",
    "GuardEndConformance",
    "JoinConformance",
    "JoinContinuationConformance",
    "JoinEndConformance",
    "JoinFailureConformance",
    "JoinStepConformance",
    "MarkConformance",
    "OrderConformance",
    "ProofConformance",
    "PurgeConformance",
    "PutConformance",
    "ReapConformance",
    "RecordConformance",
    "RenewConformance",
    "ReplayConformance",
    "RetryConformance",
    "SchemaConformance",
    "TransactionConformance",
    "WindowConformance",
    # For your own fixtures and tests.
    "BoxUnderTest",
    "Elapse",
    "Now",
    "OpenBox",
    "Reopen",
    "Suite",
    "Transaction",
]


class QueueConformance(
    PutConformance,
    ConflictConformance,
    DuplicateConformance,
    WindowConformance,
    CollapseConformance,
    ClaimConformance,
    FifoConformance,
    FifoDeadLetterConformance,
    AckConformance,
    RetryConformance,
    FailConformance,
    ProofConformance,
    ExchangeConformance,
    RenewConformance,
    ReapConformance,
    ExpiryConformance,
    ReplayConformance,
    PurgeConformance,
    FindConformance,
    BoxesConformance,
):
    """The behaviour of `QueueStore`. Some of these tests use `record` and `mark`."""


class KeyConformance(RecordConformance, MarkConformance, CancelConformance):
    """The behaviour of `KeyStore`."""


class JoinConformance(JoinStepConformance, JoinContinuationConformance, JoinFailureConformance, JoinEndConformance):
    """The behaviour of `JoinStore`."""


class GuardConformance(GuardBeginConformance, GuardEndConformance):
    """The behaviour of `GuardStore`, and of `settle`, `renew` and `reap` on what it claims."""


class StoreConformance(
    QueueConformance,
    KeyConformance,
    JoinConformance,
    GuardConformance,
    OrderConformance,
    AttendConformance,
    SchemaConformance,
    TransactionConformance,
    DurabilityConformance,
):
    """The whole suite."""
