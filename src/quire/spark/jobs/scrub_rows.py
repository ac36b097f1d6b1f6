"""Rows of a scrub's table: a finding as one, and whether it still holds when it is written down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.client.repairing.scrubbing import CopyVerdict, Finding
from quire.core.errors import NoSuchLedgerError
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.stripes import BookieStripes
from quire.spark.jobs.units import Row as Fields

if TYPE_CHECKING:
    from quire.log.client import QuireClient

SCHEMA = (
    "ledger bigint, bookie string, first_entry bigint, last_entry bigint, class int, entries bigint, bytes bigint, "
    "fingerprint bigint, verdict string, detail string"
)


def row_of(found: Finding, mine: Sequence[BookieStripes]) -> Fields:
    """A finding about some stripes as a row, without the ledger and the bookie."""
    count = sum(part.cut(found.first, found.last).count for part in mine)
    if found.verdict is CopyVerdict.OVER_REPLICATED:
        count = found.last - found.first + 1
    return {
        "first_entry": found.first,
        "last_entry": found.last,
        "entries": count,
        "bytes": 0,
        "verdict": found.verdict,
        "detail": found.detail or None,
    }


async def still_true(client: QuireClient, record: LedgerMetadata, rows: list[Fields]) -> list[Fields]:
    """Findings about a ledger that was deleted meanwhile are none; one that was changed cannot be judged by its old record."""
    try:
        now, _ = await client.records.read(record.ledger_id)
    except NoSuchLedgerError:
        return []
    if _decided(now, record) == _decided(record, record):
        return rows
    return [
        row | {"verdict": CopyVerdict.UNKNOWN, "detail": "the ledger's record was changed meanwhile"}
        if row["verdict"] != CopyVerdict.OK
        else row
        for row in rows
    ]


def _decided(now: LedgerMetadata, record: LedgerMetadata) -> object:
    """What a ledger's record `now` says of the entries that were decided by the `record` that they were checked with."""
    if record.state is LedgerState.CLOSED:
        return tuple(now.fragments), now.last_entry
    count = len(record.fragments) - 1
    return tuple(now.fragments[:count]), [each.first_entry for each in now.fragments[count : count + 1]]
