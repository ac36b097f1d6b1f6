"""Closing a log: its current ledger ends, and the lead is given back in the compare-and-swap that says so.

A roll under way is finished first.

Source: BookKeeper ledgers to logs; docs/decisions/017-leader-epoch.md.
"""

from __future__ import annotations

from quire.core.log.effects import CloseLedger, CompleteLedger, Resign, Rolled
from quire.core.log.handle import HandleState, LogStatus
from quire.core.log.list import LedgerSummary


def begin(handle: HandleState) -> None:
    """Close as soon as no roll is under way."""
    handle.closing = True
    if not handle.rolls.under_way:
        close_current(handle)


def roll_over(handle: HandleState, *, done: bool) -> None:
    """A roll is over; a close that waited for it begins."""
    handle.out.append(Rolled(done))
    if handle.closing and not handle.rolls.under_way:
        close_current(handle)


def close_current(handle: HandleState) -> None:
    """Close the current ledger."""
    assert handle.current is not None
    handle.to(LogStatus.CLOSING)
    handle.out.append(CloseLedger(handle.current))


def closed(handle: HandleState, summary: LedgerSummary) -> None:
    """The current ledger has its end: the list says so, and names no leader."""
    assert handle.current is not None
    handle.change(CompleteLedger(handle.current, summary), Resign(handle.epoch))
