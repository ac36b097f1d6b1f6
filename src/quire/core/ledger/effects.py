"""What machines ask of their drivers. Effects are data, appended to a machine's `out` in the order they must happen.

Ranges `first..last` include both ends. Effects on the hot path carry ranges, never single entries;
those that runs cost are tuples, which are made three times faster than frozen dataclasses.

Source: BookKeeper protocol; Vanlightly's guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from quire.core.answers import Answer
from quire.core.errors import OutcomeUnknownError, QuireError
from quire.core.ids import NO_ENTRY, BookieId, EntryId, Slot
from quire.core.ledger.metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something failed, as plain data: the kind of exception and its sentence."""

    kind: type[QuireError]
    message: str

    def exception(self, **ids: object) -> QuireError:
        """A fresh exception of this kind, about these ids."""
        return self.kind(self.message, **ids)

    @property
    def of_sent(self) -> Problem:
        """What it means for entries that were sent: where one bookie refuses them, others may have stored them."""
        if issubclass(self.kind, OutcomeUnknownError):
            return self
        message = f"{self.message}; entries that were not acknowledged may or may not be in the ledger"
        return Problem(OutcomeUnknownError, message)


# --- metadata and time: every machine ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Store `record` by compare-and-swap, if the stored version is still `version`."""

    record: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class RereadMetadata:
    """Read the record again and say what it is now."""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call `timer_fired` at this time; a later one of the same machine replaces it."""

    at_ms: int


# --- writing ---------------------------------------------------------------------------------------------------


class SendRun(NamedTuple):
    """Send the entries `first..last` of a run to these slots, each slot its stripes.

    `lac` is the LAC of the headers: that of the first sending, also when the run is sent again. `lafr`, of a ledger that
    guarantees the write quorum: every entry up to here is on all of it now.
    """

    run: int
    first: int
    last: int
    lac: int
    slots: tuple[int, ...]
    lafr: int = NO_ENTRY


@dataclass(frozen=True, slots=True)
class DropUnsent:
    """Drop what is queued for this bookie and not sent yet: the slot failed."""

    slot: int
    bookie: BookieId


class Confirmed(NamedTuple):
    """Confirm `first..last` to their callers. Always in order, without a gap."""

    first: int
    last: int


class FullyReplicated(NamedTuple):
    """Of a ledger that guarantees the write quorum: every entry up to `last` is on all of it, and is not sent again."""

    last: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Fail the callers of `first..last`: the outcome of their entries is unknown."""

    first: int
    last: int
    problem: Problem


@dataclass(frozen=True, slots=True)
class ChooseReplacements:
    """Find bookies for these slots; the response is `replacements_chosen`. Acknowledgements wait for it.

    `ensemble` is the one that the record names, `failed` may not be chosen. `required` says that the writer cannot reach
    its ack quorum unless every slot gets a bookie, so that even a quarantined one is better than none. Without `slots` no
    failed bookie may be replaced now. `truncated_from`, of a stream whose terms only fence: a bookie is chosen only after
    it has acknowledged, in the writer's term, a truncation from this id on. The bookie of an absent slot that returns
    needs none: it joined, or had the no-op, in this term.
    """

    slots: tuple[int, ...]
    ensemble: tuple[BookieId, ...]
    failed: tuple[BookieId, ...]
    required: bool
    truncated_from: int = NO_ENTRY


@dataclass(frozen=True, slots=True)
class AskLeftBookies:
    """See which bookies of the ensemble have left, and whether another could take a slot; answer `left_bookies_asked`.

    A bookie is to be replaced if it is registered as read-only, or if it is not registered and does not answer.
    """

    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class LookForBookies:
    """See whether a spare exists, or a bookie of these absent slots answers again; then call `bookies_found`."""

    slots: tuple[int, ...]
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class EnsembleChanged:
    """The entries from `first` on live on this ensemble; the bookies at `slots` are new."""

    first: int
    ensemble: tuple[BookieId, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlotAbsent:
    """No replacement was found, or the bookie was away at creation: nothing is sent to this slot from now on.

    `first` is the first entry that the slot may lack.
    """

    slot: int
    bookie: BookieId
    first: int


@dataclass(frozen=True, slots=True)
class SlotReturned:
    """The bookie of an absent slot answers again and gets everything from entry `first` on."""

    slot: int
    bookie: BookieId
    first: int


@dataclass(frozen=True, slots=True)
class QuorumAwaited:
    """Without the bookies of these slots some write set cannot reach its ack quorum: the writer waits, then it ends."""

    slots: tuple[int, ...]


class SendExplicitLac(NamedTuple):
    """No later entry carries this LAC: send it to the bookies at these slots, best effort."""

    lac: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The writer takes no more entries, for this reason."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Closed:
    """The metadata say CLOSED at this writer's LAC."""

    record: LedgerMetadata


@dataclass(frozen=True, slots=True)
class CloseFailed:
    """The ledger could not be closed at this writer's LAC, for this reason."""

    problem: Problem


WriterEffect: TypeAlias = (
    SendRun
    | DropUnsent
    | Confirmed
    | FullyReplicated
    | Failed
    | ChooseReplacements
    | AskLeftBookies
    | LookForBookies
    | EnsembleChanged
    | SlotAbsent
    | SlotReturned
    | QuorumAwaited
    | SendExplicitLac
    | Ended
    | Closed
    | CloseFailed
    | WriteMetadata
    | RereadMetadata
    | SetTimer
)


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

    `conclusive` is true when every bookie of the write set says that it does not hold it. `answers` says what each
    said last.
    """

    entry_id: EntryId
    conclusive: bool
    answers: tuple[tuple[BookieId, Answer], ...]


@dataclass(frozen=True, slots=True)
class SendLacRead:
    """Ask one bookie of the last fragment for the highest LAC it knows."""

    slot: Slot
    bookie: BookieId
    fence: bool


@dataclass(frozen=True, slots=True)
class LacFound:
    """Enough bookies answered: the highest LAC among their responses.

    `record_is_stale`: of a stream, one has a LAC of a term that the record's ranges do not reach: read the record and ask
    again.
    """

    last_add_confirmed: EntryId
    record_is_stale: bool = False


@dataclass(frozen=True, slots=True)
class LacUnavailable:
    """Too few bookies responded to establish the newest LAC; `highest` is still safe to read up to.

    `record_is_stale`: as of `LacFound`.
    """

    silent: tuple[BookieId, ...]
    highest: EntryId
    record_is_stale: bool = False


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
    """Write back to one bookie those recovered entries of a range whose stripe (id mod period) is in `stripes`."""

    slot: Slot
    bookie: BookieId
    first: EntryId
    last: EntryId
    period: int
    stripes: int
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
class WaitForAnswers:
    """Say `waited` after a short time, at once if no bookie of these is worth it: they may know a later end."""

    bookies: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class RecoveryInconclusive:
    """Too few conclusive responses. Nothing was decided: the record stays IN_RECOVERY, and any client may run it again.

    `entry_id` is the first entry without a verdict, `NO_ENTRY` when not even the fence is complete. `contradicting`:
    bookies whose LAC says that the entry is acknowledged, each with that LAC, while enough others deny it.
    """

    entry_id: EntryId
    silent: tuple[BookieId, ...]
    contradicting: tuple[tuple[BookieId, EntryId], ...] = ()


@dataclass(frozen=True, slots=True)
class RecoveryFailed:
    """A definite obstacle, named by a response.

    `UNAUTHORISED`: the key is wrong. `NO_LEDGER`: the record is deleted. `READ_ONLY`: too few bookies take the entries
    back. `ERROR`: the record changed in a way that the protocol does not allow.
    """

    answer: Answer
    bookies: tuple[BookieId, ...]


# --- take-over --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendTruncation:
    """Have one bookie truncate what earlier terms left from `entry_id` on; with `no_op` it also stores that entry.

    The no-op is an entry of this take-over's term, without a payload. A bookie that is not of its write set gets none.
    """

    slot: Slot
    bookie: BookieId
    entry_id: EntryId
    no_op: bool
    last_add_confirmed: EntryId


@dataclass(frozen=True, slots=True)
class AwaitBookies:
    """Say `waited_for_bookies` after a pause: without these bookies, or others, the take-over cannot end."""

    bookies: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The record is OPEN in this take-over's term: its client writes from `last_entry` + 1 on.

    Attributes:
        record: as it is stored; its last range is this term's.
        version: of that record.
        last_entry: the last entry that is there, `NO_ENTRY` if none is.
        length: payload bytes up to it.
        absent: slots of the last fragment whose bookies failed, and for which none was found.
    """

    record: LedgerMetadata
    version: int
    last_entry: int
    length: int
    absent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TakeOverSuperseded:
    """Another client has taken the stream over since, in this term; None: a bookie refused this one as too low."""

    term: int | None


ReadEffect: TypeAlias = SendRead | SetTimer | ReadDone | ReadFailed
LacEffect: TypeAlias = SendLacRead | LacFound | LacUnavailable
RecoveryResult: TypeAlias = RecoveryClosed | RecoveryInconclusive | RecoveryFailed
TakeOverResult: TypeAlias = RecoveryResult | TakenOver | TakeOverSuperseded
RecoveryEffect: TypeAlias = (
    WriteMetadata
    | RereadMetadata
    | SendLacRead
    | SendRecoveryRead
    | SendRecoveryAdds
    | FindReplacements
    | FindLength
    | WaitForAnswers
    | RecoveryResult
)
TakeOverEffect: TypeAlias = RecoveryEffect | SendTruncation | AwaitBookies | TakeOverResult
