"""An observer that logs events. It logs names and ids, and no payloads, headers or error texts.

Dead messages are logged by the worker and by the verbs `fail` and `mark_dead`, which know more about them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from postroom._kernel.observer import Event, observes
from postroom._kernel.texts import escape, name
from postroom.spi import Draft, Receipt, ReceiptStatus

_log = logging.getLogger("postroom")
_DIFFERS = "topic or content differs from what this key had before; %s%s: %s"


def _put(event: Event) -> None:
    quiet = not _log.isEnabledFor(logging.INFO)
    joined = " in the caller's transaction" if event.in_transaction else ""  # it is stored when that commits
    draft: Draft
    receipt: Receipt
    for draft, receipt in zip(event.given, event.result, strict=True):
        if receipt.status is ReceiptStatus.NEW:
            if not quiet:
                _log.info("enqueued%s %s", joined, _which(event, draft, receipt))
        elif receipt.status in {ReceiptStatus.CONFLICT, ReceiptStatus.REJECTED}:
            _log.warning(_DIFFERS, _fate(receipt), joined, _which(event, draft, receipt))
        elif receipt.status is ReceiptStatus.DEAD:
            _log.warning("delivered again, but dead; replay it to have it handled: %s", _which(event, draft, receipt))
        elif receipt.replaced_under_lease:
            which = _which(event, draft, receipt)
            _log.warning("content was replaced while it was being handled%s: %s", joined, which)
        elif not quiet:
            _log.info("duplicate (%s)%s: %s", receipt.status, joined, _which(event, draft, receipt))


def _fate(receipt: Receipt) -> str:
    """Returns what the put did with content that differs."""
    if receipt.status is ReceiptStatus.REJECTED:
        return "this content was rejected"
    if receipt.replaced_under_lease:
        return "the earlier content was replaced while it was being handled"
    return "the earlier content was replaced" if receipt.updated else "the earlier content was kept"


def _which(event: Event, draft: Draft, receipt: Receipt) -> str:
    correlation = f" correlation_id={escape(draft.correlation_id)}" if draft.correlation_id else ""
    which = name(draft.topic, draft.source, draft.message_id)
    return f"{_where(event)} {which}{correlation} state={receipt.state}"


def _where(event: Event) -> str:
    return escape(f"store={event.store} box={event.box.key}")


def _record(event: Event) -> None:
    debugging = _log.isEnabledFor(logging.DEBUG)
    for draft, status in zip(event.given, event.result, strict=True):
        if not (status.conflict or debugging):
            continue
        where = f"{_where(event)} source={escape(draft.source)} message_id={escape(draft.message_id)}"
        if status.conflict:
            _log.warning(_DIFFERS, "the earlier hash was kept", "", where)
        _log.debug("checked %s: %s", where, "new" if status.is_new else status.state)


def _claim(event: Event) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("claimed %d %s", len(event.result), _where(event))


def _reap(event: Event) -> None:
    if any(event.result):
        freed, expired = event.result
        _log.info("reaped %d leases, %d messages expired %s", freed, expired, _where(event))


def _settle(event: Event) -> None:
    lost = event.result.count(False)
    if lost:
        _log.warning("%d outcomes came after their lease was lost %s", lost, _where(event))


_DESCRIBERS: dict[str, Callable[[Event], None]] = {
    "put": _put,
    "record": _record,
    "claim": _claim,
    "reap": _reap,
    "settle": _settle,
}


@observes(*_DESCRIBERS)
def log_event(event: Event) -> None:
    """Logs an event. This is an observer."""
    if event.error is None:
        _DESCRIBERS[event.verb](event)
