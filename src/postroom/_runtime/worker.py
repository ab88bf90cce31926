"""A worker, as the supervisor sees it: the pump of a box in one store, or the dispatcher of a box in many stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from postroom._boxes.handled_box import HandledBox
from postroom._kernel.observer import Event
from postroom._kernel.policy import Box
from postroom._kernel.texts import ErrorTexts
from postroom._runtime.values import Cleaned


class Worker(Protocol):
    """Claims, handles and settles the messages of one box."""

    box: Box

    async def run(self) -> None:
        """Runs until `stop` was called and nothing is in hand."""

    async def drain(self) -> int:
        """Runs until nothing more can be claimed. Returns how many messages were claimed."""

    def stop(self) -> None:
        """Claims no more and releases what is not begun. `run` ends when the rest is done."""

    async def release_all(self) -> None:
        """Releases everything that is in hand, uncounted: after a failure, or if a stop takes too long."""

    @property
    def in_hand(self) -> int:
        """How many messages are in hand."""

    @property
    def claimed(self) -> int:
        """How many messages were claimed so far."""

    @property
    def last_error(self) -> str | None:
        """The type of a store's error, if the last exchange failed."""

    @property
    def raised(self) -> Mapping[tuple[str, int], BaseException]:
        """After `drain`: the last error that a handler raised, by store and message."""

    @property
    def threads(self) -> int:
        """Threads in which handlers run that were cancelled."""


WorkerT = TypeVar("WorkerT", bound=Worker)


class WorkerSource(Protocol[WorkerT]):
    """Makes the workers of a room, and wakes them when messages arrive from other processes."""

    name: str
    """The store, or the stores, in log records."""
    errors: ErrorTexts

    @property
    def listens(self) -> bool:
        """Whether `listen` has anything to wait for."""

    @property
    def discovers(self) -> bool:
        """Whether `listen` refreshes the list of stores, which a room without workers needs too."""

    def make(self, box: HandledBox) -> WorkerT:
        """Returns a new worker for a box."""

    async def listen(self, workers: Mapping[str, WorkerT]) -> None:
        """Waits for messages of other processes, and wakes the workers of their boxes. `workers`: by box key."""

    def wake(self, event: Event, workers: Mapping[str, WorkerT]) -> None:
        """Wakes workers after a verb of this process, now and when its messages become due."""

    async def check(self, box: HandledBox) -> None:
        """Raises before a worker starts that could not claim."""

    def is_transient(self, error: BaseException) -> bool:
        """Returns True if `listen` may succeed after this error."""

    def start_cleaning(self, boxes: list[HandledBox], workers: Mapping[str, WorkerT]) -> None:
        """Starts to clean the boxes. Does nothing if cleaning is not automatic."""

    async def stop_cleaning(self) -> None: ...

    async def clean(self, box: HandledBox) -> Cleaned:
        """Reaps and purges a box once, until nothing is left to do."""
