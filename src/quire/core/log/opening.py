"""Opening a log: the five steps, and what a lost compare-and-swap means while they are under way.

Source: BookKeeper ledgers to logs, "Opening a log"; docs/decisions/016-open-items-are-recovered.md;
docs/decisions/017-leader-epoch.md; docs/decisions/024-adoption.md.
"""

from __future__ import annotations

from dataclasses import replace

from quire.core.log.effects import BackOff, CreateLedger, EndReason, RecoverLedger, Serve
from quire.core.log.handle import HandleState, LogStatus
from quire.core.log.list import OPEN_ITEMS_MAX, LogHead, LogItem


def read(handle: HandleState) -> None:
    """Step 1: "read the list of ledgers for the log"."""
    handle.to(LogStatus.READING)
    handle.read()


def found(handle: HandleState, head: LogHead, version: int) -> None:
    """Step 2: "fence the last 2 ledgers in the list", and every one that the list calls open."""
    if len(head.open_items) > OPEN_ITEMS_MAX:
        handle.end(EndReason.CORRUPT, f"the list calls {len(head.open_items)} ledgers open")
        return
    handle.swap.found(head, version)
    fence(handle)


def fence(handle: HandleState) -> None:
    """Fence what is named and not fenced yet."""
    handle.to(LogStatus.FENCING)
    items = handle.fencing.begin([handle.known], handle.rules)
    handle.out += [RecoverLedger(item) for item in items]
    if not items:
        fenced(handle)


def fenced(handle: HandleState) -> None:
    """Step 3: create a ledger, unless only the compare-and-swap has to be done again."""
    if handle.new is None:
        handle.to(LogStatus.CREATING)
        handle.out.append(CreateLedger())
    else:
        write(handle)


def created(handle: HandleState, item: LogItem) -> None:
    """The ledger of step 3 exists."""
    handle.new = item
    if handle.rules.may_serve(list_written=False):
        serve(handle, item, None)
    write(handle)


def write(handle: HandleState) -> None:
    """Steps 4 and 5: complete what was fenced, place adoptions, add the new ledger, take the epoch."""
    assert handle.new is not None
    assert not handle.fencing.waiting, "a head is written while ledgers are being fenced"
    head = handle.fencing.completed(handle.known).with_adoptions_placed().with_item(handle.new)
    handle.to(LogStatus.SWAPPING)
    handle.write(head.with_leader(replace(handle.me, epoch=handle.known.leader.epoch + 1)))


def reread(handle: HandleState, head: LogHead, version: int) -> None:
    """After a lost compare-and-swap: it is in; or the fences hold and it is done again; or another leader came."""
    assert handle.new is not None
    if head.leader.holder == handle.me.holder and head.item(handle.new.ledger_id) is not None:
        handle.swap.found(head, version)
        opened(handle)
    elif head.leader.epoch == handle.known.leader.epoch and len(head.open_items) <= OPEN_ITEMS_MAX:
        # Only a sink, a truncation or another client's completion came between.
        handle.swap.found(head, version)
        fence(handle)
    else:
        if handle.surely_absent(head, version):
            handle.delete_new()
        handle.new = None
        handle.swap.found(head, version)
        handle.attempt += 1
        handle.to(LogStatus.BACKING_OFF)
        handle.out.append(BackOff(handle.attempt))


def opened(handle: HandleState) -> None:
    """Step 5 is done: "The node must not serve any writes until step 5 completes successfully"."""
    assert handle.new is not None
    item = handle.known.item(handle.new.ledger_id)
    assert item is not None
    handle.epoch = handle.known.leader.epoch
    handle.new = None
    handle.attempt = 0
    handle.to(LogStatus.SERVING)
    if not handle.served and handle.rules.may_serve(list_written=True):
        serve(handle, item, item.first_offset)


def serve(handle: HandleState, item: LogItem, first_offset: int | None) -> None:
    """Send appends to the new ledger."""
    handle.served = True
    handle.current = item.ledger_id
    handle.current_offset = first_offset
    handle.out.append(Serve(item.ledger_id, first_offset, handle.epoch))
