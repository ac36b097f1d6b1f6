"""Cut at every byte, bits flipped anywhere: it starts, it says what is wrong, and it never denies what it acknowledged."""

from __future__ import annotations

import random

import pytest

from quire.core.bookie.ledger import LedgerFacts
from quire.core.errors import DamagedSegmentError, WrongDirectoryError
from quire.core.ids import BookieId
from quire.storage.directory.identity import Identity
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.starting import first_group
from support.rounds import rounds
from support.storage_disk import (
    SMALL,
    Answers,
    FaultyFiles,
    make_run,
    open_storage,
    put,
    read_all,
    settle,
)

ENTRIES = {
    (ledger_id, entry_id): b"x" * 1000 + b"/%d" % entry_id
    for ledger_id in (1, 2, 3)
    for entry_id in range(60)
}
FENCED = 2
LAST = {(4, entry_id): b"end/%d" % entry_id for entry_id in range(3)}


def fill(files: FaultyFiles, *, last: bool = True) -> LedgerStorage:
    """Three ledgers over a few segments, one fenced; a fourth one's entries in the last group."""
    callback = Answers()
    storage = open_storage(files)
    for ledger_id in (1, 2, 3, 4):
        storage.put_facts(LedgerFacts(ledger_id, key=b"k" * 20, fenced=ledger_id == FENCED), callback, None)
    settle(storage)
    for first in range(0, 60, 10):
        for ledger_id in (1, 2, 3):
            put(storage, make_run(ledger_id, first, first + 9, payload=b"x" * 1000), callback, lac=first - 1)
        settle(storage)
    if last:
        put(storage, make_run(4, 0, 2, payload=b"end"), callback)
        settle(storage)
    assert all(error is None for _, error in callback.told)
    return storage


def newest(files: FaultyFiles) -> str:
    return files.segments()[-1]


def judge(storage: LedgerStorage, expected: dict[tuple[int, int], bytes]) -> int:
    """How many of the acknowledged entries are unknown; none may be wrong or denied."""
    unknown = 0
    for ledger_id in {ledger_id for ledger_id, _ in expected}:
        found = read_all(storage, ledger_id, 0, 70)
        for (ledger, entry_id), payload in expected.items():
            if ledger != ledger_id:
                continue
            if entry_id not in found:
                assert storage.states.in_limbo(ledger_id), f"entry {entry_id} of ledger {ledger_id} is denied"
                unknown += 1
            elif found[entry_id] is None:
                unknown += 1
            else:
                assert found[entry_id] == payload
    facts = storage.facts(FENCED)
    assert (facts is not None and facts.fenced) or storage.states.in_limbo(FENCED)
    return unknown


def test_nothing_is_wrong_with_a_disk_that_nobody_touched() -> None:
    for clean in (True, False):
        files = FaultyFiles()
        fill(files).close(clean=clean)
        storage = open_storage(files)
        assert judge(storage, ENTRIES | LAST) == 0
        assert (storage.report.clean, storage.damages.kept, storage.report.torn) == (clean, [], [])
        assert not storage.states.in_limbo(99)


def last_group(files: FaultyFiles) -> int:
    """Where the last group begins: the one with the entries of ledger 4."""
    data = bytes(files.nodes[newest(files)].data)
    return data.rindex(b"\xd1QGRP\r\n\x1a")


@pytest.mark.parametrize("how", ["zeros", "garbage", "cut file"])
def test_the_last_group_cut_at_every_byte(how: str) -> None:
    files = FaultyFiles()
    fill(files).close(clean=False)
    path = newest(files)
    start = last_group(files)
    end = start + 1024 + 104 + 56 + 12 + 3 * (36 + 5) + 8
    chance = random.Random(5)
    for cut in range(start, end + 8, rounds(13, 1)):
        copy = files.copy()
        node = copy.nodes[path]
        rest = len(node.data) - cut
        if how == "zeros":
            node.data[cut:] = bytes(rest)
        elif how == "garbage":
            node.data[cut : start + 4096] = chance.randbytes(start + 4096 - cut)
        else:
            del node.data[cut:]
        storage = open_storage(copy)
        report = storage.report
        judge(storage, ENTRIES)
        found = read_all(storage, 4, 0, 5)
        whole = all(found.get(i) == payload for (_, i), payload in LAST.items())
        if how == "cut file":
            assert any((damage.file, damage.offset) == (path, cut) for damage in report.damages)
            assert report.unknown_in_limbo
        elif whole:
            assert how == "garbage" or report.torn == []
        elif cut > start or how == "garbage":
            assert [(torn.file, torn.offset) for torn in report.torn] == [(path, start)]
            # In a group whose header is there, only of the ledgers that it names nothing is denied.
            assert report.limbo == ([4] if cut >= start + 1024 else [1, 2, 3, 4])
            assert storage.states.in_limbo(4)
            assert report.unknown_in_limbo == (cut < start + 1024)
        # A second start finds the same, and nothing new.
        storage.close(clean=True)
        again = open_storage(copy)
        assert again.report.clean
        assert again.report.torn == again.report.damages == []
        judge(again, ENTRIES)
        assert again.states.in_limbo(4) or whole or (how, cut) == ("zeros", start)
        assert again.report.unknown_in_limbo == report.unknown_in_limbo


def flip(files: FaultyFiles, path: str, offset: int, bits: int = 1) -> None:
    files.nodes[path].data[offset] ^= bits


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_bit_anywhere_is_never_a_denial(clean: bool) -> None:
    files = FaultyFiles()
    fill(files).close(clean=clean)
    chance = random.Random(11)
    named = 0
    for number in range(rounds(150, 2000)):
        copy = files.copy()
        path = chance.choice(copy.segments())
        offset = chance.randrange(4096, len(copy.nodes[path].data))
        flip(copy, path, offset, 1 << chance.randrange(8))
        storage = open_storage(copy)
        unknown = judge(storage, ENTRIES | LAST)
        report = storage.report
        if unknown:
            named += 1
            places = [*report.damages, *storage.damages.kept, *report.torn]
            assert any(place.file == path for place in places)
            if report.damages and report.damages[0].ledger_id > 0 and not report.limbo:
                # A damaged body: its record is named, and only its entries are unknown.
                assert unknown <= 10
                assert report.damages[0].offset <= offset
        storage.close(clean=bool(number & 1))
        again = open_storage(copy)
        judge(again, ENTRIES | LAST)
    assert named > 10


def test_rot_that_comes_while_it_runs_is_unknown_and_named() -> None:
    files = FaultyFiles()
    storage = fill(files)
    settle(storage)
    record = next(r for r in storage.scan() if r.kind == 0x81 and r.ledger_id == 1 and r.first == 20)
    path = str(storage._files.path(record.segment))
    flip(files, path, record.offset + 500)
    found = read_all(storage, 1, 0, 59)
    assert [i for i, payload in found.items() if payload is None] == list(range(20, 30))
    assert storage.read(1, 0, 59, 1 << 20).damaged == [(20, 29)]
    (damage,) = storage.damages.kept
    assert (damage.file, damage.offset, damage.ledger_id, damage.first, damage.last) == (
        path,
        record.offset,
        1,
        20,
        29,
    )
    read_all(storage, 1, 0, 59)
    assert len(storage.damages.kept) == 1
    # A repair writes the entries again; then they are known.
    assert [held[:2] for held in storage.good_from(1, 0)] == [(0, 19), (30, 59)], (
        "whoever repairs it asks what is here"
    )
    put(storage, make_run(1, 20, 24, payload=b"x" * 1000), Answers(), recovery=True)
    assert [(one.first, one.last) for one in storage.damages.kept] == [(25, 29)]
    put(storage, make_run(1, 25, 29, payload=b"x" * 1000), Answers(), recovery=True)
    settle(storage)
    assert None not in read_all(storage, 1, 0, 59).values()
    assert storage.damages.kept == []
    assert [held[:2] for held in storage.good_from(1, 0)] == [(0, 59)]


def test_a_read_error_is_unknown() -> None:
    files = FaultyFiles()
    storage = fill(files)
    files.bad_reads = "0000000000000001.seg"
    found = read_all(storage, 1, 0, 59)
    assert found[0] is None
    assert "cannot be read" in storage.damages.kept[0].what
    held = storage.read(1, 0, 59, 1 << 20)
    assert held.unknown
    assert held.damaged == [], "nobody has seen its bytes"


def test_rows_that_cannot_be_read_are_unknown_and_not_damaged() -> None:
    files = FaultyFiles()
    fill(files).close(clean=True)
    storage = open_storage(files)
    files.bad_reads = "0000000000000001.seg"
    held = storage.read(1, 0, 59, 1 << 20)
    assert held.unknown
    assert held.damaged == []


def test_a_bad_footer_costs_a_scan_and_nothing_else() -> None:
    files = FaultyFiles()
    fill(files).close(clean=True)
    path = files.segments()[0]
    size = len(files.nodes[path].data)
    for offset in (size - 4096 + 20, size - 2 * 4096 + 10, size - 2 * 4096 + 300, size - 2 * 4096 + 900):
        copy = files.copy()
        flip(copy, path, offset)
        storage = open_storage(copy)
        judge(storage, ENTRIES | LAST)
        settle(storage)  # rows that do not verify are found by reads
        assert judge(storage, ENTRIES | LAST) == 0
        assert storage.damages.kept == []
        assert not storage.report.unknown_in_limbo
        assert storage.report.limbo == []
        storage.close(clean=True)
        again = open_storage(copy)
        assert again.report.damages == []
        assert judge(again, ENTRIES | LAST) == 0


def test_a_footer_that_rots_while_it_runs_is_read_again_from_the_records() -> None:
    files = FaultyFiles()
    fill(files).close(clean=True)
    storage = open_storage(files)
    path = files.segments()[0]
    trailer = storage.segments[1].trailer
    assert trailer is not None
    for offset in range(trailer.rows_offset, trailer.directory_offset, 64):
        flip(files, path, offset)
    assert storage.read(1, 0, 9, 1).unknown == [(0, 9)], "it is not read while somebody waits"
    assert "footer" in storage.damages.kept[0].what
    settle(storage)
    assert judge(storage, ENTRIES | LAST) == 0
    assert storage.damages.kept == [], "the footer was written anew"
    assert storage.segments[1].trailer is not None
    assert judge(open_storage(files), ENTRIES | LAST) == 0


def test_a_missing_segment_is_noticed() -> None:
    files = FaultyFiles()
    fill(files).close(clean=True)
    for path in files.segments():
        copy = files.copy()
        del copy.nodes[path]
        storage = open_storage(copy)
        judge(storage, ENTRIES | LAST)
        assert any(damage.file == path and "missing" in damage.what for damage in storage.damages.kept)
        assert storage.report.unknown_in_limbo
        assert storage.states.in_limbo(99)


def test_an_old_copy_of_a_segment_is_noticed() -> None:
    files = FaultyFiles()
    storage = open_storage(files)
    callback = Answers()
    put(storage, make_run(1, 0, 9), callback)
    settle(storage)
    old = bytes(files.nodes[files.segments()[0]].data)
    for first in range(10, 200, 10):
        put(storage, make_run(1, first, first + 9, payload=b"x" * 1000), callback)
        settle(storage)
    storage.close(clean=True)
    files.nodes[files.segments()[0]].data[:] = old
    storage = open_storage(files)
    judge(storage, {(1, i): (b"x" * (100 if i < 10 else 1000)) + b"/%d" % i for i in range(200)})
    assert storage.states.in_limbo(99)


@pytest.mark.parametrize("offset", [0, 9, 30, 33, 70, 4000, 4095])
def test_a_damaged_segment_header_refuses_the_start_by_name(offset: int) -> None:
    files = FaultyFiles()
    fill(files).close(clean=True)
    path = files.segments()[1]
    flip(files, path, offset)
    with pytest.raises(DamagedSegmentError, match="offset 0") as raised:
        open_storage(files)
    assert path in str(raised.value)
    assert raised.value.ids["path"] == path


def test_swapped_files_and_foreign_segments_refuse_the_start() -> None:
    files = FaultyFiles()
    fill(files).close(clean=True)
    one, two = files.segments()[:2]
    swapped = files.copy()
    swapped.nodes[one], swapped.nodes[two] = swapped.nodes[two], swapped.nodes[one]
    with pytest.raises(DamagedSegmentError, match="misplaced"):
        open_storage(swapped)
    with pytest.raises(WrongDirectoryError, match="belongs to bookie"):
        open_storage(files, identity=Identity("cluster-1", BookieId("b2.xxxxx")))


def test_old_bytes_of_a_recycled_segment_never_come_back() -> None:
    files = FaultyFiles()
    callback = Answers()
    storage = open_storage(files)
    for round_number in range(6):
        ledger_id = 10 + round_number
        storage.put_facts(LedgerFacts(ledger_id, key=b"k" * 20), callback, None)
        for first in range(0, 300, 10):
            put(storage, make_run(ledger_id, first, first + 9, payload=b"x" * 1000), callback)
            settle(storage)
        storage.delete(ledger_id, 10**15, callback, None)
        settle(storage)
        assert storage.housekeeping.reclaim()
        settle(storage)
    for first in range(0, 200, 10):
        put(storage, make_run(1, first, first + 9, payload=b"x" * 1000), callback)
        settle(storage)
    assert storage.segments[max(storage.segments)].recycled
    for clean in (False, True, False):
        storage.close(clean=clean)
        storage = open_storage(files)
        assert storage.damages.kept == storage.report.torn == []
        assert storage.report.limbo == []
        assert len(read_all(storage, 1, 0, 300)) == 200
        for ledger_id in range(10, 16):
            facts = storage.facts(ledger_id)
            assert facts is not None
            assert facts.deleted_until_ms == 10**15
            assert storage.held(ledger_id) == []


def test_a_forged_group_inside_an_entry_is_not_taken_for_one() -> None:
    """A payload that looks like a group or a record of this segment, where a scan for the next group comes by."""
    files = FaultyFiles()
    storage = open_storage(files)
    callback = Answers()
    put(storage, make_run(1, 0, 2), callback)
    settle(storage)
    group = bytes(files.nodes[newest(files)].data[8192:12288])
    put(storage, make_run(5, 0, 0, payload=group * 4), callback)
    settle(storage)
    put(storage, make_run(1, 3, 5), callback)
    settle(storage)
    start = bytes(files.nodes[newest(files)].data).index(b"\xd1QGRP", 12288)
    storage.close(clean=False)
    flip(files, newest(files), start)
    again = open_storage(files)
    assert judge(again, {(1, i): b"x" * 100 + b"/%d" % i for i in range(6)}) == 0
    assert again.states.in_limbo(5)


def test_bytes_behind_a_clean_stop_are_a_start_that_was_cut() -> None:
    """A process that goes on in a segment writes its start behind the clean stop: a power cut there is no damage."""
    files = FaultyFiles()
    storage = fill(files)
    storage.close(clean=True)
    end = storage.segments[max(storage.segments)].data_end
    files.nodes[newest(files)].data[end : end + 3] = b"abc"
    again = open_storage(files)
    assert not again.report.clean
    assert again.report.damages == []
    assert [torn.offset for torn in again.report.torn] == [end]
    assert again.states.in_limbo(99)
    assert judge(again, ENTRIES | LAST) == 0


def test_unnamed_limbo_ends_when_it_is_cleared() -> None:
    files = FaultyFiles()
    fill(files).close(clean=False)
    flip(files, newest(files), last_group(files) + 3)
    storage = open_storage(files)
    assert storage.states.in_limbo(99)
    assert storage.states.in_limbo(1)
    callback = Answers()
    storage.clear_unnamed_limbo(callback, "cleared")
    settle(storage)
    assert callback.ok == ["cleared"]
    assert not storage.states.in_limbo(99)
    assert storage.states.in_limbo(1)
    storage.put_facts(LedgerFacts(1, key=b"k" * 20, fenced=True), callback, None)
    settle(storage)
    assert not storage.states.in_limbo(1)
    for clean in (True, False, True):
        storage.close(clean=clean)
        storage = open_storage(files)
        assert not storage.states.in_limbo(99)
        assert not storage.states.in_limbo(1)
        assert storage.states.in_limbo(2)
        assert storage.states.in_limbo(3)


def test_an_unnamed_limbo_outlives_the_segment_that_it_was_written_in() -> None:
    files = FaultyFiles()
    fill(files).close(clean=False)
    flip(files, newest(files), last_group(files) + 3)
    storage = open_storage(files)
    callback = Answers()
    for round_number in range(4):
        ledger_id = 50 + round_number
        for first in range(0, 200, 10):
            put(storage, make_run(ledger_id, first, first + 9, payload=b"x" * 1000), callback)
            settle(storage)
        storage.delete(ledger_id, 10**15, callback, None)
        for old in (1, 2, 3, 4):
            storage.delete(old, 10**15, callback, None) if round_number == 0 and old != FENCED else None
        settle(storage)
        storage.housekeeping.reclaim()
        settle(storage)
    storage.close(clean=True)
    again = open_storage(files)
    assert again.report.clean
    assert again.states.in_limbo(99)
    assert again.states.in_limbo(FENCED)
    assert judge(again, {key: value for key, value in ENTRIES.items() if key[0] == FENCED}) == 0


def test_the_small_config_is_what_these_tests_think() -> None:
    files = FaultyFiles()
    storage = fill(files)
    assert len(storage.segments) >= 2
    assert SMALL.recent_bytes_max == 0


def test_names_that_cannot_be_written_down_are_a_loss_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torn group names a ledger of which nothing else tells, and the start's group has no room for its state."""
    monkeypatch.setattr(first_group, "ROOM_FOR_LISTS", 1 << 30)
    files, callback = FaultyFiles(), Answers()
    storage = fill(files)
    storage.put_facts(LedgerFacts(9, key=b"k" * 20, fenced=True), callback, None)
    settle(storage)
    storage.close(clean=False)
    node = files.nodes[newest(files)]
    start = last_group(files)
    node.data[start + 1024 :] = bytes(len(node.data) - start - 1024)
    for clean in (False, True):
        storage = open_storage(files)
        assert storage.states.unnamed_limbo.lost_at
        assert storage.states.in_limbo(9)
        assert storage.states.in_limbo(77), "and of others as little is known"
        storage.close(clean=clean)


def test_a_loss_that_is_named_is_not_one_of_every_ledger() -> None:
    files = FaultyFiles()
    fill(files).close(clean=False)
    node = files.nodes[newest(files)]
    start = last_group(files)
    node.data[start + 1024 :] = bytes(len(node.data) - start - 1024)
    storage = open_storage(files)
    assert storage.states.in_limbo(4)
    assert not storage.states.unnamed_limbo.lost_at
