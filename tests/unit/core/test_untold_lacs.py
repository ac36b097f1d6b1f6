"""Which ledgers' LACs are to be told by themselves, and when."""

from __future__ import annotations

import random

from quire.core.ledger.untold_lacs import UntoldLacs


def test_a_ledger_is_due_when_no_add_carried_its_lac_for_so_long() -> None:
    untold = UntoldLacs(50, 25)
    assert untold.next_ms is None
    untold.confirmed(1, 1000)
    assert untold.next_ms == 1050
    assert untold.due(1049) == []
    assert untold.due(1050) == [1]
    assert untold.next_ms is None, "what was told is told once"
    assert untold.due(2000) == []


def test_the_next_add_carries_everything_before_it() -> None:
    untold = UntoldLacs(50, 25)
    untold.confirmed(1, 1000)
    untold.carried(1)
    untold.carried(2)
    assert untold.next_ms is None
    untold.confirmed(1, 1040)
    assert untold.due(1089) == []
    assert untold.due(1090) == [1]


def test_a_ledger_waits_since_the_first_confirmation_that_nothing_carried() -> None:
    untold = UntoldLacs(50, 25)
    untold.confirmed(1, 1000)
    untold.confirmed(2, 1010)
    untold.confirmed(1, 1049)
    assert untold.due(1055) == [1]
    assert untold.next_ms == 1080, "frames leave some time apart"
    assert untold.due(1080) == [2]


def test_many_ledgers_wait_in_the_order_of_their_confirmations() -> None:
    chance, untold = random.Random(3), UntoldLacs(50, 25)
    waiting: dict[int, int] = {}
    for now_ms in range(0, 20_000, 3):
        ledger_id = chance.randrange(40)
        if chance.random() < 0.3:
            untold.carried(ledger_id)
            waiting.pop(ledger_id, None)
        else:
            untold.confirmed(ledger_id, now_ms)
            waiting.setdefault(ledger_id, now_ms)
        untold.check()
        if untold.next_ms is not None and untold.next_ms <= now_ms:
            due = untold.due(now_ms)
            assert due == [one for one, since in waiting.items() if since + 50 <= now_ms]
            assert all(now_ms - waiting.pop(one) <= 50 + 25 + 3 for one in due)
