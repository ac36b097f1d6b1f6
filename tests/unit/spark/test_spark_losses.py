"""What a task may leave out: read from real bookies, some copies damaged, some bookies away."""

from __future__ import annotations

import logging
import os
import shutil
import time
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType

import quire
from quire.bookie.server import BookieServer
from quire.client.config import ClientConfig
from quire.core.errors import QuireError, ReadUnavailableError
from quire.log import batching
from quire.log.archive import ArchiveLocation, open_archive
from quire.log.config import LogConfig
from quire.log.rewriting import LogRewriter
from quire.log.staging import StagedBy
from quire.spark import cluster as cluster_of_process
from quire.spark import planning, tasks
from quire.spark.decode import SourceLedger
from quire.spark.jobs import archive, compact, lists, materialise, scrub
from quire.spark.jobs.compact import CompactUnit
from quire.spark.jobs.newest import KeptOffsets
from quire.spark.losses import TaskLosses
from quire.spark.options import SparkOptions, SparkUseError, Use
from quire.spark.packing import EntrySpan
from quire.spark.pushdown import Wanted
from quire.spark.read_options import READ_OPTIONS, parse
from quire.spark.schema import COLUMNS, project
from quire.spark.stream import Stream
from quire.spark.write_options import Compression
from support.local_bookies import LocalBookies

QUICK = ClientConfig(read_timeout_ms=300)
ENTRIES, RECORDS = 40, 10
T0 = 1_795_000_000_000


def value(number):
    return b"<record %d>" % number * 100


class Cluster(LocalBookies):
    """Three bookies and a log of forty entries of ten records; tasks of this process read it."""

    async def _start(self, count):
        await super()._start(count)
        await self._connect()
        await self.client.log("orders").create()
        async with await self.client.log(
            "orders", config=LogConfig(batch_records_max=RECORDS)
        ).open_writer() as writer:
            for first in range(0, ENTRIES * RECORDS, RECORDS):
                numbers = range(first, first + RECORDS)
                await writer.append_many([value(n) for n in numbers], timestamps_ms=[T0 + n for n in numbers])

    async def _connect(self):
        self.client = await quire.connect(self.uri, QUICK)
        cluster_of_process._clients[os.getpid(), self.uri] = self.client

    def run(self, function, *args, **more):
        return self._background.run(function, *args, **more)

    def stopped(self, change, number=3):
        """Stop bookies, change what lies in their directories, start them again."""

        async def work():
            await self.client.close()
            for bookie in self.bookies[:number]:
                await bookie.stop()
                change(bookie.config.directory)
            again = [BookieServer(bookie.config, self.store) for bookie in self.bookies[:number]]
            for bookie in again:
                await bookie.start()
            self.bookies[:number] = again
            await self._connect()

        self._background.run(work)

    def spoil(self, *entries, number=3):
        """Damage the stored bytes of some entries on some bookies."""

        def change(directory):
            for file in directory.rglob("*.seg"):
                data = bytearray(file.read_bytes())
                for entry in entries:
                    at = data.find(value(entry * RECORDS))
                    data[at] ^= 1 if at >= 0 else 0
                file.write_bytes(data)

        self.stopped(change, number)

    def stop_bookies(self, number=3):
        async def work():
            for _ in range(number):
                await self.bookies.pop().stop()

        self._background.run(work)

    def read(self, **given):
        """The offsets that the tasks of a batch read give."""
        options = parse(
            SparkOptions({"cluster": self.uri, "path": "orders", **given}, READ_OPTIONS), Use.BATCH
        )
        schema = project(StructType([StructField("offset", COLUMNS["offset"])]))
        batches = [
            batch
            for task in planning.plan(options, Wanted(from_ms=options.starting_ms, to_ms=options.ending_ms))
            for batch in tasks.read(task, options, schema)
        ]
        return pa.Table.from_batches(batches, schema.arrow).column("offset").to_pylist()

    async def collect(self):
        for bookie in self.bookies * 3:  # one pass finds a ledger without a record, a later one may drop it
            await bookie.collector.collect()

    def begins(self, time_ms):
        """The offset at which a stream begins that starts at a time."""
        given = SparkOptions(
            {"cluster": self.uri, "path": "orders", "startingTimestamp": str(time_ms)}, READ_OPTIONS
        )
        first = self.run(Stream(parse(given, Use.STREAM)).initial, self.client)
        return first["logs"]["orders"]["offset"]

    def close(self):
        async def work():
            await self.client.close()
            for bookie in self.bookies:
                await bookie.stop()
            await self.store.close()

        del cluster_of_process._clients[os.getpid(), self.uri]
        self._background.run(work)


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.close()


EVERY = list(range(ENTRIES * RECORDS))
LAX = {"failOnDataLoss": "false"}


def without(*entries):
    return [offset for offset in EVERY if offset // RECORDS not in entries]


def test_a_damaged_entry_takes_nothing_with_it(cluster, caplog):
    cluster.spoil(7, 20, 21, 39)
    assert cluster.read(**LAX) == without(7, 20, 21, 39)
    said = [each.message for each in caplog.records if "skipped" in each.message]
    ledger = cluster.run(describe, cluster.client).items[0].ledger_id
    assert len(said) == 4
    assert said[0].startswith(
        f"quire: log 'orders': skipped: entry 7 of ledger {ledger}, missing or damaged on every bookie"
    )
    assert said[0].count(" DAMAGED") == 3
    assert said[0].endswith("offsets 70 to 79, 10 records of this read.")
    assert "entries 20 to 21" in said[1]
    assert said[1].endswith("offsets 200 to 219, 20 records of this read.")
    assert said[2].endswith("offsets 390 to 399, 10 records of this read.")
    assert (
        said[3]
        == "quire: task 0 skipped 40 records that are proven lost, in 4 entries or archived row groups."
    )
    with pytest.raises(
        SparkUseError, match=r"'orders': entry 7 .* 10 records .* failOnDataLoss=false skips them\.$"
    ):
        cluster.read()
    # In small tasks and from anywhere: what the search for offsets and times meets is stepped over as well.
    caplog.clear()
    assert cluster.read(splitBytes="12k", **LAX) == without(7, 20, 21, 39)
    counted = [each.message for each in caplog.records if each.message.startswith("quire: task")]
    assert sum(int(text.split()[4]) for text in counted) == 40
    for start, end in ((75, 400), (195, 205), (200, 220), (205, 400), (210, 215), (3, 395), (391, 400)):
        wanted = {"startingOffsets": f'{{"orders": {start}}}', "endingOffsets": f'{{"orders": {end}}}'}
        assert cluster.read(**wanted, **LAX) == [n for n in without(7, 20, 21, 39) if start <= n < end]
    assert cluster.read(startingTimestamp=str(T0 + 205), **LAX) == [n for n in without(39) if n >= 220]
    # What is gone may have been as late as what comes after it: a stream begins there, and is told.
    begun = [cluster.begins(T0 + late) for late in (65, 75, 195, 205, 225, 235)]
    assert begun == [65, 70, 195, 200, 200, 235]
    assert cluster.read(startingOffsets='{"orders": 230}', endingOffsets='{"orders": 380}') == EVERY[230:380]


def test_an_outage_is_no_loss(cluster, caplog):
    cluster.spoil(7, number=2)
    assert cluster.read() == EVERY, "the third copy is good"
    cluster.stop_bookies(1)
    for given in ({}, LAX):
        with pytest.raises(SparkUseError) as caught:
            cluster.read(**given)
        assert "entry 7: no bookie of its write set can serve it now" in str(caught.value)
        assert str(caught.value).endswith(
            "read it again when they are back. It is not proven lost, so failOnDataLoss=false does not skip it."
        )
    cluster.stop_bookies(2)
    for given in ({}, LAX, {"startingOffsets": '{"orders": 205}', **LAX}):
        with pytest.raises(QuireError, match="can serve it now"):
            cluster.read(**given)
    assert "skipped" not in caplog.text


def planned(cluster):
    """The one task of a batch read, and how it is read."""
    options = parse(SparkOptions({"cluster": cluster.uri, "path": "orders", **LAX}, READ_OPTIONS), Use.BATCH)
    [task] = planning.plan(options, Wanted())
    schema = project(StructType([StructField("offset", COLUMNS["offset"])]))
    return task, options, schema


def test_a_ledger_that_was_rewritten_is_no_loss_and_one_that_was_trimmed_is(cluster, caplog):
    async def rewrite(client):
        await more(client)
        rewriter = LogRewriter(client, bytes.fromhex((await client.log("orders").describe()).log_id))
        head, [item] = await rewriter.candidates()
        await rewriter.replace([await rewriter.copy([item], head.settings, StagedBy(host="here"))])
        await client.delete_ledger(item.ledger_id)

    read = planned(cluster)
    cluster.run(rewrite, cluster.client)
    cluster.run(cluster.collect)
    with pytest.raises(SparkUseError, match=r"records elsewhere now .* start the query again\.$"):
        list(tasks.read(*read))
    read = planned(cluster)
    assert cluster.read()[: len(EVERY)] == EVERY
    cluster.run(cluster.client.log("orders").truncate, before=ENTRIES * RECORDS)
    cluster.run(cluster.collect)
    [batch] = tasks.read(*read)
    assert batch.column("offset").to_pylist() == [400, 401]
    assert "which was trimmed (the log begins at 400): 40 of the 40 entries" in caplog.text


def test_a_ledger_that_was_archived_is_no_loss(cluster, tmp_path, caplog):
    read = planned(cluster)
    cluster.run(more, cluster.client)
    root, later_ms = (tmp_path / "files").as_uri(), time.time_ns() // 1_000_000 + 2 * archive.DAY_MS
    for _ in range(2):  # the file is written, then proven
        work = archive.plan(cluster.uri, "orders", root, now_ms=later_ms)
        [unit] = (*work.to_write, *work.to_prove)
        [row] = archive._step(unit)
        lists.replace_all(work, [archive._moved(unit, row)], root)
    cluster.run(cluster.client.delete_ledger, unit.item.ledger_id)
    cluster.run(cluster.collect)
    with pytest.raises(SparkUseError, match=r"records elsewhere now .* start the query again\.$"):
        list(tasks.read(*read))
    assert cluster.read()[: len(EVERY)] == EVERY
    assert "skipped" not in caplog.text
    with pytest.raises(SparkUseError, match=f"has its archive at {root}, not at file:///other"):
        archive.plan(cluster.uri, "orders", "file:///other")
    # Nor is it a ledger to scrub, though others are named beside the log.
    left = [item.ledger_id for item in cluster.run(describe, cluster.client).items[1:]]
    assert scrub.plan(cluster.uri, logs=["orders"], ledgers=left[:1]).ledgers == len(left)


@pytest.mark.parametrize("lost", ["damaged", "away", "gone"])
def test_what_bookies_lost_before_its_ledger_went_is_read_in_the_archive(cluster, tmp_path, caplog, lost):
    cluster.run(more, cluster.client)
    work = archive.plan(cluster.uri, "orders", (tmp_path / "files").as_uri(), now_ms=2**62)
    [unit] = work.to_write
    [row] = archive._step(unit)
    lists.replace_all(work, [archive._moved(unit, row)], work.root)
    if lost == "damaged":
        cluster.spoil(7, 20, 39)
    elif lost == "away":
        cluster.stop_bookies()
    else:
        cluster.run(cluster.client.delete_ledger, unit.item.ledger_id)
        assert cluster.begins(T0 + 77) == 77
    for given in ({}, {**LAX, "splitBytes": "12k"}):
        assert cluster.read(endingOffsets='{"orders": 400}', **given) == EVERY
    wanted = {"startingOffsets": '{"orders": 75}', "endingOffsets": '{"orders": 395}'}
    if lost == "away":
        [file] = (tmp_path / "files").rglob("*.parquet")
        data = bytearray(file.read_bytes())
        data[100] ^= 1
        file.write_bytes(data)
        with pytest.raises(SparkUseError, match=r"differs from its checksum\. Nor do the bookies serve"):
            cluster.read(endingOffsets='{"orders": 400}', **LAX)
    else:
        assert cluster.read(**wanted) == EVERY[75:395]
    if lost == "damaged":
        (tmp_path / "files").rename(tmp_path / "elsewhere")
        with pytest.raises(SparkUseError, match=r"cannot be read: .*\. Nor do the bookies serve"):
            cluster.read(endingOffsets='{"orders": 400}', **LAX)
    assert "skipped" not in caplog.text


def test_times_that_spark_cannot_show_are_archived_and_compacted_as_they_are(cluster, tmp_path, monkeypatch):
    times = [T0, 2**60, -(2**60)]

    async def as_before(client):
        async with await client.log("orders").open_writer() as writer:
            await writer.append_many([b"1", b"2", b"3"], timestamps_ms=times)

    monkeypatch.setattr(batching, "TIME_MS_MAX", 2**63 - 1)
    monkeypatch.setattr(batching, "TIME_MS_MIN", -(2**63))
    cluster.run(as_before, cluster.client)
    cluster.run(more, cluster.client)
    work = archive.plan(cluster.uri, "orders", (tmp_path / "files").as_uri(), now_ms=2**62)
    unit = work.to_write[-1]
    [row] = archive._step(unit)
    location = ArchiveLocation(unit.root, unit.log_id.hex(), 400, 403, bytes.fromhex(row["digest"]))
    assert open_archive(location).read(0, ["timestamp"]).column(0).cast(pa.int64()).to_pylist() == times
    kept = KeptOffsets({0: b"\xff" * 4096})
    settings = lists.head_of(cluster.uri, "orders").settings
    what = CompactUnit(
        cluster.uri, unit.log_id, b"", settings, (unit.item,), "compact", kept, Compression.NONE
    )
    [row] = compact._compact(what)
    assert (row["kept"], row["min_time_ms"], row["max_time_ms"]) == (3, times[2], times[1])


def test_a_ledger_that_is_gone_is_lost(cluster, caplog):
    task, options, schema = planned(cluster)
    log = cluster.client.log("orders")
    [item] = cluster.run(describe, cluster.client).items
    for bookie in list(cluster.bookies):
        cluster.run(bookie.stop)
        shutil.rmtree(bookie.config.directory)
    cluster.bookies.clear()
    with pytest.raises(SparkUseError, match="not proven lost"):
        list(tasks.read(task, options, schema))
    cluster.run(cluster.client.delete_ledger, item.ledger_id, fence=False)
    assert list(tasks.read(task, options, schema)) == []
    assert (
        "which was deleted though the log lists it: 40 of the 40 entries of offsets 0 to 399" in caplog.text
    )
    cluster.run(log.delete)
    assert list(tasks.read(task, options, schema)) == []
    assert "whose log was deleted: " in caplog.text
    cluster.run(log.create)
    assert list(tasks.read(task, options, schema)) == []
    assert "whose log was deleted and created again" in caplog.text
    assert [each.levelno for each in caplog.records if "skipped" in each.message] == [logging.WARNING] * 6


def test_a_plan_that_is_kept_reads_nothing_of_a_log_that_was_deleted(cluster, caplog):
    """The bookies have the entries still: their collectors do not run here."""
    task, options, schema = planned(cluster)
    strict = replace(options, fail_on_data_loss=True)
    assert sum(batch.num_rows for batch in tasks.read(task, strict, schema)) == len(EVERY)
    log = cluster.client.log("orders")
    for change, why in (
        (log.delete, "was deleted after this read"),
        (log.create, "was deleted and created again"),
    ):
        cluster.run(change)
        caplog.clear()
        with pytest.raises(SparkUseError, match=why):
            list(tasks.read(task, strict, schema))
        assert list(tasks.read(task, options, schema)) == []
        assert "40 of the 40 entries of offsets 0 to 399, about 400 records of this read" in caplog.text
        assert "skipped 400 records" in caplog.text


def test_archived_records_of_a_log_that_was_deleted_are_counted_by_offset(caplog):
    options = parse(
        SparkOptions({"cluster": "sqlite:/c.db", "path": "orders", **LAX}, READ_OPTIONS), Use.BATCH
    )
    location = ArchiveLocation("file:/files", "ab" * 16, 100, 400, "digest")
    spans = ((100, 150), (200, 300))
    piece = EntrySpan(
        SourceLedger("orders", 7, 100), None, 1, 3, 999, batches=False, offsets=spans, archive=location
    )
    assert TaskLosses(options).step_over_ledger(piece, "whose log was deleted") == 3
    assert (
        "ledger 7, whose log was deleted: 3 archived row groups of offsets 100 to 299, about 150 records"
        in caplog.text
    )


def test_where_an_open_ledger_ends_is_not_for_few_bookies_to_say(cluster):
    async def begin(client):
        writer = await client.log("orders").open_writer()
        for number in range(50):
            await writer.append(b"%d" % number)
        return writer

    async def stop_at_now(client):
        given = SparkOptions({"cluster": cluster.uri, "path": "orders"}, READ_OPTIONS)
        await Stream(parse(given, Use.STREAM)).stop_at_now(client)

    writer = cluster.run(begin, cluster.client)
    assert len(cluster.read()) > len(EVERY)
    cluster.stop_bookies(2)
    for given in ({}, LAX, {"startingOffsets": "latest"}, {"endingOffsets": '{"orders": 460}'}):
        with pytest.raises(
            ReadUnavailableError, match="too few bookies respond to determine where its open ledger ends"
        ):
            cluster.read(**given)
    with pytest.raises(ReadUnavailableError, match="isolation=sealed"):
        cluster.run(stop_at_now, cluster.client)
    begun = SparkOptions(
        {"cluster": cluster.uri, "path": "orders", "startingOffsets": '{"orders": 460}'}, READ_OPTIONS
    )
    with pytest.raises(ReadUnavailableError, match="isolation=sealed"):
        cluster.run(Stream(parse(begun, Use.STREAM)).initial, cluster.client)
    for given in ({}, {"as_of": "2100-01-01"}):
        with pytest.raises(ReadUnavailableError, match="isolation=sealed"):
            materialise.plan(cluster.uri, "orders", "/no/snapshots", **given)
    assert cluster.read(isolation="sealed") == EVERY
    assert cluster.read(endingOffsets='{"orders": 400}') == EVERY
    cluster.run(writer.abandon)


async def more(client):
    """Two ledgers more: a log's last two stay as they are."""
    for _ in range(2):
        async with await client.log("orders").open_writer() as writer:
            await writer.append(b"more")


async def describe(client):
    return await client.log("orders").describe()
