"""What bookies do between power cuts: the recorded runs whose crash images `make full` goes through.

Each is a function of a `BookieRun`. Sizes are chosen so that segments of 128 KiB roll, fill and die within a few dozen
operations of the disk.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.core.ids import ID_MAX
from quire.storage.config import KIB, StorageConfig
from quire.storage.directory.identity import open_identity
from quire.storage.starting.rebuild import rebuild
from quire_testing.crash.bookie_run import CLUSTER, DIRECTORY, NAME, ROLL_BYTES, SMALL, BookieRun
from quire_testing.crash.stream_workloads import dead_take_overs, take_overs, truncations
from quire_testing.kit.disk import Stopped

Work = Callable[[BookieRun], None]
SIZES = (1, 100, 500, 1000, 3000, 4096, 9000, 20_000)


@dataclass(frozen=True, slots=True)
class DiskWorkload:
    """A run by its name.

    Attributes:
        name: what people call it.
        work: what happens.
        config: the disk's settings.
        capacity: bytes of the whole disk, None without a limit.
        depth: how many starts in a row may be cut. On a full disk each that is torn takes a segment of the reserve of two.
    """

    name: str
    work: Work
    config: StorageConfig = SMALL
    capacity: int | None = None
    depth: int = 3


def sizes(run: BookieRun) -> None:
    """Single entries from one byte to more than a group holds."""
    for entry_id, size in enumerate(SIZES):
        run.add(1, entry_id, size=size, lac=entry_id - 1)
        run.settle()


def groups(run: BookieRun) -> None:
    """Many adds wait while a write is under way and go into the next one together."""
    entry_id = 0
    for turn in range(6):
        for ledger_id in (1, 2, 3):
            run.add(ledger_id, entry_id, count=1 + turn, size=700, lac=entry_id - 1)
        run.flush()
        for ledger_id in (2, 3):
            run.add(ledger_id, entry_id + 1 + turn, size=50)
        run.flush()
        run.step()
        entry_id += 2 + turn
    run.settle()


def many_ledgers(run: BookieRun) -> None:
    """One group with more ledgers than its header can name."""
    for ledger_id in range(1, 51):
        run.add(ledger_id, 0, size=30)
    run.settle()
    for ledger_id in range(1, 51, 7):
        run.add(ledger_id, 1, size=300, lac=0)
        run.settle()


def fences(run: BookieRun) -> None:
    """Fences alone, between adds, and with a term; a recoverer writes behind the fence."""
    for ledger_id in (1, 2):
        run.add(ledger_id, 0, count=3, size=200)
    run.add(3, 0, count=3, size=200, term=4)
    run.settle()
    run.fence(1)
    run.settle()
    run.add(2, 3, size=100)
    run.fence(2)
    run.flush()
    run.fence(4)
    run.settle()
    run.fence(3, term=5)
    run.settle()
    run.add(1, 3, count=2, size=600, recovery=True)
    run.fence(3, term=6)
    run.settle()


def lacs(run: BookieRun) -> None:
    """LACs that come with entries, and explicit ones, over a clean stop."""
    for entry_id in range(6):
        run.add(1, entry_id, size=150, lac=entry_id - 1)
        run.add(2, entry_id, size=150, lac=max(-1, entry_id - 3))
        run.settle()
    run.explicit_lac(1, 5)
    run.settle()
    run.explicit_lac(2, 4)
    run.stop()
    run.explicit_lac(2, 5)
    run.add(1, 6, size=100, lac=5)
    run.settle()


def rolls(run: BookieRun) -> None:
    """Segments fill and are sealed while the next ones are written."""
    for entry_id in range(24):
        run.add(1 + entry_id % 2, entry_id // 2, size=ROLL_BYTES, lac=entry_id // 2 - 1)
        run.flush()
        if entry_id % 3 == 2:
            run.step()
    run.settle()


def deletes(run: BookieRun) -> None:
    """Ledgers die, their segments are retired, recycled and written again, while they hold another's only fence."""
    run.fence(9)
    for ledger_id in (1, 2, 3, 4):
        for entry_id in range(11):
            run.add(ledger_id, entry_id, size=ROLL_BYTES, lac=entry_id - 1)
            run.settle()
        run.add(8, ledger_id - 1, size=400)
        if ledger_id > 1:
            run.delete(ledger_id - 1)
            run.settle()
        run.reclaim()
        run.settle()
    run.add(8, 4, size=3000)
    run.settle()


def tombstones(run: BookieRun) -> None:
    """A segment dies that holds nothing but the tombstone, the fence and the term of ledgers whose entries lie elsewhere."""
    run.add(2, 0, count=3, size=300, term=1)
    for ledger_id in (1, 3):
        run.add(ledger_id, 0, count=3, size=300)
    run.settle()
    for entry_id in range(9):
        run.add(4, entry_id, size=ROLL_BYTES)
        run.settle()
    run.delete(1)
    run.fence(2, term=3)
    run.explicit_lac(3, 2, more_bytes=1536)
    run.flush()
    run.delete(3)
    run.settle()
    for entry_id in range(9, 20):
        run.add(4, entry_id, size=ROLL_BYTES)
        run.settle()
    run.add(5, 0, size=100)
    run.delete(4)
    run.settle()
    run.reclaim()
    run.settle()
    run.add(5, 1, size=100)
    run.settle()


def shrunk(run: BookieRun) -> None:
    """Tombstones shrink, are packed and relocated, and removed; ledgers with their ids come to life again."""
    for ledger_id in (1, 2, 3):
        run.add(ledger_id, 0, count=3, size=300)
    run.fence(3)
    run.add(9, 0, size=ROLL_BYTES)
    run.settle()
    for entry_id in range(10):
        run.add(4, entry_id, size=ROLL_BYTES)
        run.settle()
    for ledger_id in (1, 2, 3):
        run.delete(ledger_id)
    run.settle()
    run.shrink()
    run.flush()
    run.add(2, 0, size=500)  # another ledger, while the tombstone of the first is on its way
    run.settle()
    for entry_id in range(10, 20):
        run.add(4, entry_id, size=ROLL_BYTES)
        run.settle()
    run.delete(4)
    run.settle()
    run.reclaim()  # relocates what is packed
    run.settle()
    run.stop()
    for entry_id in range(10):
        run.add(5, entry_id, size=ROLL_BYTES)
        run.settle()
    run.delete(5)
    run.delete(9)
    run.settle()
    run.shrink()
    run.settle()
    run.reclaim()  # with the entries of ledger 9 the last of 1, 2 and 3 go
    run.settle()
    run.add(3, 1, size=100)
    run.settle()
    run.kill()
    run.reclaim()
    run.add(1, 0, size=ROLL_BYTES)
    run.settle()


def recycled(run: BookieRun) -> None:
    """Small groups into recycled files, where old groups of the same shape lie."""
    for ledger_id in (1, 2, 3):
        for entry_id in range(0, 40, 4):
            run.add(ledger_id, entry_id, count=4, size=2900)
            run.settle()
        run.delete(ledger_id)
        run.settle()
        run.reclaim()
        run.settle()
    for entry_id in range(8):
        run.add(7, entry_id, size=SIZES[entry_id % 4], lac=entry_id - 1)
        run.settle()


def kills(run: BookieRun) -> None:
    """The process dies with groups on their way, again and again; the page cache stays."""
    for turn in range(4):
        run.add(1, 3 * turn, size=900, lac=3 * turn - 1)
        run.settle()
        run.add(1, 3 * turn + 1, size=5000)
        run.add(2, turn, size=70_000 if turn == 2 else 2000)
        run.flush()
        run.kill()
        run.fence(10 + turn)
        run.add(3, turn, size=100)
        run.settle()


def clean_stops(run: BookieRun) -> None:
    """Clean stops, after which writing goes on in the same segment."""
    for turn in range(4):
        run.add(1, turn, size=1500, lac=turn - 1)
        run.add(2, turn, size=20)
        run.settle()
        run.stop()
    run.fence(2)
    run.settle()
    run.stop()
    run.add(1, 4, size=10)
    run.settle()


def full_disk(run: BookieRun) -> None:
    """The disk fills; fences and recovery go on from the reserve; a deletion makes room again."""
    for entry_id in range(40):
        run.add(1 + entry_id // 12, entry_id % 12, size=ROLL_BYTES)
        run.settle()
    run.fence(1)
    run.add(2, 40, size=9000, recovery=True)
    run.settle()
    run.delete(1)
    run.settle()
    run.reclaim()
    run.settle()
    run.storage.check_disk()
    run.add(5, 0, size=ROLL_BYTES)
    run.settle()


def rebuilt(run: BookieRun) -> None:
    """The footers of sealed segments are written anew by the tool, between two processes."""
    for entry_id in range(20):
        run.add(1 + entry_id % 3, entry_id // 3, size=ROLL_BYTES, lac=entry_id // 3 - 1)
        run.settle()
    run.ledgers.save_lacs()
    run.storage.close()
    identity = open_identity(DIRECTORY, NAME, CLUSTER, files=run.files)
    rebuild(DIRECTORY, run.config, identity, files=run.files)
    run.start()
    run.add(1, 7, size=100)
    run.settle()


def killed_anywhere(run: BookieRun) -> None:
    """The process is killed in the middle of every kind of operation: while it starts, rolls, seals and reclaims."""
    for turn in range(14):
        run.files.stop_at = run.files.steps + 3 + 5 * turn
        try:
            deletes(run) if turn % 2 else rolls(run)
        except Stopped:
            pass
        run.files.stop_at = None
        run.kill()
    run.add(20, 0, size=100)
    run.settle()


def killed_while_starting(run: BookieRun) -> None:
    """Each start is killed one operation later than the one before, on a disk with segments to seal and to recycle."""
    for ledger_id in (1, 2, 3):
        for entry_id in range(11):
            run.add(ledger_id, entry_id, size=ROLL_BYTES)
            run.settle()
    run.delete(1)
    run.settle()
    run.reclaim()
    for operations in range(1, 16):
        run.files.stop_at = run.files.steps + operations
        try:
            run.kill()
            run.add(4, operations, size=100)
            run.settle()
        except Stopped:
            pass
        run.files.stop_at = None
    run.kill()
    run.add(4, 20, size=100)
    run.settle()


def killed_while_recycling(run: BookieRun) -> None:
    """The process is killed between a dead segment's retirement and the sync of its new name; the next one writes to it."""
    for turn in range(6):
        ledger_id = 1 + turn
        for entry_id in range(12):
            run.add(ledger_id, entry_id, size=ROLL_BYTES)
            run.settle()
        run.delete(ledger_id)
        run.settle()
        run.files.stop_at = run.files.steps + 2 + turn
        try:
            run.reclaim()
            run.settle()
        except Stopped:
            pass
        run.files.stop_at = None
        run.kill()
        run.add(20, turn, size=100)
        run.settle()


def compacted(run: BookieRun) -> None:
    """Segments with little in them are compacted and freed, again and again, between adds, fences and kills."""
    for turn in range(5):
        filler = 20 + turn
        run.add(1, 3 * turn, count=3, size=300, lac=3 * turn - 1)
        run.add(2, turn, size=3000)
        run.fence(3 + turn)
        for entry_id in range(9):
            run.add(filler, entry_id, size=ROLL_BYTES)
            run.settle()
        run.add(1, 3 * turn + 1, size=200, recovery=turn > 2)
        run.delete(filler)
        run.settle()
        run.compact()
        if turn % 2:
            run.settle()
        run.reclaim()
        run.settle()
        if turn == 2:
            run.kill()
        run.add(2, 10 + turn, size=500)
        run.settle()


def compacted_in_slices(run: BookieRun, *, turns: int = 4, seed: int = 0) -> None:
    """Compaction and reclaiming with adds between their slices, ranges that are dropped up to an LSN, terms, rot and kills.

    Ledger 1 has short runs, put again now and then; of 2 a range is dropped whose ids were put anew meanwhile; of 3 what is
    older than its term; 4 rots; each turn fences another ledger.
    """
    chance = random.Random(seed)
    late = 0

    def between(number: int) -> None:
        nonlocal late
        if not chance.randrange(4):
            late += 1
            run.add(1, chance.randrange(12), size=150 + late % 50, recovery=True)
        run.flush()
        if number % 3 == 0:
            run.step()

    for turn in range(turns):
        first, filler = 12 * (turn // 4), 100 + turn
        for entry_id in range(0 if turn % 3 else 12):
            run.add(1, entry_id, size=200)
        run.add(2, first, count=4, size=300)
        for entry_id in range(first, first + 4):
            run.add(3, entry_id, size=100)
        run.settle()
        facts = run.storage.facts(3)
        assert facts is not None
        bound = facts.term_lsn = run.storage.journal.last_lsn
        run.storage.put_facts(facts, run, None)
        for entry_id in range(first + 4, first + 8):
            run.add(3, entry_id, size=100)
        run.add(4, 4 * turn, count=4, size=700)
        run.fence(10 + turn)
        for entry_id in range(9):
            run.add(filler, entry_id, size=ROLL_BYTES)
            run.settle()
        if turn % 3 == 1:
            run.rot(4)
        run.delete(filler)
        run.settle()
        room = 1 << 30 if turn % 2 else None  # segments at the same time, or one by one
        run.in_slices(run.storage.housekeeping.compact_slices(0.0, room), between)
        run.in_slices(run.storage.housekeeping.reclaim_slices(), between)
        if turn % 5 == 4:
            run.kill()
        if turn % 2:
            run.add(2, first, count=2, size=310)  # chosen again
            run.drop(2, first, first + 3, bound)
            run.drop(3, 0, ID_MAX, bound)
        run.settle()


NARROW = replace(SMALL, group_bytes_max=4 * KIB, inline_bytes_max=0)
"""Everything goes over the worker, in groups of a block."""

WORKLOADS = (
    DiskWorkload("sizes", sizes),
    DiskWorkload("groups", groups),
    DiskWorkload("groups on the worker", groups, NARROW),
    DiskWorkload("many ledgers", many_ledgers),
    DiskWorkload("fences", fences),
    DiskWorkload("take-overs", take_overs),
    DiskWorkload("truncations", truncations),
    DiskWorkload("dead take-overs", dead_take_overs),
    DiskWorkload("lacs", lacs),
    DiskWorkload("rolls", rolls),
    DiskWorkload("deletes and reclaim", deletes),
    DiskWorkload("tombstones", tombstones),
    DiskWorkload("shrunk tombstones", shrunk),
    DiskWorkload("recycled files", recycled),
    DiskWorkload("kills", kills),
    DiskWorkload("clean stops", clean_stops),
    DiskWorkload("full disk", full_disk, capacity=6 * 128 * KIB, depth=1),
    DiskWorkload("rebuild", rebuilt),
    DiskWorkload("killed anywhere", killed_anywhere),
    DiskWorkload("killed while starting", killed_while_starting),
    DiskWorkload("killed while recycling", killed_while_recycling),
    DiskWorkload("compaction", compacted),
    DiskWorkload("compaction in slices", compacted_in_slices),
)
