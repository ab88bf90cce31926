"""From what a user passes to what a store takes: checked, encoded, and with a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from postroom._faces import check, codec, duplicates, typed
from postroom._kernel.ids import new_message_id
from postroom._kernel.message import Draft, OnConflict, OnDuplicate
from postroom._kernel.policy import Box
from postroom.errors import ArgumentTypeError, ArgumentValueError


class _Missing:
    def __repr__(self) -> str:
        return "<not given>"


MISSING: Final[Any] = _Missing()
ON_CONFLICT = ("update", "keep", "reject")


@dataclass(slots=True)
class NewMessage:
    """A message to enqueue, for `enqueue_many`. The fields are the arguments of `enqueue`."""

    topic: Any
    """A topic, or a typed message that has its own."""
    payload: Any = field(default=MISSING, repr=False)
    source: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    group: str | None = None
    collapse_key: str | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    due: datetime | None = None
    expires: datetime | None = None
    received_at: datetime | None = None
    hash: bytes | None = None
    hash_algorithm: str = "sha256"
    on_conflict: OnConflict = "update"
    revive_dead: bool = False
    on_duplicate: OnDuplicate | None = None
    """None: as the box says; else `reject` for a typed message that has an id in it, and `update` for any other."""


_options_of = attrgetter(
    "correlation_id",
    "collapse_key",
    "headers",
    "due",
    "expires",
    "received_at",
    "hash",
    "hash_algorithm",
    "on_conflict",
    "revive_dead",
    "on_duplicate",
)
_NO_OPTIONS = _options_of(NewMessage("", ""))
_AFTER_GROUP = Draft("", "")[8:]


def draft_of(new: NewMessage, box: Box) -> Draft:
    if (
        type(new.payload) is dict
        and _options_of(new) == _NO_OPTIONS
        and box.delivery.lifetime is None
        and box.keeping.on_duplicate is None
    ):
        source, message_id, topic = new.source, new.message_id, new.topic
        if box.kind == "outbox":
            source, message_id = _named_by(box, source, message_id)
        if check.are_plain(source, message_id, topic):
            return _plain_draft(source, message_id, topic, new.payload, _group(new.group, box))  # type: ignore[arg-type]
    return _any_draft(new, box)


def _plain_draft(source: str, message_id: str, topic: str, payload: dict[Any, Any], group: str | None) -> Draft:
    """Most messages have no options but a group. The rest of their drafts is known beforehand."""
    given = (source, message_id, topic, codec.encode_json(payload), "json", None, None, group)
    return tuple.__new__(Draft, given + _AFTER_GROUP)


def _any_draft(new: NewMessage, box: Box) -> Draft:
    topic, payload = new.topic, new.payload
    if payload is MISSING:
        if isinstance(topic, str) or not typed.is_typed(topic):
            raise ArgumentTypeError(
                "payload is missing: pass a topic and a payload, or a dataclass, msgspec Struct or pydantic model alone"
            )
        topic, payload = typed.topic_of(type(topic)), topic
    elif not isinstance(topic, str) and typed.is_typed(topic):
        name = type(topic).__name__
        raise ArgumentTypeError(
            f"a typed message is its own payload, and {name} was passed together with another payload: pass the "
            f"{name} alone, or a topic and the payload"
        )
    speaks = typed.is_typed(payload)
    format_, data = codec.encode(payload)
    said = _id_said_by(payload) if speaks and new.message_id is None else None
    source, message_id = _key(new, said, box, speaks=speaks)
    group, collapse_key, received_at = new.group, new.collapse_key, new.received_at
    if speaks:
        group = group if group is not None else typed.text_said_by(payload, "group_id")
        collapse_key = collapse_key if collapse_key is not None else typed.text_said_by(payload, "collapse_key")
        received_at = received_at if received_at is not None else typed.said_by(payload, "received_at")
    return Draft(
        source,
        message_id,
        check.text("topic", topic),
        data,
        format_,
        None if new.headers is None else check.headers(new.headers),
        None if new.correlation_id is None else check.text("correlation_id", new.correlation_id),
        _group(group, box),
        None if collapse_key is None else check.text("collapse_key", collapse_key),
        None if new.hash is None else check.digest(new.hash),
        check.text("hash_algorithm", new.hash_algorithm, longest=32),
        None if new.due is None else check.moment("due", new.due),
        None if new.expires is None else check.moment("expires", new.expires),
        box.delivery.lifetime if new.expires is None else None,
        None if received_at is None else check.moment("received_at", received_at),
        check.choice("on_conflict", new.on_conflict, ON_CONFLICT),
        check.flag("revive_dead", new.revive_dead),
        duplicates.policy_of(new.on_duplicate, box, says_its_id=said is not None),
    )


def _group(group: str | None, box: Box) -> str | None:
    if group is not None:
        return check.text("group", group)
    if box.order.fifo:
        raise ArgumentValueError(
            f"{box.kind} {box.name!r} is FIFO: give each message a group, by group= or by a group_id of its type"
        )
    return None


def _named_by(box: Box, source: str | None, message_id: str | None) -> tuple[str, str]:
    return box.name if source is None else source, new_message_id() if message_id is None else message_id


def _id_said_by(payload: Any) -> str | None:
    """The id that a typed message has in it; None where its type defines none."""
    for name in ("deduplication_id", "external_id"):
        if hasattr(payload, name) or hasattr(type(payload), name):  # the second: a property that fails
            said = typed.text_said_by(payload, name)
            if said:
                return said
            # A generated id would make each delivery new, although the type says how to recognise it.
            raise ArgumentValueError(
                f"{name} of {type(payload).__name__} is {'None' if said is None else 'empty'}: return the text that "
                f"identifies this message in its box, or leave {name} out of the type to get a generated id"
            )
    return None


def _key(new: NewMessage, said: str | None, box: Box, *, speaks: bool) -> tuple[str, str]:
    """An outbox names its own messages; to an inbox, who sent it and under which id is what matters.

    In an inbox, a typed message without a source comes from this program, and may have a generated id.
    """
    source, message_id = new.source, new.message_id if said is None else said
    if box.kind == "outbox" or (speaks and source is None):
        source, message_id = _named_by(box, source, message_id)
    if source is None or message_id is None:
        missing = "source" if source is None else "message_id"
        raise ArgumentTypeError(
            f"an inbox recognises a message by source and message_id, and {missing} is None: "
            "pass the sender's name and the sender's id for this message"
            f"{', or give its type a deduplication_id' if speaks else ''}"
        )
    return check.text("source", source), check.text("message_id", message_id)
