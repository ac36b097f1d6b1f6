"""A log whose old ledgers are files: the same rows through the same source, proof before deletion, damage is named."""

import random
import time

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from quire.core.errors import ArchivedError
from quire.log.config import LogConfig
from quire.spark.jobs import archive
from quire.spark.jobs.archive import COLUMNS
from quire.spark.jobs.stored import digest_of
from quire.spark.jobs.table_formats import commit_delta

pytestmark = pytest.mark.spark

T0 = 1_795_000_000_000
NOW = time.time_ns() // 1_000_000
DAY = 86_400_000
RECORDS = 1200
EVERY_COLUMN = (
    "offset bigint, key binary, value binary, headers array<struct<key string, value binary>>, timestamp timestamp, "
    "log string, ledger bigint, entry bigint, index int, term bigint, partition int"
)


def records():
    chance = random.Random(5)
    for n in range(RECORDS):
        key = None if n % 11 == 0 else b"key %d" % (n % 17)
        value = None if n % 13 == 0 else chance.randbytes(n % 90)
        headers = None if n % 3 else (("trace", b"%d" % n), ("empty", None))
        yield key, value, headers, T0 + n * 10


@pytest.fixture
def orders(own_cluster):
    async def fill(client):
        log = client.log("orders", config=LogConfig(batch_bytes_max=1_500))
        await log.create()
        every = list(records())
        async with await log.open_writer() as writer:
            for start in range(0, RECORDS, 150):
                keys, values, headers, times = zip(*every[start : start + 150], strict=True)
                await writer.append_many(values, keys=keys, headers=headers, timestamps_ms=times)
                await writer.roll()

    own_cluster.run(fill)
    return own_cluster


def frame(spark, cluster, schema=EVERY_COLUMN, **options):
    reader = spark.read.format("quire").option("cluster", cluster.uri).schema(schema)
    return reader.options(**options).load("orders")


def rows(*arguments, **options):
    return sorted((tuple(row) for row in frame(*arguments, **options).collect()), key=lambda row: row[0])


def run_archive(spark, cluster, root, table, now_ms, **options):
    work = archive.plan(cluster.uri, "orders", root, now_ms=now_ms)
    return archive.run(spark, work, table, **options)


async def describe(client):
    return await client.log("orders").describe()


def places(cluster):
    return [item.location.name for item in cluster.run(describe).items]


def test_rows_stay_when_ledgers_become_files_and_damage_is_named(spark, orders, tmp_path, setting):
    root, table = (tmp_path / "files").as_uri(), str(tmp_path / "table")
    before = rows(spark, orders)
    ledgers = len(places(orders))
    assert ledgers > 6
    told = []
    first = run_archive(spark, orders, root, table, T0 - 1, progress=lambda *done: told.append(done))
    assert first.written == 0  # every record is younger than now
    written = run_archive(spark, orders, root, table, NOW, progress=lambda *done: told.append(done))
    assert (written.written, written.deleted, written.refused) == (ledgers - 2, 0, [])
    assert places(orders) == ["BOTH"] * (ledgers - 2) + ["BOOKIES"] * 2
    assert told[-1] == (ledgers - 2, ledgers - 2)
    assert rows(spark, orders) == before
    again = run_archive(spark, orders, root, table, NOW + 1)
    assert (again.written, again.deleted) == (0, 0)

    # One file is damaged before its second proof: its ledger stays.
    files = sorted((tmp_path / "files").rglob("*.parquet"))
    assert len(files) == ledgers - 2
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[:200] + bytes([whole[200] ^ 4]) + whole[201:])
    proven = run_archive(spark, orders, root, table, NOW + 3 * DAY)
    assert (proven.deleted, len(proven.refused)) == (ledgers - 3, 1)
    assert files[1].name in proven.refused[0]
    assert places(orders) == ["ARCHIVE", "BOTH"] + ["ARCHIVE"] * (ledgers - 4) + ["BOOKIES"] * 2
    assert orders.run(count_ledgers) == 3
    assert rows(spark, orders) == before
    files[1].write_bytes(whole)
    assert run_archive(spark, orders, root, table, NOW + 3 * DAY).deleted == 1

    # The same as a Delta table, which has what the list has in files.
    delta = archive.content(orders.uri, "orders", root)
    assert (commit_delta(delta), commit_delta(delta)) == (0, 0)
    table_rows = DeltaTable(delta.location).to_pyarrow_table(columns=["offset", "value"]).to_pylist()
    expected = [(row[0], row[2]) for row in before]
    assert sorted((row["offset"], row["value"]) for row in table_rows) == expected[: len(table_rows)]
    assert len(table_rows) == sum(file.records for file in delta.files) > RECORDS // 2

    # Parts of it: by offset, by time, by column, in small tasks.
    setting("spark.sql.python.filterPushdown.enabled", "true")
    some = frame(spark, orders, "offset bigint").where("offset >= 100 AND offset < 777").collect()
    assert sorted(row["offset"] for row in some) == list(range(100, 777))
    late = rows(spark, orders, "offset bigint", startingTimestamp=str(T0 + 8_000), splitBytes="1k")
    assert late == [(n,) for n in range(800, RECORDS)]
    keys = frame(spark, orders, "key binary, offset bigint", rowsPerBatch="7", minPartitions="5").collect()
    assert {(row["offset"], row["key"]) for row in keys} == {(row[0], row[1]) for row in before}

    # A bit of a file that is read on: named.
    damage_and_see(spark, orders, files[2])
    # The log itself says where they are.
    with pytest.raises(ArchivedError, match="in the archive"):
        orders.run(read_all)
    files[2].unlink()
    with pytest.raises(Exception, match=rf"{files[2].name} is missing from its directory"):
        frame(spark, orders, "offset bigint").collect()
    lossy = rows(spark, orders, "offset bigint", failOnDataLoss="false")
    assert 0 < len(lossy) < RECORDS


async def count_ledgers(client):
    return len([ledger async for ledger in client.ledgers()])


async def read_all(client):
    return [record async for record in client.log("orders").read()]


def damage_and_see(spark, cluster, file):
    whole = file.read_bytes()
    chance = random.Random(1)
    place = chance.randrange(len(whole))
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(Exception, match=file.name):
        frame(spark, cluster).collect()
    file.write_bytes(whole)


# --- files alone ----------------------------------------------------------------------------------------------------


def batch(values, first=0):
    count = len(values)
    columns = {
        "offset": pa.array(range(first, first + count), pa.int64()),
        "timestamp": pa.array([T0 + n for n in range(count)], pa.timestamp("ms", tz="UTC")),
        "key": pa.array([b"k"] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.nulls(count, COLUMNS.field("headers").type),
        "ledger": pa.array([7] * count, pa.int64()),
        "entry": pa.array([0] * count, pa.int64()),
        "index": pa.array(range(count), pa.int32()),
    }
    return pa.table(columns, schema=COLUMNS)


def test_a_digest_does_not_depend_on_how_records_are_cut_and_on_nothing_else():
    values = [None, b"", b"ab", b"c", b"abc", None, b"x" * 100]
    whole = batch(values)

    def of(*parts):
        return digest_of(each for part in parts for each in part.to_batches()).digest()

    assert of(whole) == of(whole.slice(0, 3), whole.slice(3)) == of(*(whole.slice(n, 1) for n in range(7)))
    others = {
        of(batch([None, b"", b"abc", b"", b"abc", None, b"x" * 100])),
        of(batch([b"", None, b"ab", b"c", b"abc", None, b"x" * 100])),
        of(batch(values, 1)),
        of(batch(values[:-1])),
    }
    assert len(others | {of(whole)}) == 5


def test_strays_are_shown_and_only_old_ones_are_removed(spark, orders, tmp_path):
    root, table = (tmp_path / "files").as_uri(), str(tmp_path / "table")
    run_archive(spark, orders, root, table, NOW)
    folder = next((tmp_path / "files").iterdir())
    (folder / "unfinished-7-aa").write_bytes(b"half of a file")
    work = archive.plan(orders.uri, "orders", root, now_ms=NOW + 1)
    assert [path.rpartition("/")[2] for path in work.strays] == ["unfinished-7-aa"]
    report = archive.run(spark, work, table, vacuum=True)
    assert (report.strays, report.removed) == (1, 0)
