"""The registry: the stores of a room by identifier, and how a new list replaces the old one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from postroom._many.config import StoreConfig, key_of
from postroom._many.tenant import StoreFactory, Tenant
from postroom.errors import StoreNotFound

MAX_VANISHED_SHARE = 0.2
"""If more than this share of the stores disappears at once, a second discovery must confirm it."""


class Change(NamedTuple):
    """What a new list of stores changes."""

    added: list[Tenant]
    configured: list[Tenant]
    """Tenants with another configuration."""
    removed: list[Tenant]


class Registry:
    """The tenants of a room. A tenant stays the same object as long as the room has its identifier."""

    def __init__(self, factory: StoreFactory) -> None:
        self._factory = factory
        self._tenants: dict[str, Tenant] = {}
        self._leaving: dict[str, Tenant] = {}
        """Removed tenants whose visits had not ended at the last change."""
        self._is_read = False
        """Whether there is a list of stores. It may be empty."""
        self._unconfirmed: set[str] | None = None
        """Stores that have disappeared, if that was not confirmed yet."""
        self.listeners: list[Callable[[Change], None]] = []
        """Called after each change."""

    def __len__(self) -> int:
        return len(self._tenants)

    def __iter__(self) -> Iterator[Tenant]:
        return iter(list(self._tenants.values()))

    def __contains__(self, key: str) -> bool:
        return key in self._tenants

    def find(self, key: str) -> Tenant | None:
        return self._tenants.get(key)

    def get(self, given: object) -> Tenant:
        """Returns the tenant of this identifier. Raises StoreNotFound.

        A removed tenant is returned until its visits have ended: the handlers that run use its boxes.
        """
        key = key_of(given)
        tenant = self._tenants.get(key) or self._leaving.get(key)
        if tenant is not None and tenant.is_gone:
            tenant = None
        if tenant is None and not self._is_read:
            raise StoreNotFound(
                f"this room has no store {key!r} yet, since it has not read its list of stores: start the room, or "
                "call room.refresh(), first"
            )
        if tenant is None:
            raise StoreNotFound(f"this room has no store {key!r}; it has {len(self._tenants)} others")
        return tenant

    def must_confirm(self, configs: Mapping[str, StoreConfig]) -> bool:
        """Returns True if a discovered list lacks so many stores that a second discovery must confirm it."""
        gone = self._tenants.keys() - configs.keys()
        is_few = len(gone) < 2 or len(gone) <= len(self._tenants) * MAX_VANISHED_SHARE
        if is_few or gone == self._unconfirmed:
            self._unconfirmed = None
            return False
        self._unconfirmed = gone
        return True

    def check(self, key: str, config: StoreConfig) -> Tenant:
        """Returns the store with this configuration. Raises if there can be none."""
        known = self._tenants.get(key)
        checked = known if known is not None and known.config == config else Tenant(key, config, self._factory)
        _ = checked.facts  # makes a store object, if there was none
        return checked

    def unchanged(self, configs: Mapping[str, StoreConfig]) -> list[Tenant]:
        """Returns the stores that have the same configuration in this list."""
        return [tenant for tenant in self if configs.get(tenant.key) == tenant.config]

    def replace(self, configs: Mapping[str, StoreConfig]) -> Change:
        """Makes this the list of stores."""
        change = Change([], [], [])
        self._is_read = True
        for key in self._tenants.keys() - configs.keys():
            tenant = self._tenants.pop(key)
            tenant.is_removed = True
            change.removed.append(tenant)
        self._leaving = {each.key: each for each in [*self._leaving.values(), *change.removed] if not each.is_gone}
        for key, config in configs.items():
            known = self._tenants.get(key)
            if known is None:
                known = self._tenants[key] = Tenant(key, config, self._factory)
                change.added.append(known)
            elif known.config != config:
                known.configure(config)
                change.configured.append(known)
        for listener in list(self.listeners):
            listener(change)
        return change
