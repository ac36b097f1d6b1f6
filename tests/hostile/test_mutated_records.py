"""Mutated records, states, trailers, headers and boot slots, all with good checksums: each is read, or refused by name.

A flipped bit is the checksums' business; these are what another program, or none, may have written.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from quire.core.bookie.ledger import LedgerFacts
from quire.core.bookie.limbo import Limbo
from quire.core.errors import DamagedSegmentError
from quire.env.interfaces import FileStamp
from quire.storage.directory.boot_file import BOOT, Boot, decode_boot, encode_boot
from quire.storage.formats import footer_format as footer
from quire.storage.formats import record_bodies as bodies
from quire.storage.formats import segment_format as form
from quire.storage.formats.state_format import DeadRange, StoredLedgerState, decode_state, encode_state
from quire.storage.segments.segment_files import Space
from quire.wire.stored_record import RECORD_HEAD, RECORD_HEADER_BYTES, decode_record_header, seed_at
from support.rounds import keep_figures, rounds
from support.storage_disk import Answers, FaultyFiles, make_run, open_storage, put, settle

pytestmark = pytest.mark.timeout(7000)
SEED = 20261122
MUTATED = rounds(10_000, 1_000_000)
DIRECTORIES = rounds(150, 3_000)
ALLOCATED_MAX = 256 * 1024
STATE = StoredLedgerState(
    LedgerFacts(7, b"k" * 20, 5, 3, True, Limbo(4, 0, ((1, 2), (9, 9))), 2, 99, b"e" * 20, 0, 3, 4, 5),
    17,
    3,
    (DeadRange(1, 2, 3), DeadRange(7, 9, 11)),
)
SEED_OF_SEGMENT = 77


def _segment_header(data: bytes) -> object:
    block = data.ljust(form.BLOCK_BYTES - 4, b"\0")[: form.BLOCK_BYTES - 4]
    return form.decode_segment_header(block + crc32c(block).to_bytes(4, "big"))


def _trailer(data: bytes) -> object:
    head = data.ljust(508, b"\0")[:508]
    block = head + crc32c(head, seed_at(SEED_OF_SEGMENT, 0)).to_bytes(4, "big")
    return footer.decode_trailer(block.ljust(form.BLOCK_BYTES, b"\0"), 3, SEED_OF_SEGMENT, 0)


def _boot(data: bytes) -> object:
    head = data.ljust(BOOT.size - 4, b"\0")[: BOOT.size - 4]
    return decode_boot(head + crc32c(head).to_bytes(4, "big"))


def _record(data: bytes) -> object:
    head = data.ljust(RECORD_HEADER_BYTES - 4, b"\0")[: RECORD_HEADER_BYTES - 4]
    seeded = crc32c(head, seed_at(SEED_OF_SEGMENT, 4096)).to_bytes(4, "big")
    record = decode_record_header(head + seeded, 4096, SEED_OF_SEGMENT)
    if record is not None:
        form.check_understood(record)
    return record


_SEED_HEAD = RECORD_HEAD.pack(
    144, form.SegmentRecordKind.LEDGER_STATE, 0, 0, 0, 9, 7, -1, -1, 0, 5, -1, 0, 0, 0, 0, 0, 36, 1, 0
)
DECODERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "state": (lambda data: decode_state(7, data), encode_state(STATE)),
    "shrunk tombstone": (lambda data: decode_state(7, data), encode_state(StoredLedgerState(None, 9))),
    "segment list": (bodies.decode_segment_list, bodies.encode_segment_list(1, 2, [3, 4, 9])),
    "retirement": (bodies.decode_retirement, bodies.encode_retirement([1, 2, 3])),
    "unnamed limbo": (
        bodies.decode_unnamed_limbo,
        bodies.encode_unnamed_limbo(bodies.UnnamedLimbo(1, True, 2)),
    ),
    "damaged intervals": (
        bodies.decode_damaged,
        bodies.encode_damaged([bodies.DamagedInterval(1, 2, 0, 9), bodies.DamagedInterval(4, 4, 0, 9)]),
    ),
    "tombstones": (bodies.decode_tombstones, bodies.encode_tombstones([(1, 2), (3, 4)])),
    "segment header": (
        _segment_header,
        form.encode_segment_header(form.SegmentHeader(1 << 20, 5, 99, 17, True, "cluster", "b.abcde"))[:100],
    ),
    "trailer": (
        _trailer,
        footer.encode_trailer(footer.Trailer(3, 4096, *range(11)), SEED_OF_SEGMENT, 0)[:112],
    ),
    "boot": (_boot, encode_boot(Boot(1, 2, 3, FileStamp(4, 5)))),
    "record header": (_record, _SEED_HEAD),
}


def mutated(body: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, to extremes as often as not; or cut, or longer."""
    data = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data))
        width = chance.choice((1, 1, 2, 4, 8))
        value = chance.choice((b"\xff", b"\0", b"\x7f", b"\x80", bytes([chance.randrange(256)])))
        data[at : at + width] = (value * width)[: len(data) - at]
    how = chance.randrange(8)
    if how == 0:
        del data[chance.randrange(len(data)) :]
    elif how == 1:
        data += chance.randbytes(chance.randint(1, 40))
    return bytes(data)


def test_every_mutated_record_is_read_or_refused_by_name() -> None:
    chance = random.Random(SEED)
    refused = read = 0
    peak = 0
    tracemalloc.start()
    try:
        for number in range(MUTATED):
            what = chance.choice(list(DECODERS))
            decode, body = DECODERS[what]
            data = mutated(body, chance)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                decode(data)
                read += 1
            except (form.FormatError, UnicodeDecodeError) as error:
                refused += 1
                if not str(error):
                    pytest.fail(f"{what} number {number} (seed {SEED}) is refused without a word")
            peak = max(peak, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert read
    assert refused
    assert peak < ALLOCATED_MAX
    keep_figures(
        "mutated_records",
        {"records": MUTATED, "read": read, "refused_by_name": refused, "most_bytes_allocated": peak},
        seed=SEED,
    )


KINDS: dict[form.SegmentRecordKind, str] = {
    form.SegmentRecordKind.LEDGER_STATE: "state",
    form.SegmentRecordKind.DELETE: "state",
    form.SegmentRecordKind.SEGMENT_LIST: "segment list",
    form.SegmentRecordKind.RETIREMENT: "retirement",
    form.SegmentRecordKind.UNNAMED_LIMBO: "unnamed limbo",
    form.SegmentRecordKind.TOMBSTONES: "tombstones",
}


def test_a_directory_with_a_mutated_record_starts_or_is_refused_by_name() -> None:
    chance = random.Random(SEED + 1)
    outcomes = {"started": 0, "refused": 0}
    for number in range(DIRECTORIES):
        files: Any = FaultyFiles()
        storage = open_storage(files)
        put(storage, make_run(1, 0, 9), Answers())
        kind = chance.choice(list(KINDS))
        body = mutated(DECODERS[KINDS[kind]][1], chance)
        ledger_id = 1 if kind in form.STATE_KINDS else form.ALL_LEDGERS
        storage.journal.put(kind, ledger_id, body, Space.STATE)
        settle(storage)
        storage.close(clean=bool(chance.getrandbits(1)))
        try:
            again = open_storage(files)
        except DamagedSegmentError as error:
            outcomes["refused"] += 1
            if ".seg" not in str(error):
                pytest.fail(f"number {number} (seed {SEED + 1}) is refused without its file: {error}")
        else:
            outcomes["started"] += 1
            again.close()
    assert all(outcomes.values()), outcomes
