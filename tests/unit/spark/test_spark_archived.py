"""Archived records: the same columns as from a ledger, and no changed byte gets through."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructField, StructType

from quire.core.log.list import ItemLocation, ItemState, LedgerSummary, LogItem
from quire.log.archive import (
    SCHEMA,
    ArchiveError,
    ArchiveLocation,
    footer_digest,
    open_archive,
    read_footer,
    write_archive,
)
from quire.log.heads import LogHeads
from quire.spark import tasks
from quire.spark.jobs.archive_files import ArchiveFiles
from quire.spark.options import SparkOptions, SparkUseError, Use
from quire.spark.planning import _pieces, tasks_of
from quire.spark.pushdown import Wanted
from quire.spark.read_options import READ_OPTIONS, parse
from quire.spark.schema import COLUMNS, project
from quire.spark.stream import Limits, Stream
from support.log_cluster import numbers

T0 = 1_795_000_000_000
COUNT = 300


def table(first, end):
    """Records; three offsets in ten are missing, as after compaction."""
    offsets = [offset for offset in range(first, end) if offset % 10 < 7]
    return pa.Table.from_pylist(
        [
            {
                "offset": offset,
                "timestamp": T0 + offset,
                "key": None if offset % 3 else b"k%d" % offset,
                "value": b"%d" % offset,
                "headers": [{"key": "h", "value": None}] if offset % 5 == 0 else None,
                "ledger": 7,
                "entry": offset // 100,
                "index": offset % 100,
            }
            for offset in offsets
        ],
        SCHEMA.set(1, pa.field("timestamp", pa.int64())),
    ).cast(SCHEMA)


def write(directory: Path, log_id="ab" * 16) -> ArchiveLocation:
    """A file of three row groups, as an archive job would leave it."""
    made = directory / "made"
    with made.open("wb") as sink:
        write_archive(sink, [table(0, 100), table(100, 200), table(200, COUNT)], log="orders", log_id=log_id)
    with pa.OSFile(str(made)) as source:
        _, footer = read_footer(source)
    location = ArchiveLocation(str(directory), log_id, 0, COUNT, footer_digest(footer))
    Path(location.path).parent.mkdir(exist_ok=True)
    made.rename(location.path)
    return location


def test_the_file_is_plain_parquet_and_says_where_its_row_groups_are(tmp_path):
    location = write(tmp_path)
    assert location.name == f"{'ab' * 16}/{0:019d}-{COUNT:019d}-{location.digest.hex()}.parquet"
    plain = pq.read_table(location.path, partitioning=None)
    assert plain.schema.equals(SCHEMA)
    assert plain.equals(pa.concat_tables([table(0, 100), table(100, 200), table(200, COUNT)]))
    manifest = open_archive(location).manifest
    assert [(group.first, group.next, group.rows) for group in manifest.groups] == [
        (0, 97, 70),
        (100, 197, 70),
        (200, 297, 70),
    ]
    parquet = pq.read_metadata(location.path)
    for number, group in enumerate(manifest.groups):
        columns = [parquet.row_group(number).column(location) for location in range(parquet.num_columns)]
        starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
        assert group.start == min(starts)
        assert group.end - group.start == sum(column.total_compressed_size for column in columns)
        assert open_archive(location).read(number, ["value", "offset"]).num_columns == 2


def test_no_changed_byte_passes(tmp_path):
    location = write(tmp_path)
    path, good = Path(location.path), Path(location.path).read_bytes()
    expected = [open_archive(location).read(number, SCHEMA.names) for number in range(3)]

    def read_all():
        file = open_archive(location)
        return [file.read(number, SCHEMA.names) for number in range(3)]

    # Every 37th byte, and the ends; the first four are only a mark.
    for at in [*range(4, len(good), 37), len(good) - 1, len(good) - 5]:
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        try:
            found = read_all()
        except ArchiveError:
            continue
        else:
            # Bytes between row groups and footer (page indexes) are not read.
            assert found == expected
            assert at >= open_archive(location).manifest.groups[-1].end
    for size in (0, 5, len(good) - 1, len(good) // 2):
        path.write_bytes(good[:size])
        with pytest.raises(ArchiveError, match="its footer differs from the one"):
            open_archive(location)
    path.unlink()
    with pytest.raises(ArchiveError, match=r"cannot be read|is missing"):
        open_archive(location)
    with pytest.raises(ArchiveError, match=r"cannot be read|is missing"):
        open_archive(replace(location, directory=tmp_path.joinpath("nowhere").as_uri()))


def options(use=Use.BATCH, **given):
    return parse(SparkOptions({"cluster": "sqlite:/c.db", "path": "orders", **given}, READ_OPTIONS), use)


EVERY = project(StructType([StructField(name, COLUMNS[name]) for name in COLUMNS]))


async def test_a_log_that_is_partly_archived_reads_as_one(tmp_path, at, caplog):
    log = await at.made("orders")
    async with await log.open_writer() as writer:
        for first, end in ((0, COUNT), (COUNT, 350), (350, 400)):
            times = range(T0 + first, T0 + end)
            await writer.append_many(numbers(first, end), timestamps_ms=list(times))
            if end < 400:
                await writer.roll()
    heads = LogHeads(at.store)
    log_id = await heads.find("orders")
    location = write(tmp_path, log_id.hex())
    head, version = await heads.read(log_id)
    rows = 210
    item = LogItem(7, location=ItemLocation.ARCHIVE, archive=location.digest).completed(
        0, LedgerSummary(rows, 5_000, T0, T0 + 296)
    )
    item = replace(item, next_offset=COUNT, state=ItemState.CLOSED)
    # The compare-and-swap of an archive job, and its deletion.
    await heads.write(replace(head, items=(item, *head.items[1:]), archive=str(tmp_path)), version)
    await at.client.delete_ledger(head.items[0].ledger_id)
    about = await log.describe()
    assert (about.archive, about.items[0].archive) == (str(tmp_path), location.digest)

    async def read(wanted=Wanted(), **given):  # noqa: B008
        chosen = options(**given)
        found, _ = await _pieces(at.client, chosen, wanted)
        planned = tasks_of(chosen, wanted, found)
        batches = []
        for task in planned:
            for piece in task.pieces:
                if piece.archive is not None:
                    alone = replace(task, pieces=(piece,))
                    batches += tasks.read(alone, chosen, EVERY)
        return planned, pa.Table.from_batches(batches, EVERY.arrow) if batches else None

    planned, found = await read(rowsPerBatch="16")
    assert [[piece.archive is not None for piece in task.pieces] for task in planned] == [
        [True, False, False]
    ]
    plain = table(0, COUNT)
    for name in ("offset", "key", "value", "ledger", "entry", "index"):
        assert found.column(name).to_pylist() == plain.column(name).to_pylist()
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [
        1000 * (T0 + offset) for offset in plain.column("offset").to_pylist()
    ]
    assert set(found.column("log").to_pylist()) == {"orders"}
    # Only the row groups that are needed, only the records that are wanted.
    planned, found = await read(startingOffsets='{"orders": 105}', endingOffsets='{"orders": 203}')
    assert [(piece.first_entry, piece.last_entry) for piece in planned[0].pieces] == [(1, 2)]
    assert found.column("offset").to_pylist() == [o for o in range(105, 203) if o % 10 < 7]
    _, found = await read(startingTimestamp=str(T0 + 250), endingTimestamp=str(T0 + 260))
    assert found.column("offset").to_pylist() == list(range(250, 257))
    planned, _ = await read(splitBytes="1k")
    assert len(planned) > 2
    # A stream begins inside it, by time, and counts its records, not its offsets.
    stream = Stream(options(Use.STREAM, startingTimestamp=str(T0 + 198)))
    start = await stream.initial(at.client)
    assert start["logs"]["orders"]["offset"] == 200
    end = await stream.latest(at.client, start, Limits(records=35))
    assert end["logs"]["orders"]["offset"] == 250
    # A damaged file is named, or stepped over.
    data = Path(location.path).read_bytes()
    Path(location.path).write_bytes(data[:100] + b"?" + data[101:])
    with pytest.raises(
        SparkUseError, match=r"quire: log 'orders': archive file .* row group 0 \(offsets 0 to 96\)"
    ):
        await read()
    _, found = await read(failOnDataLoss="false")
    later = [offset for offset in plain.column("offset").to_pylist() if offset >= 100]
    assert found.column("offset").to_pylist() == later, "the other row groups"
    assert "row group 0 (offsets 0 to 96) differs from its checksum: offsets 0 to 96, up to 97 records" in (
        caplog.text
    )
    Path(location.path).unlink()
    with pytest.raises(SparkUseError, match=r"is missing from its directory.* failOnDataLoss=false skips"):
        await read()
    assert (await read(failOnDataLoss="false"))[1] is None
    # With the whole directory it may be a disk that is away: nothing is proven lost.
    Path(location.path).parent.rename(tmp_path / "away")
    for given in ("true", "false"):
        with pytest.raises(SparkUseError, match="It is not proven lost"):
            await read(failOnDataLoss=given)


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_after(tmp_path, monkeypatch):
    synced = []

    def fsync(descriptor):
        inode = os.fstat(descriptor).st_ino
        synced.append(next(path for path in (tmp_path, *tmp_path.rglob("*")) if path.stat().st_ino == inode))

    monkeypatch.setattr(os, "fsync", fsync)
    files = ArchiveFiles(tmp_path.as_uri())
    with files.create("ab/unfinished-1") as sink:
        sink.write(b"rows")
    files.move("ab/unfinished-1", "ab/1.parquet")
    assert synced == [tmp_path / "ab" / "unfinished-1", tmp_path / "ab", tmp_path]
    assert (tmp_path / "ab" / "1.parquet").read_bytes() == b"rows"
