"""An observer that logs events. It logs names and ids, and no payloads, headers or error texts.

Dead messages are logged by the worker and by the verbs `fail` and `mark_dead`, which know more about them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from postroom._kernel.observer import Event, observes
from postroom._kernel.texts import escape, name
from postroom.spi import Begin, BeginStatus, Begun, Draft, JoinDraft, Receipt, ReceiptStatus

_log = logging.getLogger("postroom")
_DIFFERS = "topic or content differs from what this key had before; %s%s: %s"


def _put(event: Event) -> None:
    quiet = not _log.isEnabledFor(logging.INFO)
    joined = _transaction(event)
    draft: Draft
    receipt: Receipt
    for draft, receipt in zip(event.given, event.result, strict=True):
        if receipt.status is ReceiptStatus.NEW:
            if not quiet:
                _log.info("enqueued%s %s", joined, _which(event, draft, receipt))
        elif receipt.status in {ReceiptStatus.CONFLICT, ReceiptStatus.REJECTED}:
            _log.warning(_DIFFERS, _fate(receipt), joined, _which(event, draft, receipt))
        elif receipt.status is ReceiptStatus.DEAD:
            _log.warning("delivered, but dead; replay it to have it handled: %s", _which(event, draft, receipt))
        elif receipt.replaced_under_lease:
            which = _which(event, draft, receipt)
            _log.warning("content was replaced while it was being handled%s: %s", joined, which)
        elif not quiet:
            _log.info("duplicate (%s)%s: %s", receipt.status, joined, _which(event, draft, receipt))


def _transaction(event: Event) -> str:
    """Returns the part of a record about a write that is stored when the caller's transaction commits."""
    return " in the caller's transaction" if event.in_transaction else ""


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
    join = f" join={draft.join}" if draft.join is not None else ""
    return f"{_where(event)} {which}{correlation}{join} state={receipt.state}"


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


_BEGUN = {
    BeginStatus.ACQUIRED: (logging.DEBUG, "acquired"),
    BeginStatus.PROCESSED: (logging.INFO, "duplicate, processed before"),
    BeginStatus.BUSY: (logging.INFO, "busy, in progress elsewhere"),
    BeginStatus.CONFLICT: (logging.WARNING, "content differs from what this key had before"),
    BeginStatus.DEAD: (logging.WARNING, "delivered again, but dead; replay it to have it handled"),
}


def _begin(event: Event) -> None:
    begin: Begin
    begun: Begun
    for begin, begun in zip(event.given, event.result, strict=True):
        level, text = _BEGUN[begun.status]
        if _log.isEnabledFor(level):
            draft = begin.draft
            _log.log(level, "%s: %s %s", text, _where(event), name(draft.topic, draft.source, draft.message_id))


def _reap(event: Event) -> None:
    if any(event.result):
        freed, expired = event.result
        _log.info("reaped %d leases, %d messages expired %s", freed, expired, _where(event))


def _purge(event: Event) -> None:
    if event.result:
        _log.info("purged %d %s %s", event.result, event.given.state, _where(event))


def _settle(event: Event) -> None:
    lost = event.result.count(False)
    if lost:
        _log.warning("%d outcomes came after their lease was lost %s", lost, _where(event))


def _start_join(event: Event) -> None:
    if _log.isEnabledFor(logging.INFO):
        draft: JoinDraft = event.given
        steps = "open" if draft.expected_steps is None else draft.expected_steps
        what = f"join={draft.id} tenant_id={escape(draft.tenant_id)} expected_steps={steps}"
        _log.info("join started%s %s %s", _transaction(event), _where(event), what)


def _put_wait(event: Event) -> None:
    _put(event._replace(given=[event.given], result=[event.result]))


def _cancel_join(event: Event) -> None:
    if event.result:
        _log.info("join cancelled%s %s join=%s", _transaction(event), _where(event), event.given)


def _attach_steps(event: Event) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        new = event.result.count(True)
        _log.debug("attached %d steps%s %s join=%s", new, _transaction(event), _where(event), event.given)


def _report_step(event: Event) -> None:
    if event.result and _log.isEnabledFor(logging.DEBUG):
        _log.debug("a step was reported%s %s join=%s", _transaction(event), _where(event), event.given)


def _seal_join(event: Event) -> None:
    if event.result and _log.isEnabledFor(logging.DEBUG):
        _log.debug("join sealed%s %s join=%s", _transaction(event), _where(event), event.given)


_DESCRIBERS: dict[str, Callable[[Event], None]] = {
    "put": _put,
    "record": _record,
    "claim": _claim,
    "begin": _begin,
    "reap": _reap,
    "purge": _purge,
    "settle": _settle,
    "start_join": _start_join,
    "put_wait": _put_wait,
    "cancel_join": _cancel_join,
    "attach_steps": _attach_steps,
    "report_step": _report_step,
    "seal_join": _seal_join,
}


@observes(*_DESCRIBERS)
def log_event(event: Event) -> None:
    """Logs an event. This is an observer."""
    if event.error is None:
        _DESCRIBERS[event.verb](event)
