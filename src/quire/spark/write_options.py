"""The write options of the `quire` format: their table. This module must not know Spark, Arrow or a cluster.

Source: spark.md 5.3.
"""

from __future__ import annotations

from typing import Final

from quire.spark.given import Option, Use

WRITE_OPTIONS: Final = (
    Option("ensemble", "of the log", Use.WRITE, "bookies of a staged ledger"),
    Option("writeQuorum", "of the log", Use.WRITE, "bookies that get each of its entries"),
    Option("ackQuorum", "of the log", Use.WRITE, "how many make an entry durable"),
    Option("digest", "of the log", Use.WRITE, "digest of its entries"),
    Option("codec", "arrow", Use.WRITE, "body of a batch entry"),
    Option("compression", "none", Use.WRITE, "of that body"),
    Option(
        "inlineBytes", "1m", Use.WRITE, "a batch that is smaller becomes one ledger, written by the commit"
    ),
    Option("txnAppId", "", Use.WRITE, "names the job of a batch write, so that a repetition is noticed"),
    Option("txnVersion", "", Use.WRITE, "the number of this write, from the last one up"),
    Option("txnOnReset", "error", Use.WRITE, "what to do when the numbers begin again"),
    Option("takeover", "false", Use.WRITE, "consent to fence the log's leader"),
    Option("allowTruncate", "false", Use.WRITE, "consent to replace what the log holds"),
    Option("create", "false", Use.WRITE, "consent to create the log"),
    Option("orderBy", "partition", Use.WRITE, "order of the tasks' rows in a batch"),
)
"""Every option that only writing has; the table of docs/spark.md is made from it."""
