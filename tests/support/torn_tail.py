"""The end of a bookie's newest segment as a power cut leaves it, made while the bookie does not run."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from quire.env.real import RealFiles
from quire.storage.config import StorageConfig
from quire.storage.formats.segment_format import (
    BLOCK_BYTES,
    GROUP_HEADER_BYTES,
    SegmentHeader,
    seed_of,
    write_group_header,
)
from quire.storage.segments.findings import Scan
from quire.storage.segments.replay import SegmentScanner
from quire.storage.segments.segment_files import SegmentFiles

TORN_BYTES = 4096


def _newest(directory: Path, identity: tuple[str, str]) -> tuple[Path, SegmentHeader, Scan]:
    files = SegmentFiles(directory, StorageConfig(), *identity, RealFiles(), random.SystemRandom())
    try:
        sequence = files.load()[-1]
        header = files.header(sequence)
        scan = SegmentScanner(files, header, end_lsn=None, newest=True).scan()
        return files.path(sequence), header, scan
    finally:
        files.close()


def limbo_at_next_start(directory: Path, identity: tuple[str, str]) -> tuple[set[int], bool]:
    """The ledgers that the next start will put in limbo by the end of the newest segment, and whether it will put all there."""
    _, _, scan = _newest(directory, identity)
    return scan.named, scan.all_in_limbo


def tear(directory: Path, ledger_ids: Iterable[int] | None, identity: tuple[str, str]) -> None:
    """Put an unfinished write behind the last group: its records never came.

    Args:
        directory: the bookie's.
        ledger_ids: whom its header names; None: not even the header came whole.
        identity: the cluster's instance and the bookie's id.
    """
    path, header, scan = _newest(directory, identity)
    end, sequence = scan.data_end, header.sequence
    assert end + 2 * TORN_BYTES < header.segment_bytes, "the newest segment is full: take fewer entries"
    group = bytearray(b"\xaa" * TORN_BYTES)
    if ledger_ids is not None:
        write_group_header(
            memoryview(group),
            end,
            (scan.last_lsn + 1, scan.last_lsn + 1),
            (scan.before_lsn, scan.before_checksum),
            TORN_BYTES - GROUP_HEADER_BYTES,
            1,
            0,
            [(ledger_id, -1, -1) for ledger_id in ledger_ids],
            sequence,
            seed_of(sequence, header.nonce),
        )
    with path.open("r+b") as file:
        file.seek(end)
        file.write(group)
        if header.recycled:  # what a recycled file held there before is blanked with a group
            file.write(bytes(BLOCK_BYTES))
