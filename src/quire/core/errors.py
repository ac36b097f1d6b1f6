"""The exceptions that callers of public methods meet.

Six kinds. What matters to a caller is whether the thing happened: `MisuseError` and `RefusedError` say no,
`OutcomeUnknownError` says that the outcome is unknown. `ReadFailedError` is a read, which changes nothing.

Source: BookKeeper protocol, "Closing a ledger as a reader": "LedgerFenced should be treated like a timeout".
"""

from __future__ import annotations

import re
from typing import ClassVar


class QuireError(Exception):
    """The root. The text says what, where and what to do next.

    Args:
        message: one sentence for a person.
        ids: what it is about (`ledger_id`, `entry_id`, `bookie`, `log`, `path`, …), kept in `ids` for programs.
    """

    code: ClassVar[str] = "error"
    """The class's name for programs: `NoSuchLedgerError` is "no_such_ledger"."""
    retriable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if "code" not in vars(cls):
            name = cls.__name__.removesuffix("Error")
            cls.code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()

    def __init__(self, message: str, **ids: object) -> None:
        super().__init__(message)
        self.message = message
        self.ids = ids

    def reword(self, message: str) -> None:
        """Say the same in the words of another surface: those of the shell, or of `quire.blocking`."""
        self.message, self.args = message, (message,)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.ids))


def _rebuild(kind: type[QuireError], message: str, ids: dict[str, object]) -> QuireError:
    return kind(message, **ids)


class MisuseError(QuireError):
    """The caller's own mistake; nothing was sent."""


class RefusedError(QuireError):
    """The request was refused, and nothing happened."""


class OutcomeUnknownError(QuireError):
    """It may or may not have happened. Only a read after a recovery shows it."""


class ReadFailedError(QuireError):
    """A read did not give what it was asked for. It has changed nothing, and may be repeated."""


class PeerError(QuireError):
    """The other side broke the protocol or its bytes are damaged."""


class StorageError(QuireError):
    """This machine's disk or one of its files failed."""


class DescriptorShortageError(StorageError):
    """This process, or this machine, has no file descriptor left. Nothing is damaged: the same may succeed later."""

    retriable = True


# --- misuse ---------------------------------------------------------------------------------------------------


class InvalidQuorumError(MisuseError):
    """The three quorum sizes do not fit together: E >= Qw >= Qa >= 1."""


class NotWritingError(MisuseError):
    """An append on a handle that was closed, abandoned or has ended."""


class PastEndError(MisuseError):
    """A read beyond what is confirmed."""


class MissingExtraError(MisuseError, ImportError):
    """Packages of an extra of this distribution are not installed; the text has the command that installs them."""


# --- refused --------------------------------------------------------------------------------------------------


class WrongPasswordError(RefusedError):
    """The password is not the ledger's."""


class AuthenticationError(RefusedError):
    """The other side of a connection could not prove who it is."""


class NoSuchLedgerError(RefusedError):
    """The metadata store has no record of the ledger."""


class NoSuchEntryError(RefusedError):
    """Every bookie of the write set reports conclusively that it does not hold the entry."""


class NoSuchLogError(RefusedError):
    """The metadata store has no log of this name."""


class NoSuchStreamError(RefusedError):
    """The metadata store has no unbounded ledger of this name or id."""


class StreamClosedError(RefusedError):
    """The unbounded ledger was closed for good."""


class ElectionUnavailableError(RefusedError):
    """The election that was to say who writes does not respond; nothing was changed."""

    retriable = True


class AlreadyExistsError(RefusedError):
    """Something of this name or id is there already."""


class TrimmedError(RefusedError):
    """The position lies before the log's start."""


class NotEnoughBookiesError(RefusedError):
    """Fewer bookies are there than a ledger needs to be created or recovered."""

    retriable = True


class WindowFullError(RefusedError):
    """More bytes are in flight than the window allows; `await ledger.drain()` and append again."""

    retriable = True


class NotLeaderError(RefusedError):
    """Another writer took the log over before this one could serve."""


class LogLedError(RefusedError):
    """The log has a leader, or what an ended one left open, and the caller did not ask to take it over."""


class TransactionResetError(RefusedError):
    """A named transaction has a number below its last one, or its numbers begin again under another checkpoint."""


class TransactionRowsError(RefusedError):
    """A named transaction has a number that is in the log already, with other rows."""


class CheckpointWentBackError(RefusedError):
    """The log's sink position was made with another checkpoint of the query: this one was restored, or copied."""


class DamagedMarkError(RefusedError):
    """A log's sink position, what it has of a query's last batch, cannot be right."""


class ArchivedError(RefusedError):
    """The records are no longer on bookies: a file of the archive holds them."""


class ListChangedError(RefusedError):
    """Items of a log's list that were to be replaced are no longer what they were; plan again."""


class StagedLedgerGoneError(RefusedError):
    """A ledger that was written for a batch was deleted before the batch was committed: write the batch again."""

    retriable = True


class NoClusterError(RefusedError):
    """No cluster is named, or the metadata store cannot be reached or read."""


# --- unknown outcome ------------------------------------------------------------------------------------------


class LedgerFencedError(OutcomeUnknownError):
    """A recoverer fenced the ledger: pending entries may or may not be in it."""


class LedgerClosedError(OutcomeUnknownError):
    """Another client closed the ledger (or its own handle did) while entries were pending."""


class MetadataConflictError(OutcomeUnknownError):
    """The ledger was closed at another end than this writer's."""


class TermSupersededError(OutcomeUnknownError):
    """Another client took the unbounded ledger over in a later term."""


class QuorumLostError(OutcomeUnknownError):
    """Some write set cannot reach its ack quorum, and no bookie came in time (`quorum_wait_ms`): the writer has ended."""


class LedgerIdReusedError(OutcomeUnknownError):
    """The ledger's id was used before by another ledger, and bookies hold that one's entries. Make the ledger again.

    What was appended and not acknowledged may be on the other bookies, and be recovered.
    """


class MetadataUnknownError(OutcomeUnknownError):
    """The metadata store did not say whether it wrote."""

    retriable = True


class RecoveryInconclusiveError(OutcomeUnknownError):
    """Too few bookies responded to determine where the ledger ends. It stays in recovery; run the recovery again."""

    retriable = True


# --- reads ----------------------------------------------------------------------------------------------------


class ReadUnavailableError(ReadFailedError):
    """The entry may exist, but no bookie of its write set could serve it now."""

    retriable = True


# --- peers and disks ------------------------------------------------------------------------------------------


class DigestMismatchError(PeerError):
    """An entry's digest or identity is wrong."""


class MalformedFrameError(PeerError):
    """Bytes that are no frame, run or record of the protocol."""


class CorruptMetadataError(PeerError):
    """A record in the metadata store, or the store itself, cannot be what it should be."""


class DamagedSegmentError(StorageError):
    """A segment's header or identity is damaged or foreign; the file and the offset are named."""


class DiskFullError(StorageError):
    """No room for new entries; what is stored stays readable."""

    retriable = True


class DirectoryInUseError(StorageError):
    """Another bookie process uses the directory."""


class DirectoryLostError(StorageError):
    """Another process has opened the directory of a bookie that runs, or another directory is in its place."""


class IdentityReplacedError(StorageError):
    """Another process has this bookie's identity: a copy of its directory was started, or this is one."""


class WrongDirectoryError(StorageError):
    """The directory belongs to another bookie or another cluster."""
