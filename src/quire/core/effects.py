"""What the machines ask of their drivers, and what they tell them: plain values, ranges rather than items.

A machine appends effects to its `out`; the driver performs them in order after the input has returned. An effect
says what shall happen, never how. Slots are positions in the machine's ensemble at that moment.

Source: protocol document (001), the verbs of "Writing to the ledger", "Closing a ledger as a writer / as a reader".
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from quire.core.errors import QuireError
from quire.core.ids import BookieId
from quire.core.ledger_metadata import LedgerMetadata


class Problem(NamedTuple):
    """Why something failed, as plain data: the kind of exception and its sentence."""

    kind: type[QuireError]
    message: str

    def exception(self, **ids: object) -> QuireError:
        """A fresh exception of this kind, about these ids."""
        return self.kind(self.message, **ids)


# --- the writer -------------------------------------------------------------------------------------------------


class SendRun(NamedTuple):
    """Send the entries `first..last` of a run to these slots, each slot its share.

    `lac` is the LAC of the headers: that of the first sending, also when the run is sent again.
    """

    run: int
    first: int
    last: int
    lac: int
    slots: tuple[int, ...]


class DropUnsent(NamedTuple):
    """Forget what is queued for this bookie and not sent yet: the slot failed."""

    slot: int
    bookie: BookieId


class Confirmed(NamedTuple):
    """Tell the callers of `first..last` that their entries are in the ledger. Always in order, without a gap."""

    first: int
    last: int


class Failed(NamedTuple):
    """Tell the callers of `first..last` that the outcome of their entries is unknown."""

    first: int
    last: int
    problem: Problem


class ChooseReplacements(NamedTuple):
    """Find bookies for these slots; the answer is `replacements_chosen`. Acknowledgements wait for it.

    `ensemble` is the one that the record names, `failed` may not be chosen. `required` says that the writer ends
    unless every slot gets a bookie, so that even a doubtful one is better than none.
    """

    slots: tuple[int, ...]
    ensemble: tuple[BookieId, ...]
    failed: tuple[BookieId, ...]
    required: bool


class LookForBookies(NamedTuple):
    """See whether a spare exists, or a bookie of these absent slots answers again; then call `bookies_found`."""

    slots: tuple[int, ...]
    ensemble: tuple[BookieId, ...]


class EnsembleChanged(NamedTuple):
    """The entries from `first` on live on this ensemble; the bookies at `slots` are new."""

    first: int
    ensemble: tuple[BookieId, ...]
    slots: tuple[int, ...]


class SlotAbsent(NamedTuple):
    """No replacement was found: nothing is sent to this slot from now on. `first` is the first entry it may lack."""

    slot: int
    bookie: BookieId
    first: int


class SlotReturned(NamedTuple):
    """The bookie of an absent slot answers again and gets everything from entry `first` on."""

    slot: int
    bookie: BookieId
    first: int


class SendExplicitLac(NamedTuple):
    """No later entry carries this LAC: tell it to the bookies at these slots, best effort."""

    lac: int
    slots: tuple[int, ...]


class Ended(NamedTuple):
    """The writer takes no more entries, for this reason."""

    problem: Problem


class Closed(NamedTuple):
    """The metadata say CLOSED at this writer's LAC."""

    record: LedgerMetadata


class CloseFailed(NamedTuple):
    """The ledger could not be closed at this writer's LAC, for this reason."""

    problem: Problem


# --- the metadata store and the clock, for any machine ------------------------------------------------------------


class WriteMetadata(NamedTuple):
    """Write this record if the stored version is still `version`.

    Answered by `metadata_written`, `metadata_conflicted`, `metadata_unknown` or `metadata_missing`; one request at
    a time.
    """

    record: LedgerMetadata
    version: int


class ReadMetadata(NamedTuple):
    """Read the record again; answered by `metadata_read`, `metadata_unknown` or `metadata_missing`."""


class SetTimer(NamedTuple):
    """Call `timer_fired` at this time; replaces an earlier timer."""

    at_ms: int


WriterEffect: TypeAlias = (
    SendRun
    | DropUnsent
    | Confirmed
    | Failed
    | ChooseReplacements
    | LookForBookies
    | EnsembleChanged
    | SlotAbsent
    | SlotReturned
    | SendExplicitLac
    | Ended
    | Closed
    | CloseFailed
    | WriteMetadata
    | ReadMetadata
    | SetTimer
)
