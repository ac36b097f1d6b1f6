"""Which versions of Spark are tested, and which give each query its own filters.

Up to Spark 4.3 a Python data source that takes the filters of one query keeps them: Spark stores the read that was planned
with them in the data frame's source, and the frame's next query uses it. So `frame.where("offset < 10")` and then `frame`
give ten rows, and a union of two filters gives one of them twice. `tests/spark/test_spark_contract.py` shows it with a
source of ten lines; that test fails when a version of Spark mends it, and then the version belongs in `RIGHT_VERSIONS`.

This module must not import Spark: the doctor looks at machines without it.
"""

from __future__ import annotations

from typing import Final

TESTED: Final = ("4.2", "4.3")
FILTERS_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
"""The setting with which Spark hands filters to Python data sources."""
RIGHT_VERSIONS: Final[frozenset[str]] = frozenset()
"""The versions of Spark, like "4.4", in which the filters of one query are known not to reach another."""


def keeps_filters_apart(version: str) -> bool:
    """Whether a version of Spark gives each query its own filters and no other's.

    Args:
        version: as Spark says it, like "4.3.0".
    """
    return ".".join(version.split(".")[:2]) in RIGHT_VERSIONS
