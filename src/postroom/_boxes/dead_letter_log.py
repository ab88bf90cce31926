"""The log record of a message that a caller has made a dead letter, by `fail` or `mark_dead`."""

from __future__ import annotations

import logging

from postroom._boxes.selection import Claimed
from postroom._kernel import texts
from postroom._kernel.message import Claim, Key, Message
from postroom._kernel.policy import Box
from postroom._kernel.texts import escape, fate

_log = logging.getLogger("postroom")


def write(store: str, box: Box, which: Claimed, verb: str, error: str | None) -> None:
    """Writes one ERROR record. A claim has only an id, a key has no topic. `error` is redacted already."""
    where = escape(f"store={store} box={box.key}")
    _log.error("%s %s %s: %s; %s", where, _name(which), verb, escape(error or texts.NO_REASON), fate(box))


def _name(which: Claimed) -> str:
    if isinstance(which, Message):
        return f"{texts.name(which.topic, which.source, which.message_id)} attempt={which.attempt}"
    if isinstance(which, Key):
        return f"source={escape(which.source)} message_id={escape(which.message_id)}"
    return f"id={which.id}" if isinstance(which, Claim) else f"message_id={escape(which)}"
