"""Identifiers: who claims, and how a message is named when its sender gave it no name."""

from __future__ import annotations

import os
import uuid


class OwnerToken(uuid.UUID):
    """Names one worker. Make one when the worker starts, and keep it for its life."""

    @classmethod
    def new(cls) -> OwnerToken:
        return cls(bytes=uuid.uuid4().bytes)


_VARIANTS = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}


def new_message_id() -> str:
    """The text of a random UUID. The class UUID takes twice as long, and every message of an outbox needs an id.

    The random bytes come from the system for each id: a generator in the process repeats itself after a fork or in a
    copy of a virtual machine, and a repeated id is a message that is taken for a duplicate.
    """
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{_VARIANTS[digits[16]]}{digits[17:20]}-{digits[20:]}"
