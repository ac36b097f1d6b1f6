"""What a stream's world is made of: its size, its store, its budgets, its readers.

Source: docs/protocol/streams.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from quire.core.ids import NO_ENTRY
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import NO_NOTES, LedgerNotes
from quire.core.ledger.terms import StreamMode
from quire_testing.explorer.configuration import Configuration, budgets_text
from quire_testing.explorer.stream_bookies import Value


@dataclass(frozen=True, slots=True)
class StreamConfiguration:
    """One world of one stream.

    Attributes:
        bookies: how many there are; those beyond `ensemble` are spares.
        ensemble: E, like `write_quorum` Qw and `ack_quorum` Qa.
        entries: how many appends a client makes in each of its terms.
        in_flight: how many of them may be unconfirmed at a time.
        clients: how many there are besides the one that created the stream.
        take_overs: how many take-overs begin, of any clients.
        window: entries that one round of recovery reads asks for.
        timeouts: requests that time out while they, or their responses, are still on their way.
        breaks: connections that break.
        lost_swaps: compare-and-swaps whose response never reaches the client.
        losses: bookies that lose their disk and start again.
        readers: clients that read, each with the record that it read once.
        explicit_lac: whether a writer tells bookies a LAC that no later add carries.
        repairers: clients that repair decided fragments (those whose end is fixed), each once.
        changed: it begins in term 2. One entry (its id is 0, or 1 after a no-op) is acknowledged in a decided fragment to which
            the first spare does not belong. The spare has an entry of term 1 under the same id, which was never acknowledged.
        fencing: terms only fence: an entry is named by its id alone, and a take-over ends with a truncation.
    """

    bookies: int = 2
    ensemble: int = 2
    write_quorum: int = 2
    ack_quorum: int = 2
    entries: int = 1
    in_flight: int = 2
    clients: int = 1
    take_overs: int = 1
    window: int = 1
    timeouts: int = 0
    breaks: int = 0
    lost_swaps: int = 0
    losses: int = 0
    readers: int = 0
    explicit_lac: bool = False
    repairers: int = 0
    changed: bool = False
    fencing: bool = False

    @property
    def name(self) -> str:
        """The configuration on one line: the size, then each budget that is not the usual one."""
        said = ("bookies", "ensemble", "write_quorum", "ack_quorum", "entries", "clients", "take_overs")
        size = (
            f"{self.bookies} bookies {self.ensemble}/{self.write_quorum}/{self.ack_quorum} N={self.entries}"
        )
        return f"stream {size} clients={self.clients} take overs={self.take_overs}{budgets_text(self, *said)}"

    @property
    def sizes(self) -> Configuration:
        """What a client's driver needs of it."""
        return Configuration(
            self.bookies,
            self.ensemble,
            self.write_quorum,
            self.ack_quorum,
            self.entries,
            self.in_flight,
            window=self.window,
            explicit_lac=self.explicit_lac,
            timeouts=self.timeouts,
        )


def in_mode(record: LedgerMetadata, *, fencing: bool) -> LedgerMetadata:
    """The record of a new stream whose terms only fence, or name entries."""
    assert record.terms is not None
    mode = StreamMode.FENCING if fencing else StreamMode.IDENTIFIERS
    return replace(record, terms=replace(record.terms, mode=mode))


class StreamStoreState(NamedTuple):
    """The metadata store: the record, its version, what went wrong; notes of losses there are none."""

    record: LedgerMetadata
    version: int
    fault: tuple[str, str] | None = None
    notes: LedgerNotes = NO_NOTES


class StreamBudget(NamedTuple):
    """What may still happen or go wrong."""

    take_overs: int
    timeouts: int
    breaks: int
    lost_swaps: int
    losses: int


class StreamReader(NamedTuple):
    """A reader: the record that it has, the LAC up to which it reads, and what it has read."""

    record: LedgerMetadata | None = None
    lac: int = NO_ENTRY
    seen: tuple[Value, ...] = ()
