"""Refuses to use a box with another order than the one that its database records.

The first verb of a process that depends on the order of a box reads the record. Later calls only look into a set.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from postroom._kernel.program import Pending
from postroom._stores.wrapper import AnyStore, AsyncVerb, StoreWrapper
from postroom.errors import OrderMismatch
from postroom.spi import Box, OrderRecorder, Tx, Verb

CHECKED = frozenset({"put", "claim", "exchange", "replay"})
"""The verbs whose result depends on the order of the box."""


class OrderCheckedStore(StoreWrapper):
    """Checks the order of a box before the verbs that depend on it. Does nothing if the store records no orders."""

    def __init__(
        self,
        inner: AnyStore,
        lock: Callable[[str], AbstractAsyncContextManager[None]],
        checked: set[str],
        *,
        name: str | None = None,
    ) -> None:
        """`lock` returns the lock of a box key. Of several tasks that use a box at the same time, one reads the record.
        The lock is fair, so the puts of the others keep their order. `checked`: the keys of the boxes that have the
        recorded order."""
        self._lock = lock
        self._checked = checked
        super().__init__(inner, name=name)

    def around(self, verb: Verb, function: AsyncVerb) -> AsyncVerb:
        if verb.name not in CHECKED or not isinstance(self.inner, OrderRecorder):
            return function
        checked = self._checked

        def order_checked(box: Box, *args: object, **kwargs: object) -> Pending[object]:
            return (function if box.key in checked else check_first)(box, *args, **kwargs)

        async def check_first(box: Box, *args: object, **kwargs: object) -> object:
            await self.check_order(box, tx=kwargs.get("tx"))
            return await function(box, *args, **kwargs)

        return order_checked

    async def check_order(self, box: Box, *, tx: Tx = None) -> None:
        """Raises OrderMismatch if another order is recorded for the box. Records the order if none is."""
        if tx is not None:
            await self._compare(box, tx)
            return
        async with self._lock(box.key):
            if box.key not in self._checked:
                await self._compare(box, None)

    async def _compare(self, box: Box, tx: Tx) -> None:
        if isinstance(self.inner, OrderRecorder):
            recorded = await self.inner.record_order(box, change=box.order.change, tx=tx)
            if recorded is not None and recorded is not box.order.fifo:
                raise _mismatch(self.name, box)
            if recorded is None or (tx is not None and box.order.change):
                return  # the order is recorded when the caller's transaction commits
        self._checked.add(box.key)


def _mismatch(store: str, box: Box) -> OrderMismatch:
    opened, has = ("fifo", "none") if box.order.fifo else ("none", "fifo")
    return OrderMismatch(
        f'{box.kind} {box.name!r} has order="{has}" in {store}, and this process opens it with order="{opened}": write '
        f'{box.kind}({box.name!r}, order="{has}"), or, to change the order of the box, pass change_order=True once'
    )
