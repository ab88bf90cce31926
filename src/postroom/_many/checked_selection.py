"""A strategy of the user, called such that its errors harm no store."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection

from postroom._kernel.texts import ErrorTexts
from postroom._many.selection import Batch, Selection


class CheckedSelection:
    """A copy of a strategy. If it raises, or returns a store that is not ready, the first ready store is next.

    Its first error is logged.
    """

    def __init__(self, selection: Selection, box: str, errors: ErrorTexts) -> None:
        self._selection = copy.deepcopy(selection)
        self._box = box
        self._errors = errors
        self._is_wrong = False

    @property
    def overlap(self) -> int:
        return self._selection.overlap

    def select(self, ready: Collection[str]) -> str | None:
        """Returns a store of `ready`, or None."""
        try:
            selected: object = self._selection.select(ready)
        except Exception as error:  # noqa: BLE001 - code of the user may raise anything
            self._complain("raised an error; the first store is next", error)
            return next(iter(ready))
        if selected is None or (isinstance(selected, str) and selected in ready):
            return selected
        self._complain("returned something else than a store that is ready; the first store is next")
        return next(iter(ready))

    def limit(self, store: str, batch_size: int) -> int:
        """Returns a number from 1 to `batch_size`."""
        try:
            limit: object = self._selection.limit(store, batch_size)
        except Exception as error:  # noqa: BLE001
            self._complain("raised an error; the batch is as large as the box has it", error)
            return batch_size
        if not isinstance(limit, int):
            self._complain("returned a limit that is not an int; the batch is as large as the box has it")
            return batch_size
        return max(1, min(limit, batch_size))

    def ended(self, batch: Batch) -> None:
        """Passes a batch on."""
        try:
            self._selection.ended(batch)
        except Exception as error:  # noqa: BLE001
            self._complain("raised an error when a batch had ended", error)

    def _complain(self, what: str, error: Exception | None = None) -> None:
        if not self._is_wrong:
            self._is_wrong = True
            name = type(self._selection).__name__
            self._errors.log(logging.ERROR, "the selection %s of box=%s %s", name, self._box, what, error=error)
