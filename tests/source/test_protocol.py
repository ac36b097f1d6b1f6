"""What the protocol says about ledgers, write quorums, writing and closing as a writer. Each test cites what it checks.

Source: BookKeeper protocol; tests/source/test_protocol_recovery.py: fencing and recovery.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace

import pytest

from quire.core.answers import Answer
from quire.core.errors import (
    CorruptMetadataError,
    InvalidQuorumError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    MisuseError,
    OutcomeUnknownError,
)
from quire.core.ids import ID_MAX
from quire.core.ledger.effects import (
    Closed,
    CloseFailed,
    Confirmed,
    Ended,
    RereadMetadata,
    SendRun,
    WriteMetadata,
)
from quire.core.ledger.metadata import DigestType, LedgerState, new_ledger
from quire.core.ledger.quorum import write_set
from quire.core.ledger.writer import WriterMachine
from quire.metadata.connect import open_store
from quire.metadata.keys import LEDGERS
from quire.metadata.records import OF_LEDGERS, RecordStore
from quire.wire.entry import EntryDigest

DIGEST = EntryDigest(DigestType.CRC32C, b"")


def ledger(size=3, write=3, ack=2):
    names = [f"B{number}" for number in range(1, size + 1)]
    return new_ledger(
        1, names, write_quorum=write, ack_quorum=ack, digest_type=DigestType.CRC32C, password=b""
    )


class Writer:
    """A writer with what it said since the last question."""

    def __init__(self, record=None):
        self.machine = WriterMachine(record or ledger(), 0)

    def said(self, kind=None):
        out, self.machine.out = self.machine.out, []
        self.machine.check()
        return [effect for effect in out if kind is None or isinstance(effect, kind)]

    def append(self):
        number = self.machine.window.next_run
        self.machine.append(1, 10)
        return number

    def acked(self, bookie, number):
        self.machine.adds_acked(self.machine.ensemble.index(bookie), bookie, number)

    def confirmed(self, entries):
        """A writer that has this many confirmed entries."""
        for _ in range(entries):
            number = self.append()
            self.acked("B1", number)
            self.acked("B2", number)
        self.said()
        return self


# --- Ledgers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ledger_id", [0, ID_MAX])
def test_id_a_64bit_integer(ledger_id):
    """A signed one, as Java's: where it is a key, in the record and in each entry, the first and the last fit."""
    assert int(OF_LEDGERS.key(ledger_id).removeprefix(LEDGERS)) == ledger_id
    sealed = DIGEST.seal(ledger_id, 0, -1, 0, [b"payload"])[0] + b"payload"
    assert DIGEST.open(sealed, ledger_id, 0).ledger_id == ledger_id


@pytest.mark.parametrize("no_id", [-1, ID_MAX + 1])
def test_no_other_integer_is_an_id(no_id):
    with pytest.raises(MisuseError):
        OF_LEDGERS.key(no_id)
    with pytest.raises(struct.error):  # nor is it as an unsigned one
        DIGEST.seal(no_id % 2**64, 0, -1, 0, [b"payload"])


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_unique_within_the_system(kind, tmp_path):
    """Two clients draw ids at one time, ledgers are deleted, and the store is opened again: no id comes twice."""
    uri = {"memory": f"memory:{tmp_path}", "sqlite": f"sqlite:{tmp_path}/metadata.db"}[kind]

    async def drawn():
        async with await open_store(uri, create=True) as one, await open_store(uri) as other:
            stores = [RecordStore(one, OF_LEDGERS), RecordStore(other, OF_LEDGERS)]
            ids = await asyncio.gather(*(stores[number % 2].next_id() for number in range(40)))
            version = await stores[0].create(replace(ledger(), ledger_id=max(ids)))
            await stores[1].delete(max(ids), version)
            return [*ids, await stores[0].next_id(), await stores[1].next_id()]

    found = await drawn() + await drawn()
    assert len(set(found)) == len(found) == 84


def test_when_creating_the_ledger_e_qw_qa_must_be_in_this_order():
    """ "When creating the ledger, the following invariant must hold. E >= Qw >= Qa"."""
    for size in range(5):
        for write in range(5):
            for ack in range(5):
                if size >= write >= ack >= 1:
                    ledger(size, write, ack)
                else:
                    with pytest.raises(InvalidQuorumError):
                        ledger(size, write, ack)


def test_last_entry_is_null_if_the_state_is_not_closed():
    """ "last entry: the last entry in the ledger, or NULL if state != CLOSED"."""
    record = ledger()
    assert record.last_entry == -1
    assert record.closed(4, 10).last_entry == 4
    with pytest.raises(CorruptMetadataError):
        type(record)(
            **{name: getattr(record, name) for name in record.__slots__ if name != "last_entry"}, last_entry=4
        ).checked()


# --- Ensembles ----------------------------------------------------------------------------------------------------


def test_a_ledger_can_have_multiple_ensembles_but_an_entry_has_only_one():
    """The table of "Ensembles": FirstEntry 0 on B1 B2 B3, 12 on B4 B2 B3."""
    record = ledger().with_ensemble(12, ("B4", "B2", "B3"))
    assert [(part.first_entry, part.ensemble) for part in record.fragments] == [
        (0, ("B1", "B2", "B3")),
        (12, ("B4", "B2", "B3")),
    ]
    assert record.ensemble_of(11) == ("B1", "B2", "B3")
    assert record.ensemble_of(12) == ("B4", "B2", "B3")


# --- Write quorums --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "bookies"),
    [
        (0, ("B1", "B2", "B3")),
        (1, ("B2", "B3", "B4")),
        (2, ("B3", "B4", "B1")),
        (3, ("B4", "B1", "B2")),
        (4, ("B1", "B2", "B3")),
        (5, ("B2", "B3", "B4")),
    ],
)
def test_the_write_quorum_is_the_subsequence_that_starts_at_entryid_mod_e(entry, bookies):
    """ "in a ledger of E = 4, Qw = 3 & Qa = 2 … the write quorums for the first 6 entries will be"."""
    ensemble = ledger(4, 3, 2).last_fragment.ensemble
    assert tuple(ensemble[slot] for slot in write_set(entry, 4, 3)) == bookies
    writer = Writer(ledger(4, 3, 2))
    for _ in range(entry):
        writer.append()
    writer.said()
    writer.append()
    (sent,) = writer.said(SendRun)
    assert {ensemble[slot] for slot in sent.slots} == set(bookies)


def test_there_are_only_e_distinct_write_quorums():
    """ "There are only E distinct write quorums in any ensemble."."""
    for size in range(1, 8):
        for write in range(1, size + 1):
            sets = {frozenset(write_set(entry, size, write)) for entry in range(5 * size)}
            # One where no striping occurs; the document says Qw = Qa there, it means E = Qw.
            assert len(sets) == (1 if write == size else size)


# --- Ack quorums ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["B1", "B2", "B3"])
@pytest.mark.parametrize("second", ["B1", "B2", "B3"])
def test_the_ack_quorum_is_any_subset_of_the_write_quorum_of_size_qa(first, second):
    writer = Writer()
    number = writer.append()
    writer.acked(first, number)
    writer.acked(second, number)
    assert bool(writer.said(Confirmed)) == (first != second)


# --- Writing to the ledger --------------------------------------------------------------------------------------------


def test_acknowledged_to_the_client_only_if_all_lower_ids_have_been():
    """ "… but only if all entries with lower entry ids in the ledger have already been acknowledged"."""
    writer = Writer()
    first, second = writer.append(), writer.append()
    writer.acked("B1", second)
    writer.acked("B2", second)
    assert not writer.said(Confirmed)
    writer.acked("B3", first)
    writer.acked("B1", first)
    assert writer.said(Confirmed) == [Confirmed(0, 1)]


def test_the_entry_contains_the_last_add_confirmed():
    """ "The last add confirmed is the last entry which had been acknowledged to the client when this was written"."""
    writer = Writer().confirmed(5)
    writer.append()
    writer.append()
    assert [sent.lac for sent in writer.said(SendRun)] == [4, 4]


def test_a_new_fragment_starts_at_the_first_message_that_has_not_been_acknowledged():
    """ "the writer will create a new ensemble by replacing the failed node in the current ensemble"."""
    writer = Writer().confirmed(5)
    number = writer.append()
    writer.machine.add_failed(2, "B3", number, Answer.TIMED_OUT)
    writer.machine.replacements_chosen({2: "B4"}, 0)
    (write,) = writer.said(WriteMetadata)
    assert write.record.last_fragment.first_entry == 5
    assert write.record.last_fragment.ensemble == ("B1", "B2", "B4")
    assert write.version == 0


def changing(writer):
    number = writer.append()
    writer.machine.add_failed(2, "B3", number, Answer.TIMED_OUT)
    writer.machine.replacements_chosen({2: "B4"}, 0)
    writer.machine.metadata_conflicted()
    assert writer.said(RereadMetadata) == [RereadMetadata()], (
        "If the CAS write fails … We reread the metadata."
    )
    return writer


def test_if_no_longer_open_an_error_for_outstanding_writes():
    """ "If the state of the ledger is no longer OPEN, we send an error to the client for any outstanding writes."."""
    for record, kind in (
        (ledger().in_recovery(), LedgerFencedError),
        (ledger().in_recovery().closed(3, 1), LedgerClosedError),
    ):
        writer = changing(Writer().confirmed(2))
        writer.machine.metadata_read(record, 9)
        (ended,) = writer.said(Ended)
        assert ended.problem.kind is kind


def test_otherwise_we_try_to_replace_the_failed_node_again():
    writer = changing(Writer().confirmed(2))
    writer.machine.metadata_read(ledger(), 9)
    writer.machine.replacements_chosen({2: "B5"}, 0)
    (write,) = writer.said(WriteMetadata)
    assert (write.record.last_fragment.ensemble, write.version) == (("B1", "B2", "B5"), 9)


# --- Closing a ledger as a writer -----------------------------------------------------------------------------------


def test_closing_sets_closed_and_the_last_acknowledged_entry():
    """ "changing the state to CLOSED, and setting the last entry … to the last entry which we have acknowledged"."""
    writer = Writer().confirmed(3)
    writer.append()
    writer.machine.close()
    (write,) = writer.said(WriteMetadata)
    assert (write.record.state, write.record.last_entry, write.record.length) == (LedgerState.CLOSED, 2, 30)
    writer.machine.metadata_written(1)
    assert writer.said(Closed)


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (ledger(), "retry"),
        (ledger().in_recovery(), LedgerFencedError),
        (ledger().closed(2, 30), "success"),
        (ledger().closed(3, 40), MetadataConflictError),
    ],
    ids=["OPEN", "IN_RECOVERY", "CLOSED same", "CLOSED different"],
)
def test_the_table_of_a_lost_closing_cas(found, outcome):
    """ "We reread the metadata, and retry closing as long as the state of the ledger is still OPEN. If the state is
    IN_RECOVERY we send an error to the client. If the state is CLOSED and the last entry is the same … successfully.
    If the last entry is different … we send an error".
    """
    writer = Writer().confirmed(3)
    writer.machine.close()
    writer.machine.metadata_conflicted()
    writer.said()
    writer.machine.metadata_read(found, 9)
    said = writer.said()
    if outcome == "retry":
        assert said == [WriteMetadata(found.closed(2, 30), 9)]
    elif outcome == "success":
        assert said == [Closed(found)]
    else:
        (failed,) = said
        assert isinstance(failed, CloseFailed)
        assert failed.problem.kind is outcome


# --- Closing a ledger as a reader: what the writer sees of it ---------------------------------------------------------


def test_the_client_gets_a_fenced_error_which_is_treated_like_a_timeout():
    """ "The client will get a LedgerFenced error instead … In effect, LedgerFenced should be treated like a timeout."."""
    writer = Writer().confirmed(1)
    number = writer.append()
    writer.acked("B1", number)
    writer.machine.add_failed(1, "B2", number, Answer.FENCED)
    (ended,) = writer.said(Ended)
    assert ended.problem.kind is LedgerFencedError
    assert issubclass(LedgerFencedError, OutcomeUnknownError)
