"""A verb of its own is one transaction, in however many statements it is done."""

from __future__ import annotations

import psycopg
import pytest

from postroom._connect import open_store
from postroom.spi import Box, Draft, Filter
from tests.postgres import clean_database

BOX = Box("inbox", "box")
BROKEN = "not\x00text"


@pytest.mark.req("RHI-022", "RHI-149")
@pytest.mark.parametrize("options", [{}, {"correlation_id": "c"}], ids=["plain", "with options"])
def test_a_put_that_fails_leaves_nothing_though_a_key_is_in_it_twice(options: dict[str, str]) -> None:
    """A key that comes again begins another statement: the writes before it must not commit without it."""
    store = open_store(clean_database(), mode="sync")
    try:
        with pytest.raises(psycopg.Error):
            store.put(BOX, [Draft("s", message_id, **options) for message_id in ("1", "1", BROKEN)])  # type: ignore[arg-type]
        assert store.find(BOX, Filter()) == []
    finally:
        store.close()
