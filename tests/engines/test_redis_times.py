"""What Lua's numbers cannot keep is refused by the store too, and not changed in silence."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from postroom import ArgumentValueError
from postroom.spi import Box, Draft
from tests.redis import new_prefix, open_at, server


@pytest.mark.parametrize("field", ["due", "expires", "received_at"])
def test_a_time_after_2255(field: str) -> None:
    store: Any = open_at(server(), "sync", prefix=new_prefix())
    box = Box("inbox", "box")
    times: dict[str, Any] = {field: datetime(2300, 1, 1, tzinfo=UTC)}
    late = Draft("s", "1", "t", **times)
    with pytest.raises(ArgumentValueError, match="Redis keeps no time after 2255"):
        store.put(box, [late])
    assert sum(store.counts(box).values()) == 0
    store.close()
