"""What happens, told to whoever wants to know: logs, metrics and tests are all observers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from postroom._kernel.policy import Box


class Event(NamedTuple):
    """A verb of a store was called, or a worker did something."""

    verb: str
    """`put`, `claim`, `settle` … as in `postroom.spi`; `handle` and `lost` of a worker."""
    store: str
    box: Box
    given: Any
    """The verb's main argument; for `handle` and `lost` the messages."""
    result: Any
    """What it answered, None where it raised; for `handle` the outcomes, None where a batch raised: its messages are
    then handled one at a time, each with an event."""
    error: BaseException | None
    seconds: float
    in_transaction: bool = False
    """The verb ran in a transaction of the caller, or of a handler: its writes are stored when that commits."""


Observer = Callable[[Event], None]
"""Called after each verb, in the thread of its caller. It must be quick; what it raises is logged and dropped."""

Hearing = TypeVar("Hearing", bound=Callable[..., None])
_VERBS = "verbs"


def hears(*verbs: str) -> Callable[[Hearing], Hearing]:
    """An observer of these verbs only: nobody need make events of the others for it."""

    def decorate(observer: Hearing) -> Hearing:
        setattr(observer, _VERBS, frozenset(verbs))
        return observer

    return decorate


def is_heard(verb: str, observer: Observer) -> bool:
    verbs = getattr(observer, _VERBS, None)
    return verbs is None or verb in verbs
