"""Everything that Postroom raises.

    PostroomError
    ├── ArgumentTypeError          also a TypeError: None, or a value of the wrong type
    ├── ArgumentValueError         also a ValueError: a value that is out of bounds
    │   └── AmbiguousMessageId     a bare message id that several sources use
    ├── DuplicateMessage           also a ValueError: a key is known, and `on_duplicate` is `"raise"`
    ├── MessageNotFound            also a LookupError
    ├── JoinNotFound               also a LookupError
    ├── JoinEnded                  also a ValueError: the join has ended, so it takes no more steps
    ├── JoinFull                   also a ValueError: the join has all the steps that it expects
    ├── OrderMismatch              also a ValueError: a box is opened in another order than the store has recorded
    ├── TransactionRefused         also a ValueError: the `tx` cannot carry this write
    │   └── TransactionAborted     a statement of the `tx` failed, so the database accepts no more in it
    ├── CommitUnknown              the connection was lost while a handler's transaction was committed
    ├── GuardBusy                  also a RuntimeError: another caller has the key, so the delivery must be tried again
    ├── GuardConflict              also a ValueError: the key belongs to a message with other content
    ├── LeaseLost                  also a RuntimeError: the lease has ended, so the outcome of a handler is not stored
    ├── ResultNotKept              also a LookupError: a message was processed, and its result was not kept
    ├── FeatureMissing             the store does not offer what a call or an option needs
    ├── ExtraMissing               also an ImportError: an optional package is not installed
    ├── HandlerExists              also a ValueError: a topic has one handler per box
    ├── Undecodable                also a ValueError: a payload does not fit the type of its handler
    ├── NotReplicated              also a TimeoutError: too few replicas have a write, which the master has stored
    ├── ServiceError               a service did not do what was asked, or its response cannot be read
    │   ├── ServiceRefused         a service did not accept a request
    │   └── ServiceUnavailable     also a ConnectionError: it does not respond; the same call may succeed later
    ├── PoolForked                 also a RuntimeError: the pool of the user was used before a fork
    ├── RoomClosed                 also a RuntimeError
    ├── StoreNotFound              also a LookupError: the room has no store of this identifier
    ├── StoreKeyMissing            also a TypeError: the room has many stores, and the call names none
    ├── StoreBusy                  also a TimeoutError: too many stores of a server are in use at the same time
    └── SchemaError
        ├── SchemaMissing          the tables are not there
        ├── SchemaOutdated         the tables are older than this version needs
        └── SchemaTooNew           a newer version has changed the tables such that this one cannot use them

Errors of the database driver (a lost connection, a locked file) are not wrapped. No text of these errors contains a
payload or a credential.
"""

from __future__ import annotations

import datetime
import typing


class PostroomError(Exception):
    """The root of all errors that Postroom raises."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ArgumentTypeError(PostroomError, TypeError):
    """An argument is None or of the wrong type."""


class ArgumentValueError(PostroomError, ValueError):
    """An argument has a value that is not allowed."""


class AmbiguousMessageId(ArgumentValueError):
    """Several sources use this message id: name the source, or pass the claimed message itself."""


class DuplicateMessage(PostroomError, ValueError):
    """A message with this key is known, and was not changed."""

    def __init__(self, message: str | None = None, receipts: typing.Sequence[typing.Any] = ()) -> None:
        super().__init__(message)
        self.receipts = tuple(receipts)
        """The receipts of the messages that were known. Other messages of the same call are stored."""

    def __reduce__(self) -> tuple[typing.Any, ...]:
        return type(self), (*self.args, self.receipts)


class MessageNotFound(PostroomError, LookupError):
    """There is no such message in this box."""


class JoinNotFound(PostroomError, LookupError):
    """There is no such join in this box. A join of an open transaction needs the same `tx`."""


class JoinEnded(PostroomError, ValueError):
    """The join has ended, or is sealed: it takes no more steps."""


class JoinFull(PostroomError, ValueError):
    """The join has all the steps that it expects: start it with a larger expected_steps, or with None and seal it."""


class TransactionRefused(PostroomError, ValueError):
    """The transaction passed as `tx` cannot carry this write."""

    failed: str | None = None
    """Type, SQLSTATE and constraint of the error of a statement that failed in the transaction before, if known."""


class TransactionAborted(TransactionRefused):
    """A statement in the transaction failed, so the database has aborted the transaction."""

    def __init__(self, failed: str | None = None, *, in_handler: bool = False) -> None:
        """`in_handler`: the transaction is that of a handler. Only the worker ends it."""
        what = "let the error out of the handler" if in_handler else "roll it back"
        super().__init__(
            f"a statement failed{f' ({failed})' if failed else ''}, so its transaction is aborted: {what}. To "
            "continue after a statement that may fail, run it in a savepoint: connection.transaction(), or "
            "begin_nested() of SQLAlchemy"
        )
        self.failed = failed


class CommitUnknown(PostroomError):
    """The connection was lost while the transaction was committed, so it is not known whether it is committed."""


def refuse(why: str) -> TransactionRefused:
    """Returns the error for a `tx` that cannot be used."""
    return TransactionRefused(f"this tx cannot carry the write: {why}")


class OrderMismatch(PostroomError, ValueError):
    """The box has another order in the store than the one in which this process opens it."""


class GuardBusy(PostroomError, RuntimeError):
    """Another caller has the key. It may fail, so give the delivery back to its broker, and do not acknowledge it."""

    def __init__(
        self, message: str | None = None, until: datetime.datetime | None = None, name: str | None = None
    ) -> None:
        named = f"guard {name!r}: another caller has the key. It may fail, so give the delivery back to its broker"
        super().__init__(named if message is None and name is not None else message)
        self.until = until
        """The end of its lease. None: unknown, or the lease has no end."""

    def __reduce__(self) -> tuple[typing.Any, ...]:
        return type(self), (*self.args, self.until)


class GuardConflict(PostroomError, ValueError):
    """The key belongs to a message with another content hash."""


class LeaseLost(PostroomError, RuntimeError):
    """The lease has ended and another caller may have the key, so the outcome of this handler is not stored."""


class ResultNotKept(PostroomError, LookupError):
    """The message was processed before, and no result was kept."""


class FeatureMissing(PostroomError):
    """The store does not offer what a call or an option needs."""


class ExtraMissing(PostroomError, ImportError):
    """An optional package is not installed."""


class HandlerExists(PostroomError, ValueError):
    """This topic already has a handler in this box."""


class Undecodable(PostroomError, ValueError):
    """A payload cannot be decoded to the type that its handler takes."""


class NotReplicated(PostroomError, TimeoutError):
    """Fewer replicas than `wait_replicas` have acknowledged a write in time. The master has stored it."""


class ServiceError(PostroomError):
    """A service did not do what was asked, or its response cannot be read. It may have stored something."""


class ServiceRefused(ServiceError):
    """A service did not accept a request, and has stored nothing."""

    def __init__(self, message: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """The status of the response."""

    def __reduce__(self) -> tuple[typing.Any, ...]:
        return type(self), (*self.args, self.status)


class ServiceUnavailable(ServiceError, ConnectionError):
    """A service does not respond, or cannot serve the request now. The same call may succeed later."""


class PoolForked(PostroomError, RuntimeError):
    """The pool of this room was used before a fork, so its connections belong to the parent process."""


class RoomClosed(PostroomError, RuntimeError):
    """This room is closed: make a new one."""


class StoreNotFound(PostroomError, LookupError):
    """The room has no store of this identifier."""


class StoreKeyMissing(PostroomError, TypeError):
    """The room has many stores: name one, by `room.router.inbox(key)` or `room.router.outbox(key)`."""


class StoreBusy(PostroomError, TimeoutError):
    """Too many stores of one server are open and in use."""


class SchemaError(PostroomError):
    """The tables do not fit this version of Postroom."""


class SchemaMissing(SchemaError):
    """The tables are not there."""


class SchemaOutdated(SchemaError):
    """The tables are older than this version of Postroom needs."""


class SchemaTooNew(SchemaError):
    """A newer version of Postroom has changed the tables such that this one cannot use them."""
