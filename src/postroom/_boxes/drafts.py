"""Makes drafts from new messages: checks the arguments, encodes the payload, determines the key."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from uuid import UUID

from postroom._boxes import check, codec, duplicates
from postroom._boxes.new_message import MISSING, NewMessage
from postroom._boxes.typed_messages import attribute_of, is_typed, text_of, topic_of
from postroom._kernel.ids import new_message_id
from postroom._kernel.message import Draft
from postroom._kernel.policy import Box
from postroom.errors import ArgumentTypeError, ArgumentValueError

ON_CONFLICT = ("update", "keep", "reject")

_WITHOUT_CHECK = {"topic", "payload", "source", "message_id", "group"}
_options_of = attrgetter(*(each.name for each in fields(NewMessage) if each.name not in _WITHOUT_CHECK))
_NO_OPTIONS = _options_of(NewMessage("", ""))
_DEFAULTS: tuple[object, ...] = Draft("", "")
_GROUP = Draft._fields.index("group")
_BEFORE_GROUP = _DEFAULTS[Draft._fields.index("headers") : _GROUP]
_AFTER_GROUP = _DEFAULTS[_GROUP + 1 :]


def draft_of(new: NewMessage, box: Box) -> Draft:
    """Returns the draft of a message for a box. Raises ArgumentTypeError or ArgumentValueError for a bad argument."""
    if (
        type(new.payload) is dict
        and _options_of(new) == _NO_OPTIONS
        and box.delivery.lifetime is None
        and box.retention.on_duplicate is None
    ):
        source, message_id, topic = new.source, new.message_id, new.topic
        if box.kind == "outbox":
            source, message_id = _with_defaults(box, source, message_id)
        if check.are_plain(source, message_id, topic):
            return _plain_draft(source, message_id, topic, new.payload, _group(new.group, box))  # type: ignore[arg-type]
    return _any_draft(new, box)


def _plain_draft(source: str, message_id: str, topic: str, payload: object, group: str | None) -> Draft:
    """Most messages have no options but a group. The other fields of their drafts are constants."""
    given = (source, message_id, topic, codec.encode_json(payload), "json")
    return tuple.__new__(Draft, (*given, *_BEFORE_GROUP, group, *_AFTER_GROUP))


def _any_draft(new: NewMessage, box: Box) -> Draft:
    topic, payload = _topic_and_payload(new)
    typed = is_typed(payload)
    format_, data = codec.encode(payload)
    own_id = _id_of(payload) if typed and new.message_id is None else None
    source, message_id = _key(new, own_id, box, typed=typed)
    group, collapse_key = new.group, new.collapse_key
    received_at: object = new.received_at
    if typed:
        group = text_of(payload, "group_id") if group is None else group
        collapse_key = text_of(payload, "collapse_key") if collapse_key is None else collapse_key
        received_at = attribute_of(payload, "received_at") if received_at is None else received_at
    return Draft(
        source,
        message_id,
        check.text("topic", topic),
        data,
        format_,
        headers=None if new.headers is None else check.headers(new.headers),
        correlation_id=check.optional_text("correlation_id", new.correlation_id),
        group=_group(group, box),
        collapse_key=check.optional_text("collapse_key", collapse_key),
        hash=check.digest(new.hash),
        hash_algorithm=check.text("hash_algorithm", new.hash_algorithm, longest=32),
        due=check.optional_moment("due", new.due),
        expires=check.optional_moment("expires", new.expires),
        lifetime=box.delivery.lifetime if new.expires is None else None,
        received_at=check.optional_moment("received_at", received_at),
        on_conflict=check.choice("on_conflict", new.on_conflict, ON_CONFLICT),
        revive_dead=check.flag("revive_dead", new.revive_dead),
        on_duplicate=duplicates.policy_of(new.on_duplicate, box, has_own_id=own_id is not None),
        join=_join(new.join, box),
    )


def _topic_and_payload(new: NewMessage) -> tuple[object, object]:
    """Returns the topic and the payload: a typed message is passed as the topic, and is its own payload."""
    topic, payload = new.topic, new.payload
    if payload is MISSING:
        if isinstance(topic, str) or not is_typed(topic):
            raise ArgumentTypeError(
                "payload is missing: pass a topic and a payload, or a dataclass, msgspec Struct or pydantic model alone"
            )
        return topic_of(type(topic)), topic
    if not isinstance(topic, str) and is_typed(topic):
        name = type(topic).__name__
        raise ArgumentTypeError(
            f"a typed message is its own payload, and {name} was passed together with another payload: pass the "
            f"{name} alone, or a topic and the payload"
        )
    return topic, payload


def _group(group: str | None, box: Box) -> str | None:
    if group is not None:
        return check.text("group", group)
    if box.order.fifo:
        raise ArgumentValueError(
            f"{box.kind} {box.name!r} is FIFO: give each message a group, by group= or by a group_id of its type"
        )
    return None


def _join(join: object, box: Box) -> UUID | None:
    if join is None:
        return None
    if not isinstance(join, UUID):
        raise ArgumentTypeError(f"join must be the id that start_join returned, not {type(join).__name__}")
    if not box.can_have_joins:
        raise ArgumentValueError("a join belongs to an outbox, and this is an inbox: leave out join")
    return join


def _with_defaults(box: Box, source: str | None, message_id: str | None) -> tuple[str, str]:
    return box.name if source is None else source, new_message_id() if message_id is None else message_id


def _id_of(payload: object) -> str | None:
    """Returns the id that a typed message has; None if its type defines none."""
    for name in ("deduplication_id", "external_id"):
        if hasattr(payload, name) or hasattr(type(payload), name):  # the second: a property that raises AttributeError
            value = text_of(payload, name)
            if value:
                return value
            # A generated id would make each delivery new, although the type defines how to recognise it.
            raise ArgumentValueError(
                f"{name} of {type(payload).__name__} is {'None' if value is None else 'empty'}: return the text that "
                f"identifies this message in its box, or leave {name} out of the type to get a generated id"
            )
    return None


def _key(new: NewMessage, own_id: str | None, box: Box, *, typed: bool) -> tuple[str, str]:
    """Returns source and message id.

    Both have defaults in an outbox, and for a typed message without a source, which is one of this program. A message
    of another sender has the sender's id: with a generated one, a second delivery would not be recognised.
    """
    source, message_id = new.source, new.message_id if own_id is None else own_id
    if box.kind == "outbox" or (typed and source is None):
        source, message_id = _with_defaults(box, source, message_id)
    if source is None or message_id is None:
        missing = "source" if source is None else "message_id"
        raise ArgumentTypeError(
            f"an inbox recognises a message by source and message_id, and {missing} is None: "
            "pass the sender's name and the sender's id for this message"
            f"{', or give its type a deduplication_id' if typed else ''}"
        )
    return check.text("source", source), check.text("message_id", message_id)
