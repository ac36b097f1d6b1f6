"""Rolling a log: the next ledger, listed early and sent to late; and placing what a sink committed meanwhile.

Appends go on until DRAINING; then they wait for one round trip, so that the next ledger's first offset is known before
its first byte is sent. No other roll begins before the former ledger is sealed.

A roll while adopted ledgers wait closes the former ledger first: one compare-and-swap then completes it, gives the
adopted ones their offsets and lists the next one. Appends wait for the close and that compare-and-swap.

Source: BookKeeper ledgers to logs, "Rolling ledgers"; docs/decisions/020-next-ledger-waits.md;
docs/decisions/024-adoption.md.
"""

from __future__ import annotations

from quire.core.ids import LedgerId
from quire.core.log import closing as log_closing
from quire.core.log.effects import (
    CloseLedger,
    CreateLedger,
    DrainLedger,
    ListLedger,
    PlaceAdoptions,
    SwitchLedger,
)
from quire.core.log.handle import HandleState
from quire.core.log.list import LedgerSummary, LogItem
from quire.core.log.roll import RollStep


def begin(handle: HandleState) -> None:
    """Step 1 of rolling: create the next ledger; appends go on in the current one."""
    handle.rolls.to(RollStep.CREATING)
    handle.rolls.adopting = bool(handle.known.adoptions)
    handle.out.append(CreateLedger())


def created(handle: HandleState, item: LogItem) -> None:
    """Steps 2 and 3: list the next ledger; while adopted ledgers wait, the former one ends before that."""
    handle.new = item
    if handle.rolls.adopting:
        handle.out.append(drains(handle))
    else:
        handle.rolls.to(RollStep.LISTING)
        handle.change(ListLedger(item))


def create_failed(handle: HandleState) -> None:
    """The roll is given up and may be tried again later."""
    handle.rolls.to(RollStep.NONE)
    log_closing.roll_over(handle, done=False)


def listed(handle: HandleState, item: LogItem) -> None:
    """The next ledger is in the list: step 3 is done. It gets nothing before the former's last is confirmed."""
    former = drains(handle)
    if handle.rules.may_send_to_next(previous_confirmed=False):
        switch(handle, item, None)
    handle.out.append(former)


def drains(handle: HandleState) -> DrainLedger:
    """What has the current ledger end."""
    assert handle.current is not None
    handle.rolls.to(RollStep.DRAINING)
    handle.rolls.former, handle.rolls.switched = handle.current, False
    return DrainLedger(handle.current)


def drained(handle: HandleState, records: int) -> None:
    """Step 4: the next ledger's first offset is known; the former one is closed."""
    rolls, former = handle.rolls, handle.rolls.former
    assert handle.new is not None
    assert former is not None, "drained without a former ledger"
    if rolls.adopting:
        rolls.to(RollStep.SEALING)
    else:
        if not rolls.switched and handle.rules.may_send_to_next(previous_confirmed=True):
            offset = None if handle.current_offset is None else handle.current_offset + records
            switch(handle, handle.new, offset)
        handle.new = None
        rolls.to(RollStep.NONE)
        rolls.sealing += (former,)
    handle.out.append(CloseLedger(former))


def sealed(handle: HandleState, summary: LedgerSummary) -> None:
    """The former ledger has its end: now adopted ledgers get their places, and the next one is listed."""
    assert handle.new is not None
    assert handle.rolls.former is not None
    handle.rolls.to(RollStep.LISTING)
    handle.change(PlaceAdoptions(handle.rolls.former, summary, handle.new))


def placed(handle: HandleState, item: LogItem) -> None:
    """The next ledger is in the list, behind what was adopted: its first offset is there."""
    listed_item = handle.known.item(item.ledger_id)
    assert listed_item is not None
    handle.new = None
    handle.rolls.to(RollStep.NONE)
    switch(handle, item, listed_item.first_offset)
    log_closing.roll_over(handle, done=True)


def switch(handle: HandleState, item: LogItem, first_offset: int | None) -> None:
    """Send what waits to the next ledger."""
    handle.rolls.switched = True
    handle.current = item.ledger_id
    handle.current_offset = first_offset
    handle.out.append(SwitchLedger(item.ledger_id, first_offset))


def completed(handle: HandleState, ledger_id: LedgerId) -> None:
    """The list calls a former ledger closed."""
    if ledger_id in handle.rolls.sealing:
        handle.rolls.sealing = tuple(each for each in handle.rolls.sealing if each != ledger_id)
        log_closing.roll_over(handle, done=True)
