"""What reading a segment's records found: the runs and states in it, and what is damaged or torn."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.storage.formats.footer_format import ROW_BYTES, KeptLocation, lsns_of
from quire.storage.formats.record_bodies import SegmentList
from quire.storage.formats.segment_format import BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Damage:
    """Something on the disk is not what was written. -1 where ledger, entries or their origin term are not known."""

    file: str
    offset: int
    ledger_id: int
    first: int
    last: int
    what: str
    origin_term: int = 0

    def __str__(self) -> str:
        about = "" if self.ledger_id < 0 else f" (ledger {self.ledger_id}, entries {self.first}..{self.last})"
        return f"{self.file} at offset {self.offset}: {self.what}{about}"


@dataclass(frozen=True, slots=True)
class Torn:
    """A group at the end that was being written when the process ended. `ledgers` None: they are not known."""

    file: str
    offset: int
    ledgers: tuple[int, ...] | None

    def __str__(self) -> str:
        named = "all ledgers" if self.ledgers is None else f"ledgers {', '.join(map(str, self.ledgers))}"
        return f"{self.file} at offset {self.offset}: a torn write was truncated; {named} may be affected"


@dataclass(slots=True)
class Scan:
    """What a segment was found to hold.

    Attributes:
        rows: a packed row of each run, in file order but for damaged ones.
        lacs: the highest LAC in the runs of each ledger, -1 where none did.
        states: (ledger or -1 for the unnamed limbo, LSN, body).
        kept: records that are relocated as they are.
        lists: the segment list, if it was found.
        retired: sequences that retirements in it name.
        valid_groups: groups of which everything verified.
        clean: the last record is a clean stop, and nothing is wrong after it.
        data_end, first_lsn, last_lsn, before_lsn, before_checksum: where writing may go on.
        named: ledgers that may have lost something.
        all_in_limbo: any ledger may have.
        damages, torn: what to report.
        bytes_read: for the report.
    """

    rows: bytearray = field(default_factory=bytearray)
    lacs: dict[int, int] = field(default_factory=dict)
    states: list[tuple[int, int, bytes]] = field(default_factory=list)
    kept: list[KeptLocation] = field(default_factory=list)
    lists: SegmentList | None = None
    retired: list[int] = field(default_factory=list)
    valid_groups: int = 0
    clean: bool = False
    data_end: int = BLOCK_BYTES
    first_lsn: int = 0
    last_lsn: int = 0
    before_lsn: int = 0
    before_checksum: int = 0
    named: set[int] = field(default_factory=set)
    all_in_limbo: bool = False
    damages: list[Damage] = field(default_factory=list)
    torn: list[Torn] = field(default_factory=list)
    bytes_read: int = 0

    @property
    def shows_loss(self) -> bool:
        """It shows that something may have been lost."""
        return bool(self.torn or self.damages or self.named or self.all_in_limbo)

    def raise_lac(self, ledger_id: int, lac: int) -> None:
        """A run of a ledger says that entries up to `lac` are confirmed; -1 says nothing, but that it is here."""
        if lac > self.lacs.get(ledger_id, -2):
            self.lacs[ledger_id] = lac

    def lsns(self) -> list[int]:
        """The LSN of each row."""
        return lsns_of(self.rows)

    def rows_by_lsn(self) -> bytes | bytearray:
        """The rows by ascending LSN: as they are, unless there are damaged ones among them."""
        lsns = self.lsns()
        if lsns == sorted(lsns):
            return self.rows
        order = sorted(range(len(lsns)), key=lsns.__getitem__)
        return b"".join([self.rows[at * ROW_BYTES : (at + 1) * ROW_BYTES] for at in order])
