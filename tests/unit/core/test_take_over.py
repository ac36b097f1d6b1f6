"""Dialogues with a take-over: what it asks for, and what settles a compare-and-swap of unknown outcome."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.core.answers import Answer
from quire.core.errors import MisuseError, TermSupersededError
from quire.core.ids import NO_ENTRY
from quire.core.ledger.effects import (
    FindLength,
    FindReplacements,
    LacFound,
    LacUnavailable,
    RecoveryClosed,
    RecoveryFailed,
    RecoveryInconclusive,
    RereadMetadata,
    SendLacRead,
    SendRecoveryAdds,
    SendRecoveryRead,
    TakenOver,
    TakeOverSuperseded,
    WriteMetadata,
)
from quire.core.ledger.metadata import DigestType, LedgerState, new_ledger, new_stream
from quire.core.ledger.reader import LacMachine
from quire.core.ledger.terms import TermRange
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import Status
from quire.core.recovery.machine import RecoveryMachine, RecoveryStatus
from quire.core.recovery.take_over import TakeOverMachine
from quire.core.transcript import effect_line

LEDGER = new_ledger(
    7, ("b0", "b1", "b2"), write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
)
STREAM = new_stream(LEDGER, owner=1)
OWNER = 77


def said(machine):
    machine.check()
    out, machine.out = machine.out, []
    return out


def begun(record=STREAM, version=3, window=1):
    """A take-over that has announced itself and asked for the fence."""
    machine = TakeOverMachine(record, version, OWNER, window_entries=window)
    machine.recover()
    [announced] = said(machine)
    machine.metadata_written(announced.record, version + 1)
    return machine


def fenced(lac=NO_ENTRY, **more):
    machine = begun(**more)
    said(machine)
    machine.fence_answered(0, Answer.OK, lac)
    machine.fence_answered(1, Answer.OK, lac)
    return machine


def denied(machine, entry_id):
    """The first two bookies answer all that they were asked, and deny an entry. The stores that are asked for then."""
    for _ in range(entry_id + 1):
        for slot in (0, 1):
            machine.read_answered(slot, Answer.NO_ENTRY, {}, entry_id, [])
    machine.waited()
    return [effect for effect in said(machine) if isinstance(effect, WriteMetadata)]


def opening(machine):
    """The first two bookies deny what is asked for: nothing is there."""
    said(machine)
    machine.read_answered(0, Answer.OK, {}, 0, [])
    machine.read_answered(1, Answer.OK, {}, 0, [])
    machine.waited()
    machine.out = [effect for effect in machine.out if isinstance(effect, WriteMetadata)]
    return machine


def test_it_announces_a_term_recovers_and_opens_after_the_last_entry():
    machine = TakeOverMachine(STREAM, 3, OWNER, window_entries=1)
    machine.recover()
    [write] = said(machine)
    assert write == WriteMetadata(STREAM.taken_over(2, OWNER), 3)
    machine.metadata_written(write.record, 4)
    assert [type(effect) for effect in said(machine)] == [SendLacRead] * 3
    assert machine.status is RecoveryStatus.FENCING
    machine.fence_answered(0, Answer.OK, NO_ENTRY)
    machine.fence_answered(2, Answer.OK, NO_ENTRY)
    reads = said(machine)
    assert [(type(effect), effect.first, effect.fence) for effect in reads] == [
        (SendRecoveryRead, 0, True)
    ] * 3
    machine.read_answered(2, Answer.OK, {0: 10}, 0, [])
    adds = said(machine)
    assert [(type(effect), effect.first, effect.last_add_confirmed) for effect in adds] == [
        (SendRecoveryAdds, 0, NO_ENTRY)
    ] * 3
    machine.adds_answered(0, "b0", 0, 0, Answer.OK)
    machine.adds_answered(1, "b1", 0, 0, Answer.OK)
    [write] = denied(machine, 1)
    assert machine.status is RecoveryStatus.CLOSING
    opened = write.record
    assert (opened.state, opened.term, opened.ranges) == (LedgerState.OPEN, 2, ((1, 0), (2, 1)))
    assert opened.fragments == STREAM.fragments
    machine.metadata_written(opened, 5)
    [taken] = said(machine)
    assert taken == TakenOver(opened, 5, 0, 10, ())
    assert effect_line(taken, ()) == "=> taken over at 0 length 10: OPEN term 2, ranges 1>0 2>1; 0:[b0 b1 b2]"
    assert machine.status is RecoveryStatus.ENDED


def test_the_writer_of_a_term_begins_after_the_last_entry_and_a_loss_of_its_quorum_leaves_the_stream_open():
    record = STREAM.taken_over(2, OWNER)
    record = record.opened(4, record.fragments)
    writer = WriterMachine(record, 5, last=4, length=50)
    assert (writer.lac, writer.lap, writer.window.length) == (4, 4, 50)
    writer.began_without([2], 0)
    assert writer.append(1, 10) == 5
    writer.adds_acked(0, "b0", 0)
    writer.adds_acked(1, "b1", 0)
    assert (writer.lac, writer.window.confirmed_length) == (5, 60)
    writer.append(1, 10)
    writer.out = []
    writer.bookie_lost(0, "b0")
    writer.replacements_chosen({}, 0)
    writer.timer_fired(10**6)
    writer.check()
    assert writer.status is Status.ENDED
    assert not [effect for effect in writer.out if isinstance(effect, WriteMetadata)]


def test_a_window_of_reads_ends_where_a_terms_range_ends():
    record = replace(
        STREAM.taken_over(2, 9).opened(2, STREAM.fragments),
        terms=replace(STREAM.terms, term=4, ranges=(TermRange(1, 0), TermRange(2, 3), TermRange(4, 4))),
    )
    machine = fenced(lac=1, record=record, window=100)
    assert [(effect.first, effect.last) for effect in said(machine)] == [(2, 2)] * 3
    machine.read_answered(0, Answer.OK, {2: 30}, 2, [])
    reads = [effect for effect in said(machine) if isinstance(effect, SendRecoveryRead)]
    assert {(effect.first, effect.last) for effect in reads} == {(3, 3)}
    machine.read_answered(0, Answer.OK, {3: 40}, 3, [])
    reads = [effect for effect in said(machine) if isinstance(effect, SendRecoveryRead)]
    assert {effect.last - effect.first for effect in reads} == {99}


def test_the_owner_settles_an_announcement_of_unknown_outcome():
    machine = TakeOverMachine(STREAM, 3, OWNER)
    machine.recover()
    said(machine)
    machine.metadata_conflicted()
    assert said(machine) == [RereadMetadata()]
    machine.metadata_read(STREAM, 3)  # it was not made: once more
    assert said(machine) == [WriteMetadata(STREAM.taken_over(2, OWNER), 3)]
    machine.metadata_conflicted()
    said(machine)
    machine.metadata_read(STREAM.taken_over(2, OWNER), 4)
    assert [type(effect) for effect in said(machine)] == [SendLacRead] * 3


@pytest.mark.parametrize(
    "record", [STREAM.taken_over(2, OWNER + 1), STREAM.taken_over(3, 5)], ids=["same", "higher"]
)
def test_a_record_of_another_owner_ends_it(record):
    for machine in (TakeOverMachine(STREAM, 3, OWNER), None):
        if machine is None:
            machine = opening(fenced())
            assert machine.status is RecoveryStatus.CLOSING
        else:
            machine.recover()
        said(machine)
        machine.metadata_conflicted()
        said(machine)
        machine.metadata_read(record, 9)
        assert said(machine) == [TakeOverSuperseded(record.term)]


def test_an_opening_of_unknown_outcome_is_settled_by_the_owner_too():
    machine = opening(fenced())
    [write] = said(machine)
    machine.metadata_conflicted()
    said(machine)
    machine.metadata_read(machine.record, 6)  # something else changed: once more, on what is there now
    [again] = said(machine)
    assert again == WriteMetadata(write.record, 6)
    machine.metadata_conflicted()
    said(machine)
    machine.metadata_read(again.record, 7)
    [taken] = said(machine)
    assert (taken.last_entry, taken.record, taken.version) == (NO_ENTRY, again.record, 7)


@pytest.mark.parametrize("where", ["fence", "read", "add"])
def test_a_bookie_with_a_higher_term_ends_it(where):
    machine = begun() if where == "fence" else fenced()
    said(machine)
    if where == "fence":
        machine.fence_answered(0, Answer.INVALID_TERM, NO_ENTRY)
    elif where == "read":
        machine.read_answered(0, Answer.INVALID_TERM, {}, NO_ENTRY, [])
    else:
        machine.read_answered(0, Answer.OK, {0: 1}, 0, [])
        said(machine)
        machine.adds_answered(1, "b1", 0, 0, Answer.INVALID_TERM)
    assert said(machine) == [TakeOverSuperseded(None)]
    machine.adds_answered(1, "b1", 0, 0, Answer.OK)
    machine.waited()
    assert said(machine) == []


def test_with_one_of_three_bookies_dead_and_no_spare_it_finishes_and_says_which_slot_is_absent():
    machine = fenced()
    said(machine)
    machine.read_answered(0, Answer.OK, {0: 5}, 0, [])
    said(machine)
    machine.adds_answered(2, "b2", 0, 0, Answer.UNREACHABLE)
    [find] = said(machine)
    assert isinstance(find, FindReplacements)
    machine.replacements_found({})
    machine.adds_answered(0, "b0", 0, 0, Answer.OK)
    machine.adds_answered(1, "b1", 0, 0, Answer.OK)
    [write] = denied(machine, 1)
    machine.metadata_written(write.record, 8)
    [taken] = said(machine)
    assert (taken.last_entry, taken.absent) == (0, (2,))


def test_fragments_of_a_failed_bookie_are_published_with_the_opening():
    machine = fenced()
    said(machine)
    machine.read_answered(0, Answer.OK, {0: 5}, 0, [])
    said(machine)
    machine.adds_answered(2, "b2", 0, 0, Answer.UNREACHABLE)
    said(machine)
    machine.replacements_found({2: "b9"})
    assert [effect.bookie for effect in said(machine)] == ["b9"]
    machine.adds_answered(0, "b0", 0, 0, Answer.OK)
    machine.adds_answered(2, "b9", 0, 0, Answer.OK)
    [write] = denied(machine, 1)
    assert [each.ensemble for each in write.record.fragments] == [("b0", "b1", "b9")]


def test_what_nothing_was_recovered_of_is_measured():
    machine = opening(fenced(lac=-1))
    assert machine.status is RecoveryStatus.CLOSING
    machine = fenced(lac=4)
    said(machine)
    machine.read_answered(0, Answer.NO_ENTRY, {}, 5, [])
    machine.read_answered(1, Answer.NO_ENTRY, {}, 5, [])
    machine.waited()
    assert said(machine)[-1] == FindLength(4)
    machine.length_unavailable(["b2"])
    assert said(machine) == [RecoveryInconclusive(4, ("b2",))]


def test_a_closed_stream_a_deleted_one_a_ledger_and_a_mode_that_is_not_built():
    closed = STREAM.closed(3, 30)
    machine = TakeOverMachine(closed, 3, OWNER)
    machine.recover()
    assert said(machine) == [RecoveryClosed(closed, 3, accepted=True)]
    machine = TakeOverMachine(STREAM, 3, OWNER)
    machine.recover()
    machine.metadata_conflicted()
    said(machine)
    machine.metadata_read(None, 0)
    assert said(machine) == [RecoveryFailed(Answer.NO_LEDGER, ())]
    machine = TakeOverMachine(STREAM, 3, OWNER)
    machine.recover()
    machine.metadata_conflicted()
    said(machine)
    machine.metadata_read(closed, 9)
    assert said(machine) == [RecoveryClosed(closed, 9, accepted=True)]
    with pytest.raises(MisuseError, match="no stream"):
        TakeOverMachine(LEDGER, 3, OWNER).recover()
    with pytest.raises(MisuseError, match="taken over, not recovered"):
        RecoveryMachine(STREAM, 3).recover()


def superseding(record):
    """A writer of term 1 that lost a compare-and-swap, and rereads this."""
    writer = WriterMachine(STREAM, 3)
    writer.append(1, 10)
    writer.bookie_lost(2, "b2")
    writer.replacements_chosen({2: "b9"}, 0)
    writer.out = []
    writer.metadata_conflicted()
    writer.metadata_read(record, 9)
    writer.check()
    return writer


@pytest.mark.parametrize("state", ["in recovery", "open"])
def test_a_writer_does_not_go_on_with_its_successors_record(state):
    record = STREAM.taken_over(2, OWNER)
    if state == "open":
        record = record.opened(NO_ENTRY, record.fragments)
    writer = superseding(record)
    assert writer.status is Status.ENDED
    assert writer.problem.kind is TermSupersededError
    assert "took it over from term 1 in term 2" in writer.problem.message
    assert not [effect for effect in writer.out if isinstance(effect, WriteMetadata)]


def test_a_writer_that_closes_does_not_close_its_successors_stream():
    record = STREAM.taken_over(2, OWNER)
    writer = WriterMachine(STREAM, 3)
    writer.close()
    writer.metadata_conflicted()
    writer.metadata_read(record.opened(NO_ENTRY, record.fragments), 9)
    assert writer.status is Status.ENDED
    assert writer.problem.kind is TermSupersededError


def test_a_lac_of_a_term_that_the_record_does_not_reach_is_not_used():
    between = STREAM.taken_over(2, OWNER)  # its term is ahead of its ranges
    for record in (STREAM, between):
        machine = LacMachine(record.last_fragment.ensemble, 3, 2, record=record)
        machine.read()
        machine.out = []
        machine.answered(0, Answer.OK, 3, 1)
        machine.answered(1, Answer.OK, 7, 2)
        assert machine.out == [LacFound(3, record_is_stale=True)]
    machine = LacMachine(between.last_fragment.ensemble, 3, 2, record=between.opened(3, between.fragments))
    machine.read()
    machine.out = []
    machine.answered(0, Answer.UNREACHABLE, NO_ENTRY)
    machine.answered(1, Answer.OK, 7, 2)
    machine.answered(2, Answer.UNREACHABLE, NO_ENTRY)
    assert machine.out == [LacUnavailable(("b0", "b2"), 7, record_is_stale=False)]


def test_a_lac_of_an_earlier_term_is_one_of_its_own_entries():
    """Where an operator had it ignored, bookies still have it: the next writer began below it, and has confirmed less."""
    record = STREAM.taken_over(2, OWNER).opened(3, STREAM.fragments)
    for told, known in (((7, 1), 3), ((5, 2), 5), ((NO_ENTRY, 0), 3)):
        machine = LacMachine(record.last_fragment.ensemble, 3, 2, record=record)
        machine.read()
        machine.out = []
        machine.answered(0, Answer.OK, 7, 1)
        machine.answered(1, Answer.OK, *told)
        assert machine.out == [LacFound(known, record_is_stale=False)]


def test_an_add_that_a_newer_term_refuses_ends_the_writer_with_what_can_be_resolved():
    writer = WriterMachine(STREAM, 3)
    writer.append(1, 10)
    writer.add_failed(0, "b0", 0, Answer.INVALID_TERM)
    assert writer.problem.kind is TermSupersededError
    assert writer.problem.kind.code == "term_superseded"
