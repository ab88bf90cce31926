"""The same faces for sync code: `from postroom.sync import Postroom`."""

from __future__ import annotations

from postroom._faces.inbox import SyncInbox as Inbox
from postroom._faces.outbox import SyncOutbox as Outbox
from postroom._room import SyncPostroom as Postroom

__all__ = ["Inbox", "Outbox", "Postroom"]
