"""What `load(…)` names, as it is now: each log or raw ledger as an *extent*: its identity, its first and its end offset.

The end offset is exclusive, and as far as the log is confirmed now: Kafka's beginning and end offsets of a partition.

Nothing is fenced and nothing is changed. A log's identity is its id, a ledger's its token: positions that were written
down under another identity are of something else, whatever their numbers say.

Source: docs/spark.md, "A part of a log", "What is lost, and what is reported"; docs/decisions/018-log-ids.md;
docs/decisions/019-paged-list.md; docs/decisions/023-ledger-token.md.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quire.core.errors import NoSuchLedgerError, NoSuchLogError, ReadUnavailableError, TrimmedError
from quire.core.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from quire.env.numbers import number_of
from quire.log.cursors import ledger_owner
from quire.spark import cluster
from quire.spark.options import SparkUseError
from quire.spark.read_options import EARLIEST, LATEST, Isolation, ReadOptions, Source, Verify

if TYPE_CHECKING:
    from quire.log.client import QuireClient
    from quire.log.log import Log
    from quire.log.records import LogDescription


class AbsentError(SparkUseError):
    """What was loaded, or was to be read on, is not in the cluster."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A log, or a raw ledger, at one moment.

    Attributes:
        name: as it was loaded.
        identity: of a log its id, of a ledger a text of its id and its token; never used again.
        start: the first offset that can be read.
        end: after the last one that can be, by `isolation`.
        log: its description; None for a raw ledger.
        record: the ledger's metadata; None for a log.
        size: payload bytes of a raw ledger up to `end`.
        silent: bookies for want of whose response more may be confirmed than `end` says.
    """

    name: str
    identity: str
    start: int
    end: int
    log: LogDescription | None = None
    record: LedgerMetadata | None = None
    size: int = 0
    silent: tuple[str, ...] = ()

    @property
    def may_grow(self) -> bool:
        """Whether more may be confirmed than is known here: a ledger of it is open."""
        if self.log is None:
            return self.record is not None and self.record.state is not LedgerState.CLOSED
        return any(item.last_entry is not None for item in self.log.items)

    def up_to(self, end: int) -> Extent:
        """The same, ending at an offset up to which all is confirmed, whichever bookies are silent."""
        return replace(self, end=end, size=self.size * end // max(self.end, 1), silent=())

    def offset(self, asked: int) -> int:
        """A position that may be `EARLIEST` or `LATEST` as a number."""
        return {EARLIEST: self.start, LATEST: self.end}.get(asked, asked)


async def extent_of(client: QuireClient, options: ReadOptions, source: Source) -> Extent:
    """The extent of a log or of a raw ledger.

    Args:
        client: the cluster.
        options: the read.
        source: one log or ledger, no pattern.

    Raises:
        AbsentError: it is not there.
    """
    if source.ledger_id is not None:
        return await extent_of_ledger(client, options, source)
    return await extent_of_log(client, options, client.log(source.name, options.password()))


def source_of(name: str) -> Source:
    """A log's name, or a ledger written like `ledger:17`, as what it names."""
    number = name.removeprefix("ledger:")
    return Source(name, number_of(number) if number != name else None)


async def resolve(client: QuireClient, options: ReadOptions, *, may_be_none: bool = False) -> list[Source]:
    """The sources with patterns replaced by the logs that match them, each once, in this order.

    Args:
        client: the cluster.
        options: the sources.
        may_be_none: whether a pattern may match nothing (yet).

    Raises:
        SparkUseError: a pattern that matches nothing.
    """
    found: dict[Source, None] = {}
    names: list[str] | None = None
    for source in options.sources:
        if not source.pattern:
            found[source] = None
            continue
        if names is None:
            names = await client.logs()
        matching = [name for name in names if fnmatch.fnmatchcase(name, source.name)]
        if not matching and not may_be_none:
            raise SparkUseError(
                f"quire: no log matches '{source.name}' at {options.cluster}{_listed(names)}.",
                log=source.name,
            )
        found |= {Source(name): None for name in matching}
    return list(found)


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "; the cluster has no log"
    return f" (logs: {', '.join(names[:5])}{', …' if len(names) > 5 else ''})"


async def describe(client: QuireClient, options: ReadOptions, log: Log, since: int = 0) -> LogDescription:
    """A log's list as it is now; ledgers wholly below `since` are left out.

    Raises:
        AbsentError: there is no such log; it names the nearest.
    """
    try:
        return await log.describe(since)
    except NoSuchLogError as error:
        hint = await cluster.nearest(client, log.name)
        raise AbsentError(f"quire: no log '{log.name}' at {options.cluster}.{hint}", log=log.name) from error


async def extent_of_log(client: QuireClient, options: ReadOptions, log: Log, since: int = 0) -> Extent:
    """A log's extent.

    Raises:
        AbsentError: there is no such log.
    """
    about = await describe(client, options, log, since)
    end, silent = about.end_offset, about.silent
    if options.isolation is Isolation.SEALED:
        opened = [item.first_offset for item in about.items if item.last_entry is not None]
        end, silent = min([end, *opened]), ()
    return Extent(about.name, about.log_id, about.start_offset, end, log=about, silent=silent)


async def extent_of_ledger(client: QuireClient, options: ReadOptions, source: Source) -> Extent:
    """A raw ledger's extent: every entry is a record, its id the offset; an open one is read while its writer writes.

    Raises:
        AbsentError: there is no such ledger.
        SparkUseError: its digest is not what is demanded.
        WrongPasswordError: the password is another.
    """
    assert source.ledger_id is not None
    try:
        reader = await client.open_ledger(source.ledger_id, options.password(), recover=False)
    except NoSuchLedgerError as error:
        raise AbsentError(
            f"quire: no ledger {source.ledger_id} at {options.cluster}.", ledger_id=source.ledger_id
        ) from error
    record, last = reader.metadata, int(reader.last_add_confirmed)
    check_digest(options, record)
    closed, silent = record.state is LedgerState.CLOSED, reader.silent
    if options.isolation is Isolation.SEALED and not closed:
        last, silent = -1, ()
    size = record.length if closed else 0
    if last >= 0 and not closed:
        size = await cluster.length_at(reader, last)
    identity = ledger_owner(source.ledger_id, record.token or 0)
    return Extent(source.name, identity, 0, last + 1, record=record, size=size, silent=silent)


def check_digest(options: ReadOptions, record: LedgerMetadata) -> None:
    """Refuse a ledger without a MAC where the user demands one.

    Raises:
        SparkUseError: it has a plain checksum, or none.
    """
    if options.verify is Verify.DIGEST and record.digest_type is not DigestType.HMAC:
        raise SparkUseError(
            f"quire: ledger {record.ledger_id} has digest {record.digest_type.name.lower()}, not a MAC; "
            "verify=checksum reads it.",
            ledger_id=record.ledger_id,
        )


# --- what is lost ---------------------------------------------------------------------------------------------------


def begin_at(options: ReadOptions, extent: Extent, start: int) -> int:
    """Where reading begins that was to begin at `start`.

    Returns:
        `start`, or the extent's own start where that is later and a loss is to be stepped over.

    Raises:
        TrimmedError: what begins at `start` is not there any more.
    """
    if start >= extent.start:
        return start
    text = f"log '{extent.name}': requested offset {start}, the earliest is {extent.start} (trimmed)."
    if options.fail_on_data_loss:
        skipped = f"failOnDataLoss=false skips {extent.start - start:,} records."
        raise TrimmedError(f"quire: {text} {skipped}", log=extent.name)
    cluster.warn(f"{text} {extent.start - start:,} records are skipped.")
    return extent.start


def check_end_is_known(extent: Extent) -> None:
    """Refuse to take what few bookies know for all that there is: where an open ledger ends, enough must say.

    Raises:
        ReadUnavailableError: too few respond.
    """
    if extent.silent:
        raise ReadUnavailableError(
            f"quire: log '{extent.name}': too few bookies respond to determine where its open ledger "
            f"ends (at offset {extent.end} or later; no response: {', '.join(extent.silent)}). Start "
            "the query again when they are back, or read closed ledgers only: isolation=sealed.",
            log=extent.name,
        )


def check_end(extent: Extent, name: str, offset: int) -> None:
    """Refuse an offset beyond the end.

    Raises:
        ReadUnavailableError: too few bookies respond to determine whether it is.
        SparkUseError: naming both.
    """
    if offset > extent.end:
        check_end_is_known(extent)
        raise SparkUseError(
            f"quire: log '{extent.name}': {name} says {offset}, the log ends at {extent.end}. "
            "Read up to latest, or wait for its writer.",
            log=extent.name,
        )
