"""Snapshots of a state, each from the one before and the tail: against a dictionary, before and after compaction."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from quire.log.config import LogConfig
from quire.spark.jobs import compact, materialise, replay
from quire.spark.jobs.__main__ import run_lines
from quire.spark.jobs.table_formats import commit_delta
from quire.spark.options import SparkUseError

pytestmark = pytest.mark.spark

T0 = 1_795_000_000_000
DAY = 86_400_000


def changes(first, stop):
    """Every fifth change removes the key that came ten before it."""
    for n in range(first, stop):
        yield (
            b"key %d" % ((n - 10 if n % 5 == 0 else n) % 37),
            None if n % 5 == 0 else b"%d" % n,
            T0 + n * 1000,
        )


def state(stop):
    found = {key: value for key, value, _ in changes(0, stop)}
    return {key: value for key, value in found.items() if value is not None}


async def append(client, first, stop):
    log = client.log("edits", config=LogConfig(batch_bytes_max=500))
    if not await log.exists():
        await log.create()
    async with await log.open_writer() as writer:
        for start in range(first, stop, 50):
            keys, values, times = zip(*changes(start, min(start + 50, stop)), strict=True)
            await writer.append_many(values, keys=keys, timestamps_ms=times)
            await writer.roll()


def in_delta(place):
    table = DeltaTable(place).to_pyarrow_table(columns=["key", "value"])
    return dict(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))


def made(spark, cluster, root, keep=None, **options):
    work = materialise.plan(cluster.uri, "edits", root, **options)
    report = materialise.run(spark, work, keep=keep)
    return report, replay.state(spark, report.table)


def test_each_snapshot_is_made_from_the_one_before(spark, own_cluster, tmp_path, capsys, monkeypatch):
    own_cluster.run(append, 0, 300)
    root = str(tmp_path / "states")
    report, found = made(spark, own_cluster, root, at=120)
    assert (report.from_snapshot, report.records_read, found) == (None, 120, state(120))
    # Everything before the first record that is later than the time.
    text = datetime.fromtimestamp(T0 / 1000 + 199, UTC).isoformat()
    report, found = made(spark, own_cluster, root, as_of=text)
    assert (report.next_offset, report.from_snapshot, report.records_read) == (200, 120, 80)
    assert found == state(200)
    # What is not whole is no snapshot.
    Path(report.table, materialise.WHOLE).unlink()
    report, found = made(spark, own_cluster, root)
    assert (report.next_offset, report.from_snapshot, found) == (300, 120, state(300))
    delta = materialise.content(materialise.plan(own_cluster.uri, "edits", root))
    assert (commit_delta(delta), in_delta(delta.location)) == (0, state(300))
    again, _ = made(spark, own_cluster, root)
    assert (again.table, again.records_read, again.keys) == (report.table, 0, None)

    # Tombstones go; the snapshots of before are no base any more, for they would keep what was removed.
    own_cluster.run(append, 300, 400)
    work = compact.plan(spark, own_cluster.uri, "edits", now_ms=T0 + 10 * DAY)
    assert work.drops_tombstones
    assert compact.run(spark, work, str(tmp_path / "compacted")).kept < 100
    with pytest.raises(SparkUseError, match="Replay without the snapshot"):
        replay.run(
            spark,
            cluster=own_cluster.uri,
            log="edits",
            table=str(tmp_path / "t"),
            snapshot=report.table,
        )
    with pytest.raises(SparkUseError, match="is not in it any more"):
        made(spark, own_cluster, root, at=250)
    report, found = made(spark, own_cluster, root, keep=1)
    assert (report.from_snapshot, report.next_offset, found) == (None, 400, state(400))
    assert report.removed == 2
    delta = materialise.content(materialise.plan(own_cluster.uri, "edits", root))
    assert (commit_delta(delta), in_delta(delta.location)) == (1, state(400))
    assert len(list(Path(report.table).parent.glob("0*"))) == 2  # the kept one, and the one that is not whole

    monkeypatch.setenv("QUIRE_CLUSTER", own_cluster.uri)
    steps = [["materialise", "--log", "edits", "--out", root, "--dry-run"]]
    assert run_lines(spark, [json.dumps(step) + "\n" for step in steps], 0.0) == 0
    plan, line = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert plan["plan"][0]["read_from"] == "nothing: it is there"
    assert (line["snapshots"], line["next_offset"]) == ([400], 400)
    with pytest.raises(SparkUseError, match="an offset or a time"):
        materialise.plan(own_cluster.uri, "edits", root, at=3, as_of="2026-01-01")
