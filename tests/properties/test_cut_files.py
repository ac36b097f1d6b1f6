"""A file of a bookie's directory cut at any byte: the bookie starts and names the damage, or refuses and names the file.

It denies nothing that it acknowledged, and reads no place of a file for ever.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from quire.core.bookie.garbage import Kept, StoreName
from quire.core.errors import DamagedSegmentError, QuireError
from quire.storage.config import StorageConfig
from quire.storage.directory.boot_file import BOOT_FILE, MARKER_FILE
from quire.storage.directory.collector_file import COLLECTOR_FILE, encode_collector
from quire.storage.directory.identity import COOKIE_FILE
from quire.storage.formats.segment_format import BLOCK_BYTES
from support.one_bookie import check_nothing_denied, filled, opened
from support.rounds import FULL, keep_figures
from support.small_cluster import small_cluster
from support.storage_disk import Answers, FaultyFiles, make_run, put, read_all

LEDGERS = (1, 2, 3)
pytestmark = pytest.mark.timeout(60 if not FULL else 7200)


def lengths_of(size: int, few: int) -> Sequence[int]:
    """Every length below a file's own; in `make test` those beside the edges of blocks, and a few in between."""
    if FULL:
        return range(size)
    edges = {edge + by for edge in range(0, size + 1, BLOCK_BYTES) for by in (-1, 0, 1)}
    return sorted(one for one in edges | set(range(0, size, max(size // few, 1))) if 0 <= one < size)


@pytest.mark.parametrize("which", ["sealed", "open"])
def test_a_segment(which: str) -> None:
    files = FaultyFiles()
    storage = filled(files)
    sealed = storage.segments[1].trailer is not None
    storage.close(clean=False)
    assert sealed
    path = files.segments()[0 if which == "sealed" else -1]
    refused: dict[int, str] = {}
    lengths = lengths_of(len(files.nodes[path].data), 40)
    for length in lengths:
        copy = files.copy()
        del copy.nodes[path].data[length:]
        try:
            storage = opened(copy)
        except DamagedSegmentError as error:
            refused[length] = str(error)
            continue
        check_nothing_denied(storage, LEDGERS)
        named = {damage.file for damage in storage.damages.kept}
        if path not in named:  # only zeros behind a trailer are missing
            assert all(None not in read_all(storage, ledger, 0, 59).values() for ledger in LEDGERS)
        storage.close()
        again = opened(copy)
        assert again.report.clean
        check_nothing_denied(again, LEDGERS)
    assert list(refused) == [one for one in lengths if one < BLOCK_BYTES], "only a header refuses the start"
    assert all(path in sentence for sentence in refused.values())
    keep_figures(f"cut_segment_{which}", {"lengths": len(lengths), "refused": len(refused)}, seed=0)


@pytest.mark.parametrize("name", [BOOT_FILE, MARKER_FILE, COOKIE_FILE, COLLECTOR_FILE])
async def test_another_file(tmp_path: Path, name: str) -> None:
    lengths, refused = await starts(tmp_path, name)
    keep_figures(f"cut_{name.lower()}", {"lengths": lengths, "refused": refused}, seed=0)
    assert refused < lengths or name == COOKIE_FILE


async def starts(folder: Path, name: str) -> tuple[int, int]:
    """Start a bookie on its directory with this file cut; how often, and how often it refused."""
    directory, whole = folder / "b1", folder / "whole"
    refused: list[str] = []
    async with small_cluster(folder, 1, storage=StorageConfig(segment_bytes=128 * 1024)) as cluster:
        (bookie,) = cluster.servers
        put(cluster.servers[bookie].storage, make_run(1, 0, 9), Answers())
        await cluster.stop_bookie(bookie)
        kept = Kept(StoreName("store", 1), 1, 1, 1, {7: 1})
        (directory / COLLECTOR_FILE).write_bytes(encode_collector(kept))
        directory.rename(whole)
        lengths = lengths_of((whole / name).stat().st_size, 8)
        for length in lengths:
            shutil.rmtree(directory, ignore_errors=True)
            shutil.copytree(whole, directory)
            os.truncate(directory / name, length)
            try:
                server = await cluster.start_bookie("b1")
            except QuireError as error:
                refused.append(str(error))
                continue
            assert len(read_all(server.storage, 1, 0, 9)) == 10 or server.storage.states.in_limbo(1)
            await cluster.stop_bookie(bookie)
    assert all(str(directory / name) in sentence for sentence in refused)
    return len(lengths), len(refused)
