"""The rules for a write whose key is known."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroom._kernel.clock import EPOCH
from postroom._kernel.known_keys import KnownKeyDecision, decide_known_key, is_outside_dedup_window
from postroom.spi import Draft, Receipt, ReceiptStatus, State

DRAFT = Draft("s", "m", "t")
KNOWN = [State.WAITING, State.CLAIMED, State.DONE, State.DEAD]


@pytest.mark.parametrize("state", State)
def test_a_rejected_conflict_changes_nothing(state: State) -> None:
    decision = decide_known_key(DRAFT._replace(on_conflict="reject"), state, conflict=True)
    assert decision == KnownKeyDecision(ReceiptStatus.REJECTED, state, touches=False)


@pytest.mark.parametrize("conflict", [False, True])
def test_a_key_that_was_only_seen_gets_its_message(conflict: bool) -> None:
    decision = decide_known_key(DRAFT._replace(on_duplicate="reject"), State.SEEN, conflict=conflict)
    status = ReceiptStatus.CONFLICT if conflict else ReceiptStatus.NEW
    assert decision.receipt(7, DRAFT, superseded=(3,)) == Receipt(
        status, 7, "s", "m", State.WAITING, (3,), updated=conflict
    )
    assert decision.fills
    assert not decision.replaces


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (State.WAITING, ReceiptStatus.DUPLICATE),
        (State.CLAIMED, ReceiptStatus.DUPLICATE),
        (State.DONE, ReceiptStatus.DONE),
        (State.DEAD, ReceiptStatus.DEAD),
    ],
)
def test_the_content_of_an_unfinished_message_is_replaced(state: State, status: ReceiptStatus) -> None:
    decision = decide_known_key(DRAFT, state, conflict=False)
    assert (decision.status, decision.state) == (status, state)
    assert decision.replaces == decision.updated == (state is not State.DONE)
    assert not decision.fills


@pytest.mark.parametrize("state", KNOWN)
def test_a_conflict_is_the_status_of_every_known_message(state: State) -> None:
    decision = decide_known_key(DRAFT._replace(on_conflict="keep"), state, conflict=True)
    assert decision == KnownKeyDecision(ReceiptStatus.CONFLICT, state)


@pytest.mark.parametrize("state", KNOWN)
def test_only_a_dead_message_is_revived(state: State) -> None:
    decision = decide_known_key(DRAFT._replace(revive_dead=True), state, conflict=False)
    assert decision.revives == (state is State.DEAD)
    assert decision.state is (State.WAITING if state is State.DEAD else state)


def test_the_dedup_window_ends_at_its_last_moment() -> None:
    assert not is_outside_dedup_window(100, 50, 149)
    assert is_outside_dedup_window(100, 50, 150)
    assert not is_outside_dedup_window(100, None, 10**9)
    assert is_outside_dedup_window(EPOCH, timedelta(), EPOCH)
