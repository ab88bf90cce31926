"""An outcome that the worker makes, with what its log record needs."""

from __future__ import annotations

from dataclasses import dataclass

from postroom._kernel.decide import Outcome


@dataclass(frozen=True, slots=True)
class Fault(Outcome):
    """The outcome of a handler that raised or could not be called."""

    error: BaseException | None = None
    ran: bool = True
    """Whether the handler was called. If not, a message that becomes a dead letter has no attempt counted."""
