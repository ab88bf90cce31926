"""What is sent in every benchmark: small JSON payloads under keys that never repeat."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

TOPIC = "order.placed"
SOURCE = "benchmark"
BOX = "inbox"
PAYLOAD_BYTES = 110

_numbers = itertools.count(1)


class Item(NamedTuple):
    """One message to send: as a value for Postroom, as JSON text for the raw loop, which encodes nothing."""

    message_id: str
    payload: dict[str, Any]
    text: str


def items(count: int, note: int = 0) -> list[Item]:
    """New messages. Ids grow: random ones would measure the page cache instead, as the documentation says.

    `note` makes payloads longer by so many bytes.
    """
    return [_item(number, note) for number in itertools.islice(_numbers, count)]


def chunks(sequence: list[Item], size: int) -> Iterator[list[Item]]:
    for start in range(0, len(sequence), size):
        yield sequence[start : start + size]


def _item(number: int, note: int = 0) -> Item:
    payload = {
        "order": f"{number:010d}",
        "customer": f"c-{number % 1000:04d}",
        "amount": 1999,
        "currency": "EUR",
        "note": "leave it with the neighbour" + "." * note,
    }
    return Item(f"event-{number:012d}", payload, msgspec.json.encode(payload).decode())


def _check_size() -> None:
    size = len(_item(1).text)
    if size != PAYLOAD_BYTES:
        raise AssertionError(f"a payload has {size} bytes, not {PAYLOAD_BYTES}")


_check_size()
