"""Begin in memory: a claim by key that also inserts."""

from __future__ import annotations

from datetime import datetime

from postroom._stores.memory.arrivals import IdSequence, find_known, insert
from postroom._stores.memory.box_state import BoxState
from postroom.spi import Begin, BeginStatus, Begun, Box, decide_begin


def begin_entry(box: Box, state: BoxState, ids: IdSequence, begin: Begin, now: datetime) -> Begun:
    entry = find_known(box, state, begin.draft.key, now)
    status, claims = BeginStatus.ACQUIRED, True
    if entry is None:
        entry = insert(state, ids, begin.draft, now)
    else:
        status, claims = decide_begin(begin, entry.to_message(), entry.draft.hash_algorithm, now)
    if claims:
        until = begin.lease_end(now)
        entry.last_seen = now
        state.lease(entry, begin.owner, until)
        state.leased([entry], until)
    return Begun.of(status, entry.to_message())
