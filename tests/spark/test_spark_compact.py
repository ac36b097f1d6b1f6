"""The newest record of each key at its old offset: against a dictionary, with tombstones, beside a leader."""

import json
import random
import time

import pytest

from quire.log.config import LogConfig
from quire.log.cursors import CursorUse, LogCursors
from quire.spark.jobs import archive, compact, replay, rewrite, to_parquet
from quire.spark.options import SparkUseError

pytestmark = pytest.mark.spark

T0 = 1_795_000_000_000
NOW = time.time_ns() // 1_000_000
DAY = 86_400_000
RECORDS, LEDGER = 1200, 100


def records(seed=3):
    """Changes of sixty keys and of none; the times of the first half are long ago, the others' are now."""
    chance = random.Random(seed)
    for n in range(RECORDS):
        key = None if n % 97 == 0 else b"key %d" % chance.randrange(60)
        value = None if chance.random() < 0.3 else b'{"id": %d, "n": %d}' % (n % 7, n)
        yield key, value, (("n", b"%d" % n),), T0 + n if n < RECORDS // 2 else NOW + n


async def fill(client):
    log = client.log("edits", config=LogConfig(batch_bytes_max=700))
    await log.create()
    every = list(records())
    async with await log.open_writer() as writer:
        for start in range(0, RECORDS, LEDGER):
            keys, values, headers, times = zip(*every[start : start + LEDGER], strict=True)
            await writer.append_many(values, keys=keys, headers=headers, timestamps_ms=times)
            await writer.roll()


@pytest.fixture
def edits(own_cluster):
    own_cluster.run(fill)
    return own_cluster


def rows(spark, cluster, **options):
    frame = spark.read.format("quire").option("cluster", cluster.uri).option("includeHeaders", "true")
    return sorted(
        (row["offset"], row["key"], row["value"], row["timestamp"], row["headers"][0]["value"])
        for row in frame.options(**options).load("edits").collect()
    )


def staying(before, end, tombstones_below):
    """What stays, worked out record by record."""
    newest = {row[1]: row[0] for row in before if row[0] < end}
    return [
        row
        for row in before
        if row[0] >= end
        or row[1] is None
        or (newest[row[1]] == row[0] and not (row[2] is None and row[0] < tombstones_below))
    ]


async def describe(client):
    return await client.log("edits").describe()


def test_the_newest_of_each_key_stays_where_it_was(spark, edits, tmp_path):
    table = str(tmp_path / "table")
    before = rows(spark, edits)
    work = compact.plan(spark, edits.uri, "edits", now_ms=NOW + 1, older_than_ms=-DAY, target_bytes=9_000)
    end = edits.run(describe).items[-2].first_offset
    assert (work.end, work.drops_tombstones) == (end, True)
    assert len(work.units) > 2
    told = []
    report = compact.run(spark, work, table, progress=lambda *done: told.append(done))
    assert (report.refused, report.compacted_below, told[-1]) == ([], end, (len(work.units), len(work.units)))
    assert spark.read.parquet(table).count() == len(work.units)
    # Tombstones of long ago are gone, those of today are not.
    after = rows(spark, edits)
    assert after == staying(before, end, RECORDS // 2)
    assert report.records - report.kept == len(before) - len(after) > 600


@pytest.mark.slow
def test_whoever_reads_or_copies_a_compacted_log_finds_what_stayed(spark, edits, tmp_path, setting):
    before = rows(spark, edits)
    work = compact.plan(spark, edits.uri, "edits", now_ms=NOW + 1, older_than_ms=-DAY, target_bytes=9_000)
    compact.run(spark, work, str(tmp_path / "table"))
    end, after = work.end, staying(before, work.end, RECORDS // 2)
    # From an offset on, by offset and by time, in small tasks, as a state.
    setting("spark.sql.python.filterPushdown.enabled", "true")
    for first, stop in ((0, 1), (500, 503), (333, 900), (1190, 1200)):
        options = {"startingOffsets": json.dumps({"edits": first}), "endingOffsets": f'{{"edits": {stop}}}'}
        assert rows(spark, edits, **options) == [row for row in after if first <= row[0] < stop]
    small = rows(spark, edits, splitBytes="500", startingTimestamp=str(NOW))
    assert small == [row for row in after if row[0] >= RECORDS // 2]
    frame = spark.read.format("quire").option("cluster", edits.uri).load("edits")
    pushed = frame.where("offset > 40 AND offset < 480").select("offset").collect()
    assert sorted(row.offset for row in pushed) == [row[0] for row in after if 40 < row[0] < 480]
    state = {row[1]: row[2] for row in before if row[1] is not None}
    replay.run(spark, cluster=edits.uri, log="edits", table=str(tmp_path / "state"))
    assert replay.state(spark, str(tmp_path / "state")) == {k: v for k, v in state.items() if v}
    with pytest.raises(SparkUseError, match=f"compacted up to {end}"):
        replay.run(spark, cluster=edits.uri, log="edits", table=str(tmp_path / "early"), at=end - 1)
    assert to_parquet.run(spark, cluster=edits.uri, log="edits", table=str(tmp_path / "copy")).dense

    # Again: nothing to do. Rolled up, and archived: the same records.
    again = compact.plan(spark, edits.uri, "edits", now_ms=NOW + 1, older_than_ms=-DAY, target_bytes=9_000)
    assert again.units == ()
    rolled = rewrite.run(spark, rewrite.plan(edits.uri, "edits"), str(tmp_path / "rolled"))
    assert (rolled.refused, rows(spark, edits)) == ([], after)
    root = (tmp_path / "files").as_uri()
    for later in (1, 3):
        filed = archive.plan(edits.uri, "edits", root, now_ms=NOW + later * DAY)
        assert archive.run(spark, filed, str(tmp_path / "archive")).refused == []
    assert edits.run(describe).items[0].location.name == "ARCHIVE"
    assert rows(spark, edits) == after


@pytest.mark.slow
def test_a_key_can_be_in_the_value(spark, edits, tmp_path):
    before = rows(spark, edits)
    key = "get_json_object(cast(value AS string), '$.id')"
    work = compact.plan(spark, edits.uri, "edits", key=key, now_ms=NOW + 1, older_than_ms=-DAY)
    compact.run(spark, work, str(tmp_path / "table"))
    ids = {row[0]: None if row[2] is None else json.loads(row[2])["id"] for row in before}
    newest = {ids[row[0]]: row[0] for row in before if row[0] < work.end}
    expected = [
        row[0] for row in before if row[0] >= work.end or ids[row[0]] is None or newest[ids[row[0]]] == row[0]
    ]
    assert [row[0] for row in rows(spark, edits)] == expected


@pytest.mark.slow
def test_a_tombstone_stays_while_what_it_removes_may_be_there(spark, edits, tmp_path):
    """Truncated inside a ledger: that ledger cannot be copied, and tombstones further on still hold it down."""
    edits.run(lambda client: client.log("edits").truncate(30))
    before = rows(spark, edits)
    work = compact.plan(spark, edits.uri, "edits", now_ms=NOW + 1, older_than_ms=-DAY)
    assert not work.drops_tombstones
    compact.run(spark, work, str(tmp_path / "table"))
    assert {row[0] for row in rows(spark, edits)} - {row[0] for row in before if row[0] < LEDGER} == {
        row[0] for row in staying(before, work.end, 0) if row[0] >= LEDGER
    }


@pytest.mark.slow
def test_it_stops_at_a_refusal_and_waits_for_a_cursor(spark, edits, tmp_path):
    before = rows(spark, edits)
    identity = edits.run(describe).log_id

    async def hold(client, offset):
        cursors = LogCursors(client.store, client.clock.wall_ms)
        await cursors.move(identity, CursorUse("slow", "a test", hold=True), offset, take=True)

    edits.run(hold, 450)
    options = {"now_ms": NOW + 1, "older_than_ms": -DAY, "target_bytes": 9_000}
    assert compact.plan(spark, edits.uri, "edits", **options).end == 400
    edits.run(hold, RECORDS)
    work = compact.plan(spark, edits.uri, "edits", **options)
    # Somebody copies the ledgers before the job comes to them.
    rewrite.run(spark, rewrite.plan(edits.uri, "edits"), str(tmp_path / "other"))
    report = compact.run(spark, work, str(tmp_path / "table"))
    assert (report.kept, len(report.refused)) == (0, 1)
    assert rows(spark, edits) == before
    # Beside a leader, planned anew.
    writer = edits.run(lambda client: client.log("edits").open_writer())
    report = compact.run(spark, compact.plan(spark, edits.uri, "edits", **options), str(tmp_path / "table"))
    assert report.refused == []
    edits.run(lambda client: writer.append(b"after", key=b"key 1"))
    edits.run(lambda client: writer.close())
    frame = spark.read.format("quire").option("cluster", edits.uri).load("edits")
    assert frame.where("key = 'key 1'").orderBy("offset").collect()[-1]["offset"] == RECORDS
