"""What machines ask of their drivers. Effects are data, appended to a machine's `out` in the order they must happen.

Ranges `first..last` include both ends. Effects on the hot path carry ranges, never single entries.

Source: protocol document (001); guide (003).
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.answers import Answer
from quire.core.ids import BookieId, EntryId, Slot
from quire.core.ledger_metadata import LedgerMetadata

# --- metadata and time: every machine ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Swap `record` in if the stored version is still `version`."""

    record: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class RereadMetadata:
    """Read the record again and say what it is now."""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call `timer_fired` at this time; a later one of the same machine replaces it."""

    at_ms: int


# --- reading ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendRead:
    """Ask one bookie for the entries of a range that it holds; it need not fence."""

    slot: Slot
    bookie: BookieId
    first: EntryId
    last: EntryId


@dataclass(frozen=True, slots=True)
class ReadDone:
    """Every entry that was asked for has come."""


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """The lowest entry still missing cannot be had; all lower ones have come.

    `vouched` is true when every bookie of the write set says that it does not hold it. `answers` says what each
    said last.
    """

    entry_id: EntryId
    vouched: bool
    answers: tuple[tuple[BookieId, Answer], ...]


@dataclass(frozen=True, slots=True)
class SendLacRead:
    """Ask one bookie of the last fragment for the highest LAC it knows."""

    slot: Slot
    bookie: BookieId
    fence: bool


@dataclass(frozen=True, slots=True)
class LacFound:
    """Enough bookies answered: the highest LAC among their answers."""

    last_add_confirmed: EntryId


@dataclass(frozen=True, slots=True)
class LacUnavailable:
    """Too few bookies answered to vouch for the newest LAC; `highest` is still safe to read up to."""

    silent: tuple[BookieId, ...]
    highest: EntryId


# --- recovery ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendRecoveryRead:
    """Ask one bookie of the original ensemble for a range; with `fence` it must fence durably before it answers."""

    slot: Slot
    bookie: BookieId
    first: EntryId
    last: EntryId
    fence: bool


@dataclass(frozen=True, slots=True)
class SendRecoveryAdds:
    """Write back to one bookie those recovered entries of a range whose class (id mod period) is in `residues`."""

    slot: Slot
    bookie: BookieId
    first: EntryId
    last: EntryId
    period: int
    residues: int
    last_add_confirmed: EntryId


@dataclass(frozen=True, slots=True)
class FindReplacements:
    """Name a spare bookie for each of these slots, none of them in `ensemble` or `excluded`; then say which."""

    slots: tuple[Slot, ...]
    ensemble: tuple[BookieId, ...]
    excluded: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class FindLength:
    """Read this entry and say the length in its header: it is the ledger's length if it is the last."""

    entry_id: EntryId


@dataclass(frozen=True, slots=True)
class RecoveryClosed:
    """The record is CLOSED; its end is the one that every client will see. `accepted`: another client set it."""

    record: LedgerMetadata
    version: int
    accepted: bool


@dataclass(frozen=True, slots=True)
class RecoveryInconclusive:
    """Too few bookies told. Nothing was decided: the record stays IN_RECOVERY, and anyone may run it again.

    `entry_id` is the first entry without a verdict, `NO_ENTRY` when not even the fence is complete.
    """

    entry_id: EntryId
    silent: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """A definite obstacle, named by an answer.

    `UNAUTHORISED`: the key is wrong. `NO_LEDGER`: the record is gone. `READ_ONLY`: too few bookies take the entries
    back. `ERROR`: the record changed in a way that the protocol does not allow.
    """

    answer: Answer
    bookies: tuple[BookieId, ...]
