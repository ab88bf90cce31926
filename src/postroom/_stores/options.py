"""The options of a store besides its URL."""

from __future__ import annotations

from dataclasses import dataclass, field

from postroom._kernel.clock import Clock
from postroom._kernel.prefix import DEFAULT_PREFIX, check_prefix
from postroom._kernel.program import Mode
from postroom._kernel.verified import Verified
from postroom.errors import ArgumentTypeError, ArgumentValueError


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of `open_store`. Each kind of store refuses the options that it does not have."""

    mode: Mode
    prefix: str = DEFAULT_PREFIX
    schema: str | None = None
    pool: object = None
    notify: bool = True
    deploy_schema: bool = False
    require_durable: bool = False
    clock: Clock | None = None
    pool_size: int | None = None
    """How many connections a pool has whose URL does not say it. None: as the engine has it."""
    token: str | None = field(default=None, repr=False)
    """The bearer token of a service. None: as the environment has it."""
    verified: Verified | None = None
    """What was checked before, if a store of this database was open. None: nothing."""

    def check(self) -> None:
        check_prefix(self.prefix)
        for name in ("notify", "deploy_schema", "require_durable"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentTypeError(f"{name} must be a bool, not {type(getattr(self, name)).__name__}")

    def refuse(self, scheme: str, *names: str) -> None:
        """Raises ArgumentValueError if one of these options is given: this kind of store does not have them."""
        for name in names:
            if getattr(self, name) is not None:
                raise ArgumentValueError(f"{scheme} knows no {name}: leave it out")
