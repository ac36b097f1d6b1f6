"""Spark reads Quire's logs: `quire.spark.session()`, then `spark.read.format("quire").load("orders")`."""

from __future__ import annotations

from quire.spark.as_of import read_options
from quire.spark.local import register, session
from quire.spark.source import QuireDataSource

__all__ = ["QuireDataSource", "read_options", "register", "session"]
