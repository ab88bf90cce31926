"""The configuration of the stores of a room: which identifier has which database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from postroom._boxes import check
from postroom._kernel.prefix import DEFAULT_PREFIX, check_prefix
from postroom._kernel.texts import escape
from postroom.errors import ArgumentTypeError, ArgumentValueError, PostroomError

LONGEST_KEY = 200
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The database of one store in a room with many stores, and its limits.

    Args:
        url: as for a room with one store.
        prefix: how the names of its tables or keys begin. Default: `"postroom_"`; for Redis `"postroom"`.
        schema: PostgreSQL: the schema of the tables. Default: as `search_path` has it.
        pool: a pool of the driver, a SQLAlchemy engine or a Redis client to take connections from. Default: none.
        deploy_schema: whether its first verb makes missing tables. None: as the room has it.
        weight: the share of handler time that `selection="fair"` gives it, relative to the other stores. Default: 1.
        concurrency: handler calls of one box that run in this store at the same time. None: as the box has it.
    """

    url: str = field(repr=False)  # it may have a password
    prefix: str = DEFAULT_PREFIX
    schema: str | None = None
    pool: object = field(default=None, repr=False)
    deploy_schema: bool | None = None
    weight: float = 1.0
    concurrency: int | None = None

    def __post_init__(self) -> None:
        url: object = self.url
        if not isinstance(url, str):
            raise ArgumentTypeError(f"url must be a str, not {type(url).__name__}")
        check_prefix(self.prefix)
        schema: object = self.schema
        if not isinstance(schema, str | None):
            raise ArgumentTypeError(f"schema must be a str, not {type(schema).__name__}")
        if self.deploy_schema is not None:
            check.flag("deploy_schema", self.deploy_schema)
        weight: object = self.weight
        if not isinstance(weight, int | float) or isinstance(weight, bool):
            raise ArgumentTypeError(f"weight must be a number, not {type(weight).__name__}")
        if not 0.001 <= self.weight <= 1000:
            raise ArgumentValueError(f"weight must be between 0.001 and 1000, not {self.weight}")
        if self.concurrency is not None:
            check.count("concurrency", self.concurrency)


StoreKey: TypeAlias = str | UUID
"""The identifier of a store. A UUID is the same as its text."""
StoreConfigs: TypeAlias = (
    Mapping[str, str | StoreConfig | Mapping[str, Any]] | Mapping[UUID, str | StoreConfig | Mapping[str, Any]]
)
"""Stores by identifier: a URL, a `StoreConfig`, or its options."""
Discover: TypeAlias = Callable[[], StoreConfigs] | Callable[[], Awaitable[StoreConfigs]]
DEFAULT_OPEN_STORES = 20
DEFAULT_REFRESH = timedelta(minutes=5)
DEFAULT_LOOK_INTERVAL = timedelta(minutes=2)


class StoreMigrated(NamedTuple):
    """The migration of one store, from `room.migrate_stores()`."""

    store: str
    versions: list[int]
    """The schema versions that were applied. Empty if there was nothing to do, or the store has no tables."""
    error: Exception | None
    """What prevented it."""


class StoreResult(NamedTuple, Generic[R]):
    """The call of a function for one store, from `room.router.each()`."""

    store: str
    value: R | None
    """What the function returned."""
    error: Exception | None
    """What it raised, or what prevented the call."""


def key_of(given: object) -> str:
    """Returns the identifier of a store as text. Raises for what cannot be one."""
    if not isinstance(given, str | UUID):
        raise ArgumentTypeError(f"the key of a store is a str or a UUID, not {type(given).__name__}")
    key = str(given)
    if not key or len(key) > LONGEST_KEY or not key.isprintable():
        raise ArgumentValueError(
            f"the key of a store has 1 to {LONGEST_KEY} characters, none of them a control character"
        )
    return key


def shown_key(given: object) -> str:
    """Returns the text of an identifier that may be none, for logs and errors."""
    return escape(str(given))[:LONGEST_KEY]


def configs_of(stores: object, refuse: Callable[[str, PostroomError], None] | None = None) -> dict[str, StoreConfig]:
    """Returns the configurations by identifier. Values may be URLs, mappings of options, or configurations.

    `refuse`: called for each store that cannot be used, which is then left out. Without it, the error is raised.
    """
    if not isinstance(stores, Mapping):
        raise ArgumentTypeError(
            f'stores must be a mapping from identifiers to URLs, such as {{"acme": "sqlite:///acme.db"}}, not '
            f"{type(stores).__name__}"
        )
    configs: dict[str, StoreConfig] = {}
    for given, value in stores.items():
        try:
            key = key_of(given)
            if key in configs:
                raise ArgumentValueError(f"there are two stores {key!r}: a UUID and its text are the same identifier")
            configs[key] = _config(value)
        except PostroomError as error:
            shown = shown_key(given)
            if refuse is None:
                raise with_store(shown, error) from None
            refuse(shown, error)
    return configs


def with_store(key: str, error: PostroomError) -> PostroomError:
    """Returns the error with the identifier of its store in its text: one of many stores must be found."""
    return type(error)(f"store {key!r}: {error}")


def _config(value: object) -> StoreConfig:
    if isinstance(value, StoreConfig):
        return value
    if isinstance(value, str):
        return StoreConfig(value)
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"this must be a URL or a StoreConfig, not {type(value).__name__}")
    known = list(StoreConfig.__dataclass_fields__)
    unknown = [str(name) for name in value if name not in known]
    if unknown:
        raise ArgumentTypeError(f"there is no option {escape(unknown[0])!r}; there are {', '.join(known)}")
    if "url" not in value:
        raise ArgumentTypeError("the url is missing")
    return StoreConfig(**value)
