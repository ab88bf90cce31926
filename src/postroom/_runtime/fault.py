"""A failure as the worker records it: the outcome, and what the log needs besides."""

from __future__ import annotations

from dataclasses import dataclass

from postroom._kernel.decide import Outcome


@dataclass(frozen=True, slots=True)
class Fault(Outcome):
    """An outcome that the worker made: the handler raised, or could not be called."""

    error: BaseException | None = None
    ran: bool = True
    """Whether the handler was called. A message that was not handled is not counted as tried when it dies."""
