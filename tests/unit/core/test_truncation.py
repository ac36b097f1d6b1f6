"""Dialogues with a take-over of a stream whose terms only fence: the no-op, who must have it, what may be recovered."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.answers import Answer
from quire.core.bookie.rules import BookieRules
from quire.core.ids import NO_ENTRY, BookieId, LedgerId, Slot
from quire.core.ledger.effects import (
    AwaitBookies,
    ChooseReplacements,
    FindReplacements,
    RecoveryFailed,
    RereadMetadata,
    SendRecoveryAdds,
    SendRecoveryRead,
    SendTruncation,
    TakenOver,
    TakeOverSuperseded,
    WaitForAnswers,
    WriteMetadata,
)
from quire.core.ledger.metadata import DigestType, LedgerMetadata, LedgerState, new_ledger, new_stream
from quire.core.ledger.writer import WriterMachine
from quire.core.recovery.machine import RecoveryStatus
from quire.core.recovery.rules import RULES, RecoveryRules
from quire.core.recovery.take_over import TakeOverMachine
from quire.core.transcript import effect_line
from quire_testing.explorer.stream_parts import in_mode

OWNER = 77


def stream(write_quorum: int = 3, ack_quorum: int = 2) -> LedgerMetadata:
    """A stream of three bookies in term 1."""
    ledger = new_ledger(
        LedgerId(7),
        ("b0", "b1", "b2"),
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        digest_type=DigestType.CRC32C,
        password=b"",
    )
    return in_mode(new_stream(ledger, 1), fencing=True)


def said(machine: TakeOverMachine) -> list[Any]:
    machine.check()
    out, machine.out = machine.out, []
    return out


def fenced(
    record: LedgerMetadata | None = None, rules: RecoveryRules = RULES, window: int = 1
) -> TakeOverMachine:
    """A take-over in term 2 whose three bookies know of no LAC: it asks for entry 0, or so many from there."""
    machine = TakeOverMachine(record or stream(), 3, OWNER, rules, window)
    machine.recover()
    [announced] = said(machine)
    machine.metadata_written(announced.record, 4)
    for slot in range(3):
        machine.fence_answered(slot, Answer.OK, NO_ENTRY)
    said(machine)
    return machine


def denies(machine: TakeOverMachine, entry_id: int, slots: tuple[int, ...] = (0, 1, 2)) -> list[Any]:
    for slot in slots:
        machine.read_answered(slot, Answer.OK, {}, entry_id, [])
    machine.waited()
    return [effect for effect in said(machine) if not isinstance(effect, WaitForAnswers)]


def has(machine: TakeOverMachine, slot: int, entry_id: int, origin: int) -> list[Any]:
    """One bookie has an entry, and the others have not."""
    machine.read_answered(slot, Answer.OK, {entry_id: 10}, entry_id, [], {entry_id: origin})
    for other in {0, 1, 2} - {slot}:
        machine.read_answered(other, Answer.OK, {}, entry_id, [])
    machine.waited()
    return [effect for effect in said(machine) if not isinstance(effect, WaitForAnswers)]


def written_back(machine: TakeOverMachine, first: int, last: int | None = None) -> None:
    for slot in range(3):
        machine.adds_answered(slot, f"b{slot}", first, first if last is None else last, Answer.OK)
    said(machine)


def test_a_no_op_that_truncates_goes_to_every_bookie_before_the_record_is_opened() -> None:
    machine = fenced()
    sends = denies(machine, 0)
    assert [effect_line(send, ()) for send in sends] == [
        f"-> b{slot} no-op 0, truncate 0 lac=-1" for slot in range(3)
    ]
    assert machine.truncates
    for slot in (0, 1):
        machine.truncation_answered(slot, f"b{slot}", Answer.OK)
        assert said(machine) == []
    machine.truncation_answered(2, "b2", Answer.OK)
    [write] = said(machine)
    assert (write.record.state, write.record.ranges) == (LedgerState.OPEN, ((1, 0), (2, 0)))
    machine.metadata_written(write.record, 5)
    assert said(machine) == [TakenOver(write.record, 5, 0, 0, ())], "the client writes behind the no-op"


def test_who_is_not_of_the_no_ops_write_set_truncates_only() -> None:
    sends = denies(fenced(stream(write_quorum=2)), 0)
    assert [(send.bookie, send.no_op) for send in sends] == [("b0", True), ("b1", True), ("b2", False)]
    assert effect_line(sends[2], ()) == "-> b2 truncate 0 lac=-1"


def test_an_entry_is_written_back_under_its_origin_term_and_waited_for_on_its_whole_write_set() -> None:
    machine = fenced()
    adds = has(machine, 2, 0, origin=1)
    assert [type(add) for add in adds] == [SendRecoveryAdds] * 3
    assert machine.origin_of(0) == 1
    for slot in (0, 1):
        machine.adds_answered(slot, f"b{slot}", 0, 0, Answer.OK)
        assert said(machine) == [], "the ack quorum is not enough"
    machine.adds_answered(2, "b2", 0, 0, Answer.OK)
    assert [read.first for read in said(machine)] == [1, 1, 1]
    assert [send.entry_id for send in denies(machine, 1)] == [1, 1, 1]


def test_an_entry_of_an_older_term_than_the_one_before_it_is_not_there() -> None:
    """The take-over of term 2 left its no-op, id 0, on one bookie, and what it was to truncate on another."""
    machine = fenced(stream(ack_quorum=3))
    has(machine, 0, 0, origin=2)
    written_back(machine, 0)
    assert machine.origin_of(0) == 2
    assert [type(effect) for effect in has(machine, 1, 1, origin=1)] == [SendTruncation] * 3, (
        "one denial is enough where the ack quorum is all"
    )
    machine = fenced(stream(ack_quorum=3), RULES.but(counts_as_positive=lambda origin, recovered: True))
    has(machine, 0, 0, origin=2)
    written_back(machine, 0)
    assert [type(effect) for effect in has(machine, 1, 1, origin=1)] == [SendRecoveryAdds] * 3


def test_a_window_of_entries_is_recovered_at_once_and_written_back_under_their_origin_terms() -> None:
    machine = fenced(stream().taken_over(2, 5), window=4)
    machine.read_answered(1, Answer.OK, {0: 10, 1: 20, 2: 30}, 3, [], {0: 1, 1: 1, 2: 2})
    adds = said(machine)
    assert [(add.bookie, add.first, add.last) for add in adds] == [("b0", 0, 2), ("b1", 0, 2), ("b2", 0, 2)]
    assert [machine.origin_of(entry) for entry in range(3)] == [1, 1, 2]
    for slot in (0, 2):
        machine.read_answered(slot, Answer.OK, {0: 10, 1: 20}, 3, [], {0: 1, 1: 1})
    written_back(machine, 0, 2)
    for slot in range(3):
        machine.truncation_answered(slot, f"b{slot}", Answer.OK)
    [write] = said(machine)
    assert write.record.ranges == ((1, 0), (2, 2), (3, 3)), "the no-op of term 2, which died, and this one's"


def test_what_was_said_of_later_entries_is_asked_again_where_a_newer_origin_term_makes_them_dirty() -> None:
    """Bookie 0 lacks entry 0 and has what entry 1 was in term 1; bookie 1 has the no-op of a take-over that died."""
    machine = fenced(stream().taken_over(2, 5), window=4)
    machine.read_answered(0, Answer.OK, {1: 20}, 3, [], {1: 1})
    assert said(machine) == []
    machine.read_answered(1, Answer.OK, {0: 10}, 3, [], {0: 2})
    reads = [effect for effect in said(machine) if isinstance(effect, SendRecoveryRead)]
    assert [(read.bookie, read.first, read.last) for read in reads] == [("b0", 1, 4), ("b1", 1, 4)]
    machine.read_answered(0, Answer.OK, {1: 20}, 4, [], {1: 1})
    assert machine.lap == 0, "an older entry behind the no-op is a denial"
    machine.read_answered(2, Answer.OK, {1: 20}, 3, [], {1: 1})
    assert machine.lap == 0, "and so is one that was asked for before"


def opened_in_term_two(write_quorum: int = 3) -> LedgerMetadata:
    """A stream that a second client opened in term 2, from entry 0 on."""
    record = stream(write_quorum)
    return record.taken_over(2, 5).opened(-1, record.fragments)


def test_what_a_bookie_has_outside_its_write_sets_is_left_over() -> None:
    """It was replaced when others truncated, and came back into a fragment in which this entry is not its own."""
    machine = fenced(stream(write_quorum=2), window=4)
    machine.read_answered(2, Answer.OK, {0: 10}, 3, [], {0: 1})
    assert said(machine) == []
    machine.read_answered(1, Answer.OK, {0: 20}, 3, [], {0: 1})
    adds = [effect for effect in said(machine) if isinstance(effect, SendRecoveryAdds)]
    assert [(add.bookie, add.first, add.last) for add in adds] == [("b0", 0, 0), ("b1", 0, 0)]
    assert machine.end.length == 20


def test_an_older_entry_of_a_bookie_that_may_have_lost_entries_denies_nothing() -> None:
    """Its directory was put back: it shows what it had in term 1, and has lost what it acknowledged in term 2."""
    machine = fenced(opened_in_term_two(), window=4)
    machine.read_answered(0, Answer.OK, {0: 10}, 3, [], {0: 2})
    machine.read_answered(1, Answer.OK, {0: 10, 1: 20}, -1, [], {0: 1, 1: 1})
    machine.waited()
    assert not [effect for effect in said(machine) if isinstance(effect, SendTruncation)]
    machine.read_answered(2, Answer.OK, {0: 10, 1: 20}, 3, [], {0: 2, 1: 2})
    assert machine.lap == 1
    assert machine.origin_of(1) == 2


def test_an_entry_of_an_older_term_than_the_record_names_is_not_recovered() -> None:
    machine = fenced(opened_in_term_two(), window=4)
    machine.read_answered(0, Answer.OK, {0: 10, 1: 20}, -1, [], {0: 1, 1: 1})
    assert said(machine) == []
    machine.read_answered(1, Answer.OK, {0: 10, 1: 20}, 3, [], {0: 2, 1: 2})
    assert (machine.lap, machine.origin_of(0), machine.origin_of(1)) == (1, 2, 2)


def test_votes_of_newer_terms_behind_a_rise_stand() -> None:
    record = stream().taken_over(2, 5)
    machine = fenced(record, window=4)
    machine.read_answered(0, Answer.OK, {1: 20, 2: 30}, 3, [], {1: 2, 2: 2})
    machine.read_answered(1, Answer.OK, {0: 10, 1: 20}, 3, [], {0: 2, 1: 1})
    assert machine.lap == 0, "one vote for entry 1 is of an older term: all are asked again"
    machine = fenced(record, window=4)
    machine.read_answered(0, Answer.OK, {1: 20, 2: 30}, 3, [], {1: 2, 2: 2})
    machine.read_answered(1, Answer.OK, {0: 10}, 3, [], {0: 1})
    assert machine.lap == 2
    assert [machine.origin_of(entry) for entry in range(3)] == [1, 2, 2]


def test_a_bookie_that_fails_is_replaced_and_its_successor_gets_the_no_op_too() -> None:
    machine = fenced()
    denies(machine, 0)
    machine.truncation_answered(1, "b1", Answer.TIMED_OUT)
    [find] = said(machine)
    assert isinstance(find, FindReplacements)
    assert (find.slots, find.excluded) == ((1,), ("b1",))
    machine.replacements_found({find.slots[0]: "b9"})
    assert [effect_line(send, ()) for send in said(machine)] == ["-> b9 no-op 0, truncate 0 lac=-1"]
    for slot, bookie in ((0, "b0"), (2, "b2"), (1, "b1")):
        machine.truncation_answered(slot, bookie, Answer.OK)
        assert said(machine) == [], "b1 does not count any more"
    machine.truncation_answered(1, "b9", Answer.OK)
    [write] = said(machine)
    assert [(part.first_entry, part.ensemble) for part in write.record.fragments] == [(0, ("b0", "b9", "b2"))]


def test_what_is_behind_earlier_entries_begins_a_fragment_with_the_no_op() -> None:
    machine = fenced()
    has(machine, 0, 0, origin=1)
    written_back(machine, 0)
    denies(machine, 1)
    machine.truncation_answered(2, "b2", Answer.UNREACHABLE)
    [find] = said(machine)
    machine.replacements_found({find.slots[0]: "b9"})
    for slot, bookie in enumerate(("b0", "b1", "b9")):
        machine.truncation_answered(slot, bookie, Answer.OK)
    write = said(machine)[-1]
    assert [part.first_entry for part in write.record.fragments] == [0, 1]
    assert write.record.ranges[-1] == (2, 1)
    machine.metadata_conflicted()
    assert said(machine) == [RereadMetadata()]
    machine.metadata_read(machine.record, 9)
    assert said(machine) == [WriteMetadata(write.record, 9)], "the truncation stands"


def test_without_a_spare_it_waits_says_for_whom_and_sends_again() -> None:
    machine = fenced()
    denies(machine, 0)
    machine.truncation_answered(0, "b0", Answer.OK)
    machine.truncation_answered(1, "b1", Answer.UNREACHABLE)
    said(machine)
    machine.replacements_found({})
    [waits] = said(machine)
    assert waits == AwaitBookies(("b1",))
    assert effect_line(waits, ()) == "?? wait until b1 or others are there"
    machine.truncation_answered(2, "b2", Answer.OK)
    assert said(machine) == [], "two of three are not all"
    machine.waited_for_bookies()
    assert [send.bookie for send in said(machine)] == ["b1"]
    machine.truncation_answered(1, "b1", Answer.UNREACHABLE)
    [find] = said(machine)
    machine.replacements_found({find.slots[0]: "b9"})
    said(machine)
    machine.truncation_answered(1, "b9", Answer.OK)
    assert (machine.status, machine.truncates) == (RecoveryStatus.CLOSING, False)


@pytest.mark.parametrize("clears_failures", [False, True])
def test_a_bookie_that_failed_may_take_the_place_of_its_successor_after_a_pause(clears_failures) -> None:
    machine = fenced()
    denies(machine, 0)
    for slot, bookie in ((0, "b0"), (2, "b2")):
        machine.truncation_answered(slot, bookie, Answer.OK)
    machine.truncation_answered(1, "b1", Answer.UNREACHABLE)
    machine.replacements_found({Slot(1): BookieId("b9")})
    said(machine)
    machine.truncation_answered(1, "b9", Answer.TIMED_OUT)
    assert said(machine)[-1].excluded == ("b1", "b9"), "it failed a moment ago"
    machine.replacements_found({})
    machine.waited_for_bookies(clears_failures=clears_failures)
    said(machine)
    machine.truncation_answered(1, "b9", Answer.TIMED_OUT)
    [find] = said(machine)
    assert find.excluded == (("b9",) if clears_failures else ("b1", "b9"))
    if not clears_failures:
        return
    machine.replacements_found({Slot(1): BookieId("b1")})
    assert [effect_line(send, ()) for send in said(machine)] == ["-> b1 no-op 0, truncate 0 lac=-1"]
    machine.truncation_answered(1, "b9", Answer.OK)
    assert said(machine) == [], "b9 does not count any more"
    machine.truncation_answered(1, "b1", Answer.OK)
    [write] = said(machine)
    assert [(part.first_entry, part.ensemble) for part in write.record.fragments] == [(0, ("b0", "b1", "b2"))]


def test_a_bookie_with_a_higher_term_ends_it_and_so_does_a_wrong_key() -> None:
    for answer, result in (
        (Answer.INVALID_TERM, TakeOverSuperseded(None)),
        (Answer.UNAUTHORISED, RecoveryFailed(Answer.UNAUTHORISED, ("b1",))),
    ):
        machine = fenced()
        machine.truncation_answered(1, "b1", answer)
        assert said(machine) == [], "nothing was truncated yet"
        denies(machine, 0)
        machine.truncation_answered(1, "b1", answer)
        assert said(machine) == [result]
        machine.truncation_answered(2, "b2", Answer.OK)
        machine.waited_for_bookies()
        assert said(machine) == []


def test_a_writer_chooses_bookies_that_have_truncated_from_where_the_new_fragment_begins() -> None:
    for record, first in ((stream(), 1), (in_mode(stream(), fencing=False), NO_ENTRY)):
        writer = WriterMachine(record, 1)
        writer.append(1, 10)
        for slot in (0, 1):
            writer.adds_acked(slot, BookieId(f"b{slot}"), 0)
        writer.append(1, 10)
        writer.out = []
        writer.bookie_lost(2, BookieId("b2"))
        [choose] = [effect for effect in writer.out if isinstance(effect, ChooseReplacements)]
        assert choose.truncated_from == first
        said_so = effect_line(choose, record.last_fragment.ensemble)
        assert said_so == f"?? replace b2, failed b2{', truncated from 1' if first == 1 else ''}"


@pytest.mark.parametrize(("origin", "term", "taken"), [(1, 2, True), (2, 2, False), (3, 2, False)])
def test_a_truncate_takes_what_has_an_earlier_origin_term(origin: int, term: int, *, taken: bool) -> None:
    """A second copy of it that comes late finds the entries of its own writer, and leaves them."""
    assert BookieRules.truncate_takes(origin, term) is taken
