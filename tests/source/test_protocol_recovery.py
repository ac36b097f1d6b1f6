"""Fencing and recovery. Each test cites the sentence that it checks.

Source: BookKeeper protocol, "Closing a ledger as a reader".
"""

from __future__ import annotations

import pytest

from properties.recovery_world import explore
from quire.core.answers import Answer
from quire.core.ids import LedgerId
from quire.core.ledger.effects import (
    RecoveryClosed,
    RereadMetadata,
    SendLacRead,
    SendRecoveryAdds,
    SendRecoveryRead,
    WriteMetadata,
)
from quire.core.ledger.metadata import DigestType, LedgerState, new_ledger
from quire.core.recovery.machine import RecoveryMachine

NAMES = ("b1", "b2", "b3")


def ledger(state: LedgerState = LedgerState.OPEN):
    record = new_ledger(
        LedgerId(1), NAMES, write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
    )
    return record.in_recovery() if state is LedgerState.IN_RECOVERY else record


def fenced(lacs: dict[int, int]) -> RecoveryMachine:
    """A recovery whose fence these slots answered with these LACs."""
    machine = RecoveryMachine(ledger(LedgerState.IN_RECOVERY), 1)
    machine.recover()
    for slot, lac in lacs.items():
        machine.fence_answered(slot, Answer.OK, lac)
    return machine


def said(machine: RecoveryMachine, kind: type) -> list:
    return [effect for effect in machine.out if isinstance(effect, kind)]


def test_the_state_becomes_in_recovery_before_any_bookie_is_asked() -> None:
    """ "To recover a ledger, we first update the state in the metadata to IN_RECOVERY." """
    machine = RecoveryMachine(ledger(), 1)
    machine.recover()
    assert machine.out == [WriteMetadata(ledger().in_recovery(), 1)]


def test_all_bookies_of_the_last_fragment_get_a_fence_message() -> None:
    """ "We then send a fence message to all the bookies in the last fragment of the ledger." """
    record = ledger().with_ensemble(5, ("b1", "b4", "b5")).in_recovery()
    machine = RecoveryMachine(record, 1)
    machine.recover()
    assert machine.out == [
        SendLacRead(slot, bookie, fence=True) for slot, bookie in enumerate(("b1", "b4", "b5"))
    ]


def test_the_fence_is_complete_at_coverage_and_not_before() -> None:
    """ "Once we receive a response from at least (Qw-Qa)+1 bookies from each write quorum in the ensemble, the ledger
    is fenced." """
    assert not said(fenced({0: 3}), SendRecoveryRead)
    assert said(fenced({0: 3, 2: -1}), SendRecoveryRead)


def test_reading_starts_behind_the_highest_lac_heard() -> None:
    """ "It waits until it has received a response at least (Qw-Qa)+1 bookies from each write quorum, and takes the
    highest response as the entry id to start reading forward from." """
    reads = said(fenced({1: 2, 2: 7}), SendRecoveryRead)
    assert {read.first for read in reads} == {8}
    assert {read.bookie for read in reads} == set(NAMES)


def test_entries_seen_are_replicated_to_the_entire_write_quorum() -> None:
    """ "It then starts reading forward in the ledger, one entry at a time, replicating all entries it sees to the
    entire write quorum for that entry." """
    machine = fenced({0: -1, 1: -1})
    machine.out.clear()
    machine.read_answered(2, Answer.OK, {0: 10, 1: 20}, 5, [])
    adds = said(machine, SendRecoveryAdds)
    assert [(add.bookie, add.first, add.last) for add in adds] == [(bookie, 0, 1) for bookie in NAMES]


def test_the_last_entry_written_becomes_the_last_entry_of_the_ledger() -> None:
    """ "Once it can no longer read any more entries, it updates the state in the metadata to CLOSED, and sets the last
    entry of the ledger to the last entry it wrote." """
    machine = fenced({0: -1, 1: -1})
    machine.read_answered(2, Answer.OK, {0: 10, 1: 20}, 5, [])
    machine.read_answered(0, Answer.NO_LEDGER, {}, -1, [])
    machine.read_answered(1, Answer.NO_LEDGER, {}, -1, [])
    assert not said(machine, WriteMetadata), "what is written back is not confirmed yet"
    for slot in (0, 1):
        machine.adds_answered(slot, NAMES[slot], 0, 1, Answer.OK)
    (write,) = said(machine, WriteMetadata)
    assert (write.record.state, write.record.last_entry, write.record.length) == (LedgerState.CLOSED, 1, 20)


def test_several_readers_converge_on_one_last_entry() -> None:
    """ "Multiple readers can try to recovery a ledger at the same time, but as the metadata write is CAS, they will all
    converge on the same last entry of the ledger." """
    for seed in range(200):
        world = explore(seed, (3, 3, 2), recoverers=3, timeouts=2)
        ends = {r.result.record.last_entry for r in world.recoverers if isinstance(r.result, RecoveryClosed)}
        assert len(ends) <= 1


def test_who_loses_the_closing_cas_accepts_the_end_that_is_there() -> None:
    """ "… as the metadata write is CAS, they will all converge …" """
    machine = fenced({0: -1, 1: -1})
    for slot in (0, 1):
        machine.read_answered(slot, Answer.NO_LEDGER, {}, -1, [])
    machine.waited()
    assert said(machine, WriteMetadata)
    machine.out.clear()
    machine.metadata_conflicted()
    assert machine.out == [RereadMetadata()]
    machine.out.clear()
    other = ledger(LedgerState.IN_RECOVERY).closed(4, 50)
    machine.metadata_read(other, 9)
    assert machine.out == [RecoveryClosed(other, 9, accepted=True)]


@pytest.mark.parametrize("answer", [Answer.TIMED_OUT, Answer.UNREACHABLE, Answer.ERROR, Answer.UNKNOWN])
def test_bookies_that_do_not_answer_do_not_complete_the_fence(answer) -> None:
    """ "By ensuring we have received a response from at last (Qw-Qa)+1 bookies in each write quorum, we ensure that, if
    the old writer is alive and tries to add a new entry there will be no write quorum in which Qa bookies will accept
    the write." """
    machine = fenced({0: 3})
    machine.fence_answered(1, answer, -1)
    assert not said(machine, SendRecoveryRead)
