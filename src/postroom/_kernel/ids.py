"""Identifiers: who claims, and how a message is named when its sender gave it no name."""

from __future__ import annotations

import uuid


class OwnerToken(uuid.UUID):
    """Names one worker. Make one when the worker starts, and keep it for its life."""

    @classmethod
    def new(cls) -> OwnerToken:
        return cls(bytes=uuid.uuid4().bytes)


def new_message_id() -> str:
    return str(uuid.uuid4())
