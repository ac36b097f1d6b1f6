"""Options: what is understood, and the sentence for what is not.

Source: docs/spark.md, "Options".
"""

import pytest

from quire.spark.options import SparkOptions, SparkUseError, Use
from quire.spark.read_options import EARLIEST, LATEST, READ_OPTIONS, Describe, Isolation, Verify
from quire.spark.read_options import parse as parse_given
from quire.spark.write_options import WRITE_OPTIONS


def parse(options, use=Use.BATCH):
    return parse_given(SparkOptions(options, (*READ_OPTIONS, *WRITE_OPTIONS)), use)


def read(**options):
    return parse({"cluster": "sqlite:/c.db", "path": "orders", **options})


def stream(**options):
    return parse({"cluster": "sqlite:/c.db", "path": "orders", **options}, Use.STREAM)


def refused(**options) -> str:
    with pytest.raises(SparkUseError) as caught:
        read(**options)
    return str(caught.value)


def test_the_defaults_read_a_whole_log():
    options = read()
    assert options.cluster == "sqlite:/c.db"
    assert [source.name for source in options.sources] == ["orders"]
    assert options.starting.of("orders") == EARLIEST
    assert options.ending.of("orders") == LATEST
    assert (options.split_bytes, options.rows_per_batch) == (None, 10_000)
    assert options.fail_on_data_loss
    assert options.isolation is Isolation.CONFIRMED
    assert options.verify is Verify.CHECKSUM


def test_names_come_in_any_case_and_the_environment_names_the_cluster(monkeypatch):
    monkeypatch.setenv("QUIRE_CLUSTER", "sqlite:/env.db")
    options = parse({"path": "orders", "SPLITBYTES": "64m", "rowsperbatch": "500", "includeHeaders": "TRUE"})
    assert options.cluster == "sqlite:/env.db"
    assert (options.split_bytes, options.rows_per_batch, options.include_headers) == (64 << 20, 500, True)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("orders", [("orders", None, False)]),
        ("a, b,a", [("a", None, False), ("b", None, False)]),
        ("orders/*", [("orders/*", None, True)]),
        ("ledger:17", [("ledger:17", 17, False)]),
    ],
)
def test_what_load_can_name(path, expected):
    options = parse({"cluster": "sqlite:/c.db", "path": path})
    assert [(source.name, source.ledger_id, source.pattern) for source in options.sources] == expected


def test_a_list_of_paths_comes_as_json():
    options = parse({"cluster": "sqlite:/c.db", "paths": '["a","b"]'})
    assert [source.name for source in options.sources] == ["a", "b"]


def test_digits_that_are_no_number_of_64_bits_are_refused():
    assert read(path=f"ledger:{2**63 - 1}").sources[0].ledger_id == 2**63 - 1
    for digits in ("²", str(2**63), "9" * 5000):
        assert "must be an integer from 1, got" in refused(rowsPerBatch=digits)
        assert "names no ledger" in refused(path=f"ledger:{digits}")
        assert "startingTimestamp" in refused(startingTimestamp=digits)
    assert "asOf is what quire.spark.read_options gives" in refused(asOf=AS_OF.replace("23", "1e400"))


def test_offsets_for_each_log_and_for_the_rest():
    options = read(path="a,b,c", startingOffsets='{"a": 23, "b": "latest"}', endingOffsets="latest")
    assert [options.starting.of(log) for log in "abc"] == [23, LATEST, EARLIEST]


def test_times_are_utc_without_a_zone():
    options = read(startingTimestamp="2026-11-20T08:00:00", endingTimestamp="1795248000123")
    assert options.starting_ms == 1795161600000
    assert options.ending_ms == 1795248000123


def test_the_texts_of_the_refusals():
    assert refused(startingofset="1") == (
        "quire: unknown option 'startingofset'. Did you mean 'startingOffsets'? (read options: cluster, log, "
        "startingOffsets, endingOffsets, startingTimestamp, startingTimestampStrategy, endingTimestamp, asOf, "
        "maxRecordsPerTrigger, maxOffsetsPerTrigger, maxBytesPerTrigger, splitBytes, minPartitions, maxPartitions, "
        "rowsPerBatch, includeHeaders, failOnDataLoss, cursor, holdRetention, isolation, verify, describe, passwordEnv, "
        "passwordFile; write options: cluster, log, passwordEnv, passwordFile, ensemble, writeQuorum, ackQuorum, digest, "
        "codec, compression, inlineBytes, txnAppId, txnVersion, txnPart, txnOnReset, onCheckpointReset, takeover, "
        "allowTruncate, create, orderBy)"
    )
    assert refused(path="") == (
        'quire: name a log: .load("orders"). (Spark passes no options to catalog tables; use CREATE TEMPORARY VIEW.)'
    )
    assert refused(startingOffsets="{orders:23}") == (
        "quire: startingOffsets is neither earliest, latest nor JSON like {\"orders\": 23}: got '{orders:23}' (column 2)."
    )
    assert refused(startingOffsets='{"refunds": 1}') == (
        "quire: startingOffsets names 'refunds', which is not loaded (loaded: orders)."
    )
    assert refused(startingOffsets='{"orders": true}').endswith("is a number, earliest or latest, not true.")
    assert refused(startingOffsets="17").startswith("quire: startingOffsets is neither")
    assert refused(cursor="c") == (
        "quire: option 'cursor' belongs to a streaming read, this is a batch read. Leave it out."
    )
    assert "option 'txnAppId' belongs to writing, this is a batch read" in refused(txnappid="x")
    assert refused(splitBytes="lots") == "quire: splitBytes must be a size like 128m, 512k or 1g, got 'lots'."
    assert refused(minPartitions="0") == "quire: minPartitions must be an integer from 1, got '0'."
    assert refused(failOnDataLoss="maybe") == "quire: failOnDataLoss must be one of true, false, got 'maybe'."
    assert refused(isolation="dirty") == "quire: isolation must be one of confirmed, sealed, got 'dirty'."
    assert refused(startingTimestamp="noon").startswith("quire: startingTimestamp is ISO text like")
    assert refused(path="ledger:x") == "quire: 'ledger:x' names no ledger: write its number, like ledger:17."
    assert refused(cluster="memory:").startswith("quire: a memory: cluster lives in one process")


def test_no_cluster(monkeypatch):
    monkeypatch.delenv("QUIRE_CLUSTER", raising=False)
    with pytest.raises(SparkUseError, match="name the cluster"):
        parse({"path": "orders"})


def test_describe_needs_no_log():
    options = parse({"cluster": "sqlite:/c.db", "describe": "items"})
    assert options.describe is Describe.SEGMENTS
    assert options.sources[0].pattern


def test_a_password_is_never_an_option_value(monkeypatch, tmp_path):
    assert "unknown option 'password'" in refused(password="secret")
    monkeypatch.setenv("LEDGER_PASSWORD", "s3cret")
    assert read(passwordEnv="LEDGER_PASSWORD").password() == b"s3cret"
    (tmp_path / "p").write_bytes(b"line\n")
    assert read(passwordFile=str(tmp_path / "p")).password() == b"line"
    with pytest.raises(SparkUseError, match="is not set here"):
        read(passwordEnv="NO_SUCH_VARIABLE").password()
    with pytest.raises(SparkUseError, match="cannot be read"):
        read(passwordFile=str(tmp_path / "absent")).password()


def test_a_catalog_table_is_refused_with_what_to_use():
    # As Spark 4.3 gives them for CREATE TABLE t USING quire OPTIONS (cluster 'u').
    assert "Use CREATE TEMPORARY VIEW" in refused(
        owner="root", provider="quire", location="file:/t", **{"option.cluster": "u"}
    )


def test_what_only_a_stream_has():
    options = stream(
        maxOffsetsPerTrigger="500", maxRecordsPerTrigger="700", maxBytesPerTrigger="1m", cursor="copy"
    )
    assert (options.max_records, options.max_bytes, options.cursor) == (500, 1 << 20, "copy")
    assert stream(checkpointLocation="/c", queryName="q").max_records is None
    with pytest.raises(
        SparkUseError, match="'endingOffsets' belongs to a batch read, this is a streaming read"
    ):
        stream(endingOffsets="latest")
    with pytest.raises(SparkUseError, match="'describe' belongs to a batch read"):
        stream(describe="logs")
    with pytest.raises(SparkUseError, match="cursor must be 1 to 128 letters"):
        stream(cursor="a/b")


@pytest.mark.parametrize(
    "asked",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"orders": -1}'},
        {"startingTimestamp": "5", "startingTimestampStrategy": "latest"},
    ],
)
def test_a_stream_begins_at_latest_only_with_a_cursor(asked):
    with pytest.raises(
        SparkUseError, match="without a stored start, a restart before the first commit would skip"
    ):
        stream(**asked)
    assert stream(cursor="copy", **asked).cursor == "copy"


def test_retention_waits_only_for_a_cursor():
    with pytest.raises(SparkUseError, match="retention waits for a cursor"):
        stream(holdRetention="true")
    assert stream(holdRetention="true", cursor="copy").hold_retention


def test_one_way_to_say_where_to_begin():
    assert "both say where to begin" in refused(startingTimestamp="1", startingOffsets="earliest")


AS_OF = '{"v": 1, "logs": {"orders": {"id": "7f3a", "offset": 23}}}'


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"endingTimestamp": "1", "endingOffsets": "latest"},
            "endingOffsets and endingTimestamp both say where to end",
        ),
        (
            {"passwordEnv": "A", "passwordFile": "/b"},
            "passwordEnv and passwordFile both say where the password is",
        ),
        ({"log": "refunds"}, "log and path both say what to load"),
        (
            {"describe": "logs", "startingOffsets": "5"},
            "describe=logs reads a table about logs, and startingOffsets",
        ),
        ({"describe": "ledgers", "asOf": AS_OF}, "and asOf chooses records"),
        (
            {"startingTimestamp": "2026-11-20T08:00:00", "endingTimestamp": "2026-11-20T07:59:59.999"},
            "startingTimestamp 2026-11-20T08:00:00.000+00:00 is after endingTimestamp 2026-11-20T07:59:59.999+00:00.",
        ),
        (
            {"startingOffsets": '{"orders": 24}', "endingOffsets": '{"orders": 23}'},
            "log 'orders': startingOffsets 24 is after endingOffsets 23",
        ),
        ({"startingTimestamp": str(2**60)}, "lies outside the years 1 to 9999"),
        ({"endingTimestamp": "0001-01-01T00:00:00+14:00"}, "lies outside the years 1 to 9999"),
        ({"startingTimestamp": "1700000000"}, "1700000000000 is the same time in milliseconds"),
        ({"startingTimestamp": "-1h"}, "startingTimestamp is ISO text like"),
        (
            {"asOf": "latest"},
            "asOf is what quire.spark.read_options gives, or the endOffset of a stream's progress",
        ),
        ({"asOf": '{"orders": 23}'}, "asOf is what quire.spark.read_options gives"),
        (
            {"asOf": AS_OF, "path": "orders,refunds"},
            "asOf does not name 'refunds', which is loaded (it names orders)",
        ),
        ({"asOf": AS_OF, "path": "shop/*"}, "asOf names 'orders', which is not loaded (loaded: shop/*)"),
        ({"asOf": AS_OF.replace("23", "-1")}, "the offset of 'orders' is a number from 0, not -1"),
    ],
)
def test_options_that_contradict_each_other_are_named(options, text):
    assert text in refused(**options)


def test_what_says_the_same_twice_may():
    assert [source.name for source in read(log="orders").sources] == ["orders"]
    assert read(startingTimestamp="5", endingTimestamp="5").ending_ms == 5
    assert read(startingOffsets='{"orders": 5}', endingOffsets='{"orders": 5}').starting.of("orders") == 5


def test_where_each_log_ends_is_kept_in_the_order_of_reading():
    text = '{"v": 1, "logs": {"a": {"id": "1", "offset": 3}, "shop/x": {"id": "2", "offset": 0}}}'
    assert read(path="shop/*,a", asOf=text).as_of == (("shop/x", ("2", 0)), ("a", ("1", 3)))
    with pytest.raises(SparkUseError, match="'asOf' belongs to a batch read, this is a streaming read"):
        stream(asOf=AS_OF)
