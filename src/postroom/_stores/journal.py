"""Events as log records. Names and ids are logged; payloads, headers and errors' contents are not."""

from __future__ import annotations

import logging
from collections.abc import Callable

from postroom._kernel.observer import Event, hears
from postroom._kernel.states import State
from postroom.spi import Draft, Receipt, ReceiptStatus

_log = logging.getLogger("postroom")


def _put(event: Event) -> None:
    quiet = not _log.isEnabledFor(logging.INFO)
    draft: Draft
    receipt: Receipt
    for draft, receipt in zip(event.given, event.result, strict=True):
        if receipt.status is ReceiptStatus.NEW:
            if not quiet:
                _log.info("enqueued %s", _which(event, draft, receipt))
        elif receipt.status in {ReceiptStatus.CONFLICT, ReceiptStatus.REJECTED}:
            _log.warning("content differs from what this key had before: %s", _which(event, draft, receipt))
        elif receipt.status is ReceiptStatus.DEAD:
            _log.warning("delivered again, but dead; replay it to have it handled: %s", _which(event, draft, receipt))
        elif receipt.replaced_under_lease:
            _log.warning("content was replaced while it was being handled: %s", _which(event, draft, receipt))
        elif not quiet:
            _log.info("duplicate (%s): %s", receipt.status, _which(event, draft, receipt))


def _which(event: Event, draft: Draft, receipt: Receipt) -> str:
    correlation = f" correlation_id={draft.correlation_id}" if draft.correlation_id else ""
    return (
        f"store={event.store} box={event.box.key} topic={draft.topic} source={draft.source} "
        f"message_id={draft.message_id}{correlation} state={receipt.state}"
    )


def _record(event: Event) -> None:
    for draft, sighting in zip(event.given, event.result, strict=True):
        where = f"store={event.store} box={event.box.key} source={draft.source} message_id={draft.message_id}"
        if sighting.conflict:
            _log.warning("content differs from what this key had before: %s", where)
        _log.debug("checked %s: %s", where, "new" if sighting.is_new else sighting.state)


def _claim(event: Event) -> None:
    _log.debug("claimed %d store=%s box=%s", len(event.result), event.store, event.box.key)


def _reap(event: Event) -> None:
    if any(event.result):
        _log.info(
            "reaped %d leases, %d messages expired store=%s box=%s",
            event.result.freed,
            event.result.expired,
            event.store,
            event.box.key,
        )


def _settle(event: Event) -> None:
    lost = event.result.count(False)
    if lost:
        _log.warning("%d outcomes came after their lease was lost store=%s box=%s", lost, event.store, event.box.key)
    for index, settlement in enumerate(event.given):
        if settlement.verdict == "dead" and event.result[index]:
            which = getattr(settlement.target, "id", None) or settlement.target.message_id
            why = settlement.error or "no reason given"
            _log.error("message %s is %s (%s) store=%s box=%s", which, _fate(event), why, event.store, event.box.key)


def _fate(event: Event) -> str:
    return "discarded" if event.box.keeping.dead_letter == "discard" else State.DEAD.value


_DESCRIBERS: dict[str, Callable[[Event], None]] = {
    "put": _put,
    "record": _record,
    "claim": _claim,
    "reap": _reap,
    "settle": _settle,
}


@hears(*_DESCRIBERS)
def write(event: Event) -> None:
    """An observer: one record per thing worth knowing."""
    if event.error is None:
        _DESCRIBERS[event.verb](event)
