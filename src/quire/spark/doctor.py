"""What commonly keeps Spark from reading and writing logs, looked at one thing after another, each with its remedy.

Source: docs/spark.md, "Jobs, and help"; Spark documentation.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from quire.core.errors import QuireError
from quire.spark.versions import FILTERS_SETTING, TESTED, keeps_filters_apart

if TYPE_CHECKING:
    from quire.log.client import QuireClient

JAVA_VERSIONS: Final = (17, 21)
PYARROW_AT_LEAST: Final = 18
_PROBE = "import quire.spark; print(quire.__file__)"


class Health(StrEnum):
    """The result of one check."""

    GOOD = "good"
    ODD = "odd"
    """It works, worse than it could."""
    BAD = "bad"
    """Spark will fail because of it."""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One check of the environment.

    Attributes:
        what: the thing.
        health: how it is.
        found: what was seen.
        remedy: what to do about it; empty when it is good.
    """

    what: str
    health: Health
    found: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON and tables."""
        return asdict(self)

    @classmethod
    def of(
        cls, what: str, found: str, remedy: str, *, good: bool, otherwise: Health = Health.ODD
    ) -> DoctorCheck:
        """What was seen, with the remedy if it is not good."""
        return cls(what, Health.GOOD, found) if good else cls(what, otherwise, found, remedy)


def examine(cluster: str | None = None) -> Iterator[DoctorCheck]:
    """Look at this machine as a Spark driver would find it.

    Args:
        cluster: the cluster's URI, looked at last; None leaves it out.
    """
    yield _spark()
    yield _pyarrow()
    yield _java()
    yield _workers_python()
    yield _discovery()
    yield from _other_modules()
    if cluster is None:
        yield DoctorCheck(
            "cluster", Health.ODD, "none named", "Set QUIRE_CLUSTER, or give --cluster or option cluster."
        )
    else:
        yield _cluster(cluster)


def examine_session(conf: Callable[[str, str], str]) -> Iterator[DoctorCheck]:
    """Look at a running session's settings.

    Args:
        conf: gives a setting, or the default that is its second argument: `spark.conf.get`.
    """
    pushdown = conf(FILTERS_SETTING, "false").lower()
    version = _version_of("pyspark") or ""
    right = str(keeps_filters_apart(version)).lower()
    remedy = (
        "Set it to true: WHERE on offset and timestamp then reads less."
        if right == "true"
        else f"Set it to false: Spark {version} applies the filters of one query to the next one on the same data frame, "
        "in every Python data source. To read less, use the options of quire.spark.read_options."
    )
    found = f"{FILTERS_SETTING}={pushdown}"
    yield DoctorCheck.of("filters handed to sources", found, remedy, good=pushdown == right)
    reuse = conf("spark.python.worker.reuse", "true")
    found = f"spark.python.worker.reuse={reuse}"
    remedy = "Set it to true: a micro-batch takes several times as long without."
    yield DoctorCheck.of("workers used again", found, remedy, good=reuse == "true")
    zone = conf("spark.sql.session.timeZone", "")
    found = f"spark.sql.session.timeZone={zone or 'of the machine'}"
    remedy = "Set it to UTC, so that shown times are the log's."
    yield DoctorCheck.of("zone of timestamps", found, remedy, good=zone in {"UTC", "Etc/UTC", "Z"})


def _version_of(package: str) -> str | None:
    """The version of a package that is installed, None for one that is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _spark() -> DoctorCheck:
    version = _version_of("pyspark") or "of a platform"
    remedy = f"Tested with {' and '.join(TESTED)}."
    return DoctorCheck.of("pyspark", version, remedy, good=version.startswith(TESTED))


def _pyarrow() -> DoctorCheck:
    version = importlib.metadata.version("pyarrow")
    new_enough = int(version.split(".")[0]) >= PYARROW_AT_LEAST
    remedy = f"Spark's data sources need {PYARROW_AT_LEAST} or later."
    return DoctorCheck.of("pyarrow", version, remedy, good=new_enough, otherwise=Health.BAD)


def _java() -> DoctorCheck:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = "Install Java 17 or 21: apt-get install openjdk-17-jre-headless."
    if java is None or not Path(java).exists():
        return DoctorCheck("java", Health.BAD, "none on PATH or in JAVA_HOME", remedy)
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - the user's own Java
    except (OSError, subprocess.SubprocessError) as error:
        return DoctorCheck("java", Health.BAD, f"{java}: {error}", remedy)
    first = _lines(said.stderr or said.stdout, f"{java} says nothing of its version")[0]
    number = first.partition('"')[2].partition(".")[0].strip('"')
    tested = number.isdigit() and int(number) in JAVA_VERSIONS
    return DoctorCheck.of("java", first, "Spark 4 is made for 17 and 21.", good=tested)


def _workers_python() -> DoctorCheck:
    python = os.environ.get("PYSPARK_PYTHON") or shutil.which("python3") or ""
    name = os.environ.get("PYSPARK_PYTHON", "python3 of PATH, since PYSPARK_PYTHON is not set")
    remedy = f"Set PYSPARK_PYTHON={sys.executable}, or use quire.spark.session(), which does."
    try:
        subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - the Python that Spark would start
    except subprocess.CalledProcessError as error:
        last = _lines(error.stderr, str(error))[-1]
        return DoctorCheck("Python of the workers", Health.BAD, f"{name}: {last}", remedy)
    except (OSError, subprocess.SubprocessError) as error:
        return DoctorCheck("Python of the workers", Health.BAD, f"{name}: {error}", remedy)
    return DoctorCheck("Python of the workers", Health.GOOD, f"{name} imports quire.spark")


def _lines(said: str, otherwise: str) -> list[str]:
    """What a program said, or what to say where it said nothing."""
    return said.strip().splitlines() or [otherwise]


def _discovery() -> DoctorCheck:
    try:
        found = importlib.import_module("pyspark_quire").DefaultSource
    except ImportError as error:
        return DoctorCheck(
            "format quire is found",
            Health.BAD,
            str(error),
            "Call quire.spark.register(spark) in the session.",
        )
    return DoctorCheck("format quire is found", Health.GOOD, f"{found.__module__}.{found.__name__}")


def _other_modules() -> Iterator[DoctorCheck]:
    """One other module named `pyspark_*` that fails to import switches discovery off for all, silently."""
    for module in pkgutil.iter_modules():
        if module.name.startswith("pyspark_") and module.name != "pyspark_quire":
            try:
                importlib.import_module(module.name)
            except Exception as error:  # noqa: BLE001 - whatever it raises is what Spark meets
                yield DoctorCheck(
                    f"module {module.name}",
                    Health.BAD,
                    f"{type(error).__name__}: {error}",
                    "It hides every format from Spark: mend or remove it, or call quire.spark.register(spark).",
                )


def _cluster(uri: str) -> DoctorCheck:
    from quire.spark import cluster

    try:
        bookies = cluster.call(uri, _bookies)
    except (QuireError, OSError) as error:
        return DoctorCheck(
            "cluster", Health.BAD, f"{uri}: {error}", "Is it up, and can this machine reach it?"
        )
    if not bookies:
        return DoctorCheck(
            "cluster", Health.BAD, f"{uri} has no bookie that takes entries", "Start some: `quire up`."
        )
    return DoctorCheck("cluster", Health.GOOD, f"{uri}: {bookies} bookies take entries")


async def _bookies(client: QuireClient) -> int:
    return len(await client.available_bookies())
