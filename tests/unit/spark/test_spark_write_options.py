"""What can be written, and what is refused with which sentence; nothing here needs Spark to run."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quire.core.log.commit import OnReset
from quire.spark.options import SparkOptions, SparkUseError
from quire.spark.outgoing import EntryPacker, Times, by_log, check_columns, packed, records_of, unpacked
from quire.spark.read_options import READ_OPTIONS
from quire.spark.write_options import WRITE_OPTIONS, BodyCodec, Compression, OrderBy, parse_write
from quire.wire.batch import BatchView
from quire.wire.batch_arrow import arrow_schema

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def parse(*, stream=False, overwrite=False, log_column=False, **options):
    given = {"cluster": "sqlite:/m.db", "path": "orders", **options}
    known = (*READ_OPTIONS, *WRITE_OPTIONS)
    return parse_write(
        SparkOptions({k: v for k, v in given.items() if v}, known),
        stream=stream,
        overwrite=overwrite,
        log_column=log_column,
    )


def schema(**columns):
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_options_have_their_values():
    found = parse(
        ensemble="4",
        writeQuorum="3",
        ackQuorum="2",
        codec="ROWS",
        inlineBytes="64k",
        txnAppId="etl",
        txnVersion="7",
        txnOnReset="skip",
        takeover="true",
        orderBy="timestamp",
    )
    assert (found.quorums, found.codec, found.inline_bytes) == ((4, 3, 2), BodyCodec.ROWS, 65536)
    assert (found.position_name, found.txn_version, found.txn_on_reset) == ("app:etl", 7, OnReset.SKIP)
    assert (found.takeover, found.order_by, found.create) == (True, OrderBy.TIMESTAMP, False)
    assert parse(inlineBytes="0").inline_bytes == 0
    assert parse(path="", log_column=True).log is None
    assert parse(log="wins").log == "wins"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": ""}, "name a log"),
        ({"path": "a,b"}, "a write goes to one log, got 'a,b'"),
        ({"path": "ledger:7"}, "a write goes to one log"),
        ({"ensemble": "3"}, "ensemble, writeQuorum and ackQuorum go together"),
        ({"ensemble": "2", "writeQuorum": "3", "ackQuorum": "2"}, "quire: "),
        ({"txnAppId": "etl"}, "txnAppId and txnVersion go together"),
        ({"txnAppId": "etl", "txnVersion": "x"}, "txnVersion must be an integer from 0, got 'x'"),
        ({"txnAppId": "etl", "txnVersion": "9" * 20}, "txnVersion must be an integer from 0, got '999"),
        ({"txnPart": "left"}, "txnPart and txnOnReset belong to a named write: set txnAppId and txnVersion"),
        ({"txnOnReset": "skip"}, "txnPart and txnOnReset belong to a named write"),
        ({"txnAppId": "a", "txnVersion": "1", "txnPart": " "}, "txnPart is empty: name the part"),
        ({"txnAppId": "a/part=b", "txnVersion": "1"}, "txnAppId contains '/part=', which separates a part"),
        ({"txnPart": "a", "stream": True}, "a stream is counted by its own query id"),
        (
            {"onCheckpointReset": "append"},
            "onCheckpointReset is for streams; a batch write has no checkpoint",
        ),
        (
            {"onCheckpointReset": "go on", "stream": True},
            "onCheckpointReset must be one of error, append, skip, got 'go on'",
        ),
        ({"txnAppId": "a", "txnVersion": "1", "stream": True}, "a stream is counted by its own query id"),
        ({"codec": "rows", "compression": "lz4"}, "compression needs codec=arrow"),
        ({"overwrite": True}, "set allowTruncate=true if that is meant"),
        ({"overwrite": True, "path": "", "log_column": True}, "overwrite and complete need one log"),
        ({"startingOffsets": "latest"}, "option 'startingOffsets' belongs to"),
        ({"cursor": "c", "stream": True}, "option 'cursor' belongs to a streaming read, this is writing"),
        ({"orderBy": "size"}, "orderBy must be one of partition, timestamp, got 'size'"),
    ],
)
def test_a_write_that_cannot_be_meant_is_refused(options, text):
    with pytest.raises(SparkUseError) as caught:
        parse(**options)
    assert text in str(caught.value)
    assert str(caught.value).startswith("quire: ")


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            {"id": LongType(), "name": StringType()},
            "quire: the sink needs column 'value' (binary or string); got id, name. Try .selectExpr(",
        ),
        (
            {"value": StringType(), "offset": LongType()},
            "no column 'offset': the commit assigns offsets",
        ),
        ({"value": StringType(), "price": LongType()}, "no column 'price': a record has no such part"),
        ({"value": LongType()}, "column 'value' must be binary or string, not bigint"),
        (
            {"value": BinaryType(), "timestamp": LongType()},
            "column 'timestamp' must be timestamp, not bigint",
        ),
        (
            {"value": BinaryType(), "headers": StringType()},
            "column 'headers' must be array<struct<key:string",
        ),
    ],
)
def test_columns_that_are_no_record_are_refused(columns, text):
    with pytest.raises(SparkUseError) as caught:
        check_columns(schema(**columns))
    assert text in str(caught.value)


def test_columns_of_a_record_are_taken():
    check_columns(
        schema(
            value=BinaryType(), key=StringType(), headers=HEADERS, timestamp=TimestampType(), log=StringType()
        )
    )


def moment(ms):
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


def test_rows_become_records_and_a_missing_time_is_the_tasks():
    batch = pa.RecordBatch.from_pydict(
        {
            "value": ["a", None],
            "timestamp": pa.array([moment(5), None], pa.timestamp("us", "UTC")),
            "headers": pa.array([None, [{"key": "h", "value": b"x"}]], arrow_schema().field("headers").type),
        }
    )
    records = records_of(batch, 77)
    assert records.schema == arrow_schema()
    assert records.column("value").to_pylist() == [b"a", None]
    assert records.column("timestamp_ms").to_pylist() == [5, 77]
    assert records.column("key").null_count == 2
    assert [each.to_pylist() for each in unpacked(packed([records]))] == [records.to_pylist()]
    nameless = pa.RecordBatch.from_pydict({"value": ["a"], "headers": [[{"key": None, "value": b"x"}]]})
    with pytest.raises(SparkUseError, match="a header has no name"):
        records_of(nameless, 1)


def test_times_are_cut_to_milliseconds_in_every_zone_also_in_the_hour_that_comes_twice():
    second = moment(1_792_888_200_000)  # 2026-10-25, 02:30 for the second time that night in Berlin
    micros = [int(second.timestamp() * 1_000_000) + add for add in (-3_600_000_001, -1, 1_999, 5)]
    for zone in ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"):
        column = pa.array([*micros, -1_001], pa.int64()).cast(pa.timestamp("us", zone))
        batch = pa.RecordBatch.from_arrays([pa.array(["x"] * 5), column], ["value", "timestamp"])
        found = records_of(batch, 0).column("timestamp_ms").to_pylist()
        assert found == [micro // 1000 for micro in (*micros, -1_001)], zone


def test_rows_are_parted_by_their_log_in_order():
    batch = pa.RecordBatch.from_pydict({"log": ["b", "a", "b"], "value": ["1", "2", "3"]})
    found = [(log, rows.column("value").to_pylist()) for log, rows in by_log(batch)]
    assert found == [("b", ["1", "3"]), ("a", ["2"])]
    with pytest.raises(SparkUseError, match="column 'log' is null"):
        list(by_log(pa.RecordBatch.from_pydict({"log": ["a", None], "value": ["1", "2"]})))


@pytest.mark.parametrize("codec", BodyCodec)
def test_entries_hold_every_record_once_and_their_headers_add_up(codec):
    entries = EntryPacker(codec, Compression.NONE, entry_bytes_max=2 << 20)
    made = []
    for start in range(0, 3000, 1000):
        values = [b"%d" % n + b"x" * 1000 for n in range(start, start + 1000)]
        batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
        made += entries.add(records_of(batch, start))
    made += entries.flush()
    views = [BatchView.parse(entry) for entry in made]
    counts = [view.count for view in views]
    assert len(made) == 3
    assert [view.header.records_before for view in views] == [0, counts[0], counts[0] + counts[1]]
    assert [value.partition(b"x")[0] for view in views for value in view.values()] == [
        b"%d" % n for n in range(3000)
    ]
    assert (views[-1].header.ledger_min_ms, views[-1].header.ledger_max_ms) == (0, 2000)
    assert (entries.records, entries.times.low, entries.times.high) == (3000, 0, 2000)


def test_a_large_entry_is_halved_and_a_record_that_is_too_large_named():
    entries = EntryPacker(BodyCodec.ARROW, Compression.NONE, entry_bytes_max=100_000)
    values = pa.array([b"x" * 30_000] * 8, pa.binary())
    made = [
        *entries.add(records_of(pa.RecordBatch.from_pydict({"value": values}), 1)),
        *entries.flush(),
    ]
    assert [BatchView.parse(entry).count for entry in made] == [2, 2, 2, 2]
    whole = pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 200_000], pa.binary())})
    with pytest.raises(SparkUseError, match=r"is larger than an entry, 100,000 bytes\. Split its value"):
        list(entries.add(records_of(whole, 1))) + list(entries.flush())


def test_a_record_that_no_reader_would_decode_is_not_written(monkeypatch):
    for module in ("quire.wire.batch_arrow", "quire.spark.outgoing"):
        monkeypatch.setattr(f"{module}.DECODED_BYTES_MAX", 100_000)
    entries = EntryPacker(BodyCodec.ARROW, Compression.ZSTD, entry_bytes_max=1 << 20)
    two = records_of(pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 60_000] * 2, pa.binary())}), 1)
    assert [BatchView.parse(entry).count for entry in [*entries.add(two), *entries.flush()]] == [1, 1]
    large = records_of(pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 200_000], pa.binary())}), 1)
    with pytest.raises(SparkUseError, match="more than an entry may decode to, 100,000"):
        list(entries.add(large)) + list(entries.flush())


def test_times_that_go_back_are_noticed():
    times = Times()
    times.add(pa.array([1, 2, 2]))
    times.add(pa.array([2, 9]))
    assert (times.low, times.high, times.ascending) == (1, 9, True)
    times.add(pa.array([8]))
    assert not times.ascending
    within = Times()
    within.add(pa.array([3, 1]))
    assert not within.ascending
