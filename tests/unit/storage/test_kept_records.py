"""Records without the critical bit are relocated; critical ones that are not acted on refuse the directory."""

from __future__ import annotations

import pytest

from quire.core.bookie.ledger import LedgerFacts
from quire.core.errors import DamagedSegmentError
from quire.storage.formats import record_bodies as bodies
from quire.storage.formats.segment_format import ALL_LEDGERS, SegmentRecordKind
from quire.storage.formats.state_format import StoredLedgerState, encode_state
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.segments.segment_files import Space
from support.storage_disk import Answers, FaultyFiles, make_run, open_storage, put, settle

UNKNOWN_KIND = 0x3C
KEY = b"k" * 20
COPY = bodies.RECORD_COPY.struct.pack(4, 1_000) + b"the record of ledger 9"


def fill(storage: LedgerStorage, ledger_id: int, callback: Answers) -> None:
    """Entries of a ledger in several segments."""
    storage.put_facts(LedgerFacts(ledger_id, key=KEY), callback, None)
    for first in range(0, 120, 10):
        put(storage, make_run(ledger_id, first, first + 9, payload=b"x" * 1500), callback, lac=first - 1)
        settle(storage)


def read(storage: LedgerStorage, kind: int, ledger_id: int) -> bytes | None:
    """The body of the newest record of a kind and ledger; None if there is none that verifies."""
    location = storage.kept._locations.get(ledger_id, {}).get(kind)
    return None if location is None else storage.kept._read(*location)


def reclaim(storage: LedgerStorage, ledger_id: int, callback: Answers) -> None:
    """Delete a ledger, and give back the segments that held nothing else."""
    storage.delete(ledger_id, 10**15, callback, None)
    settle(storage)
    assert storage.housekeeping.reclaim() > 0
    settle(storage)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", [SegmentRecordKind.RECORD_COPY, UNKNOWN_KIND])
def test_a_kept_record_outlives_its_segment_and_starts(kind: int, clean: bool) -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files)
    storage.put_facts(LedgerFacts(9, key=KEY), callback, None)
    storage.kept.put(kind, 9, b"older")
    storage.kept.put(kind, 9, COPY)
    storage.kept.put(kind, 8, b"of another")
    fill(storage, 1, callback)
    first = min(storage.segments)
    reclaim(storage, 1, callback)
    assert first not in storage.segments
    assert read(storage, kind, 9) == COPY
    for round_ in range(3):
        storage.close(clean=clean)
        storage = open_storage(files)
        assert read(storage, kind, 9) == COPY, round_
        assert read(storage, kind, 8) == b"of another"
        fill(storage, 2 + round_, callback)
        reclaim(storage, 2 + round_, callback)
    storage.close()
    assert not storage.damages.kept


def test_a_newer_one_supersedes_and_a_deletion_ends_it() -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files)
    storage.put_facts(LedgerFacts(9, key=KEY), callback, None)
    storage.kept.put(SegmentRecordKind.RECORD_COPY, 9, b"older")
    settle(storage)
    storage.close()
    storage = open_storage(files)
    storage.kept.put(SegmentRecordKind.RECORD_COPY, 9, COPY)
    assert read(storage, SegmentRecordKind.RECORD_COPY, 9) == COPY
    storage.delete(9, 10**15, callback, None)
    assert read(storage, SegmentRecordKind.RECORD_COPY, 9) is None
    storage.kept.put(SegmentRecordKind.RECORD_COPY, 7, b"seven")
    storage.close()
    again = open_storage(files)
    assert read(again, SegmentRecordKind.RECORD_COPY, 9) is None
    assert read(again, SegmentRecordKind.RECORD_COPY, 7) == b"seven"
    again.close()


def test_a_kept_record_that_rotted_is_named_and_not_relocated() -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files)
    storage.kept.put(SegmentRecordKind.RECORD_COPY, 9, COPY)
    fill(storage, 1, callback)
    sequence, location = storage.kept._locations[9][SegmentRecordKind.RECORD_COPY]
    files.nodes[str(storage._files.path(sequence))].data[location.offset8 * 8 + 110] ^= 1
    assert read(storage, SegmentRecordKind.RECORD_COPY, 9) is None
    assert [damage.ledger_id for damage in storage.damages.kept] == [9]
    reclaim(storage, 1, callback)
    assert len(storage.kept) == 0
    assert storage.damages.kept == [], "its segment was given back"
    storage.close()


@pytest.mark.parametrize(
    ("kind", "body", "what"),
    [
        (0xBC, b"", "kind 0xbc from a newer version; start that version"),
        (
            SegmentRecordKind.TRUNCATE,
            bytes(16),
            r"kind 0x84 \(truncate\), which this version does not act on",
        ),
        (SegmentRecordKind.DAMAGED, b"\0\0\0\1", "a record of damaged intervals has 4 bytes where 36 belong"),
        (SegmentRecordKind.LEDGER_STATE, b"\3" + bytes(99), "version 3; this program reads 2"),
        (
            SegmentRecordKind.LEDGER_STATE,
            encode_state(StoredLedgerState(LedgerFacts(1), 0, 4)),
            "entries dead below 4, which this version does not act on",
        ),
        (SegmentRecordKind.UNNAMED_LIMBO, bytes(12), "an unnamed limbo has 12 bytes where 17 belong"),
        (SegmentRecordKind.TOMBSTONES, b"\0\0\0\7", "a record of tombstones has 4 bytes where 116 belong"),
    ],
)
def test_a_record_in_the_middle_that_cannot_be_acted_on_refuses_the_directory(
    kind: int, body: bytes, what: str
) -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files)
    put(storage, make_run(1, 0, 9), callback)
    settle(storage)
    ledger_id = ALL_LEDGERS if kind in {SegmentRecordKind.UNNAMED_LIMBO, SegmentRecordKind.TOMBSTONES} else 1
    storage.journal.put(kind, ledger_id, body, Space.STATE)
    settle(storage)
    put(storage, make_run(1, 10, 19), callback)
    settle(storage)
    storage.close()
    with pytest.raises(DamagedSegmentError, match=what) as told:
        open_storage(files)
    assert ".seg" in str(told.value.ids["path"])


def test_packed_tombstones_keep_the_dead_dead() -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files)
    for ledger_id in (1, 2, 3):
        put(storage, make_run(ledger_id, 0, 9), callback)
    settle(storage)
    through = storage.journal.durable_lsn
    body = bodies.encode_tombstones([(1, through), (3, through)])
    storage.journal.put(SegmentRecordKind.TOMBSTONES, ALL_LEDGERS, body, Space.STATE)
    put(storage, make_run(3, 20, 29), callback)
    settle(storage)
    for clean in (True, False, True):
        storage.close(clean=clean)
        storage = open_storage(files)
        assert [storage.last_entry(ledger_id) for ledger_id in (1, 2, 3)] == [-1, 9, 29]
        assert storage.read(3, 0, 29, 1 << 20).conclusive_through == 29
        assert sum(len(run) for run in storage.read(3, 0, 19, 1 << 20).runs) == 0
    storage.close()


def test_a_loss_without_a_name_is_remembered_after_it_was_settled() -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files)
    fill(storage, 1, callback)
    storage.close(clean=False)
    lost = sorted(files.segments())[0]
    del files.nodes[lost]
    storage = open_storage(files)
    lost_at = storage.states.unnamed_limbo.lost_at
    assert lost_at == storage.started_lsn > 0
    assert storage.report.unknown_in_limbo
    facts = storage.facts(1)
    assert facts is not None
    assert facts.limbo is not None
    assert facts.limbo.lsn == lost_at, "who ends the limbo names the start that began it"
    storage.clear_unnamed_limbo(callback, None)
    settle(storage)
    for number in (2, 3):
        fill(storage, number, callback)
        storage.close()
        storage = open_storage(files)
        assert storage.states.unnamed_limbo.lost_at == lost_at
        assert not storage.states.unnamed_limbo.unknown
        known = storage.facts(1)
        assert known is not None
        assert known.limbo is not None
        assert known.limbo.lsn == lost_at
    storage.close()
