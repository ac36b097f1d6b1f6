"""Which ledgers' LACs are to be told by themselves, and when."""

from __future__ import annotations

import random

from quire.core.ledger.pending_explicit_lacs import PendingExplicitLacs


def test_a_ledger_is_due_when_no_add_carried_its_lac_for_so_long() -> None:
    pending = PendingExplicitLacs(50, 25)
    assert pending.next_ms is None
    pending.confirmed(1, 1000)
    assert pending.next_ms == 1050
    assert pending.due(1049) == []
    assert pending.due(1050) == [1]
    assert pending.next_ms is None, "what was sent is sent once"
    assert pending.due(2000) == []


def test_the_next_add_carries_everything_before_it() -> None:
    pending = PendingExplicitLacs(50, 25)
    pending.confirmed(1, 1000)
    pending.carried(1)
    pending.carried(2)
    assert pending.next_ms is None
    pending.confirmed(1, 1040)
    assert pending.due(1089) == []
    assert pending.due(1090) == [1]


def test_a_ledger_waits_since_the_first_confirmation_that_nothing_carried() -> None:
    pending = PendingExplicitLacs(50, 25)
    pending.confirmed(1, 1000)
    pending.confirmed(2, 1010)
    pending.confirmed(1, 1049)
    assert pending.due(1055) == [1]
    assert pending.next_ms == 1080, "frames leave some time apart"
    assert pending.due(1080) == [2]


def test_many_ledgers_wait_in_the_order_of_their_confirmations() -> None:
    chance, pending = random.Random(3), PendingExplicitLacs(50, 25)
    waiting: dict[int, int] = {}
    for now_ms in range(0, 20_000, 3):
        ledger_id = chance.randrange(40)
        if chance.random() < 0.3:
            pending.carried(ledger_id)
            waiting.pop(ledger_id, None)
        else:
            pending.confirmed(ledger_id, now_ms)
            waiting.setdefault(ledger_id, now_ms)
        pending.check()
        if pending.next_ms is not None and pending.next_ms <= now_ms:
            due = pending.due(now_ms)
            assert due == [one for one, since in waiting.items() if since + 50 <= now_ms]
            assert all(now_ms - waiting.pop(one) <= 50 + 25 + 3 for one in due)
