"""Reliable messages on the database you already have: an inbox, an outbox and one work queue.

    from postroom import Postroom

    room = Postroom("sqlite:///shop.db")
    inbox, outbox = room.inbox(), room.outbox()

`postroom.sync` has the same API for sync code, without handlers.
"""

from __future__ import annotations

from postroom._boxes.guard.guard import Guard
from postroom._boxes.guard.key import GuardKey
from postroom._boxes.guard.provider import ProviderGuard
from postroom._boxes.guard.run import Run
from postroom._boxes.inbox import Inbox, TenantInbox
from postroom._boxes.new_message import NewMessage
from postroom._boxes.outbox import Outbox, TenantOutbox
from postroom._boxes.transaction import SEPARATE
from postroom._boxes.typed_messages import topic
from postroom._kernel.backoff import Backoff
from postroom._kernel.decide import Outcome
from postroom._kernel.guard import BeginStatus, Begun
from postroom._kernel.ids import OwnerToken
from postroom._kernel.joins import Join, JoinId, JoinStatus, JoinStep, StepStatus
from postroom._kernel.message import Claim, Key, Message, Receipt, ReceiptStatus
from postroom._kernel.observer import Event, Observer
from postroom._kernel.queries import Reaped
from postroom._kernel.retry import StorageRetry
from postroom._kernel.states import Ending, State
from postroom._many.config import StoreConfig, StoreMigrated, StoreResult
from postroom._many.selection import Batch, DrainFirst, Fair, RoundRobin, Selection
from postroom._room.running import Postroom
from postroom._runtime.values import BoxHealth, Cleaned, Cleaning
from postroom.errors import (
    AmbiguousMessageId,
    ArgumentTypeError,
    ArgumentValueError,
    CommitUnknown,
    DuplicateMessage,
    ExtraMissing,
    FeatureMissing,
    GuardBusy,
    GuardConflict,
    HandlerExists,
    JoinEnded,
    JoinFull,
    JoinNotFound,
    LeaseLost,
    MessageNotFound,
    NotReplicated,
    OrderMismatch,
    PoolForked,
    PostroomError,
    ResultNotKept,
    RoomClosed,
    SchemaError,
    SchemaMissing,
    SchemaOutdated,
    SchemaTooNew,
    ServiceError,
    ServiceRefused,
    ServiceUnavailable,
    StoreBusy,
    StoreKeyMissing,
    StoreNotFound,
    TransactionAborted,
    TransactionRefused,
    Undecodable,
)

__version__ = "0.1.0"

__all__ = [
    # the room and its boxes
    "Postroom",
    "Inbox",
    "Outbox",
    # messages
    "NewMessage",
    "Message",
    "Receipt",
    "ReceiptStatus",
    "Key",
    "State",
    "Ending",
    "topic",
    "SEPARATE",
    # many stores
    "TenantInbox",
    "TenantOutbox",
    "StoreConfig",
    "StoreMigrated",
    "StoreResult",
    "Selection",
    "RoundRobin",
    "DrainFirst",
    "Fair",
    "Batch",
    # joins
    "Join",
    "JoinId",
    "JoinStatus",
    "JoinStep",
    "StepStatus",
    # guards
    "Guard",
    "GuardKey",
    "ProviderGuard",
    "Run",
    "Begun",
    "BeginStatus",
    # the work queue
    "OwnerToken",
    "Claim",
    "Reaped",
    "Outcome",
    "Backoff",
    "StorageRetry",
    # the life of a room
    "Cleaning",
    "Cleaned",
    "BoxHealth",
    # what happens
    "Event",
    "Observer",
    # what goes wrong
    "PostroomError",
    "AmbiguousMessageId",
    "ArgumentTypeError",
    "ArgumentValueError",
    "CommitUnknown",
    "DuplicateMessage",
    "ExtraMissing",
    "FeatureMissing",
    "GuardBusy",
    "GuardConflict",
    "HandlerExists",
    "JoinEnded",
    "JoinFull",
    "JoinNotFound",
    "LeaseLost",
    "MessageNotFound",
    "NotReplicated",
    "OrderMismatch",
    "PoolForked",
    "ResultNotKept",
    "RoomClosed",
    "ServiceError",
    "ServiceRefused",
    "ServiceUnavailable",
    "SchemaError",
    "SchemaMissing",
    "SchemaOutdated",
    "SchemaTooNew",
    "StoreBusy",
    "StoreKeyMissing",
    "StoreNotFound",
    "TransactionAborted",
    "TransactionRefused",
    "Undecodable",
]
