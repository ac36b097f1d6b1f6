"""Spark reads Quire's logs: `quire.spark.session()`, then `spark.read.format("quire").load("orders")`."""

from __future__ import annotations

from quire.distribution import Extra, require

require(Extra.SPARK, "quire.spark")

from quire.spark.as_of import read_options  # noqa: E402 - none of these can be imported without those packages
from quire.spark.local import register, session  # noqa: E402
from quire.spark.source import QuireDataSource  # noqa: E402

__all__ = ["QuireDataSource", "read_options", "register", "session"]
