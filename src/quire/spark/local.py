"""A local Spark session that works at the first try, and the registration of the `quire` format.

The commonest first failures of PySpark data sources are a worker that finds another Python, a worker that cannot
import the package, and no Java. This module settles the first two and names the third.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import warnings
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import quire
from quire.spark.options import SparkUseError
from quire.spark.versions import FILTERS_SETTING, keeps_filters_apart

_LOCAL_ONLY = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}


_UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
"""Between Spark and its Python workers. Over TCP every task of a source or a sink waits some 40 ms for an acknowledgement
that the other side delays; a micro-batch has two such tasks."""

_OF_SESSIONS = "spark.sql."
"""Only such settings can be made for a session of a server that runs already."""


def session(
    *, master: str | None = None, remote: str | None = None, app_name: str = "quire", **conf: object
) -> SparkSession:
    """A session in which `spark.read.format("quire")` works.

    Sets what has no good default: the Python of the workers (this one) and Unix sockets to them, UTC as the zone of
    timestamps, no filters for data sources (`quire.spark.versions` says why), and, on a local master, loopback addresses
    and few shuffle partitions.

    Args:
        master: Spark's master; without one `local[*]` unless the environment decides (`spark-submit`).
        remote: a Spark Connect server instead, `sc://host:port`; its workers must have this package installed. With
            `local[*]` Spark starts such a server here. The environment's `SPARK_REMOTE` counts like it.
        app_name: shown in Spark's own pages.
        **conf: Spark settings, which win over all of these: `session(**{"spark.sql.shuffle.partitions": 8})`.

    Raises:
        SparkUseError: no Java runtime is found, or both a master and a server are named.

    Source: docs/spark.md; Spark documentation.
    """
    if master and remote:
        raise SparkUseError("quire: name a master, or the Spark Connect server `remote`, not both.")
    remote = remote or (None if master else os.environ.get("SPARK_REMOTE"))
    elsewhere = remote is not None and remote.startswith("sc:")
    if not elsewhere:
        _need_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _show_package_to_workers()
    chosen = remote or master or os.environ.get("MASTER") or "local[*]"
    if chosen.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings: dict[str, object] = {
        "spark.sql.session.timeZone": "UTC",
        FILTERS_SETTING: str(keeps_filters_apart(pyspark.__version__)).lower(),
        "spark.python.worker.reuse": "true",
        _UNIX_SOCKETS: str(hasattr(socket, "AF_UNIX")).lower(),
        **(_LOCAL_ONLY if chosen.startswith("local") else {}),
        **conf,
    }
    builder = SparkSession.builder.master(chosen) if remote is None else SparkSession.builder.remote(remote)
    builder = builder.appName(app_name)
    for name, value in settings.items():
        if not elsewhere or name.startswith(_OF_SESSIONS):
            builder = builder.config(name, str(value))
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make the format known to one session, and to every thread of this process that writes frames of it.

    Needed where discovery does not find `pyspark_quire`, and where threads write that did not make the session.
    Discovery stops for every source, silently, when any other module named `pyspark_*` fails to import.

    Source: docs/spark.md; Spark documentation: discovery of modules named `pyspark_*`.
    """
    from quire.spark.source import QuireDataSource

    if isinstance(spark, SparkSession):  # one of Spark Connect is another class and needs nothing
        from quire.spark.threads import writers_know_their_session

        writers_know_their_session()

    with warnings.catch_warnings():
        # Replacing the discovered class by itself is what is wanted here.
        warnings.simplefilter("ignore")
        spark.dataSource.register(QuireDataSource)


def _need_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").exists()) or shutil.which("java"):
        return
    raise SparkUseError(
        "quire: Spark needs a Java runtime, 17 or 21, and none is on PATH or in JAVA_HOME. "
        "On Debian or Ubuntu: apt-get install openjdk-17-jre-headless."
    )


def _show_package_to_workers() -> None:
    """Put this package's directory on PYTHONPATH: workers are started by the JVM and do not see `sys.path`."""
    location = str(Path(quire.__file__).resolve().parent.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if location not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([location, *(path for path in paths if path)])
