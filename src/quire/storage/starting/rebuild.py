"""Looking at records without the index, and writing footers anew from them: they are derived."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from quire.env.interfaces import Files
from quire.storage.config import StorageConfig
from quire.storage.directory.identity import Identity
from quire.storage.formats.segment_format import FormatError, SegmentHeader, seed_of
from quire.storage.segments.findings import Damage
from quire.storage.segments.footers import read_footer
from quire.storage.segments.replay import SegmentScanner
from quire.storage.segments.segment import Segment
from quire.storage.segments.segment_files import SegmentFiles
from quire.storage.starting.start import segment_of


class StoredRecord(NamedTuple):
    """A record as `scan` found it; `verifies` is about its body."""

    segment: int
    offset: int
    kind: int
    lsn: int
    ledger_id: int
    first: int
    last: int
    body_bytes: int
    verifies: bool


def records_of(files: SegmentFiles, header: SegmentHeader) -> Iterator[StoredRecord]:
    """Every record of a segment that can be found."""
    scanner = SegmentScanner(files, header, end_lsn=None, newest=False)
    for offset, record, body in scanner.headers():
        yield StoredRecord(
            header.sequence,
            offset,
            record.kind,
            record.lsn,
            record.ledger_id,
            record.first,
            record.last,
            record.body_bytes,
            body is not None,
        )


def rebuild(
    directory: Path | str, config: StorageConfig, identity: Identity, *, files: Files
) -> list[Damage]:
    """Write the footers of all sealed segments anew from their records. The bookie must not run.

    Returns:
        What did not verify on the way.
    """
    segment_files = SegmentFiles(
        Path(directory), config, identity.cluster_instance, identity.bookie_id, files, random.SystemRandom()
    )
    damages: list[Damage] = []
    try:
        sequences = segment_files.load()
        segment_files.prepare()
        for sequence in sequences:
            header = segment_files.header(sequence)
            end_lsn: int | None = None
            try:
                footer = read_footer(segment_files, Segment(header, seed_of(sequence, header.nonce)))
                if footer is None:
                    continue
                end_lsn = footer[0].last_lsn
            except FormatError:
                pass
            scan = SegmentScanner(segment_files, header, end_lsn=end_lsn, newest=False).scan()
            damages += scan.damages
            segment = segment_of(header, scan)
            segment_files.reopen(segment)
            if scan.named or scan.all_in_limbo:
                segment.unseal()  # so that the next start looks at the records and writes down what is in limbo
            else:
                segment.seal()
            segment.close()
    finally:
        segment_files.close()
    return damages
