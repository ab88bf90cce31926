"""The options of a guard, as keyword arguments, and the policy that they make."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypedDict

from postroom._boxes import check
from postroom._boxes.options import renewal
from postroom._kernel.policy import Box, Delivery, Retention, Work
from postroom.errors import ArgumentTypeError, ArgumentValueError, FeatureMissing
from postroom.spi import Features

Mode = Literal["lease", "mark_before", "mark_after", "transactional"]
MODES = ("lease", "mark_before", "mark_after", "transactional")
Scope = Literal["handler", "message"]

DEFAULT_RETENTION = timedelta(days=7)
DEFAULT_CLEANUP_INTERVAL = timedelta(hours=1)
DEFAULT_RESULT_SIZE = 65_536
DEFAULT_COMPLETION_TIMEOUT = timedelta(seconds=10)


class GuardOptions(TypedDict, total=False):
    """The options of a guard. `room.guard()` describes each of them."""

    mode: Mode
    scope: Scope
    lease_seconds: float
    lease_renewal: bool | float
    release_on_error: bool
    dead_on: tuple[type[BaseException], ...]
    wait: timedelta | None
    keep_results: bool
    max_result_size: int
    completion_timeout: timedelta
    retention: timedelta
    dead_retention: timedelta | None
    cleanup_interval: timedelta
    enabled: bool


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """How a guard runs handlers. The box has what concerns its records."""

    mode: Mode = "lease"
    scope: Scope = "handler"
    release_on_error: bool = False
    dead_on: tuple[type[BaseException], ...] = ()
    wait: timedelta | None = None
    keep_results: bool = False
    max_result_size: int = DEFAULT_RESULT_SIZE
    completion_timeout: timedelta = DEFAULT_COMPLETION_TIMEOUT
    enabled: bool = True

    @property
    def has_lease_end(self) -> bool:
        """Whether a lease of this guard ends, so that another caller may begin after a crash."""
        return self.mode != "mark_before"


def make_guard_box(name: str, features: Features, options: GuardOptions) -> tuple[Box, GuardPolicy]:
    """Returns the box and the policy that these options make. Raises for an option that is unknown or bad."""
    unknown = set(options) - set(GuardOptions.__annotations__)
    if unknown:
        raise ArgumentTypeError(
            f"guard has no option {', '.join(sorted(unknown))}; there are {', '.join(GuardOptions.__annotations__)}"
        )
    policy = _policy(options)
    default = GuardPolicy()
    if policy.release_on_error != default.release_on_error and policy.mode != "mark_before":
        raise ArgumentValueError(
            f'release_on_error is for mode="mark_before": in mode="{policy.mode}", an error always releases the key'
        )
    if policy.mode == "mark_after" and (policy.dead_on or policy.keep_results):
        raise ArgumentValueError('dead_on and keep_results need a claim, which mode="mark_after" does not have')
    retention = check.duration("retention", options.get("retention", DEFAULT_RETENTION), zero=True)
    dead_age = check.optional_duration("dead_retention", options.get("dead_retention", retention), zero=True)
    interval = check.duration("cleanup_interval", options.get("cleanup_interval", DEFAULT_CLEANUP_INTERVAL))
    lease = check.lease(options.get("lease_seconds", Work().lease.total_seconds()))
    box = Box(
        "guard",
        check.text("name", name, longest=100),
        delivery=Delivery(max_lost_leases=None),
        retention=Retention(done_age=retention, age_from="completed_at", dead_age=dead_age, purge_interval=interval),
        work=Work(lease=lease, renew=renewal(options.get("lease_renewal", True))),
    )
    check_features(box, policy, features)
    return box, policy


def check_features(box: Box, policy: GuardPolicy, features: Features) -> None:
    """Raises FeatureMissing if a store cannot do what a guard needs."""
    if not features.guard:
        raise FeatureMissing(f"this store cannot begin an execution by its key: guard {box.name!r} needs another store")
    if policy.mode == "transactional" and not features.transactional:
        raise FeatureMissing(
            f"this store has no transactions: guard {box.name!r} cannot be transactional. Use a SQL store, or "
            "mode='lease'"
        )


def _policy(options: GuardOptions) -> GuardPolicy:
    default = GuardPolicy()
    size = options.get("max_result_size", default.max_result_size)
    timeout = options.get("completion_timeout", default.completion_timeout)
    return GuardPolicy(
        check.choice("mode", options.get("mode", default.mode), MODES),
        check.choice("scope", options.get("scope", default.scope), ("handler", "message")),
        check.flag("release_on_error", options.get("release_on_error", default.release_on_error)),
        _error_types(options.get("dead_on", default.dead_on)),
        check.optional_duration("wait", options.get("wait")),
        check.flag("keep_results", options.get("keep_results", default.keep_results)),
        check.count("max_result_size", size, most=100_000_000),
        check.duration("completion_timeout", timeout),
        check.flag("enabled", options.get("enabled", default.enabled)),
    )


def _error_types(value: object) -> tuple[type[BaseException], ...]:
    types = value if isinstance(value, tuple) else (value,)
    for each in types:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise ArgumentTypeError("dead_on must be exception classes, such as (ValueError, KeyError)")
    return types
