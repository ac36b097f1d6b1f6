"""The checks of a table see what is wrong with it; tables are written by pyarrow here, rightly and wrongly."""

import hashlib
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quire.spark.jobs import to_parquet

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


def table_of(directory, offsets, *, keys=(b"a", b"b", b"\xff")):
    moment = datetime(2026, 11, 20, tzinfo=UTC)
    rows = [
        {
            "key": keys[offset % len(keys)],
            "value": b"line %d\n" % offset,
            "offset": offset,
            "timestamp": moment,
        }
        for offset in offsets
    ]
    half = len(rows) // 2
    directory.mkdir()
    pq.write_table(pa.Table.from_pylist(rows[:half], SCHEMA), directory / "one.parquet")
    pq.write_table(pa.Table.from_pylist(rows[half:], SCHEMA), directory / "two.parquet")
    return str(directory)


def check(spark, table, compacted_below=0):
    return to_parquet._check(spark, "orders", table, compacted_below, 0.0, 0.0)


@pytest.mark.parametrize(
    ("offsets", "missing", "duplicates"),
    [
        ([*range(100_000, 140_000)], 0, 0),
        ([*range(100), *range(101, 200)], 1, 0),
        ([*range(100), 17], 0, 1),
        ([0, 0, 2, 2, 4, 4], 2, 3),
        ([], 0, 0),
    ],
)
def test_gaps_and_duplicates_are_counted_exactly(spark, tmp_path, offsets, missing, duplicates):
    report = check(spark, table_of(tmp_path / "t", offsets))
    assert (report.records, report.missing, report.duplicates) == (len(offsets), missing, duplicates)
    assert report.dense == (missing == duplicates == 0)
    assert (report.first_offset, report.next_offset) == (
        (min(offsets), max(offsets) + 1) if offsets else (None, None)
    )


def test_what_a_compaction_took_is_not_missing(spark, tmp_path):
    report = check(spark, table_of(tmp_path / "t", [0, 3, 7, 10, 11, 12, 14]), compacted_below=10)
    assert (report.records, report.missing, report.duplicates) == (7, 1, 0)


def test_figures_and_sample(spark, tmp_path):
    report = check(spark, table_of(tmp_path / "t", range(10)))
    assert (report.keys, report.files) == (3, 2)
    assert report.bytes == 10 * (1 + len(b"line 0\n"))
    assert [row["value"] for row in report.sample] == [f"line {i}\n" for i in range(5)]
    assert report.sample[2]["key"] == "\udcff"


def test_digests_are_over_the_values_of_a_key_in_offset_order(spark, tmp_path):
    offsets = [*range(500, 1000), *range(500)]
    digests = to_parquet.key_digests(spark, table_of(tmp_path / "t", offsets))
    for remainder, key in enumerate((b"a", b"b", b"\xff")):
        content = b"".join(b"line %d\n" % offset for offset in range(1000) if offset % 3 == remainder)
        assert digests[key].sha256 == hashlib.sha256(content).hexdigest()
        assert (digests[key].records, digests[key].bytes) == (content.count(b"\n"), len(content))
