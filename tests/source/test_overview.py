"""Each test cites the sentence of the overview that it checks.

Source: BookKeeper overview.
"""

from __future__ import annotations

import pytest

from quire.core.answers import Answer
from quire.core.errors import DigestMismatchError, NotWritingError
from quire.core.ids import LedgerId
from quire.core.ledger.effects import (
    ChooseReplacements,
    Confirmed,
    ReadDone,
    RecoveryClosed,
    SendRead,
    SendRecoveryAdds,
    SendRun,
    WriteMetadata,
)
from quire.core.ledger.metadata import DigestType, LedgerState, new_ledger
from quire.core.ledger.quorum import write_set
from quire.core.ledger.reader import ReadMachine
from quire.core.ledger.writer import WriterMachine
from quire.core.recovery.machine import RecoveryMachine
from quire.wire.entry import HEADER_BYTES, EntryDigest
from quire_testing.explorer.check import check
from quire_testing.explorer.configuration import Configuration

NAMES = ("b1", "b2", "b3")


def ledger():
    return new_ledger(
        LedgerId(7), NAMES, write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
    )


def said(machine, kind):
    return [effect for effect in machine.out if isinstance(effect, kind)]


def append(machine):
    run = machine.window.next_run
    machine.append(1, 10)
    return run


def test_each_entry_is_on_a_part_of_the_ensemble() -> None:
    """ "… we stripe when writing entries to a ledger such that each entry is written to sub-group of bookies of the
    ensemble."
    """
    groups = [write_set(entry, 5, 3) for entry in range(5)]
    assert all(len(group) == 3 for group in groups)
    assert sorted(slot for group in groups for slot in group) == sorted([*range(5)] * 3)


def test_a_closed_ledger_takes_no_entries() -> None:
    """ "Once that ledger is closed or the client fails, no more entries can be added." """
    machine = WriterMachine(ledger(), 0)
    machine.close()
    with pytest.raises(NotWritingError):
        machine.append(1, 10)


def test_entries_are_numbered_without_gaps() -> None:
    """ "The entry number will be one more than the last entry generated." "There will not be gaps in the ledger." """
    machine = WriterMachine(ledger(), 0)
    for count in (1, 3, 2):
        machine.append(count, 10)
    assert [(run.first, run.last) for run in said(machine, SendRun)] == [(0, 0), (1, 3), (4, 5)]


def test_one_at_a_time_the_last_confirmed_is_the_entry_before() -> None:
    """ "If the client writes entries one at a time, LC is the last entry id." """
    machine = WriterMachine(ledger(), 0)
    for _ in range(3):
        run = append(machine)
        machine.adds_acked(0, "b1", run)
        machine.adds_acked(1, "b2", run)
    assert [run.lac for run in said(machine, SendRun)] == [-1, 0, 1]


def test_many_in_flight_carry_what_was_confirmed_when_they_were_sent() -> None:
    """ "But, if the client is using asyncAddEntry, there may be many entries in flight." """
    machine = WriterMachine(ledger(), 0)
    for _ in range(3):
        append(machine)
    assert [run.lac for run in said(machine, SendRun)] == [-1, -1, -1]


def test_an_entry_is_recorded_after_all_lower_ones() -> None:
    """ "An entry is considered recorded when both of the following conditions are met: the entry has been accepted by a
    quorum of bookies; all entries with a lower entry id have been accepted by a quorum of bookies."
    """
    machine = WriterMachine(ledger(), 0)
    first, second = append(machine), append(machine)
    machine.adds_acked(0, "b1", second)
    machine.adds_acked(1, "b2", second)
    assert said(machine, Confirmed) == []
    machine.adds_acked(0, "b1", first)
    machine.adds_acked(2, "b3", first)
    told = said(machine, Confirmed)
    assert (told[0].first, told[-1].last) == (0, 1)


def test_a_failure_sends_the_entry_to_a_new_quorum() -> None:
    """ "Any failures will result in the entry being sent to a new quorum of bookies." """
    machine = WriterMachine(ledger(), 0)
    run = append(machine)
    machine.adds_acked(0, "b1", run)
    machine.add_failed(2, "b3", run, Answer.UNREACHABLE)
    assert said(machine, ChooseReplacements)[0].slots == (2,)
    machine.out.clear()
    machine.replacements_chosen({2: "b9"}, 0)
    machine.metadata_written(1)
    resent = said(machine, SendRun)
    assert [(sent.first, sent.last, tuple(sent.slots)) for sent in resent] == [(0, 0, (2,))]
    assert machine.ensemble == ("b1", "b2", "b9")


def test_the_authentication_code_includes_every_field() -> None:
    """ "Message authentication code that includes all other fields of the entry" """
    digest = EntryDigest(DigestType.HMAC, b"secret")
    header = digest.seal_one(7, 3, 2, 40, b"payload")
    entry = bytearray(header + b"payload")
    opened = digest.open(bytes(entry), 7, 3)
    assert (opened.ledger_id, opened.entry_id, opened.last_add_confirmed) == (7, 3, 2)
    assert bytes(opened.payload) == b"payload"
    for place in [*range(HEADER_BYTES), len(entry) - 1]:
        entry[place] ^= 1
        with pytest.raises(DigestMismatchError):
            digest.open(bytes(entry), 7, 3)
        entry[place] ^= 1


@pytest.mark.parametrize("unknown", [[], [(0, 0)]], ids=["missing", "invalid"])
def test_what_is_missing_or_invalid_is_asked_of_another_bookie(unknown) -> None:
    """ "If an entry is missing or invalid (a bad MAC for example), the client will make a request to a different
    bookie."
    """
    machine = ReadMachine(0, 0, NAMES, 3)
    machine.read(0)
    machine.answered(0, Answer.OK, [], 0, unknown, 0)
    assert machine.out[-1] == SendRead(1, "b2", 0, 0)
    machine.answered(1, Answer.OK, [0], 0, [], 0)
    assert machine.out[-1] == ReadDone()


def test_recovery_finds_what_was_written_and_puts_it_on_a_quorum() -> None:
    """ "1. Find the entry with the highest last recorded entry, LC; 2. Find the highest consecutively recorded entry, LR;
    3. Make sure that all entries between LC and LR are on a quorum of bookies"
    """
    machine = RecoveryMachine(ledger().in_recovery(), 1, window_entries=2)
    machine.recover()
    machine.fence_answered(0, Answer.OK, 4)
    machine.fence_answered(1, Answer.OK, 2)
    assert machine.lac == 4
    machine.read_answered(0, Answer.OK, {5: 60}, 6, ())
    written = said(machine, SendRecoveryAdds)
    assert {(add.bookie, add.first, add.last) for add in written} == {(name, 5, 5) for name in NAMES}
    machine.read_answered(1, Answer.NO_ENTRY, {}, 6, ())
    assert said(machine, WriteMetadata) == [], "5 is not on a quorum yet"
    for slot, name in ((0, "b1"), (2, "b3")):
        machine.adds_answered(slot, name, 5, 5, Answer.OK)
    machine.waited()
    cas = said(machine, WriteMetadata)[0]
    assert (cas.record.state, cas.record.last_entry) == (LedgerState.CLOSED, 5)


def test_of_two_recoveries_the_first_to_write_the_end_succeeds() -> None:
    """ "Although two clients may try to recover a ledger concurrently, only one will succeed, the first one that is able
    to create the close znode for the ledger."
    """
    machine = RecoveryMachine(ledger().in_recovery(), 1)
    machine.recover()
    for slot in (0, 1):
        machine.fence_answered(slot, Answer.NO_LEDGER, -1)
    for slot in (0, 1):
        machine.read_answered(slot, Answer.NO_LEDGER, {}, 9, ())
    machine.waited()
    assert said(machine, WriteMetadata)
    machine.metadata_conflicted()
    machine.metadata_read(ledger().in_recovery().closed(-1, 0), 2)
    assert said(machine, RecoveryClosed)[-1].accepted
    done = check(Configuration(2, 2, 2, 1, recoverers=2), invariants=["I4", "I12"])
    assert done.result.complete
    assert done.result.violation is None


def test_recorded_is_readable() -> None:
    """ "If an entry has been successfully recorded, it must be readable." """
    done = check(Configuration(crashes=1, readers=1), invariants=["I1", "I2", "R"])
    assert done.result.complete
    assert done.result.violation is None


def test_read_once_is_read_always() -> None:
    """ "If an entry is read once, it must always be available to be read." """
    done = check(Configuration(2, 2, 2, 1, timeouts=1, readers=1), invariants=["I11", "R"])
    assert done.result.complete
    assert done.result.violation is None
