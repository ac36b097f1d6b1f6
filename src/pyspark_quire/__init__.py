"""Spark imports every module named `pyspark_*` when a format is first looked up, and finds `DefaultSource` here.

Kept this small because one such module that fails to import switches discovery off for all of them, silently.

Source: Spark documentation: discovery of modules named `pyspark_*`; docs/spark.md.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Import the data source only when Spark asks for it."""
    if name == "DefaultSource":
        from quire.spark.source import QuireDataSource

        return QuireDataSource
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
