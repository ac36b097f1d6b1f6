"""Each test cites the sentence that it checks.

Source: BookKeeper ledgers to logs.
"""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import MisuseError, NotLeaderError, NotWritingError
from quire.core.ids import LedgerId
from quire.core.ledger.metadata import DigestType, LedgerState, new_ledger
from quire.core.log import effects as e
from quire.core.log.list import Leader, LedgerSummary, LogHead, LogItem, LogPage
from quire.core.log.machine import LogMachine, LogStatus
from quire.core.log.rules import RULES
from quire.log.heads import LogHeads
from quire.log.log import Log
from quire.log.writer import LogWriter
from quire.wire.log_records import page_name
from support.electors import Answering
from support.log_cluster import FAST, World

ONE = LedgerId(1)
TWO = LedgerId(2)
THREE = LedgerId(3)


def taken(machine: LogMachine) -> list[e.Effect]:
    out, machine.out = machine.out, []
    machine.check()
    return out


def head_of(*counts: int, open_last: bool = False) -> LogHead:
    """A list of ledgers 1, 2, … with these record counts."""
    head = LogHead(b"\x05" * 16, "orders", leader=Leader(1, "before"))
    for number, count in enumerate(counts, 1):
        head = head.with_item(LogItem(LedgerId(number), first_offset=head.closed_end))
        if not (open_last and number == len(counts)):
            head = head.with_completed(number, LedgerSummary(count))
    return head


def serving(head: LogHead | None = None, holder: str = "me") -> LogMachine:
    """A machine that went through the five steps undisturbed."""
    head = head or head_of()
    machine = LogMachine(holder, name_page=page_name)
    machine.open()
    machine.head_read(head, 1)
    for effect in taken(machine):
        if isinstance(effect, e.RecoverLedger):
            machine.recovered(effect.item.ledger_id, LedgerSummary(effect.item.count))
    machine.created(LedgerId(100), 0)
    machine.head_written(2)
    taken(machine)
    assert machine.status is LogStatus.SERVING
    return machine


def names(out: list[e.Effect]) -> list[str]:
    return [type(effect).__name__ for effect in out]


def test_a_log_is_ledgers_in_a_fixed_order() -> None:
    """ "A log in bookkeeper is built from a number of ledgers, with a fixed order." """
    head = head_of(3, 4, 2)
    assert head.ledger_ids == (1, 2, 3)
    assert [item.first_offset for item in head.items] == [0, 3, 7]
    with pytest.raises(MisuseError, match="already"):
        head.with_item(LogItem(TWO))


def test_a_ledger_cannot_be_reopened_for_writing() -> None:
    """ "Ledgers cannot be reopened for writing once they have been closed/recovered." """
    record = new_ledger(
        ONE, ["b1"], write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32C, password=b""
    ).closed(4, 40)
    for change in (record.in_recovery, lambda: record.closed(5, 50), lambda: record.with_ensemble(5, ["b2"])):
        with pytest.raises(MisuseError):
            change()
    assert record.state is LedgerState.CLOSED
    # In the list, too: an item that is called closed never opens again, nor does its end move.
    head = head_of(3)
    assert head.with_completed(1, LedgerSummary(9)) is head


def test_one_leader_adds_to_a_ledger() -> None:
    """ "there can only ever been one leader that adds entries to a single ledger" """
    first, second = serving(holder="a"), LogMachine("b", name_page=page_name)
    assert first.head is not None
    second.open()
    second.head_read(first.head, 2)
    for effect in taken(second):
        if isinstance(effect, e.RecoverLedger):
            second.recovered(effect.item.ledger_id, LedgerSummary(0))
    second.created(LedgerId(200), 0)
    second.head_written(3)
    assert first.current == 100
    assert second.current == 200


def test_leader_election_is_a_suggestion() -> None:
    """ "It is the job of the log to guarantee that only one can write changes to the system." """
    head = head_of()
    duel = [LogMachine(holder, name_page=page_name) for holder in ("a", "b")]
    for number, machine in enumerate(duel, 1):
        machine.open()
        machine.head_read(head, 1)
        machine.created(LedgerId(number), 0)
        [cas] = [effect for effect in taken(machine) if isinstance(effect, e.WriteHead)]
        assert cas.version == 1
    # Both believe that they lead; the store takes one compare-and-swap of version 1.
    duel[0].head_written(2)
    assert duel[0].status is LogStatus.SERVING
    duel[1].head_conflicted()
    duel[1].head_read(duel[0].head, 2)
    assert names(taken(duel[1])) == ["ReadHead", "DeleteLedger", "BackOff"]
    assert duel[1].status is LogStatus.BACKING_OFF


def test_the_five_steps_in_their_order() -> None:
    """ "1. read the list … 2. fence the last 2 ledgers in the list 3. create a new ledger 4. add the new ledger to the
    ledger list 5. write the new ledger list back to the datastore using a CAS operation." """
    machine = LogMachine("me", name_page=page_name)
    machine.open()
    assert names(taken(machine)) == ["ReadHead"]
    machine.head_read(head_of(1, 2, 3), 7)
    assert [effect.item.ledger_id for effect in taken(machine) if isinstance(effect, e.RecoverLedger)] == [
        2,
        3,
    ]
    machine.recovered(TWO, LedgerSummary(2))
    assert not taken(machine)
    machine.recovered(THREE, LedgerSummary(3))
    assert names(taken(machine)) == ["CreateLedger"]
    machine.created(LedgerId(4), 0)
    [cas] = taken(machine)
    assert isinstance(cas, e.WriteHead)
    assert (cas.version, cas.head.ledger_ids) == (7, (1, 2, 3, 4))


def test_the_last_two_are_fenced() -> None:
    """ "We fence 2 ledgers, as the write may be writing to the penultimate, while adding the last ledger to the ledger
    list." """
    assert RULES.ledgers_to_fence([1, 2, 3, 4], []) == [3, 4]
    assert RULES.ledgers_to_fence([1], [1]) == [1]
    # And whatever the list calls open, wherever it stands.
    assert RULES.ledgers_to_fence([1, 2, 3, 4], [2]) == [2, 3, 4]


def test_a_failed_cas_starts_again_at_step_1() -> None:
    """ "When the CAS operation fails, the leader must start at step 1 again." """
    machine = LogMachine("me", name_page=page_name)
    machine.open()
    machine.head_read(head_of(), 1)
    machine.created(LedgerId(4), 0)
    taken(machine)
    machine.head_conflicted()
    rival = head_of().with_item(LogItem(LedgerId(9))).with_leader(Leader(2, "rival"))
    machine.head_read(rival, 2)
    taken(machine)
    machine.retry()
    assert names(taken(machine)) == ["ReadHead"]
    machine.head_read(rival, 2)
    [fence] = taken(machine)
    assert isinstance(fence, e.RecoverLedger)
    assert fence.item.ledger_id == 9


@pytest.mark.parametrize(("says", "duels"), [("me", 1), ("me", 3), ("nobody", 2), ("rival", 1)])
async def test_the_election_is_asked_before_trying_again(says: str, duels: int, at: World) -> None:
    """ "Even better, they should check that they are in fact still the leader with the system that is providing leader
    election." The shipped leader on real bookies; a rival takes the log over right before each of its first compare-and-swaps."""
    await at.made("orders", FAST)
    rivals: list[LogWriter] = []

    class Overtaken(LogHeads):
        async def write(self, head: LogHead, version: int, *pages: Any) -> int:
            if len(rivals) < duels:
                rivals.append(await at.log("orders").open_writer())
            return await super().write(head, version, *pages)

    class OvertakenLog(Log):
        _heads_kind = Overtaken

    elector = Answering(says)
    log = OvertakenLog(at.client, "orders", config=FAST, elector=elector)
    if says == "rival":
        with pytest.raises(NotLeaderError, match="the election names another writer"):
            await log.open_writer()
    else:
        writer = await log.open_writer()
        assert await writer.append(b"mine") == 0
        await writer.close()
    assert elector.asked == duels, "once before each retry"
    assert elector.resigned
    for rival in rivals:
        await rival.abandon()


def test_nothing_is_served_before_step_5() -> None:
    """ "The node must not serve any writes until step 5 completes successfully." """
    machine = LogMachine("me", name_page=page_name)
    machine.open()
    machine.head_read(head_of(1), 1)
    machine.recovered(ONE, LedgerSummary(1))
    machine.created(LedgerId(2), 0)
    assert "Serve" not in names(taken(machine))
    assert machine.current is None
    machine.head_written(2)
    assert taken(machine) == [e.Serve(LedgerId(2), 1, 2)]


def test_rolling_takes_four_steps() -> None:
    """ "1. create a new ledger 2. add the new ledger to the ledger list 3. write the new ledger list to the datastore
    using CAS 4. close the previous ledger" """
    machine = serving()
    machine.roll()
    assert names(taken(machine)) == ["CreateLedger"]
    machine.created(LedgerId(101), 0)
    [cas] = taken(machine)
    assert isinstance(cas, e.WriteHead)
    assert cas.head.ledger_ids[-2:] == (100, 101)
    machine.head_written(3)
    assert taken(machine) == [e.DrainLedger(LedgerId(100))]
    machine.drained(LedgerId(100), 6)
    assert taken(machine) == [e.SwitchLedger(LedgerId(101), 6), e.CloseLedger(LedgerId(100))]


def test_writing_goes_on_while_the_list_is_changed() -> None:
    """ "By deferring the closing of the previous ledger until step 4, we can continue writing to the log while we perform
    metadata update operations to add the new ledger." """
    machine = serving()
    machine.roll()
    machine.created(LedgerId(101), 0)
    taken(machine)
    assert machine.current == 100
    assert machine.status is LogStatus.SERVING
    machine.head_written(3)
    machine.drained(LedgerId(100), 6)
    # The former one is still called open while entries go to the next: this is why two are fenced.
    assert machine.current == 101
    assert machine.head is not None
    assert [item.ledger_id for item in machine.head.open_items] == [100, 101]


def test_no_second_roll_before_the_former_ledger_is_closed() -> None:
    """ "This is safe as long as you fence the last 2 ledgers when acquiring leadership." """
    machine = serving()
    machine.roll()
    machine.created(LedgerId(101), 0)
    machine.head_written(3)
    machine.drained(LedgerId(100), 6)
    assert not machine.may_roll
    with pytest.raises(MisuseError):
        machine.roll()
    machine.ledger_closed(LedgerId(100), LedgerSummary(6))
    assert not machine.may_roll
    machine.head_written(4)
    assert machine.may_roll
    assert taken(machine)[-1] == e.Rolled(done=True)


def test_a_log_is_truncated_by_whole_ledgers() -> None:
    """ "Ledgers can only be deleted as a whole. If you don't roll the log, you won't be able to clean up old entries in
    the log without a leader change." """
    head = head_of(5, 5, 5, open_last=True)
    cut = head.with_truncation(7, 10, 0)
    assert (cut.start_offset, cut.ledger_ids) == (7, (2, 3))
    [intent] = cut.intents
    assert [item.ledger_id for item in intent.items] == [1]
    # Without a roll there is one open ledger, and nothing of it can go.
    only = head_of(5, open_last=True).with_truncation(5, 5, 0)
    assert (only.ledger_ids, only.intents) == ((1,), ())


def test_a_handle_that_does_not_lead_closes_nothing() -> None:
    """ "You must use a system like Zookeeper for this": whoever is not the leader by the list has nothing to give back."""
    machine = LogMachine("me", name_page=page_name)
    with pytest.raises(NotWritingError):
        machine.close()


def test_pages_are_named_by_their_content() -> None:
    """Two leaders that make the same page make one; another content has another name.

    Source: docs/decisions/019-paged-list.md.
    """
    items = head_of(1, 2).items
    page = LogPage(b"\x05" * 16, 0, items)
    assert page_name(page) == page_name(LogPage(b"\x05" * 16, 0, items))
    assert page_name(page) != page_name(LogPage(b"\x06" * 16, 0, items))
    assert page_name(page) != page_name(LogPage(b"\x05" * 16, 0, items[:1]))
