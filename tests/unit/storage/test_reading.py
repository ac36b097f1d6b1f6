"""What the disk is told before it is read; what comes back is tested in `test_ledger_storage.py` and the properties."""

from __future__ import annotations

import pytest

from quire.storage.config import StorageConfig
from quire.storage.formats.footer_format import OFFSET_UNIT, Row
from quire.storage.index import RunPiece
from quire.storage.segments.byte_ranges import JOINED_GAP_BYTES, byte_ranges
from quire.storage.segments.segment_files import SegmentFiles
from quire.wire.stored_record import RECORD_HEADER_BYTES
from support.storage_disk import Answers, FaultyFiles, make_run, open_storage, put, read_all, settle

CONFIG = StorageConfig(segment_bytes=1 << 20, recent_bytes_max=0)


def piece_at(sequence: int, offset: int, size: int) -> RunPiece:
    """A run of which only the place matters."""
    body_bytes = size - RECORD_HEADER_BYTES
    return RunPiece(0, 0, sequence, Row(1, 0, 0, 0, 1, offset // OFFSET_UNIT, body_bytes, 1, 1, 0, 3, 1, 1))


def test_neighbours_in_a_segment_are_fetched_as_one() -> None:
    gap = JOINED_GAP_BYTES
    assert byte_ranges([]) == []
    assert byte_ranges([piece_at(1, 4096, 800), piece_at(1, 4896, 800)]) == [(1, 4096, 1600)]
    assert byte_ranges([piece_at(1, 4096, 800), piece_at(1, 4896 + gap, 800)]) == [(1, 4096, 1600 + gap)]
    far = [piece_at(1, 4096, 800), piece_at(1, 4904 + gap, 800)]
    assert byte_ranges(far) == [(1, 4096, 800), (1, 4904 + gap, 800)]
    assert len(byte_ranges([piece_at(1, 4096, 800), piece_at(2, 4896, 800)])) == 2
    assert len(byte_ranges([piece_at(1, 4896, 800), piece_at(1, 4096, 800)])) == 2


def test_all_runs_of_an_answer_are_expected_before_the_first_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files, CONFIG)
    for number in range(60):
        put(storage, make_run(number % 2, number // 2, number // 2, payload=bytes(80_000)), callback)
        settle(storage)
    storage.close()
    storage = open_storage(files, CONFIG)
    touched: list[str] = []
    expect, read_at = SegmentFiles.expect, SegmentFiles.read_at

    def expecting(self: SegmentFiles, sequence: int, offset: int, size: int) -> None:
        touched.append("expect")
        expect(self, sequence, offset, size)

    def reading(self: SegmentFiles, sequence: int, offset: int, size: int) -> bytes:
        if size > 80_000:
            touched.append("read")
        return read_at(self, sequence, offset, size)

    monkeypatch.setattr(SegmentFiles, "expect", expecting)
    monkeypatch.setattr(SegmentFiles, "read_at", reading)
    assert len(read_all(storage, 1, 0, 9, 10 << 20)) == 10
    assert touched.count("read") == 10
    assert "expect" not in touched[touched.index("read") :]
    assert touched.count("expect") >= 10


def test_what_is_read_with_low_priority_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    files, callback = FaultyFiles(), Answers()
    storage = open_storage(files, CONFIG)
    for number in range(20):
        put(storage, make_run(number % 2, number // 2, number // 2, payload=bytes(20_000)), callback)
        settle(storage)
    storage.close()
    storage = open_storage(files, CONFIG)
    released: list[tuple[int, int, int]] = []
    release = SegmentFiles.release

    def releasing(self: SegmentFiles, sequence: int, offset: int, size: int) -> None:
        released.append((sequence, offset, size))
        release(self, sequence, offset, size)

    monkeypatch.setattr(SegmentFiles, "release", releasing)
    usual = storage.read(1, 0, 9, 10 << 20)
    assert released == []
    assert [bytes(run) for run in storage.read(1, 0, 9, 10 << 20, low_priority=True).runs] == [
        bytes(run) for run in usual.runs
    ]
    assert sum(size for *_, size in released) >= sum(map(len, usual.runs)) >= 10 * 20_000
