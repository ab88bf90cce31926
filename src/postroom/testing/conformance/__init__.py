"""The behaviour that every store must show, as tests: public, for whoever writes a store.

Write one fixture, and run them all:

    from postroom.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self, clock):
            store = MyStore(clock=clock)
            yield store
            await store.close()

The suite moves `clock`; a store that knows only its server's clock overrides `elapse` and `now`. What a store does not
declare in its `features` is skipped. A sync store is wrapped by `postroom.testing.as_async`. For one topic alone,
inherit from that topic's class. The store authors' guide in the documentation says more.
"""

from __future__ import annotations

import pytest

_TOPICS = (
    *(
        "base",
        "boxes",
        "cancel",
        "claim",
        "collapse",
        "conflict",
        "duplicates",
        "expiry",
        "fifo",
        "find",
        "keys",
        "lasting",
        "orders",
        "purge_replay",
        "put",
    ),
    *("renew_reap", "schema", "settle", "transactions", "window"),
)
# Before they are imported: a failing `assert` then shows its values, in a package as in a test file.
pytest.register_assert_rewrite(*(f"{__name__}.{topic}" for topic in _TOPICS))

from postroom.testing.conformance.base import (  # noqa: E402
    Desk,
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
from postroom.testing.conformance.expiry import ExpiryConformance  # noqa: E402
from postroom.testing.conformance.fifo import FifoConformance  # noqa: E402
from postroom.testing.conformance.find import FindConformance  # noqa: E402
from postroom.testing.conformance.keys import MarkConformance, RecordConformance  # noqa: E402
from postroom.testing.conformance.lasting import LastingConformance  # noqa: E402
from postroom.testing.conformance.orders import OrderConformance  # noqa: E402
from postroom.testing.conformance.purge_replay import PurgeConformance, ReplayConformance  # noqa: E402
from postroom.testing.conformance.put import PutConformance  # noqa: E402
from postroom.testing.conformance.renew_reap import ReapConformance, RenewConformance  # noqa: E402
from postroom.testing.conformance.schema import SchemaConformance  # noqa: E402
from postroom.testing.conformance.settle import (  # noqa: E402
    AckConformance,
    FailConformance,
    ProofConformance,
    RetryConformance,
    TurnConformance,
)
from postroom.testing.conformance.transactions import TransactionConformance  # noqa: E402
from postroom.testing.conformance.window import WindowConformance  # noqa: E402

__all__ = [
    "StoreConformance",
    "QueueConformance",
    "KeyConformance",
    # The topics.
    "AckConformance",
    "BoxesConformance",
    "CancelConformance",
    "ClaimConformance",
    "CollapseConformance",
    "ConflictConformance",
    "DuplicateConformance",
    "ExpiryConformance",
    "FailConformance",
    "FifoConformance",
    "FindConformance",
    "LastingConformance",
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
    "TurnConformance",
    "WindowConformance",
    # For fixtures and tests of your own.
    "Desk",
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
    AckConformance,
    RetryConformance,
    FailConformance,
    ProofConformance,
    TurnConformance,
    RenewConformance,
    ReapConformance,
    ExpiryConformance,
    ReplayConformance,
    PurgeConformance,
    FindConformance,
    BoxesConformance,
):
    """The behaviour of `QueueStore`. Some of it is seen through `record` and `mark`."""


class KeyConformance(RecordConformance, MarkConformance, CancelConformance):
    """The behaviour of `KeyStore`."""


class StoreConformance(
    QueueConformance,
    KeyConformance,
    OrderConformance,
    SchemaConformance,
    TransactionConformance,
    LastingConformance,
):
    """All of it."""
