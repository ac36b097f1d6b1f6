"""How far streams are behind their logs: a listener that Spark calls after each batch, for notebooks and Prometheus.

    spark.streams.addListener(LagListener(port=9464))

Spark's own progress holds where a batch ended and where the logs end; the difference is the lag. A Python source cannot
report metrics of its own, a listener can.

Source: docs/spark.md, "Jobs, and help".
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from quire.spark.options import SparkUseError
from quire.spark.positions import from_json

_LABELS: Final = ("query", "log")


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a stream has read one log, and how far that log reaches.

    Attributes:
        query: the query's name, or its id.
        log: the log.
        offset: of the next record that it will read.
        end: after the last record that was confirmed when the batch was planned; None where Spark did not say.
        batch: the last finished batch.
    """

    query: str
    log: str
    offset: int
    end: int | None
    batch: int

    @property
    def records(self) -> int | None:
        """Records that are confirmed and not read yet."""
        return None if self.end is None else max(self.end - self.offset, 0)


class LagListener(StreamingQueryListener):
    """Keeps the newest lag of each query and log, and gives it to Prometheus.

    Args:
        port: serve the metrics there, on every address; None leaves that to the application.
        registry: where the metrics are registered.
    """

    def __init__(self, *, port: int | None = None, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__()
        self._lags: dict[tuple[str, str], Lag] = {}
        self._names: dict[str, str] = {}
        self._guard = threading.Lock()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        behind = "Records that are confirmed and not read yet"
        self._behind = gauge("quire_stream_records_behind", behind, _LABELS)
        self._offset = gauge("quire_stream_offset", "Offset of the next record that is read", _LABELS)
        self._records = counter("quire_stream_records", "Records that batches have read", ["query"])
        self._batch = gauge("quire_stream_batch", "The last finished batch", ["query"])
        self._seconds = gauge("quire_stream_batch_seconds", "How long the last batch took", ["query"])
        self._active = gauge("quire_stream_active", "1 while the query runs", ["query"])
        if port is not None:
            start_http_server(port, registry=registry)

    @property
    def lags(self) -> list[Lag]:
        """Where every query is, by query and log."""
        with self._guard:
            return [self._lags[key] for key in sorted(self._lags)]

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """A query begins."""
        name = event.name or str(event.id)
        with self._guard:
            self._names[str(event.id)] = name
        self._active.labels(name).set(1)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """A batch is done."""
        self.take(json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing came: what is known stays true."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """A query has ended; its last lags stay."""
        with self._guard:
            name = self._names.get(str(event.id), str(event.id))
        self._active.labels(name).set(0)

    def take(self, progress: Mapping[str, Any]) -> None:
        """One batch's progress, as Spark writes it."""
        query = progress.get("name") or progress["id"]
        for lag in lags_of(progress):
            with self._guard:
                self._lags[lag.query, lag.log] = lag
            self._offset.labels(query, lag.log).set(lag.offset)
            if lag.records is not None:
                self._behind.labels(query, lag.log).set(lag.records)
        self._batch.labels(query).set(progress["batchId"])
        self._records.labels(query).inc(progress.get("numInputRows", 0))
        seconds = progress.get("durationMs", {}).get("triggerExecution")
        if seconds is not None:
            self._seconds.labels(query).set(seconds / 1000)


def lags_of(progress: Mapping[str, Any]) -> list[Lag]:
    """The lags in a batch's progress; sources of other formats have none."""
    query = progress.get("name") or progress["id"]
    found: list[Lag] = []
    for source in progress.get("sources", ()):
        try:
            now = from_json(_parsed(source.get("endOffset")))
        except SparkUseError:
            continue
        try:
            ends = from_json(_parsed(source.get("latestOffset")))
        except SparkUseError:
            ends = {}
        for log, position in now.items():
            end = ends.get(log)
            same = end is not None and end.identity == position.identity
            found.append(
                Lag(query, log, position.offset, end.offset if end and same else None, progress["batchId"])
            )
    return found


def _parsed(offset: object) -> object:
    """An offset as progress holds it: JSON, as text or not."""
    if isinstance(offset, str):
        try:
            return json.loads(offset)
        except ValueError:
            return None
    return offset
