"""Lags out of Spark's progress, and what Prometheus is told of them."""

import pytest
from prometheus_client import CollectorRegistry

from quire.spark.lag import LagListener, lags_of


def progress(offset, end, *, identity="aa", name="copy", batch=3):
    """As Spark 4.3 writes it, with the fields that matter: offsets as text or as objects."""
    return {
        "id": "0e6a",
        "name": name,
        "batchId": batch,
        "numInputRows": 40,
        "durationMs": {"triggerExecution": 250},
        "sources": [
            {
                "description": "quire",
                "endOffset": {"v": 1, "logs": {"orders": {"id": "aa", "offset": offset}}},
                "latestOffset": f'{{"v": 1, "logs": {{"orders": {{"id": "{identity}", "offset": {end}}}}}}}',
            },
            {"description": "rate", "endOffset": 7, "latestOffset": None},
        ],
    }


def test_a_lag_is_what_is_confirmed_and_not_read():
    [lag] = lags_of(progress(100, 130))
    assert (lag.query, lag.log, lag.offset, lag.end, lag.records, lag.batch) == (
        "copy",
        "orders",
        100,
        130,
        30,
        3,
    )
    # A log that was deleted and created again has no lag: its offsets are others.
    [lag] = lags_of(progress(100, 130, identity="bb"))
    assert (lag.offset, lag.records) == (100, None)
    [unnamed] = lags_of(progress(100, 90, name=None))
    assert (unnamed.query, unnamed.records) == ("0e6a", 0)


def test_prometheus_is_told():
    registry = CollectorRegistry()
    listener = LagListener(registry=registry)
    listener.take(progress(100, 130))
    listener.take(progress(130, 135, batch=4))
    labels = {"query": "copy", "log": "orders"}
    assert registry.get_sample_value("quire_stream_records_behind", labels) == 5
    assert registry.get_sample_value("quire_stream_offset", labels) == 130
    assert registry.get_sample_value("quire_stream_records_total", {"query": "copy"}) == 80
    assert registry.get_sample_value("quire_stream_batch", {"query": "copy"}) == 4
    assert registry.get_sample_value("quire_stream_batch_seconds", {"query": "copy"}) == 0.25
    assert [(lag.log, lag.records) for lag in listener.lags] == [("orders", 5)]


@pytest.mark.parametrize("sources", [[], [{"endOffset": None}], [{"endOffset": "not json"}]])
def test_what_is_not_ours_tells_nothing(sources):
    assert lags_of({"id": "1", "batchId": 0, "sources": sources}) == []
