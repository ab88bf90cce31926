"""Identifiers of workers, and of messages whose sender gave them no id."""

from __future__ import annotations

import os
import uuid


class OwnerToken(uuid.UUID):
    """Identifies one worker. Make one when the worker starts, and keep it until it ends."""

    @classmethod
    def new(cls) -> OwnerToken:
        """Returns a random token."""
        return cls(bytes=uuid.uuid4().bytes)


_VARIANTS = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}


def new_message_id() -> str:
    """Returns the text of a random UUID, in half the time of the class UUID.

    The operating system provides the random bytes of each id. A generator in the process would repeat itself after a
    fork or in a copy of a virtual machine, and a message with a repeated id is taken for a duplicate.
    """
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{_VARIANTS[digits[16]]}{digits[17:20]}-{digits[20:]}"
