"""Every input in every status: it acts, changes nothing, or is refused, as the table says."""

from __future__ import annotations

from inspect import isfunction

import pytest

from quire.core.answers import Answer
from quire.core.errors import LedgerIdReusedError, MisuseError, NotWritingError
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import WRITER_TABLE, Status
from quire_testing.explorer.snapshot import clone, state_of


def record():
    return new_ledger(
        7, ("b1", "b2", "b3"), write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
    )


def machine_in(status):
    """A writer in a status, by the shortest way; a metadata question is open where one can be."""
    machine = WriterMachine(record(), 0)
    machine.append(1, 10)
    if status is Status.CHANGING:
        machine.bookie_lost(2, "b3")
        machine.replacements_chosen({2: "b4"}, 0)
    elif status is Status.CLOSING:
        machine.close()
    elif status is Status.CLOSED:
        machine.close()
        machine.metadata_written(1)
    elif status is Status.ENDED:
        machine.add_failed(0, "b1", 0, Answer.FENCED)
    elif status is Status.ABANDONED:
        machine.abandon()
    machine.out.clear()
    assert machine.status is status
    return machine


INPUTS = {
    "began_without": lambda m: m.began_without([2], 0),
    "append": lambda m: m.append(1, 10),
    "assign_ids": lambda m: m.assign_ids(1, 10),
    "adds_acked": lambda m: m.adds_acked(0, "b1", 0),
    "adds_acked_together": lambda m: m.adds_acked_together(0b11, m.ensemble, 0),
    "confirm_head": lambda m: m.confirm_head(0b11, m.ensemble, 0),
    "add_failed": lambda m: m.add_failed(0, "b1", 0, Answer.TIMED_OUT),
    "bookie_lost": lambda m: m.bookie_lost(0, "b1"),
    "bookie_left": lambda m: m.bookie_left(0, "b1", 0, 5),
    "left_bookies_asked": lambda m: m.left_bookies_asked([(0, "b1")], 0, spare=True),
    "replacements_chosen": lambda m: m.replacements_chosen({}, 0),
    "bookies_found": lambda m: m.bookies_found([], 0, spare=False),
    "timer_fired": lambda m: m.timer_fired(0),
    "metadata_written": lambda m: m.metadata_written(1),
    "metadata_conflicted": lambda m: m.metadata_conflicted(),
    "metadata_unknown": lambda m: m.metadata_unknown(0),
    "metadata_missing": lambda m: m.metadata_missing(),
    "metadata_read": lambda m: m.metadata_read(record(), 1),
    "close": lambda m: m.close(),
    "abandon": lambda m: m.abandon(),
}


def state(machine):
    """Everything but the timer and the look that is under way, which time ends in any status."""
    machine = clone(machine)
    machine.waits.fired()
    machine.waits.looked()
    return state_of(machine)


def test_the_table_names_every_input():
    assert INPUTS.keys() == WRITER_TABLE.rows.keys()
    public = {name for name, what in vars(WriterMachine).items() if name[0] != "_" and isfunction(what)}
    assert public - {"check"} == WRITER_TABLE.rows.keys()


@pytest.mark.parametrize("status", list(Status), ids=lambda status: status.value)
@pytest.mark.parametrize("name", INPUTS)
def test_an_input_does_what_the_table_says(name, status):
    machine = machine_in(status)
    before = state(machine)
    refused = status not in WRITER_TABLE.acts[name]
    # A metadata answer that nobody asked for is the driver's mistake in any status.
    unasked = name == "metadata_read" and status in (Status.CHANGING, Status.CLOSING)
    late = name == "began_without"  # something was appended
    if refused or unasked or late:
        with pytest.raises((NotWritingError, MisuseError)):
            INPUTS[name](machine)
        assert state(machine) == before
    else:
        INPUTS[name](machine)
        assert machine.status in WRITER_TABLE.rows[name].get(status, {status})
    machine.check()
    if not refused and not WRITER_TABLE.acts[name][status]:
        assert state(machine) == before
        assert not machine.out


def test_a_writer_begins_without_slots_before_its_first_entry_only():
    machine = WriterMachine(record(), 0)
    machine.began_without([2], 0)
    machine.check()
    assert machine.absent == (2,)
    for slots in ([2], [3], [-1]):
        with pytest.raises(MisuseError, match="cannot begin without"):
            machine.began_without(slots, 0)
    assert machine.absent == (2,)


@pytest.mark.parametrize("answer", list(Answer), ids=lambda answer: answer.name)
def test_every_answer_to_an_unconfirmed_add_is_decided(answer):
    machine = machine_in(Status.WRITING)
    machine.add_failed(0, "b1", 0, answer)
    machine.check()
    reused = {Answer.WRONG_TOKEN, Answer.DELETED}
    closing = {Answer.UNAUTHORISED, Answer.BAD_REQUEST, *reused}
    if answer in {Answer.FENCED, Answer.INVALID_TERM, *closing}:
        assert machine.problem is not None
        assert (machine.problem.kind is LedgerIdReusedError) == (answer in reused)
        closes = answer in closing
        assert machine.status is (Status.CLOSING if closes else Status.ENDED)
    elif answer is Answer.DAMAGED_IN_TRANSIT:
        assert machine.status is Status.WRITING
    elif answer is not Answer.OK:
        assert machine.status is Status.CHANGING
