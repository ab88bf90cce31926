"""The log record of a dead letter that a caller made, by `fail` or `mark_dead`."""

from __future__ import annotations

import logging
from typing import Any

from postroom._kernel import texts
from postroom._kernel.message import Claim, Key, Message
from postroom._kernel.policy import Box
from postroom._kernel.texts import escape, fate

_log = logging.getLogger("postroom")


def record(store: str, box: Box, which: Any, verb: str, error: str | None) -> None:
    """One record, with what is known: a claim has only an id, a key has no topic. `error` is redacted already."""
    where = escape(f"store={store} box={box.key}")
    _log.error("%s %s %s: %s; %s", where, _name(which), verb, escape(error or texts.NO_REASON), fate(box))


def _name(which: Any) -> str:
    if isinstance(which, Message):
        return f"{texts.name(which.topic, which.source, which.message_id)} attempt={which.attempt}"
    if isinstance(which, Key):
        return f"source={escape(which.source)} message_id={escape(which.message_id)}"
    return f"id={which.id}" if isinstance(which, Claim) else f"message_id={escape(which)}"
