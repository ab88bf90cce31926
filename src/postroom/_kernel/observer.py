"""Events of stores and workers. Logs, metrics and tests are observers of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from postroom._kernel.policy import Box


class Event(NamedTuple):
    """A call of a store's verb, or an action of a worker."""

    verb: str
    """`put`, `claim`, `settle` … as in `postroom.spi`. Of a worker: `handle` and `lost`."""
    store: str
    box: Box
    given: Any
    """The main argument of the verb. For `handle` and `lost`: the messages."""
    result: Any
    """The result of the verb, or None if it raised. For `handle`: the outcomes, or None if the handler of a batch
    raised. Its messages are then handled one at a time, each with a separate event."""
    error: BaseException | None
    seconds: float
    in_transaction: bool = False
    """The verb ran in a transaction of the caller or of a handler. Its writes are stored when that commits."""


Observer = Callable[[Event], None]
"""Called after each verb, in the thread of the caller. It must be fast. An error that it raises is only logged."""

ObserverT = TypeVar("ObserverT", bound=Callable[..., None])
_VERBS = "verbs"


def observes(*verbs: str) -> Callable[[ObserverT], ObserverT]:
    """Returns a decorator for an observer of these verbs only. No event is built for a verb without observers."""

    def decorate(observer: ObserverT) -> ObserverT:
        setattr(observer, _VERBS, frozenset(verbs))
        return observer

    return decorate


def is_observed(verb: str, observer: Observer) -> bool:
    """Returns True if the observer wants events of this verb."""
    verbs = getattr(observer, _VERBS, None)
    return verbs is None or verb in verbs
