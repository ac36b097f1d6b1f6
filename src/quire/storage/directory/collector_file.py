"""What a bookie's collector keeps between its passes, in the file `COLLECTOR` of the bookie's directory.

Counter and evidence are in one file, written whole: a bookie that loses one loses both, and begins a new chain with no
evidence.

Source: docs/formats/fields.md, "storage/directory/collector_file.py"; `core/bookie/garbage.py`.
"""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from typing import Final

from crc32c import crc32c

from quire.core.bookie.garbage import FINDINGS_KEPT, Kept, StoreName
from quire.core.errors import StorageError
from quire.env.descriptors import is_shortage
from quire.env.interfaces import Files
from quire.storage.directory.patient_worker import shortage
from quire.storage.formats.segment_format import FormatError
from quire.wire.entry import Buffer
from quire.wire.layout import Field, FieldUse, Layout

COLLECTOR_FILE: Final = "COLLECTOR"
COLLECTOR_VERSION: Final = 2
_MAGIC: Final = b"\xd1QCOL\r\n\x1a"
_NUMBER_BYTES: Final = 8
_CRC_BYTES: Final = 4
_USE = FieldUse("the bookie's collector", "the bookie's collector")

COLLECTOR: Final = Layout(
    "Collector's file",
    [
        Field("magic d1 51 43 4f 4c 0d 0a 1a", "8s", _USE),
        Field("version", "H", _USE),
        Field("length of the store's instance", "H", _USE),
        Field("a write of the counter is without a response: 1, else 0", "I", _USE),
        Field("generation of the store", "Q", _USE),
        Field("chain", "Q", _USE),
        Field("passes", "Q", _USE),
        Field("last LSN before the last complete pass", "Q", _USE),
        Field("ledgers found once", "Q", _USE),
        Field("ledgers found twice or more", "Q", _USE),
        Field("ledgers that were reported, as unknown", "Q", _USE),
        Field("ledgers proven to be deleted and not dropped yet", "Q", _USE),
    ],
)
COLLECTOR_BODY: Final = Layout(
    "Collector's file, after instance and header",
    [
        Field("ids, ascending: found once, then twice or more, then reported", "Q", _USE),
        Field("of each proven one: id", "Q", _USE),
        Field("and the LSN through which the proof holds", "Q", _USE),
        Field("checksum of all before", "I", _USE),
    ],
)
TABLES: Final = (COLLECTOR, COLLECTOR_BODY)


def encode_collector(kept: Kept) -> bytes:
    """The file's bytes."""
    once = sorted(ledger_id for ledger_id, times in kept.findings.items() if times < FINDINGS_KEPT)
    more = sorted(ledger_id for ledger_id, times in kept.findings.items() if times >= FINDINGS_KEPT)
    instance = kept.store.instance.encode()
    pairs = [number for pair in sorted(kept.missing.items()) for number in pair]
    numbers = array("Q", [*once, *more, *sorted(kept.reported), *pairs])
    if sys.byteorder == "little":
        numbers.byteswap()
    head = COLLECTOR.struct.pack(
        _MAGIC,
        COLLECTOR_VERSION,
        len(instance),
        kept.asked,
        kept.store.generation,
        kept.chain,
        kept.passes,
        kept.found_lsn,
        len(once),
        len(more),
        len(kept.reported),
        len(kept.missing),
    )
    data = b"".join([head, instance, numbers.tobytes()])
    return data + crc32c(data).to_bytes(_CRC_BYTES, "big")


def decode_collector(data: Buffer) -> Kept:
    """What the file says.

    Raises:
        FormatError: it does not verify, or a newer version wrote it.
    """
    end = len(data) - _CRC_BYTES
    if end < COLLECTOR.size or bytes(data[:8]) != _MAGIC:
        raise FormatError("it is cut, or not a collector's file")
    if crc32c(memoryview(data)[:end]) != int.from_bytes(data[end:], "big"):
        raise FormatError("its checksum does not match")
    (
        _, version, instance_bytes, asked, generation, chain, passes, found_lsn, once, more, reported, missing,
    ) = COLLECTOR.struct.unpack_from(data)  # fmt: skip
    if version != COLLECTOR_VERSION or asked > 1:
        raise FormatError(f"it has version {version}, flag {asked}; this program reads {COLLECTOR_VERSION}")
    at = COLLECTOR.size + instance_bytes
    if end - at != (once + more + reported + 2 * missing) * _NUMBER_BYTES:
        raise FormatError(f"it has {end - at} bytes for {once} + {more} + {reported} + {missing} ledgers")
    numbers = array("Q")
    numbers.frombytes(memoryview(data)[at:end])
    if sys.byteorder == "little":
        numbers.byteswap()
    findings = dict.fromkeys(numbers[:once], 1)
    findings.update(dict.fromkeys(numbers[once : once + more], FINDINGS_KEPT))
    pairs = numbers[once + more + reported :]
    instance = bytes(data[COLLECTOR.size : at]).decode(errors="replace")
    return Kept(
        store=StoreName(instance, generation),
        chain=chain,
        passes=passes,
        found_lsn=found_lsn,
        findings=findings,
        missing=dict(zip(pairs[::2], pairs[1::2], strict=True)),
        reported=frozenset(numbers[once + more : once + more + reported]),
        asked=bool(asked),
    )


class CollectorFile:
    """The file of one bookie's directory."""

    def __init__(self, directory: Path, files: Files) -> None:
        self.path = directory / COLLECTOR_FILE
        self._files = files

    def read(self) -> Kept | None:
        """What it says; None where there is none.

        Raises:
            FormatError: it is damaged: there is no evidence any more, and a new chain begins.
            StorageError: it cannot be read.
        """
        try:
            if not self._files.exists(self.path):
                return None
            return decode_collector(self._files.read_whole(self.path))
        except OSError as error:
            if is_shortage(error):
                raise shortage(self.path, error) from error
            raise StorageError(
                f"{self.path} cannot be read: {error.strerror or error}", path=str(self.path)
            ) from error

    def write(self, kept: Kept) -> None:
        """Replace it, as a whole; on the disk thread.

        Raises:
            OSError: it cannot be written; the old one is still there.
        """
        self._files.write_whole(self.path, encode_collector(kept))
