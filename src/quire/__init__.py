"""Quire: a replicated log store. `async with quire.connect("sqlite:PATH") as client: …`; see `ARCHITECTURE.md`.

Importing this loads neither the network nor the metadata drivers; `connect` does, and the first use of a class does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from quire.core.errors import (
    AlreadyExistsError,
    ArchivedError,
    AuthenticationError,
    CheckpointWentBackError,
    CorruptMetadataError,
    DamagedMarkError,
    DescriptorShortageError,
    DigestMismatchError,
    ElectionUnavailableError,
    InvalidQuorumError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerIdReusedError,
    ListChangedError,
    LogLedError,
    MalformedFrameError,
    MetadataConflictError,
    MetadataUnknownError,
    MissingExtraError,
    MisuseError,
    NoClusterError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
    NoSuchStreamError,
    NotEnoughBookiesError,
    NotLeaderError,
    NotWritingError,
    OutcomeUnknownError,
    PastEndError,
    PeerError,
    QuireError,
    QuorumLostError,
    ReadFailedError,
    ReadUnavailableError,
    RecoveryInconclusiveError,
    RefusedError,
    StagedLedgerGoneError,
    StorageError,
    StreamClosedError,
    TermSupersededError,
    TransactionResetError,
    TransactionRowsError,
    TrimmedError,
    WindowFullError,
    WrongPasswordError,
)
from quire.core.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from quire.core.version import VERSION

if TYPE_CHECKING:
    from quire import blocking
    from quire.client.config import ClientConfig
    from quire.client.connecting import Connecting
    from quire.client.reading.reader import LedgerReader
    from quire.client.streams.unbounded import UnboundedLedger
    from quire.client.writing.writer import LedgerWriter
    from quire.core.log.list import LogSettings
    from quire.env.cyclic_garbage import ShortCollections
    from quire.log.archive import ArchiveError, ArchiveLostError
    from quire.log.client import QuireClient as Client
    from quire.log.config import LogConfig, LogGuarantee
    from quire.log.cursors import CursorHoldsError, CursorTakenError
    from quire.log.log import Log
    from quire.log.records import ItemDescription, LogDescription, Record
    from quire.log.seeking import last
    from quire.log.writer import LogWriter
    from quire.metadata.store import StoreAwayError, StoreBusyError

__version__ = VERSION

__all__ = [
    "AlreadyExistsError",
    "ArchiveError",
    "ArchiveLostError",
    "ArchivedError",
    "AuthenticationError",
    "CheckpointWentBackError",
    "Client",
    "ClientConfig",
    "CorruptMetadataError",
    "CursorHoldsError",
    "CursorTakenError",
    "DamagedMarkError",
    "DescriptorShortageError",
    "DigestMismatchError",
    "DigestType",
    "ElectionUnavailableError",
    "Fragment",
    "InvalidQuorumError",
    "ItemDescription",
    "LedgerClosedError",
    "LedgerFencedError",
    "LedgerIdReusedError",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "ListChangedError",
    "Log",
    "LogConfig",
    "LogDescription",
    "LogGuarantee",
    "LogLedError",
    "LogSettings",
    "LogWriter",
    "MalformedFrameError",
    "MetadataConflictError",
    "MetadataUnknownError",
    "MissingExtraError",
    "MisuseError",
    "NoClusterError",
    "NoSuchEntryError",
    "NoSuchLedgerError",
    "NoSuchLogError",
    "NoSuchStreamError",
    "NotEnoughBookiesError",
    "NotLeaderError",
    "NotWritingError",
    "OutcomeUnknownError",
    "PastEndError",
    "PeerError",
    "QuireError",
    "QuorumLostError",
    "ReadFailedError",
    "ReadUnavailableError",
    "Record",
    "RecoveryInconclusiveError",
    "RefusedError",
    "StagedLedgerGoneError",
    "StorageError",
    "StoreAwayError",
    "StoreBusyError",
    "StreamClosedError",
    "TermSupersededError",
    "TransactionResetError",
    "TransactionRowsError",
    "TrimmedError",
    "UnboundedLedger",
    "WindowFullError",
    "WrongPasswordError",
    "blocking",
    "connect",
    "keep_collections_short",
    "last",
]

_PLACES: Final = {
    "ClientConfig": "quire.client.config:ClientConfig",
    "LedgerReader": "quire.client.reading.reader:LedgerReader",
    "UnboundedLedger": "quire.client.streams.unbounded:UnboundedLedger",
    "LedgerWriter": "quire.client.writing.writer:LedgerWriter",
    "LogSettings": "quire.core.log.list:LogSettings",
    "ArchiveError": "quire.log.archive:ArchiveError",
    "ArchiveLostError": "quire.log.archive:ArchiveLostError",
    "Client": "quire.log.client:QuireClient",
    "LogConfig": "quire.log.config:LogConfig",
    "LogGuarantee": "quire.log.config:LogGuarantee",
    "CursorHoldsError": "quire.log.cursors:CursorHoldsError",
    "CursorTakenError": "quire.log.cursors:CursorTakenError",
    "Log": "quire.log.log:Log",
    "ItemDescription": "quire.log.records:ItemDescription",
    "LogDescription": "quire.log.records:LogDescription",
    "Record": "quire.log.records:Record",
    "last": "quire.log.seeking:last",
    "LogWriter": "quire.log.writer:LogWriter",
    "StoreAwayError": "quire.metadata.store:StoreAwayError",
    "StoreBusyError": "quire.metadata.store:StoreBusyError",
}
"""Public names that are imported when they are first used: `module:name`."""


def __getattr__(name: str) -> Any:
    if name == "blocking":
        return import_module("quire.blocking")
    if name not in _PLACES:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    module, _, original = _PLACES[name].partition(":")
    found = globals()[name] = getattr(import_module(module), original)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def connect(
    uri: str | None = None, config: ClientConfig | None = None, *, frame_bytes_max: int | None = None
) -> Connecting[Client]:
    """Connect to a cluster: `async with quire.connect(uri) as client`, or `client = await quire.connect(uri)`.

    Args:
        uri: the cluster, as in `sqlite:/data/quire/metadata.db`; by default the environment's `QUIRE_CLUSTER`.
        config: the client's settings.
        frame_bytes_max: the longest frame, as `ClientConfig.frame_bytes_max`; bookies should have the same.

    Raises:
        MisuseError: `frame_bytes_max` cannot be.

    Raises (when entered or awaited):
        NoClusterError: no cluster is named, or its metadata cannot be reached or read.
    """
    from quire.client.config import with_frames
    from quire.client.connecting import Connecting
    from quire.log.client import QuireClient

    return Connecting(uri, QuireClient, with_frames(config, frame_bytes_max))


def keep_collections_short() -> ShortCollections:
    """Keep Python's cyclic garbage collector from looking again and again at what this program keeps for long.

    For programs with very many objects, such as ten thousand open ledgers. It concerns the whole process, so only the
    program can decide it: the library never calls this. Bookies that `quire bookie` and `quire up` start do the same.

    Returns:
        What watches the collector from now on; its `stop` puts everything back.

    Source: `docs/performance.md`, "The garbage collector".
    """
    from quire.env.cyclic_garbage import ShortCollections

    watched = ShortCollections()
    watched.start()
    return watched
