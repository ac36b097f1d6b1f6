"""Dialogues with a writer whose bookies leave: what it is told is advice, and it asks before it acts.

Source: docs/decisions/034-who-may-recover-an-open-ledger.md; docs/protocol/ensemble-change.md, "Bookies that left".
"""

from quire.core.answers import Answer
from quire.core.ledger.effects import (
    AskLeftBookies,
    ChooseReplacements,
    Confirmed,
    DropUnsent,
    EnsembleChanged,
    SendRun,
    SetTimer,
    SlotAbsent,
    WriteMetadata,
)
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import Status, WriterLimits

B = ("b1", "b2", "b3")
WAIT_MS = 7000


def writer(entries=0, pending=False, limits=WriterLimits()):  # noqa: B008 - it is frozen
    record = new_ledger(7, B, write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b"")
    machine = WriterMachine(record, 1, limits=limits)
    for run in range(entries):
        machine.append(1, 1)
        for slot in range(3):
            machine.adds_acked(slot, B[slot], run)
    if pending:
        machine.append(1, 1)
    machine.out.clear()
    return machine


def said(machine):
    machine.check()
    out, machine.out = machine.out, []
    return out


def asked(machine, *left, spare=True, wait_ms=WAIT_MS):
    """The writer is told who left, waits, asks, and hears who is to be replaced."""
    for slot in left or (2,):
        machine.bookie_left(slot, machine.ensemble[slot], 0, wait_ms)
    machine.timer_fired(wait_ms)
    machine.left_bookies_asked(
        [(slot, machine.ensemble[slot]) for slot in left or (2,)], wait_ms, spare=spare
    )
    return said(machine)


def test_an_idle_writer_waits_then_asks_and_changes_without_an_append():
    machine = writer(entries=2)
    machine.bookie_left(2, "b3", 1000, WAIT_MS)
    assert said(machine) == [SetTimer(1000 + WAIT_MS)]
    machine.bookie_left(2, "b3", 2000, WAIT_MS)  # again, by another list
    assert said(machine) == []
    machine.timer_fired(1000 + WAIT_MS)
    assert said(machine) == [AskLeftBookies(B)]
    machine.left_bookies_asked([(2, "b3")], 9000, spare=True)
    assert said(machine) == [ChooseReplacements((2,), B, (), required=False)]
    machine.replacements_chosen({2: "b4"}, 9000)
    [write] = said(machine)
    assert write.record.last_fragment.ensemble == ("b1", "b2", "b4")
    machine.metadata_written(2)
    assert said(machine) == [DropUnsent(2, "b3"), EnsembleChanged(2, ("b1", "b2", "b4"), (2,))]
    assert machine.status is Status.WRITING


def test_a_busy_writer_asks_at_once_and_is_sent_to_until_another_is_in_the_record():
    machine = writer(pending=True)
    machine.bookie_left(2, "b3", 1000, WAIT_MS)
    assert said(machine) == [SetTimer(1000)]
    machine.timer_fired(1000)
    machine.left_bookies_asked([(2, "b3")], 1000, spare=True)
    machine.append(1, 1)
    sent = [effect for effect in said(machine) if isinstance(effect, SendRun)]
    assert sent[0].slots == (0, 1, 2)
    machine.replacements_chosen({2: "b4"}, 1000)
    machine.adds_acked(2, "b3", 0)
    machine.adds_acked(0, "b1", 0)
    said(machine)
    machine.metadata_written(2)
    drop, changed, *sends = said(machine)
    # What the old bookie acknowledged counts no more, and the new one gets all that is pending.
    assert (drop, changed) == (DropUnsent(2, "b3"), EnsembleChanged(0, ("b1", "b2", "b4"), (2,)))
    assert [(send.run, send.slots) for send in sends] == [(0, (2,)), (1, (2,))]
    machine.adds_acked(2, "b4", 0)
    assert said(machine) == [Confirmed(0, 0)]


def test_without_a_spare_or_with_an_answer_nothing_changes():
    machine = writer(entries=1)
    assert [type(effect) for effect in asked(machine, spare=False)] == [SetTimer, AskLeftBookies]
    machine.bookie_left(1, "b2", 0, 0)
    machine.timer_fired(0)
    machine.left_bookies_asked([], 0, spare=True)  # it answered
    said(machine)
    assert (machine.status, machine.ensemble, machine.absent) == (Status.WRITING, B, ())


def test_who_answers_without_a_registration_leaves_later_if_a_spare_is_there_all_the_time():
    machine = writer(entries=1, pending=True, limits=WriterLimits(left_wait_ms=WAIT_MS))

    def hears(now_ms, *, spare=True):
        machine.bookie_left(2, "b3", now_ms, 0)
        machine.timer_fired(now_ms)
        machine.left_bookies_asked([], now_ms, spare=spare, answered=[(2, "b3")])
        return said(machine)[-1]

    assert hears(0) == SetTimer(WAIT_MS)
    assert hears(3000, spare=False) == AskLeftBookies(
        B
    )  # all have left, or this client sees nothing: it begins anew
    assert hears(6000) == SetTimer(6000 + WAIT_MS)
    machine.timer_fired(5999 + WAIT_MS)
    assert said(machine) == [SetTimer(6000 + WAIT_MS)]
    machine.timer_fired(6000 + WAIT_MS)
    machine.left_bookies_asked([], 8000, spare=True)  # it is registered again
    assert (said(machine), machine.waits.answering) == ([AskLeftBookies(B)], {})
    hears(9000)
    assert machine.status is Status.WRITING
    assert hears(9000 + WAIT_MS) == ChooseReplacements((2,), B, (), required=False)


def test_a_spare_that_is_taken_meanwhile_leaves_the_slot_as_it_is():
    machine = writer(entries=1, pending=True)
    asked(machine)
    machine.replacements_chosen({}, 0)
    assert said(machine) == []
    assert (machine.status, machine.absent, machine.change.leaving) == (Status.WRITING, (), {})
    machine.adds_acked(2, "b3", 1)
    machine.adds_acked(0, "b1", 1)
    assert said(machine)[0] == Confirmed(1, 1)


def test_after_an_outage_of_the_store_all_have_left_and_the_writer_goes_on():
    """Sessions end while the store is away; it is back before the bookies have registered again."""
    machine = writer(entries=1, limits=WriterLimits(quorum_wait_ms=0))
    for slot in range(3):
        machine.bookie_left(slot, B[slot], 0, WAIT_MS)
    machine.append(1, 1)
    machine.timer_fired(WAIT_MS)
    machine.left_bookies_asked([(slot, B[slot]) for slot in range(3)], WAIT_MS, spare=False)
    said(machine)
    for slot in range(3):
        machine.adds_acked(slot, B[slot], 1)
    assert Confirmed(1, 1) in said(machine)
    assert (machine.status, machine.absent) == (Status.WRITING, ())
    # One spare for three that are silent: it takes one slot, and the other two stay.
    asked(machine, 0, 1, 2)
    machine.replacements_chosen({0: "b4"}, WAIT_MS)
    machine.metadata_written(2)
    said(machine)
    assert (machine.status, machine.ensemble, machine.absent) == (Status.WRITING, ("b4", "b2", "b3"), ())


def test_a_bookie_that_left_and_then_fails_is_one_that_failed():
    for chosen in ({}, {2: "b4"}):
        machine = writer(entries=1, pending=True)
        asked(machine)
        machine.add_failed(2, "b3", 1, Answer.UNREACHABLE)  # while a bookie for it is chosen
        assert said(machine) == [DropUnsent(2, "b3")]
        machine.replacements_chosen(chosen, 0)
        out = said(machine)
        assert [type(effect) for effect in out] == ([WriteMetadata] if chosen else [SlotAbsent, SetTimer])
    machine = writer(entries=1, pending=True)
    asked(machine)
    machine.replacements_chosen({2: "b4"}, 0)
    machine.add_failed(2, "b3", 1, Answer.UNREACHABLE)  # while the record is stored
    machine.metadata_written(2)
    assert [type(effect) for effect in said(machine)] == [WriteMetadata, DropUnsent, EnsembleChanged, SendRun]


def test_a_lost_cas_of_it_is_done_again_and_one_that_landed_is_taken():
    machine = writer(entries=1)
    asked(machine)
    machine.replacements_chosen({2: "b4"}, 0)
    [write] = said(machine)
    machine.metadata_conflicted()
    machine.metadata_read(writer().record, 2)
    assert isinstance(said(machine)[-1], ChooseReplacements)
    machine.replacements_chosen({2: "b4"}, 0)
    said(machine)
    machine.metadata_unknown(0)
    machine.metadata_read(write.record, 3)
    assert said(machine)[-1] == EnsembleChanged(1, ("b1", "b2", "b4"), (2,))


def test_what_is_said_during_a_change_is_asked_after_it():
    machine = writer(entries=1, pending=True)
    machine.bookie_lost(0, "b1")
    machine.bookie_left(2, "b3", 50, WAIT_MS)
    machine.left_bookies_asked([(2, "b3")], 60, spare=True)  # an answer to an earlier question
    machine.replacements_chosen({0: "b4"}, 60)
    said(machine)
    machine.metadata_written(2)
    assert said(machine)[-1] == SetTimer(60)
    machine.timer_fired(60)
    assert said(machine) == [AskLeftBookies(("b4", "b2", "b3"))]


def test_a_slot_without_a_bookie_and_an_old_bookie_are_no_business_of_it():
    machine = writer(entries=1, pending=True)
    machine.bookie_lost(2, "b3")
    machine.replacements_chosen({}, 0)
    said(machine)
    machine.bookie_left(2, "b3", 0, WAIT_MS)
    machine.bookie_left(1, "other", 0, WAIT_MS)
    assert said(machine) == []
    machine.left_bookies_asked([(2, "b3"), (1, "other")], 0, spare=True)
    assert (said(machine), machine.status) == ([], Status.WRITING)
