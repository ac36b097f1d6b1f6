"""The exceptions that callers of public methods meet.

Six kinds. What matters to a caller is whether the thing happened: `MisuseError` and `RefusedError` say no,
`OutcomeUnknownError` says that the outcome is unknown. `ReadFailedError` is a read, which changes nothing.

Source: BookKeeper protocol, "Closing a ledger as a reader": "LedgerFenced should be treated like a timeout".
"""

from __future__ import annotations

from typing import ClassVar


class QuireError(Exception):
    """The root. The text says what, where and what to do next.

    Args:
        message: one sentence for a person.
        ids: what it is about (`ledger_id`, `entry_id`, `bookie`, `log`, `path`, …), kept in `ids` for programs.
    """

    code: ClassVar[str] = "error"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, **ids: object) -> None:
        super().__init__(message)
        self.message = message
        self.ids = ids

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.ids))


def _rebuild(kind: type[QuireError], message: str, ids: dict[str, object]) -> QuireError:
    return kind(message, **ids)


class MisuseError(QuireError):
    """The caller's own mistake; nothing was sent."""

    code = "misuse"


class RefusedError(QuireError):
    """The request was refused, and nothing happened."""

    code = "refused"


class OutcomeUnknownError(QuireError):
    """It may or may not have happened. Only a read after a recovery shows it."""

    code = "outcome_unknown"


class ReadFailedError(QuireError):
    """A read did not give what it was asked for. It has changed nothing, and may be repeated."""

    code = "read_failed"


class PeerError(QuireError):
    """The other side broke the protocol or its bytes are damaged."""

    code = "peer"


class StorageError(QuireError):
    """This machine's disk or one of its files failed."""

    code = "storage"


class DescriptorShortageError(StorageError):
    """This process, or this machine, has no descriptor left. Nothing is damaged: the same may succeed a moment later."""

    code = "descriptor_shortage"
    retriable = True


# --- misuse ---------------------------------------------------------------------------------------------------


class InvalidQuorumError(MisuseError):
    """The three quorum sizes do not fit together: E >= Qw >= Qa >= 1."""

    code = "invalid_quorum"


class NotWritingError(MisuseError):
    """An append on a handle that was closed, abandoned or has ended."""

    code = "not_writing"


class PastEndError(MisuseError):
    """A read beyond what is confirmed."""

    code = "past_end"


# --- refused --------------------------------------------------------------------------------------------------


class WrongPasswordError(RefusedError):
    """The password is not the ledger's."""

    code = "wrong_password"


class AuthenticationError(RefusedError):
    """The other side of a connection could not prove who it is."""

    code = "authentication"


class NoSuchLedgerError(RefusedError):
    """The metadata store has no record of the ledger."""

    code = "no_such_ledger"


class NoSuchEntryError(RefusedError):
    """Every bookie of the write set reports conclusively that it does not hold the entry."""

    code = "no_such_entry"


class NoSuchLogError(RefusedError):
    """The metadata store has no log of this name."""

    code = "no_such_log"


class AlreadyExistsError(RefusedError):
    """Something of this name or id is there already."""

    code = "already_exists"


class TrimmedError(RefusedError):
    """The position lies before the log's start."""

    code = "trimmed"


class NotEnoughBookiesError(RefusedError):
    """Fewer bookies are there than a ledger needs to be created or recovered."""

    code = "not_enough_bookies"
    retriable = True


class WindowFullError(RefusedError):
    """More bytes are in flight than the window allows; `await ledger.drain()` and append again."""

    code = "window_full"
    retriable = True


class NotLeaderError(RefusedError):
    """Another writer took the log over before this one could serve."""

    code = "not_leader"


class LogLedError(RefusedError):
    """The log has a leader, or what an ended one left open, and the caller did not ask to take it over."""

    code = "log_led"


class TransactionResetError(RefusedError):
    """A named transaction has a number that is below its last one, or counts again under another checkpoint."""

    code = "transaction_reset"


class TransactionRowsError(RefusedError):
    """A named transaction has a number that is in the log already, with other rows."""

    code = "transaction_rows"


class CheckpointWentBackError(RefusedError):
    """A stream's checkpoint is not the one that the log's mark was made with: it was put back, or copied."""

    code = "checkpoint_went_back"


class DamagedMarkError(RefusedError):
    """What a log has of a query's last batch cannot be right."""

    code = "damaged_mark"


class ArchivedError(RefusedError):
    """The records are no longer on bookies: a file of the archive holds them."""

    code = "archived"


class ListChangedError(RefusedError):
    """Items of a log's list that were to be replaced are no longer what they were; plan again."""

    code = "list_changed"


class LedgerIdReusedError(RefusedError):
    """The ledger's id was used before by another ledger, and bookies hold that one's entries. Make the ledger again."""

    code = "ledger_id_reused"


class StagedLedgerGoneError(RefusedError):
    """A ledger that was written for a batch was deleted before the batch was committed: write the batch again."""

    code = "staged_ledger_gone"
    retriable = True


class NoClusterError(RefusedError):
    """No cluster is named, or the metadata store cannot be reached or read."""

    code = "no_cluster"


# --- unknown outcome ------------------------------------------------------------------------------------------


class LedgerFencedError(OutcomeUnknownError):
    """A recoverer fenced the ledger: pending entries may or may not be in it."""

    code = "ledger_fenced"


class LedgerClosedError(OutcomeUnknownError):
    """Another client closed the ledger (or its own handle did) while entries were pending."""

    code = "ledger_closed"


class MetadataConflictError(OutcomeUnknownError):
    """The ledger was closed at another end than this writer's."""

    code = "metadata_conflict"


class TermSupersededError(OutcomeUnknownError):
    """Another client took the unbounded ledger over in a later term."""

    code = "term_superseded"


class QuorumLostError(OutcomeUnknownError):
    """Some write set cannot reach its ack quorum, and no bookie came in time (`quorum_wait_ms`): the writer has ended."""

    code = "quorum_lost"


class MetadataUnknownError(OutcomeUnknownError):
    """The metadata store did not say whether it wrote."""

    code = "metadata_unknown"
    retriable = True


class RecoveryInconclusiveError(OutcomeUnknownError):
    """Too few bookies responded to determine where the ledger ends. It stays in recovery; run the recovery again."""

    code = "recovery_inconclusive"
    retriable = True


# --- reads ----------------------------------------------------------------------------------------------------


class ReadUnavailableError(ReadFailedError):
    """The entry may exist, but no bookie of its write set could serve it now."""

    code = "read_unavailable"
    retriable = True


# --- peers and disks ------------------------------------------------------------------------------------------


class DigestMismatchError(PeerError):
    """An entry's digest or identity is wrong."""

    code = "digest_mismatch"


class MalformedFrameError(PeerError):
    """Bytes that are no frame, run or record of the protocol."""

    code = "malformed_frame"


class CorruptMetadataError(PeerError):
    """A record in the metadata store, or the store itself, cannot be what it should be."""

    code = "corrupt_metadata"


class DamagedSegmentError(StorageError):
    """A segment's header or identity is damaged or foreign; the file and the offset are named."""

    code = "damaged_segment"


class DiskFullError(StorageError):
    """No room for new entries; what is stored stays readable."""

    code = "disk_full"
    retriable = True


class DirectoryInUseError(StorageError):
    """Another bookie process uses the directory."""

    code = "directory_in_use"


class IdentityReplacedError(StorageError):
    """Another process has this bookie's identity: a copy of its directory was started, or this is one."""

    code = "identity_replaced"


class WrongDirectoryError(StorageError):
    """The directory belongs to another bookie or another cluster."""

    code = "wrong_directory"
