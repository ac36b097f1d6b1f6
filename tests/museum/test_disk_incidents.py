"""Incidents on a bookie's disk: the real storage over a disk in memory that can be hurt."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

from crc32c import crc32c

from quire.core.answers import Answer
from quire.core.bookie.ledger import LedgerFacts
from quire.core.errors import QuireError
from quire.storage.formats.footer_format import encode_trailer
from quire.storage.formats.segment_format import BLOCK_BYTES
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.reclaiming.reclaim import Reclaimer
from quire.wire.stored_record import seed_at
from quire_testing.kit.disk import Stopped
from support.museum import RedError, incident, require
from support.one_bookie import KEY, Denies, OneBookie, check_nothing_denied, filled, opened
from support.storage_disk import (
    SMALL,
    Answers,
    FaultyFile,
    FaultyFiles,
    make_run,
    put,
    read_all,
    settle,
)


@incident(
    ref="pull/4607",
    title="Garbage collection believes a header that was never written",
    happened=(
        "The header of an entry log, which says where the list of its ledgers is, was written from memory that held "
        "something else. The collector read such a log as holding no ledger and deleted it, with entries of ledgers that "
        "live."
    ),
    ours=(
        "The list of ledgers in a sealed segment's footer is overwritten with zeros, another ledger is deleted, and dead "
        "segments are given back. The list has a checksum: the records are read instead."
    ),
    switch="the list is zeros and everything about it verifies, as if nobody had checked",
    violates="kept",
)
async def test_4607_a_footer_that_names_no_ledger(fault: bool) -> None:
    files = FaultyFiles()
    storage = filled(files)
    segment = storage.segments[1]
    trailer = segment.trailer
    assert trailer is not None
    path = str(storage._files.path(1))
    storage.close(clean=True)
    data = files.nodes[path].data
    data[trailer.directory_offset : trailer.directory_end] = bytes(
        trailer.directory_end - trailer.directory_offset
    )
    if fault:
        place = SMALL.segment_bytes - BLOCK_BYTES
        empty = crc32c(b"", seed_at(segment.seed, trailer.directory_offset))
        lying = trailer._replace(ledgers=0, directory_end=trailer.directory_offset, directory_checksum=empty)
        data[place:] = encode_trailer(lying, segment.seed, place)
    storage = opened(files)
    storage.delete(3, 10**15, Answers(), None)
    settle(storage)
    storage.housekeeping.reclaim()
    settle(storage)
    check_nothing_denied(storage, (1, 2), "kept")
    assert None not in read_all(storage, 1, 0, 59).values()
    assert "footer" in str(storage.report.damages[0])


class Hasty(Reclaimer):
    """Gives a segment's file back before the journal holds that it is retired, and what only it held."""

    def steps(self, *, patient: bool) -> Generator[None, None, int]:
        dead = [
            s for s, segment in self._segments.items() if segment.trailer is not None and segment.live == 0
        ]
        for sequence in dead:
            self._segments.pop(sequence).close()
            self._files.recycle(sequence, keep=self._spares_max)
        return len(dead)
        yield


class GivesBackEarly(LedgerStorage):
    """A storage with a hasty reclaimer."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.housekeeping.reclaimer = Hasty(
            self.segments,
            self.states,
            self.kept,
            self.journal,
            self._files,
            self._clock,
            SMALL.spares_max,
        )


def reclaimed_and_crashed(kind: type[LedgerStorage]) -> FaultyFiles:
    """The only fence of ledger 9 lies in a segment whose entries are all deleted; the segment is reclaimed; kill -9."""
    files = FaultyFiles()
    callback = Answers()
    storage = opened(files, kind)
    storage.put_facts(LedgerFacts(9, key=KEY, fenced=True), callback, None)
    storage.put_facts(LedgerFacts(1, key=KEY), callback, None)
    for first in range(0, 120, 10):
        put(storage, make_run(1, first, first + 9, payload=b"x" * 1500), callback, lac=first - 1)
        settle(storage)
    assert storage.segments[1].trailer is not None
    storage.delete(1, 10**15, callback, None)
    settle(storage)
    storage.housekeeping.reclaim()
    settle(storage)
    storage.close(clean=False)
    return files.crash()


@incident(
    ref="pull/3329",
    title="One store's checkpoint frees the journal of all",
    happened=(
        "One journal, two ledger directories. The first one's cache fills, it is flushed, and the mark up to which the "
        "journal may be forgotten is moved for both. After kill -9 the other one's 30 MB are in no file, and the journal is "
        "not replayed from where they are."
    ),
    ours=(
        "Here the journal is where entries live. Its segments are given back when nothing of any ledger lives in them: the "
        "fence of a quiet ledger in an otherwise dead segment is journaled anew first, and only then may the file go."
    ),
    switch="a reclaimer that gives the file back first",
    violates="I9",
)
async def test_3329_what_only_the_dead_segment_holds(fault: bool) -> None:
    files = reclaimed_and_crashed(GivesBackEarly if fault else LedgerStorage)
    bookie = OneBookie(opened(files))
    facts = bookie.storage.facts(9)
    require(facts is not None and facts.fenced, "I9", f"ledger 9 was fenced; now {facts}")
    assert bookie.add(9, 0, 0) is Answer.FENCED


@incident(
    ref="pull/4740",
    title="The mark of the journal points to a file that was deleted",
    happened=(
        "With journal and ledgers on one disk a flush takes its checkpoint, then flushes the store, which takes a newer "
        "one, persists it and deletes the journal files before it. Then the first, older mark is written over the newer: "
        'it names a file that is gone, and the bookie does not start any more, "Recovery log is missing" (issue 4105).'
    ),
    ours="The same run: after the crash each segment that the newest list names is there, and nothing is put in limbo.",
    switch="a reclaimer that gives the file back first",
    violates="starts",
)
async def test_4740_no_listed_segment_is_missing(fault: bool) -> None:
    storage = opened(reclaimed_and_crashed(GivesBackEarly if fault else LedgerStorage))
    missing = [str(damage) for damage in storage.damages.kept if "missing" in damage.what]
    require(not missing, "starts", "; ".join(missing))
    assert not storage.report.unknown_in_limbo


@incident(
    ref="pull/3956",
    title="One bad record, and the journal behind it is dropped",
    happened=(
        "A bookie killed with -9 leaves a torn journal record and refuses to start (issues 3949, 2220). The option that was "
        "added then skips an invalid record, and with it whatever good records lie behind it in the file."
    ),
    ours=(
        "A record rots in the middle of a segment that is replayed. The bookie starts, everything before and behind it is "
        "served, the hole is named and unknown."
    ),
    switch="what the replay could not read was never there",
    violates="readable",
)
async def test_3956_a_hole_in_the_middle(fault: bool) -> None:
    files = FaultyFiles()
    storage = filled(files)
    unsealed = max(storage.segments)
    record = next(r for r in storage.scan() if r.segment == unsealed and r.ledger_id == 1 and r.first >= 0)
    files.nodes[str(storage._files.path(unsealed))].data[record.offset + 700] ^= 4
    storage.close(clean=False)
    again = opened(files)
    bookie = OneBookie(Denies(again) if fault else again)
    check_nothing_denied(bookie.storage, (1, 2, 3))
    holes = [i for i, payload in read_all(again, 1, 0, 59).items() if payload is None]
    assert holes == list(range(record.first, record.last + 1))
    assert [damage.ledger_id for damage in again.report.damages] == [1]


class LazyFile(FaultyFile):
    """A file whose first sync, when it is new, does nothing."""

    def sync(self) -> None:
        if not self._path.endswith(".seg") and not self._path.endswith("VERSION"):
            self._files.step("sync", self._path)
            return
        super().sync()


class NamedBeforeWritten(FaultyFiles):
    """A disk on which a file has its name before it has its header."""

    def open_to_write(self, path: Path, *, direct: bool) -> FaultyFile:
        super().open_to_write(path, direct=direct)
        return LazyFile(self, self.nodes[str(path)], str(path), direct=direct)


@incident(
    ref="issues/2485",
    title="A file that is there before its header is",
    happened="After a crash an index file existed and was empty. The bookie could not read its header and did not start.",
    ours=(
        "New segments are made again and again, with a crash at every step of every file operation. A header is synced "
        "before the file gets its name: each start succeeds."
    ),
    switch="a disk that names a file before its header is durable",
    violates="starts",
)
async def test_2485_a_name_without_a_header(fault: bool) -> None:
    kind = NamedBeforeWritten if fault else FaultyFiles
    for step in range(1, 70):
        for seed in range(3):
            files = kind(seed=100 * step + seed)
            files.stop_at = step
            try:
                filled(files)
            except Stopped:
                pass
            else:
                return
            left = files.crash()
            try:
                opened(left).close(clean=False)
            except QuireError as error:
                raise RedError("starts", f"crash at step {step}: {error}") from error


class TriesAgain(LedgerStorage):
    """Takes a failed write for an accident: what comes next is written as if it had not been."""

    def flush(self) -> None:
        super().flush()
        self.journal.finish()
        self.journal.failure = None


@incident(
    ref="issues/4855",
    title="A failed flush, and the bookie goes on",
    happened=(
        "A write, flush or force of an entry log fails halfway. The file is shorter than the bookie believes, it goes on "
        "accepting entries, and the places that it then stores in its index point behind what was written: unreadable "
        "after a restart. The proposed change makes the first failure final."
    ),
    ours="The disk fails once, at each step in turn, and works again. No answer leaves after the failure; what was told is there.",
    switch="a bookie that forgets its failure",
    violates="readable",
)
async def test_4855_the_first_failure_is_final(fault: bool) -> None:
    for step in range(6, 16):
        files = FaultyFiles(seed=step)
        bookie = OneBookie(opened(files, TriesAgain if fault else LedgerStorage))
        first_told = _told(bookie, 0)
        files.fail_at = files.steps + 1 + step % 3
        told = first_told + _told(bookie, 10)
        files.fail_at = None
        failed = bookie.storage.failure is not None or fault
        later = _told(bookie, 20) if failed else []
        bookie.storage.close(clean=False)
        again = opened(files.crash())
        found = read_all(again, 1, 0, 29)
        for entry_id in told + later:
            require(
                entry_id in found or again.states.in_limbo(1),
                "readable",
                f"entry {entry_id} was acknowledged and is denied",
            )
        require(not later, "readable", f"entries {later[:1]}… were acknowledged after a write had failed")


def _told(bookie: OneBookie, first: int) -> list[int]:
    """Add ten entries; those that were acknowledged."""
    return list(range(first, first + 10)) if bookie.add(1, first, first + 9) is Answer.OK else []
