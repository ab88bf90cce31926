"""Keys that are composed of parts: `{bus}:{group}:{alias}:{id}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from postroom._boxes import check
from postroom.errors import ArgumentTypeError, ArgumentValueError

IDEMPOTENCY_KEY = "idempotency-key"
_ESCAPED = {":": "%3A", "%": "%25", "/": "%2F"}
_ESCAPES = str.maketrans(_ESCAPED)


@dataclass(frozen=True, slots=True)
class GuardKey:
    """The key of a message that several consumers may receive.

    The text of a key is `{bus}:{group}:{alias}:{id}`. `:`, `%` and `/` in a part are percent-encoded, so that different
    parts never have the same text, and `parse` finds the parts again.

    Args:
        bus: the bus or broker from which the message comes.
        group: the group of consumers.
        alias: the name of the message type or of the queue.
        id: the id of the message.
        long_ids: `"sha256"`: if the text would have more than 255 characters, the hash of the id replaces the id.
            Default: `"raise"`.

    Raises:
        ArgumentTypeError, ArgumentValueError: an empty part, or a text that is too long.
    """

    bus: str
    group: str
    alias: str
    id: str
    long_ids: Literal["raise", "sha256"] = field(default="raise", compare=False)
    _text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check.choice("long_ids", self.long_ids, ("raise", "sha256"))
        names = [_part(name, getattr(self, name)) for name in ("bus", "group", "alias")]
        text = ":".join([*names, _part("id", self.id)])
        if len(text) > check.MAX_TEXT and self.long_ids == "sha256":
            import hashlib  # rarely needed

            text = ":".join([*names, "sha256-" + hashlib.sha256(self.id.encode()).hexdigest()])
        if len(text) > check.MAX_TEXT:
            raise ArgumentValueError(
                f"the key has {len(text)} characters with its escapes; at most {check.MAX_TEXT} are allowed: use "
                'shorter names, or long_ids="sha256"'
            )
        object.__setattr__(self, "_text", text)

    @classmethod
    def of_delivery(
        cls,
        bus: str,
        group: str,
        alias: str,
        *,
        headers: Mapping[str, object] | None,
        message_id: str | None,
        long_ids: Literal["raise", "sha256"] = "raise",
    ) -> GuardKey:
        """Returns the key of a delivery: its header `Idempotency-Key`, or else its message id.

        Args:
            bus: the bus or broker from which the message comes.
            group: the group of consumers.
            alias: the name of the message type or of the queue.
            headers: the headers of the message; the case of their names does not matter.
            message_id: the id that the sender gave the message.
            long_ids: as for `GuardKey`.

        Returns:
            The key.

        Raises:
            ArgumentValueError: the delivery has neither, or the header is not valid UTF-8.
        """
        for name, value in (headers or {}).items():
            if name.lower() == IDEMPOTENCY_KEY and value:
                try:
                    text = value.decode() if isinstance(value, bytes) else str(value)
                except UnicodeDecodeError:
                    raise ArgumentValueError(f"the header {IDEMPOTENCY_KEY} is not valid UTF-8") from None
                return cls(bus, group, alias, text, long_ids)
        if not message_id:
            raise ArgumentValueError(
                f"the delivery has neither a header {IDEMPOTENCY_KEY} nor a message id, so a second delivery would not "
                "be recognised: let the sender set one"
            )
        return cls(bus, group, alias, message_id, long_ids)

    @classmethod
    def parse(cls, text: str) -> GuardKey:
        """Returns the parts of a key.

        Args:
            text: the text of a key.

        Returns:
            The key. If its id was hashed, `id` is the hash.

        Raises:
            ArgumentValueError: the text is not the text of a key.
        """
        parts = check.text("key", text).split(":")
        if len(parts) != 4:
            raise ArgumentValueError("the text has not four parts {bus}:{group}:{alias}:{id}")
        bus, group, alias, id_ = map(_unescaped, parts)
        return cls(bus, group, alias, id_)

    def __str__(self) -> str:
        return self._text


AnyKey = str | GuardKey


def key_text(key: AnyKey) -> str:
    """Returns the text of a key. Raises for what cannot be one: a guard without a key would guard nothing."""
    if key is None:
        raise ArgumentTypeError(
            "the key is None: a guard recognises a message by its key. Pass the id that the sender gave it"
        )
    return str(key) if isinstance(key, GuardKey) else check.text("key", key)


def _part(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        check.text(name, value)
    check.check_encodable(name, str(value))
    if "\x00" in str(value):
        raise ArgumentValueError(f"{name} contains a NUL character, which not every database can store")
    return str(value).translate(_ESCAPES)


def _unescaped(part: str) -> str:
    for sign, escaped in sorted(_ESCAPED.items(), key=lambda item: item[0] == "%"):  # "%25" last: "%253A" is "%3A"
        part = part.replace(escaped, sign)
    return part
