"""Writes from any Python thread: Spark looks a format up in the session of the JVM thread that asks, and nowhere else.

Each Python thread has a JVM thread of its own, and only the one that made the session knows it. Formats of the JVM are
found all the same, as classes; a Python data source is known to a session only, so `frame.write.format("quire")` in a
second thread ends in "Failed to find the data source: quire". Reads are not concerned: Spark makes the session known for
them. PySpark does what is done here itself, in `createDataFrame`.

Source: Spark documentation: `DataSource.lookupDataSource`, `SparkSession.createDataFrame`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

_WRITERS: Final = ("write", "writeStream")
_KNOWN: Final = "_quire_knows_threads"


def writers_know_their_session() -> None:
    """Make `frame.write` and `frame.writeStream` set the session that they belong to on the thread's side in the JVM.

    Frames of Spark Connect need nothing of it. Calling this again changes nothing.
    """
    if getattr(DataFrame, _KNOWN, False):
        return
    for name in _WRITERS:
        usual = getattr(DataFrame, name).fget
        setattr(DataFrame, name, property(_with_session(usual), doc=usual.__doc__))
    setattr(DataFrame, _KNOWN, True)


def _with_session(usual: Callable[[DataFrame], Any]) -> Callable[[DataFrame], Any]:
    def writer(frame: DataFrame) -> Any:
        know(frame.sparkSession)
        return usual(frame)

    return writer


def know(spark: SparkSession) -> None:
    """Make a session known to the calling thread, unless the thread has one already.

    Args:
        spark: the session; one of Spark Connect has no threads in this sense.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return
    # PySpark has no public way; tests/spark/test_spark_threads.py pins these names.
    sessions = spark._get_j_spark_session_class(jvm)  # noqa: SLF001
    if not sessions.getActiveSession().isDefined():
        sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
