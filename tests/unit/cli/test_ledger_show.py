"""What `quire ledger show` says of a guaranteed write quorum."""

from __future__ import annotations

from dataclasses import replace

from quire.cli.ledger_show import guarantee_text
from quire.core.guarantee import GIVEN_UP, GUARANTEED
from quire.core.ledger_metadata import LedgerState
from quire_testing.explorer.beginning import record_of
from quire_testing.explorer.configuration import Configuration

OPEN = replace(record_of(Configuration(3, 3, 3, 2)), custom=(GUARANTEED,))
ALL_THERE = dict.fromkeys(("b0", "b1", "b2"), "up")


def test_the_bookie_that_appends_wait_for_is_named_with_the_way_out() -> None:
    said = guarantee_text(OPEN, {"b0": "up", "b2": "read-only"})
    assert "and b1 is not there: start it" in said
    assert "--at ack-quorum" in said
    assert guarantee_text(OPEN, ALL_THERE) == ", its write quorum is guaranteed"


def test_a_ledger_that_waits_for_nobody_names_nobody() -> None:
    closed = replace(OPEN, state=LedgerState.CLOSED, last_entry=-1, length=0)
    assert "is not there" not in guarantee_text(closed, {})
    assert guarantee_text(replace(OPEN, custom=()), {}) == ""
    assert "was given up" in guarantee_text(replace(OPEN, custom=(GIVEN_UP,)), {})
