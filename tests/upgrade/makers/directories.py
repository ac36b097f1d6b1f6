"""Bookies' directories with all that their disk can hold, and what they say: run with the code of revision 9e5fe3a.

    python tests/upgrade/makers/directories.py FOLDER

`tools/golden_files.py` does so, in an empty folder: cookies name directories. Nothing here knows later code.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from crc32c import crc32c

from quire.core.bookie_ledger import LedgerFacts
from quire.core.ledger_metadata import DigestType
from quire.env.real import RealFiles
from quire.env.stepped import StepClock, StepWorker
from quire.storage.config import StorageConfig
from quire.storage.identity import open_identity
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.segment_format import GROUP_MAGIC, Kind
from quire.wire.entry import EntryDigest, master_key
from quire.wire.run import RunView, encode_run, ids_in
from support.golden import BEYOND, BOOKIE, CLUSTER, facts_told, pack, told

CONFIG = StorageConfig(segment_bytes=128 * 1024, group_bytes_max=16 * 1024, recent_bytes_max=0, direct=False)
KEY = master_key(b"secret")
TOKEN = 0x0123456789ABCDEF
LATER_MS = 4_000_000_000_000
"""A tombstone of the year 2096."""
PLAIN, FENCED, MAC, STRIPED, EXPLICIT, LIMBO, DELETED, ONLY_FENCED, RECOVERED, OLD_DIGEST, GARBAGE, LAST = (
    range(1, 13)
)


class Answers:
    """A sink that lets no failure pass."""

    def stored(self, tag: object, error: BaseException | None) -> None:
        if error is not None:
            raise error


class Disk:
    """One bookie's directory while the old program has it open."""

    def __init__(self, directory: Path, seed: int, *, served: bool = False) -> None:
        chance, files = random.Random(seed), RealFiles()
        self.identity = open_identity(directory, BOOKIE, CLUSTER, files=files, chance=chance)
        self.storage = LedgerStorage.open(
            directory,
            CONFIG,
            self.identity,
            files=files,
            worker=StepWorker(),
            clock=StepClock(1_000_000),
            chance=chance,
            served=served,
        )
        self.sink = Answers()

    def settle(self) -> None:
        self.storage._journal.finish()
        self.storage.flush()

    def close(self, *, clean: bool) -> None:
        self.settle()
        self.storage.close(clean=clean)
        self.identity.release()

    def facts(self, ledger_id: int, **facts: Any) -> None:
        known = {"key": KEY, "token": TOKEN, "digest_type": int(DigestType.CRC32C), **facts}
        self.storage.put_facts(LedgerFacts(ledger_id, **known), self.sink, None)

    def run(
        self,
        ledger_id: int,
        first: int,
        last: int,
        *,
        size: int = 1000,
        period: int = 1,
        residues: int = 1,
        digest: DigestType = DigestType.CRC32C,
        recovery: bool = False,
    ) -> None:
        seal = EntryDigest(digest, b"secret")
        entries, sizes = [], []
        for number in ids_in(first, last, period, residues):
            payload = (b"entry %d of ledger %d, " % (number, ledger_id) * size)[: size + number % 7]
            head = seal.seal_one(ledger_id, number, first - 1, 1000 * number, payload)
            entries += [head, payload]
            sizes.append(len(head) + len(payload))
        body = encode_run(
            ledger_id,
            first,
            last,
            entries,
            sizes,
            digest_type=int(digest),
            period=period,
            residues=residues,
        )
        self.storage.put_run(
            RunView.parse(body),
            crc32c(body),
            lac=first - 1,
            token=TOKEN,
            recovery=recovery,
            sink=self.sink,
            tag=None,
        )


def fill(disk: Disk) -> None:
    """All kinds of ledgers, over several segments, some in recycled files."""
    for first in range(0, 250, 10):
        disk.run(GARBAGE, first, first + 9)
        disk.settle()
    disk.facts(PLAIN)
    disk.facts(FENCED, fenced=True, lac=57)
    disk.facts(MAC, digest_type=int(DigestType.HMAC))
    disk.facts(STRIPED)
    seal = EntryDigest(DigestType.CRC32C, b"secret")
    disk.facts(EXPLICIT, lac=9, explicit_lac=seal.lac_body(EXPLICIT, 9))
    disk.facts(LIMBO, fenced=True, limbo=True)
    disk.facts(ONLY_FENCED, fenced=True, term=0)
    disk.facts(OLD_DIGEST, digest_type=int(DigestType.CRC32))
    disk.storage.delete(GARBAGE, LATER_MS, disk.sink, None)
    disk.settle()
    disk.storage.reclaim()
    disk.settle()
    for first in range(0, 60, 10):
        disk.run(PLAIN, first, first + 9)
        disk.run(FENCED, first, first + 9)
        disk.settle()
        disk.run(MAC, first, first + 9, size=300, digest=DigestType.HMAC)
        disk.run(STRIPED, first, first + 8, size=300, period=5, residues=0b01011)
        disk.run(DELETED, first, first + 9, size=600)
        disk.run(OLD_DIGEST, first, first + 9, size=20, digest=DigestType.CRC32)
        disk.settle()
    disk.run(EXPLICIT, 0, 10, size=0)
    disk.run(LIMBO, 3, 8, size=50)
    disk.run(RECOVERED, 0, 9, size=50)
    disk.run(RECOVERED, 5, 12, size=50, recovery=True)
    disk.run(RECOVERED, 20, 22, size=50, recovery=True)
    disk.settle()
    disk.storage.delete(DELETED, LATER_MS, disk.sink, None)
    disk.settle()


def newest(directory: Path) -> Path:
    return max((directory / "segments").glob("*.seg"))


def cut_last_group(directory: Path, keep: int) -> None:
    """What a killed process left when only so many bytes of its last write had reached the disk."""
    path = newest(directory)
    data = bytearray(path.read_bytes())
    start = data.rindex(GROUP_MAGIC)
    data[start + keep :] = bytes(len(data) - start - keep)
    path.write_bytes(data)


def spoil(directory: Path, disk_before: list[Any], ledger_id: int, first: int) -> None:
    """One bit of the body of a ledger's run flips."""
    [record] = [
        record
        for record in disk_before
        if record.kind == Kind.RUN and (record.ledger_id, record.first) == (ledger_id, first)
    ]
    path = directory / "segments" / f"{record.segment:016x}.seg"
    data = bytearray(path.read_bytes())
    data[record.offset + 600] ^= 4
    path.write_bytes(data)


def clean(directory: Path) -> None:
    """A bookie that was stopped; what it had acknowledged is in several segments."""
    disk = Disk(directory, 1)
    fill(disk)
    disk.close(clean=True)


def killed(directory: Path) -> None:
    """One that was killed while it wrote a group, whose header had reached the disk."""
    disk = Disk(directory, 2)
    fill(disk)
    disk.run(LAST, 0, 3, size=700)
    disk.settle()
    disk.run(LAST, 4, 9, size=700)
    disk.run(PLAIN, 60, 63, size=700)
    disk.close(clean=False)
    cut_last_group(directory, 1024 + 500)


def suspicious(directory: Path) -> None:
    """One that had lost a group without a header, and has written its suspicion down; one ledger was repaired since."""
    disk = Disk(directory, 3)
    fill(disk)
    disk.run(LAST, 0, 3, size=700)
    disk.close(clean=False)
    cut_last_group(directory, 100)
    disk = Disk(directory, 4, served=True)
    assert disk.storage.report.suspects_unknown
    disk.facts(PLAIN, fenced=True)
    disk.run(LAST, 0, 3, size=500)
    disk.close(clean=True)


def damaged(directory: Path) -> None:
    """One with rotten records: one that it has found and noted in a footer, one that it has not found yet."""
    disk = Disk(directory, 5)
    fill(disk)
    for first in (0, 4):
        disk.run(LAST, first, first + 3, size=700)
        disk.settle()
    records = list(disk.storage.scan())
    disk.close(clean=False)
    spoil(directory, records, LAST, 0)
    disk = Disk(directory, 6, served=True)
    assert [(damage.ledger_id, damage.first) for damage in disk.storage.report.damages] == [(LAST, 0)]
    disk.run(LAST, 8, 9, size=500)
    disk.close(clean=True)
    spoil(directory, records, FENCED, 10)


MADE = {"clean": clean, "killed": killed, "suspicious": suspicious, "damaged": damaged}
DECIDED_BY_START = {"killed"}
"""Where the next start must still make up its mind, and a later version may do so more exactly."""


def manifest(directory: Path, seed: int) -> dict[str, Any]:
    """What the old program makes of it: of a copy, since a start changes the directory."""
    copy = Path("copy") / "bookie"
    shutil.copytree(directory, copy)
    disk = Disk(copy, seed, served=True)
    storage = disk.storage
    ledgers = {}
    for ledger_id in [*range(1, 13), 99]:
        through = storage.last_entry(ledger_id) + BEYOND
        if ledger_id in {PLAIN, FENCED, LAST}:
            through = max(through, 70)
        ledgers[ledger_id] = {
            "facts": facts_told(storage.facts(ledger_id)),
            "suspects": storage.suspects(ledger_id),
            "last_entry": storage.last_entry(ledger_id),
            "held": storage.held(ledger_id),
            "asked_through": through,
            "entries": told(storage, ledger_id, through),
        }
    report = storage.report
    facts = {
        "bookie_id": str(disk.identity.bookie_id),
        "clean": report.clean,
        "torn": len(report.torn),
        "damages": [[each.ledger_id, each.first, each.last] for each in report.damages],
        "limbo": report.limbo,
        "suspects_unknown": report.suspects_unknown,
        "ledgers": ledgers,
    }
    disk.close(clean=True)
    shutil.rmtree("copy")
    return facts


if __name__ == "__main__":
    told_of = {}
    for number, (name, make) in enumerate(MADE.items()):
        folder = Path(name) / "bookie"
        make(folder)
        pack(folder, Path(sys.argv[1], f"directory-{name}.tar.xz"))
        told_of[name] = {"decided_by_start": name in DECIDED_BY_START, **manifest(folder, 100 + number)}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(facts)}" for name, facts in told_of.items())
    Path(sys.argv[1], "directories.json").write_text("{\n" + lines + "\n}\n")
