"""The public surface: what is exported, in both modes, and what an import costs. A change here concerns users."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
import typing
from dataclasses import fields
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import postroom
from postroom import sync
from postroom._boxes.new_message import MessageOptions
from postroom._kernel.program import Async, Sync
from postroom._room.options import RoomOptions
from postroom._stores.memory import MemoryStore, SyncMemoryStore
from tests.support import settled

SURFACE = {
    "postroom": """
        Postroom Inbox Outbox
        NewMessage Message Receipt ReceiptStatus Key State Ending topic SEPARATE
        TenantInbox TenantOutbox StoreConfig StoreMigrated StoreResult Selection RoundRobin DrainFirst Fair Batch
        Join JoinId JoinStatus JoinStep StepStatus
        Guard GuardKey ProviderGuard Run Begun BeginStatus
        OwnerToken Claim Reaped Outcome Backoff StorageRetry
        Cleaning Cleaned BoxHealth
        Event Observer
        PostroomError AmbiguousMessageId ArgumentTypeError ArgumentValueError CommitUnknown DuplicateMessage
        ExtraMissing
        FeatureMissing GuardBusy GuardConflict HandlerExists JoinEnded JoinFull JoinNotFound LeaseLost MessageNotFound
        NotReplicated OrderMismatch PoolForked ResultNotKept RoomClosed ServiceError ServiceRefused ServiceUnavailable
        SchemaError SchemaMissing SchemaOutdated SchemaTooNew
        StoreBusy StoreKeyMissing StoreNotFound
        TransactionAborted TransactionRefused Undecodable
    """,
    "postroom.sync": "Postroom Inbox Outbox Guard ProviderGuard",
    "postroom.spi": """
        Store QueueStore KeyStore JoinStore Migrator Exchanger Transactor ErrorClassifier BoxLister OrderRecorder Waker
        Attendant Attendance GuardStore Begin Begun BeginStatus BeginDecision Result NO_END decide_begin
        Features Verb VERBS Tx
        Clock SystemClock Box Order Delivery Retention Draft Format ClaimRequest Settlement NamedTarget Filter
        Purge Mark Key Receipt ReceiptStatus Message StoredMessage Claim Settled Reaped KeyStatus Counts State Ending
        Join JoinDraft JoinFilter JoinStatus JoinStep JoinWait Step StepStatus
        TRANSITIONS LineMember is_in_line claimable_front without_suspects
    """,
    "postroom.sqlalchemy": "tables migrate drop",
    "postroom.web": "IdempotencyMiddleware idempotent ANONYMOUS record_key",
    "postroom.webhooks": """
        Receiver SyncReceiver Response Stripe GitHub StandardWebhooks Slack Shopify CloudEvents BearerToken
        Scheme Delivery Headers SignatureError sign Sender to_endpoint Endpoint Endpoints MemoryEndpoints
    """,
    "postroom.cloudevents": """
        CloudEvent CloudEventError decode is_cloud_event to_binary to_structured to_batch Encoded
        Binding HTTP AMQP KAFKA NATS to_message from_message
    """,
    "postroom.testing": "FrozenClock as_async Events assert_enqueued assert_not_enqueued",
}

ROOM = "close guard inbox migrate outbox refresh schema_script"
RUNNING_ROOM = "migrate_stores start stop run drain cleanup health is_ready on_start on_stop"
BOX = """
    enqueue enqueue_many claim ack abandon release fail renew reap get find dead_letters counts replay cancel purge
    blocked_groups skip_blocked
"""
WORKING_BOX = "handler start stop"
GUARD = """
    once run try_begin mark_processed release fail renew get is_processed unfinished find dead_letters counts replay
    purge reap
"""
INBOX = BOX + "already_processed is_processed mark_processing mark_processed mark_dead enqueue_dead"
OUTBOX = f"""{BOX}
    start_join attach_message_to_join report_step_completed report_step_failed enqueue_join_wait seal_join cancel_join
    get_join joins join_steps
"""

ASYNC_ONLY = {
    postroom.Postroom: set(RUNNING_ROOM.split()),
    postroom.Inbox: set(WORKING_BOX.split()),
    postroom.Outbox: set(WORKING_BOX.split()),
}
"""Handlers, and whatever runs them, exist for async code only."""
ASYNC_ONLY_OPTIONS = {"cleaning", "shutdown_timeout", "selection", "look_interval", "hub"}

TWINS = [(postroom.Postroom, sync.Postroom), (postroom.Inbox, sync.Inbox), (postroom.Outbox, sync.Outbox)]


def verbs(cls: type) -> dict[str, Any]:
    """The public methods of a class."""
    found: dict[str, Any] = {name: inspect.getattr_static(cls, name) for name in dir(cls) if not name.startswith("_")}
    return {name: value for name, value in found.items() if inspect.isfunction(value)}


def parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


@pytest.mark.parametrize("module", SURFACE)
def test_what_is_exported(module: str) -> None:
    assert sorted(importlib.import_module(module).__all__) == sorted(SURFACE[module].split())


@pytest.mark.parametrize("module", SURFACE)
def test_what_is_exported_is_there(module: str) -> None:
    loaded = importlib.import_module(module)
    assert [name for name in loaded.__all__ if getattr(loaded, name, None) is None] == []


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (postroom.Postroom, f"{ROOM} {RUNNING_ROOM}"),
        (postroom.Inbox, f"{INBOX} {WORKING_BOX}"),
        (postroom.Outbox, f"{OUTBOX} {WORKING_BOX}"),
        (sync.Postroom, ROOM),
        (sync.Inbox, INBOX),
        (sync.Outbox, OUTBOX),
        (postroom.Guard, GUARD),
        (sync.Guard, GUARD),
    ],
)
def test_the_verbs_of_a_class(cls: type, expected: str) -> None:
    assert sorted(verbs(cls)) == sorted(expected.split())


@pytest.mark.parametrize(("cls", "twin"), TWINS, ids=lambda cls: cls.__name__)
def test_sync_twins_have_the_same_verbs_and_signatures(cls: type, twin: type) -> None:
    assert issubclass(cls, Async)
    assert issubclass(twin, Sync)
    assert set(verbs(cls)) - set(verbs(twin)) == ASYNC_ONLY[cls]
    for name, function in verbs(twin).items():
        assert parameters(function) == parameters(verbs(cls)[name]), name


def test_type_checkers_know_every_argument_of_enqueue() -> None:
    """Its overloads name the keyword arguments once more."""
    keywords = {item.name for item in parameters(postroom.Outbox.enqueue) if item.kind is item.KEYWORD_ONLY}
    assert {*MessageOptions.__annotations__, "tx"} == keywords
    assert {*MessageOptions.__annotations__, "topic", "payload"} == {each.name for each in fields(postroom.NewMessage)}


def test_sync_rooms_take_the_same_options() -> None:
    """The async room hands these on, so its own signature has them as `**options`; the type checker sees them."""
    theirs = {item.name for item in parameters(sync.Postroom)}
    assert {"url", *RoomOptions.__annotations__} == theirs
    assert {item.name for item in parameters(postroom.Postroom)} == {"url", "options"} | ASYNC_ONLY_OPTIONS


async def test_a_verb_has_the_mode_of_its_box() -> None:
    receipt = sync.Postroom("memory://").outbox().enqueue("hello", "world")
    assert isinstance(receipt, postroom.Receipt)
    pending = postroom.Postroom("memory://").outbox().enqueue("hello", "world")
    assert inspect.iscoroutine(pending)
    assert isinstance(await pending, postroom.Receipt)


@pytest.mark.parametrize("cls", [cls for twins in TWINS for cls in twins], ids=lambda cls: cls.__module__)
def test_every_verb_is_a_function_of_its_class(cls: type) -> None:
    """Frameworks ask whether to await, and editors and help() show the signature and the result."""
    for name, function in verbs(cls).items():
        assert inspect.isfunction(function), name
        assert function.__qualname__ == f"{cls.__name__}.{name}"
        assert not inspect.isgeneratorfunction(inspect.unwrap(function)), name
        result = str(inspect.signature(function).return_annotation)
        assert result != "Signature.empty", name
        assert "Program" not in result, name
        assert "Program" not in str(function.__annotations__["return"]), name


NEVER_WAIT = "inbox outbox schema_script run health on_start on_stop handler guard once"


def test_the_verbs_of_async_classes_are_coroutine_functions() -> None:
    """`BackgroundTasks.add_task(outbox.enqueue, ...)` drops the message if it takes the verb for a plain function."""
    for cls, twin in TWINS:
        plain = {name for name, function in verbs(cls).items() if not inspect.iscoroutinefunction(function)}
        assert plain <= set(NEVER_WAIT.split())
        assert [name for name, function in verbs(twin).items() if inspect.iscoroutinefunction(function)] == []


@pytest.mark.parametrize("room", [postroom.Postroom("memory://"), sync.Postroom("memory://")], ids=["async", "sync"])
def test_a_bound_verb_shows_its_arguments_and_its_result(room: Any) -> None:
    assert str(inspect.signature(room.inbox().ack)) == (
        "(owner: 'UUID', messages: 'Iterable[Claimed]', *, tx: 'Tx' = <not given>) -> 'list[bool]'"
    )
    assert typing.get_type_hints(room.outbox().enqueue)["return"] is postroom.Receipt
    assert "Stores a message once" in (room.outbox().enqueue.__doc__ or "")


async def test_a_pending_verb_is_named_after_what_the_user_wrote() -> None:
    """What "coroutine ... was never awaited" and the repr of a task show."""
    pending: Any = postroom.Postroom("memory://").outbox().enqueue("t", "x")
    assert pending.__qualname__ == "Outbox.enqueue"
    assert repr(pending).startswith("<coroutine object Outbox.enqueue at ")
    pending.close()


INTERNAL = re.compile(r"Verbs|run_async|run_it|WorkerVerbs|Sync|postroom\._")


@pytest.mark.parametrize("module", [postroom, sync], ids=["async", "sync"])
async def test_no_internal_name_is_in_a_text(module: Any) -> None:
    async def refused(function: Any, *args: Any, **options: Any) -> str:
        with pytest.raises(TypeError) as caught:
            await settled(function(*args, **options))
        return str(caught.value)

    room = module.Postroom("memory://")
    texts = [
        repr(room),
        repr(type(room)),
        repr(room.inbox()),
        repr(room.outbox().enqueue),
        await refused(module.Postroom, "memory://", nope=1),
        await refused(room.inbox, "a", "b"),
    ]
    for each in (room, room.inbox(), room.outbox()):
        texts += [await refused(getattr(each, name), nope=1) for name in verbs(type(each)) if name not in NO_KEYWORDS]
    assert [text for text in texts if INTERNAL.search(text)] == []
    assert "Postroom.__init__() got an unexpected keyword argument 'nope'" in texts
    assert "Inbox.claim() got an unexpected keyword argument 'nope'" in texts


NO_KEYWORDS = {"inbox", "outbox"}
"""Their unknown options are refused in a text of ours."""


@pytest.mark.parametrize("module", [postroom, sync], ids=["async", "sync"])
async def test_the_traceback_of_an_error_of_ours_ends_at_the_verb(module: Any) -> None:
    with pytest.raises(postroom.ArgumentTypeError) as caught:
        await settled(module.Postroom("memory://").outbox().enqueue("t", None))
    assert [frame.name for frame in caught.traceback if "postroom" in Path(frame.path).parts] == ["enqueue"]


class Broken(MemoryStore):
    async def put(self, *_: Any, **__: Any) -> Any:
        raise OSError("broken")


class SyncBroken(SyncMemoryStore):
    def put(self, *_: Any, **__: Any) -> Any:
        raise OSError("broken")


@pytest.mark.parametrize(
    "room", [postroom.Postroom(store=Broken()), sync.Postroom(store=SyncBroken())], ids=["async", "sync"]
)
async def test_a_verb_is_in_a_traceback_once(room: Any) -> None:
    """An error of a step passes the frame that runs the program twice, and is shown with it once."""
    with pytest.raises(OSError, match="broken") as caught:
        await settled(room.outbox().enqueue("t", "x"))
    names = [Path(frame.path).name for frame in caught.traceback]
    assert "program.py" in names
    assert ("program.py", "program.py") not in list(pairwise(names))


def test_every_public_name_is_documented() -> None:
    undocumented = [
        f"{module}.{name}"
        for module in SURFACE
        for name in importlib.import_module(module).__all__
        if inspect.isclass(value := getattr(importlib.import_module(module), name)) and not value.__doc__
    ]
    assert undocumented == []


@pytest.mark.parametrize("module", ["postroom", "postroom.sync", "postroom.spi", "postroom.testing"])
def test_an_import_loads_no_optional_package(module: str) -> None:
    optional = {
        "sqlalchemy",
        "aiosqlite",
        "asyncpg",
        "psycopg",
        "django",
        "alembic",
        "pydantic",
        "typer",
        "rich",
        "pytest",
        "hypothesis",
    }
    program = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}} & {optional})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


HEAVY = {"asyncio", "concurrent.futures", "importlib.metadata", "importlib.resources", "msgspec", "socket", "ssl"}
"""Modules that a room needs, and that take longer to import than all of Postroom. They are imported with the room."""
MOST_MODULES = 145
"""136 today, of which 73 are those of Postroom. With `HEAVY` there were 245, and the import took twice the time."""


@pytest.mark.parametrize("module", ["postroom", "postroom.sync"])
def test_an_import_is_quick(module: str) -> None:
    """Counted, not timed: the number does not depend on the machine."""
    program = f"import sys; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.split())
    assert loaded & HEAVY == set()
    assert len(loaded) <= MOST_MODULES


def test_types_are_shipped() -> None:
    assert files("postroom").joinpath("py.typed").is_file()


def test_the_version_is_that_of_the_distribution() -> None:
    assert postroom.__version__ == importlib.metadata.version("postroom")


def test_every_error_is_a_postroom_error() -> None:
    errors = [getattr(postroom, name) for name in postroom.__all__]
    found = [error for error in errors if isinstance(error, type) and issubclass(error, Exception)]
    defined = [value for value in vars(postroom.errors).values() if isinstance(value, type)]
    assert set(found) == set(defined)
    assert [error for error in found if not issubclass(error, postroom.PostroomError)] == []


@pytest.mark.req("C-63")
@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (postroom.ArgumentTypeError, TypeError),
        (postroom.ArgumentValueError, ValueError),
        (postroom.AmbiguousMessageId, ValueError),
        (postroom.MessageNotFound, LookupError),
        (postroom.JoinNotFound, LookupError),
        (postroom.JoinEnded, ValueError),
        (postroom.JoinFull, ValueError),
        (postroom.DuplicateMessage, ValueError),
        (postroom.OrderMismatch, ValueError),
        (postroom.TransactionRefused, ValueError),
        (postroom.TransactionAborted, postroom.TransactionRefused),
        (postroom.ExtraMissing, ImportError),
        (postroom.NotReplicated, TimeoutError),
        (postroom.PoolForked, RuntimeError),
        (postroom.ServiceRefused, postroom.ServiceError),
        (postroom.ServiceUnavailable, ConnectionError),
        (postroom.RoomClosed, RuntimeError),
        (postroom.HandlerExists, ValueError),
        (postroom.Undecodable, ValueError),
    ],
)
def test_errors_are_what_python_users_catch(error: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(error, builtin)


@pytest.mark.req("IBX-API-29")
def test_an_owner_token_is_a_type_of_its_own_around_a_uuid() -> None:
    token = postroom.OwnerToken.new()
    assert isinstance(token, UUID)
    assert type(token) is postroom.OwnerToken
    assert token != postroom.OwnerToken.new()
    assert token.int != 0


def test_a_join_id_is_a_type_of_its_own_around_a_uuid() -> None:
    outbox = sync.Postroom("memory://").outbox()
    first, second = outbox.start_join("acme", 1), outbox.start_join("acme", 1)
    assert isinstance(first, UUID)
    assert type(first) is type(outbox.get_join(first).id) is postroom.JoinId
    assert not issubclass(postroom.JoinId, postroom.OwnerToken)
    assert first != second


@pytest.mark.req("IBX-API-28")
def test_a_message_cannot_be_altered() -> None:
    room = sync.Postroom("memory://")
    room.inbox().enqueue("topic", "payload", source="here", message_id="1")
    message = room.inbox().get("1")
    fields = {
        "message_id",
        "source",
        "topic",
        "payload",
        "hash",
        "attempt",
        "first_seen",
        "last_seen",
        "due",
        "last_error",
    }
    assert fields <= set(message._fields)
    with pytest.raises(AttributeError):
        message.topic = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["inbox", "outbox"])
def test_a_box_is_made_once(name: str) -> None:
    room = postroom.Postroom("memory://")
    make = getattr(room, name)
    assert make() is make()
    assert make("other", max_attempts=3) is make("other")
    with pytest.raises(postroom.ArgumentValueError, match="other options"):
        make("other", max_attempts=4)
