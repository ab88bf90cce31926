"""The options of a room, as keyword arguments."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypedDict

from postroom._kernel.clock import Clock
from postroom._kernel.observer import Observer
from postroom._kernel.retry import StorageRetry
from postroom._kernel.texts import Redact
from postroom._many.config import Discover, StoreConfigs


class RoomOptions(TypedDict, total=False):
    """The keyword arguments that the rooms of both modes take."""

    store: Any
    stores: StoreConfigs | None
    discover: Discover | None
    refresh: timedelta | None
    open_stores: int
    prefix: str
    schema: str | None
    pool: object
    notify: bool
    deploy_schema: bool
    require_durable: bool
    observers: Sequence[Observer]
    storage_retry: StorageRetry | None
    redact: Redact | None
    clock: Clock | None
    token: str | None
