"""Unbounded ledgers with terms as entry identifiers: the take-over, the ranges, the next writer. Each test cites a sentence.

Of "Terms for fencing only" the take-over is here, with its no-op and its truncation; that programs refuse it is cited too.

Source: Vanlightly's unbounded ledgers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from quire.core.answers import Answer
from quire.core.errors import TermSupersededError
from quire.core.ids import NO_ENTRY, EntryId, LedgerId
from quire.core.ledger.effects import (
    LacFound,
    SendLacRead,
    SendRecoveryAdds,
    SendTruncation,
    TakenOver,
    TakeOverSuperseded,
    WriteMetadata,
)
from quire.core.ledger.metadata import DigestType, LedgerMetadata, LedgerState, new_ledger, new_stream
from quire.core.ledger.reader import LacMachine
from quire.core.ledger.terms import StreamMode
from quire.core.ledger.writer import WriterMachine
from quire.core.recovery.take_over import TakeOverMachine
from quire.wire.entries import Entries
from quire.wire.entry import Entry, NoOp
from quire.wire.run import SCHEME_TERMS, RunView, encode_run
from quire.wire.stream_metadata import decode_stream, encode_stream
from quire_testing.explorer.check import check
from quire_testing.explorer.messages import Request
from quire_testing.explorer.stream_bookies import StreamBookie, StreamBookies
from quire_testing.explorer.stream_parts import StreamConfiguration
from quire_testing.explorer.switches import SHIPPED

STREAM = new_stream(
    new_ledger(
        LedgerId(1),
        ("b1", "b2", "b3"),
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"",
    ),
    owner=1,
)


def announced(record: LedgerMetadata = STREAM, owner: int = 7) -> tuple[TakeOverMachine, list[SendLacRead]]:
    """A take-over of a record whose announcement is stored, and whom it asks for the LAC."""
    machine = TakeOverMachine(record, 0, owner, window_entries=1)
    machine.recover()
    [write] = machine.out
    assert isinstance(write, WriteMetadata)
    machine.out = []
    machine.metadata_written(write.record, 1)
    asked = [effect for effect in machine.out if isinstance(effect, SendLacRead)]
    machine.out = []
    return machine, asked


def taken_over(entries: int, silent: int | None = None) -> TakenOver:
    """What a take-over comes to, where each bookie but a silent one has so many entries."""
    machine, _ = announced()
    there = [slot for slot in range(3) if slot != silent]
    for slot in there:
        machine.fence_answered(slot, Answer.OK, NO_ENTRY)
    for entry in range(entries):
        machine.read_answered(there[0], Answer.OK, {entry: 10 * entry + 10}, entry, [])
        for slot in there[1:]:
            machine.read_answered(slot, Answer.OK, {entry: 10 * entry + 10}, entry, [])
        for slot in there:
            machine.adds_answered(slot, f"b{slot + 1}", entry, entry, Answer.OK)
    for slot in there:
        machine.read_answered(slot, Answer.NO_ENTRY, {}, entries, [])
    machine.waited()
    write = machine.out[-1]
    assert isinstance(write, WriteMetadata)
    machine.metadata_written(write.record, 2)
    taken = machine.out[-1]
    assert isinstance(taken, TakenOver)
    return taken


def test_a_take_over_increments_the_term_everywhere() -> None:
    """ "When a client decides it should be the one that writes to the ledger it increments the ledger term both in metadata
    and across the bookies of the last fragment": an integer term
    "that is incremented each time a client decides it should take over".
    """
    machine, asked = announced()
    assert (machine.record.term, machine.record.state) == (2, LedgerState.IN_RECOVERY)
    assert [effect.bookie for effect in asked] == ["b1", "b2", "b3"]


def test_the_record_has_the_new_term_before_a_bookie_is_asked() -> None:
    """ "it increments the term in the ledger metadata and then starts ledger recovery": nothing else is asked before that
    is stored.
    """
    machine = TakeOverMachine(STREAM, 0, 7)
    machine.recover()
    [write] = machine.out
    assert isinstance(write, WriteMetadata)
    assert (write.record.term, write.version) == (2, 0)


def test_the_metadata_has_a_field_for_the_term() -> None:
    """ "The metadata gets a new field for term": it comes back out of the bytes that are stored."""
    record = STREAM.taken_over(5, 9)
    assert decode_stream(encode_stream(record), 1).term == 5


def test_terms_replace_the_fence() -> None:
    """ "Fencing is replaced by terms": a LAC request
    "with the new term, rather than a fencing flag" raises the bookie's term, and the next writer is no recoverer.
    """
    bookies = StreamBookies(3, 3, SHIPPED.rules, SHIPPED.bookie)
    bookie, _, _ = bookies.deliver(StreamBookie(), 1, ("fence", 0, 2), waits=True)
    assert (bookie.known.term, bookie.known.fenced) == (2, False)
    _, [(_, (_, answer, _))], _ = bookies.deliver(bookie, 1, ("add", 0, 0, 0, 0, -1, 2), waits=True)
    assert answer is Answer.OK


@pytest.mark.parametrize(
    ("what", "request_of_term"),
    [
        ("normal adds", lambda term: ("add", 0, 0, 0, 0, -1, term)),
        ("recovery adds", lambda term: ("put", 0, 0, 0, 0, 3, 7, -1, (1,), term)),
        ("recovery LAC reads", lambda term: ("fence", 0, term)),
        ("recovery reads", lambda term: ("read", 0, 0, 0, True, 1, term)),
    ],
)
def test_requests_that_include_the_term(what: str, request_of_term: Callable[[int], Request]) -> None:
    """ "The following requests need to include the current term of the client": each of the four is refused with a lower
    term than the bookie's, changes nothing then, and is accepted with its own.
    """
    bookies = StreamBookies(3, 3, SHIPPED.rules, SHIPPED.bookie)
    before, _, _ = bookies.deliver(StreamBookie(), 1, ("fence", 0, 2), waits=True)
    after, [(_, (_, answer, _))], _ = bookies.deliver(before, 0, request_of_term(1), waits=True)
    assert (what, answer, after) == (what, Answer.INVALID_TERM, before)
    _, [(_, (_, answer, _))], _ = bookies.deliver(before, 1, request_of_term(2), waits=True)
    assert (what, answer) == (what, Answer.OK)


def test_recovery_is_at_the_beginning_of_a_term() -> None:
    """ "Recovery is now performed at the beginning of a term, rather than just when closing a ledger." """
    taken = taken_over(2)
    assert (taken.record.state, taken.last_entry, taken.length) == (LedgerState.OPEN, 1, 20)
    writer = WriterMachine(taken.record, taken.version, last=taken.last_entry, length=taken.length)
    assert writer.append(1, 10) == 2


def test_any_client_writes_and_one_at_a_time() -> None:
    """ "a ledger can be written to by any client, but only one client at a time": in every interleaving of a small world."""
    done = check(StreamConfiguration(), invariants=["U1", "U5"])
    assert done.result.complete
    assert done.result.violation is None


def test_who_is_refused_reengages_on_fresh_metadata() -> None:
    """ "if it is still the leader then reengage refreshing its ledger metadata first" """
    machine, _ = announced()
    machine.fence_answered(0, Answer.INVALID_TERM, NO_ENTRY)
    assert machine.out == [TakeOverSuperseded(None)]
    again, _ = announced(STREAM.taken_over(5, 9), owner=8)
    assert again.record.term == 6


def test_two_clients_that_battle_for_control() -> None:
    """ "So under normal circumstances, there should only be one client trying to write to the ledger but the protocol can
    cope with two or more clients battling for control."
    """
    world = StreamConfiguration(1, 1, 1, 1, entries=0, clients=2, take_overs=2, lost_swaps=1)
    done = check(world, invariants=["U5"])
    assert done.result.complete
    assert done.result.violation is None


def test_a_former_leader_makes_no_progress() -> None:
    """ "the term is simply a fencing mechanism to prevent former leader clients from making progress" """
    record = taken_over(0).record
    writer = WriterMachine(STREAM, 0)
    writer.append(1, 10)
    writer.bookie_lost(2, "b3")
    writer.replacements_chosen({2: "b4"}, 0)
    writer.metadata_conflicted()
    writer.metadata_read(record, 2)
    assert writer.problem is not None
    assert writer.problem.kind is TermSupersededError


def test_a_reader_goes_by_the_lac_of_a_term_that_its_record_reaches() -> None:
    """ "Normal reads do not care about terms. The only thing normal reads should care about is the LAC as always." """
    machine = LacMachine(STREAM.last_fragment.ensemble, 3, 2, record=STREAM)
    machine.read()
    machine.answered(0, Answer.OK, 3, 1)
    machine.answered(1, Answer.OK, 7, 2)
    assert machine.out[-1] == LacFound(EntryId(3), record_is_stale=True)


def test_a_bookie_keeps_a_term_for_a_ledger() -> None:
    """ "bookies only need to store the term in the ledger index as it does with fencing right now": that of the entries is
    part of their name.
    """
    bookies = StreamBookies(3, 3, SHIPPED.rules, SHIPPED.bookie)
    bookie, _, _ = bookies.deliver(StreamBookie(), 0, ("add", 0, 0, 0, 0, -1, 1), waits=True)
    bookie, _, _ = bookies.deliver(bookie, 1, ("fence", 0, 4), waits=True)
    assert (bookie.known.term, bookie.entries) == (4, ((0, 1),))


def test_fragments_and_terms_need_not_line_up() -> None:
    """ "We don't need fragments and terms to line up": a take-over that meets no failure leaves the fragments as they are."""
    assert taken_over(2).record.fragments == STREAM.fragments


def test_the_record_has_the_range_of_each_term() -> None:
    """ "The metadata would need to include the entry range of each term so that
    the client can include the correct term when performing a read of a given entry."
    """
    record = taken_over(2).record
    assert record.ranges == ((1, 0), (2, 2))
    assert [record.origin_of(entry) for entry in (0, 1, 2, 99)] == [1, 1, 2, 2]


def test_entries_of_two_terms_are_not_confused() -> None:
    """ "the uncommitted entry 1 written by c1 could not be confused with entry 1 written by c2 as they would have different
    terms": b1 has that of c1 and never got that of c2.
    """
    bookies = StreamBookies(3, 3, SHIPPED.rules, SHIPPED.bookie)
    b1, _, _ = bookies.deliver(StreamBookie(), 0, ("add", 0, 0, 0, 1, -1, 1), waits=True)
    b2, _, _ = bookies.deliver(StreamBookie(), 1, ("add", 1, 0, 1, 1, 0, 2), waits=True)
    for bookie, found in ((b1, ()), (b2, (1,))):
        _, [(_, (_, answer, payload))], _ = bookies.deliver(
            bookie, 9, ("read", 0, 1, 1, False, 2, 0), waits=True
        )
        assert (answer, payload) == (Answer.OK, (found, 1, ()))


def test_recovered_entries_need_no_guaranteed_write_quorum() -> None:
    """ "we do not need "guaranteed write quorum" on recovery writes": it ends with a bookie away and no spare."""
    assert taken_over(2, silent=2).last_entry == 1


def test_the_term_is_stored_with_every_entry() -> None:
    """ "The downside of this approach is that the term has to be stored with every entry": once for each run of them, and
    in each entry's own header.
    """
    body = encode_run(1, 0, 1, [b"a", b"b"], [1, 1], digest_type=3, origin_term=2, scheme=SCHEME_TERMS)
    run = RunView.parse(body)
    assert [(entry, run.origin_term) for entry in run.ids()] == [(0, 2), (1, 2)]


def fencing(quorum: int = 3) -> TakeOverMachine:
    """A take-over of a stream whose terms only fence, and which holds nothing: its no-op is on its way."""
    assert STREAM.terms is not None
    record = replace(STREAM, write_quorum=quorum, terms=replace(STREAM.terms, mode=StreamMode.FENCING))
    machine, _ = announced(record)
    for slot in range(3):
        machine.fence_answered(slot, Answer.OK, NO_ENTRY)
    machine.out = []
    for slot in range(3):
        machine.read_answered(slot, Answer.OK, {}, 0, [])
    return machine


def test_the_last_entry_written_back_truncates_on_every_bookie_of_the_last_fragment() -> None:
    """ "Terms for fencing only": "it can't leave any dirty entries left by the previous term in the last fragment";
    "including a new “truncate” flag in the last entry written back during recovery";
    "We must guarantee that this last entry is written to all bookies of the last fragment".
    """
    machine = fencing()
    sent = [effect for effect in machine.out if isinstance(effect, SendTruncation)]
    assert [(each.bookie, each.entry_id, each.no_op) for each in sent] == [
        ("b1", 0, True),
        ("b2", 0, True),
        ("b3", 0, True),
    ]
    machine.out = []
    for slot in (0, 2):
        machine.truncation_answered(slot, f"b{slot + 1}", Answer.OK)
    assert machine.out == []
    machine.truncation_answered(1, "b2", Answer.OK)
    [write] = machine.out
    assert isinstance(write, WriteMetadata)


def test_a_bookie_deletes_every_later_entry_of_an_earlier_term() -> None:
    """ "When a bookie receives an entry with the truncate flag, it deletes all entries with a higher entry id." """
    bookies = StreamBookies(3, 3, SHIPPED.rules, SHIPPED.bookie, fencing=True)
    state = StreamBookie()
    for request in (("add", 0, 0, 0, 2, -1, 1), ("truncate", 0, 0, 1, True, -1, 2)):
        state, _, _ = bookies.deliver(state, 0, request, waits=True)
    assert state.entries == ((0, 1), (1, 2))


def test_clients_discard_no_ops() -> None:
    """ "BookKeeper clients will need to be aware of these no-op entries and discard them"."""
    rows = [Entry(LedgerId(1), EntryId(entry_id), NO_ENTRY, 2, b"ab") for entry_id in (0, 2)]
    no_op = NoOp(LedgerId(1), EntryId(1), NO_ENTRY, 2, b"")
    assert list(Entries.of(1, [rows[0], no_op, rows[1]]).of_users()) == rows


def test_what_is_written_back_has_to_reach_its_write_quorum() -> None:
    """ "We only require “guaranteed write quorum” for recovery writes"."""
    assert STREAM.terms is not None
    machine, _ = announced(replace(STREAM, terms=replace(STREAM.terms, mode=StreamMode.FENCING)))
    for slot in range(3):
        machine.fence_answered(slot, Answer.OK, NO_ENTRY)
    machine.read_answered(0, Answer.OK, {0: 2}, 0, [], {0: 1})
    sent = [each for each in machine.out if isinstance(each, SendRecoveryAdds)]
    assert [each.bookie for each in sent] == ["b1", "b2", "b3"]
    machine.out = []
    for slot in (0, 1):
        machine.adds_answered(slot, f"b{slot + 1}", 0, 0, Answer.OK)
    assert machine.out == [], "two are the ack quorum"
    machine.adds_answered(2, "b3", 0, 0, Answer.OK)
    assert machine.out, "it reads on"
