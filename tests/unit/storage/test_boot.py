"""The count of a directory's boots, and the marker that tells it from a copy."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import WrongDirectoryError
from quire.env.interfaces import FileStamp
from quire.env.real import RealFiles
from quire.storage.directory.boot_file import (
    BOOT,
    BOOT_FILE,
    MARKER_FILE,
    Boot,
    BootFile,
    decode_boot,
    encode_boot,
)
from quire.storage.formats.segment_format import BLOCK_BYTES, FormatError
from support.storage_disk import FaultyFiles, open_storage

U64 = st.integers(0, 2**64 - 1)
BOOTS = st.builds(
    Boot, U64, U64, U64, st.builds(FileStamp, U64, st.integers(-(2**63), 2**63 - 1)), st.booleans()
)


@given(BOOTS)
def test_a_slot_comes_back(boot: Boot) -> None:
    assert decode_boot(encode_boot(boot)) == boot


@given(BOOTS, st.integers(0, BOOT.size * 8 - 1))
def test_a_flipped_bit_is_no_slot(boot: Boot, bit: int) -> None:
    data = bytearray(encode_boot(boot))
    data[bit // 8] ^= 1 << bit % 8
    assert decode_boot(data) is None


def test_each_start_counts_and_a_clean_stop_says_so(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        file = BootFile(tmp_path, RealFiles())
        assert file.number == number - 1
        file.begin(10 * number)
        assert file.number == number
        again = BootFile(tmp_path, RealFiles()).last
        assert again == file.last
        assert again is not None
        assert (again.durable_lsn, again.clean) == (10 * number, False)
        file.stopped(10 * number + 5)
        stopped = BootFile(tmp_path, RealFiles()).last
        assert stopped is not None
        assert (stopped.number, stopped.durable_lsn, stopped.clean) == (number, 10 * number + 5, True)


def test_a_copy_has_another_marker(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    BootFile(tmp_path / "own", RealFiles()).begin(1)
    shutil.copytree(tmp_path / "own", tmp_path / "copy")
    kept = BootFile(tmp_path / "copy", RealFiles()).last
    assert kept is not None
    assert kept.marker == RealFiles().stamp(tmp_path / "own" / MARKER_FILE)
    assert kept.marker != RealFiles().stamp(tmp_path / "copy" / MARKER_FILE)


def test_a_write_that_was_cut_leaves_the_slot_before(tmp_path: Path) -> None:
    file = BootFile(tmp_path, RealFiles())
    file.begin(1)
    file.stopped(2)
    before = file.last
    file.begin(3)
    assert file.last is not None
    slot = file.last.writes % 2 * BLOCK_BYTES
    data = bytearray((tmp_path / BOOT_FILE).read_bytes())
    data[slot + 30] ^= 1
    (tmp_path / BOOT_FILE).write_bytes(data)
    assert BootFile(tmp_path, RealFiles()).last == before


def test_without_a_good_slot_the_directory_is_refused(tmp_path: Path) -> None:
    BootFile(tmp_path, RealFiles()).begin(1)
    (tmp_path / BOOT_FILE).write_bytes(b"x" * 8192)
    with pytest.raises(WrongDirectoryError, match=r"BOOT is damaged.*remove this file"):
        BootFile(tmp_path, RealFiles())


def test_a_newer_slot_is_refused(tmp_path: Path) -> None:
    data = bytearray(encode_boot(Boot(1, 2, 3, FileStamp(4, 5))))
    data[9] = 3
    data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "big")
    with pytest.raises(FormatError, match="newer version"):
        decode_boot(data)
    (tmp_path / BOOT_FILE).write_bytes(data.ljust(8192, b"\0"))
    with pytest.raises(WrongDirectoryError, match="newer version"):
        BootFile(tmp_path, RealFiles())


class FullOfFiles(FaultyFiles):
    """A disk that has no room for another small file."""

    full = True

    def write_whole(self, path: Path, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left", str(path))
        super().write_whole(path, data)


def test_a_bookie_starts_on_a_disk_without_room_for_the_count() -> None:
    files = FullOfFiles()
    storage = open_storage(files)
    assert storage.boots.number == 0
    storage.close()
    files.full = False
    storage = open_storage(files)
    assert storage.boots.number == 1
    storage.close()
