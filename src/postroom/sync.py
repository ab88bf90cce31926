"""The API for sync code: `from postroom.sync import Postroom`. Handlers and workers exist for async code only."""

from __future__ import annotations

from postroom._boxes.guard.guard import SyncGuard as Guard
from postroom._boxes.guard.provider import SyncProviderGuard as ProviderGuard
from postroom._boxes.inbox import SyncInbox as Inbox
from postroom._boxes.outbox import SyncOutbox as Outbox
from postroom._room.sync import SyncPostroom as Postroom

__all__ = ["Guard", "Inbox", "Outbox", "Postroom", "ProviderGuard"]
