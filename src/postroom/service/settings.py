"""The settings of the service. Each is a flag of `postroom serve`, an environment variable and a key in a TOML file.

The names are derived: `max_body_bytes` is `--max-body-bytes`, `POSTROOM_SERVE_MAX_BODY_BYTES` and `max_body_bytes`. A
flag wins over the environment, the environment over the file, the file over the default.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from postroom._kernel.prefix import DEFAULT_PREFIX, check_prefix
from postroom._runtime.health import parse_address
from postroom.errors import ArgumentTypeError, ArgumentValueError

DEFAULT_LEASE, LONGEST_LEASE = 60.0, 3600.0
"""Seconds: the lease of a call without `leaseSeconds`, and the longest one of the protocol."""
ENVIRONMENT = "POSTROOM_SERVE_"
DEFAULT_STORE = "sqlite:///postroom.db"


def _setting(default: object, help_: str, *, secret: bool = False) -> Any:
    return field(default=default, metadata={"help": help_, "secret": secret}, repr=not secret)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a service."""

    url: str = _setting(DEFAULT_STORE, "The store, as for a room.", secret=True)
    prefix: str = _setting(DEFAULT_PREFIX, "How the names of tables, or of keys in Redis, begin.")
    host: str = _setting("127.0.0.1", "The address to listen on.")
    port: int = _setting(8025, "The port to listen on; 0: any free port, which is logged.")
    share_port: bool = _setting(default=False, help_="Whether several processes listen on the port.")
    admin: str | None = _setting(None, "HOST:PORT of health, metrics and version; without it they are on the port.")
    auth: Literal["bearer", "none"] = _setting("bearer", "bearer: callers need a token; none: they do not.")
    tokens: str = _setting("", "Tokens, as name=token, separated by commas.", secret=True)
    token_file: str | None = _setting(None, "A file of tokens, one name=token a line, read again when it changes.")
    guard: str = _setting("http", "The name of the guard that has the keys.")
    fifo_inboxes: str = _setting("", "Inboxes that keep the order of groups, by name, separated by commas.")
    retention_days: float = _setting(7.0, "Days for which processed keys are kept.")
    max_lease_seconds: float = _setting(3600.0, "The longest lease that a caller may ask for.")
    max_body_bytes: int = _setting(1_048_576, "The longest body.")
    max_in_flight: int = _setting(1000, "Requests that may be in progress; beyond it the status is 503.")
    body_seconds: float = _setting(10.0, "How long the body of a request may take to arrive.")
    stop_seconds: float = _setting(30.0, "How long a stop waits for requests in progress.")
    ready_seconds: float = _setting(0.0, "How long a stop reports not ready before it refuses connections.")
    migrate: bool = _setting(default=True, help_="Whether to make or update the tables at the start.")
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "How much is logged, to stderr.")

    def __post_init__(self) -> None:
        check_prefix(self.prefix)
        for name in ("max_body_bytes", "max_in_flight"):
            _check_above_zero(name, getattr(self, name))
        for name in ("retention_days", "body_seconds"):
            _check_above_zero(name, getattr(self, name))
        if not DEFAULT_LEASE <= self.max_lease_seconds <= LONGEST_LEASE:
            raise ArgumentValueError(
                f"max_lease_seconds must be {DEFAULT_LEASE:g}, the lease of a call without leaseSeconds, to "
                f"{LONGEST_LEASE:g}, not {self.max_lease_seconds}"
            )
        if not 0 <= self.port <= 65535:
            raise ArgumentValueError(f"port must be 0 to 65535, not {self.port}")
        for name in ("stop_seconds", "ready_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ArgumentValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if self.admin is not None:
            parse_address(self.admin)
        if self.auth == "bearer" and not self.tokens and self.token_file is None:
            self._check_loopback()

    def _check_loopback(self) -> None:
        """Without tokens, only programs on this machine may call."""
        if not _is_loopback(self.host):
            raise ArgumentValueError(
                f"{self.host} can be reached from other machines, and there is no token: set tokens or token_file, or "
                "set auth to none if a proxy checks the callers"
            )

    @property
    def needs_token(self) -> bool:
        return self.auth == "bearer" and bool(self.tokens or self.token_file)

    @property
    def fifo_names(self) -> frozenset[str]:
        return frozenset(name.strip() for name in self.fifo_inboxes.split(",") if name.strip())

    def shown(self) -> dict[str, object]:
        """Returns the settings for people, without secrets."""
        return {
            each.name: "(set)" if each.metadata["secret"] and getattr(self, each.name) else getattr(self, each.name)
            for each in fields(self)
        }

    @classmethod
    def read(
        cls, flags: Mapping[str, object], *, file: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Settings:
        """Returns the settings of flags, environment and file. A flag that is None was not given."""
        environment = os.environ if environment is None else environment
        hints = get_type_hints(cls)
        values: dict[str, object] = {} if file is None else _read_file(file, hints)
        for name, hint in hints.items():
            if (text := environment.get(ENVIRONMENT + name.upper())) is not None:
                values[name] = _parse(ENVIRONMENT + name.upper(), text, hint)
        values |= {name: value for name, value in flags.items() if value is not None}
        return cls(**values)  # type: ignore[arg-type]  # each was checked against its hint


def _check_above_zero(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ArgumentValueError(f"{name} must be above 0, not {value}")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _read_file(file: Path, hints: Mapping[str, object]) -> dict[str, object]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentValueError(f"{file.name} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise ArgumentValueError(f"{file.name} is not valid TOML") from None
    for name, value in values.items():
        if name not in hints:
            raise ArgumentValueError(f"{file.name}: there is no setting {name!r}; there are {', '.join(hints)}")
        if not _fits(value, hints[name]):
            raise ArgumentTypeError(f"{file.name}: {name} cannot be a {type(value).__name__}")
    return values


def _kinds(hint: object) -> tuple[Any, ...]:
    return get_args(hint) or (hint,)


def _fits(value: object, hint: object) -> bool:
    kinds = _kinds(hint)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return True
    return any(type(value) is kind if isinstance(kind, type) else value == kind for kind in kinds)


def _parse(name: str, text: str, hint: object) -> object:
    kinds = _kinds(hint)
    try:
        if bool in kinds:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if int in kinds:
            return int(text)
        if float in kinds:
            return float(text)
    except (KeyError, ValueError):
        raise ArgumentValueError(f"{name} cannot be read as {kinds[0].__name__}") from None
    if str not in kinds and text not in kinds:
        raise ArgumentValueError(f"{name} must be one of {', '.join(map(str, kinds))}")
    return text
