"""Quire: a replicated log store. `async with quire.connect("sqlite:PATH") as client: …`; see `ARCHITECTURE.md`.

Importing this loads neither the network nor the metadata drivers; `connect` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    DigestMismatchError,
    ElectionUnavailableError,
    InvalidQuorumError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerIdReusedError,
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
    StorageError,
    StreamClosedError,
    TermSupersededError,
    TrimmedError,
    WindowFullError,
    WrongPasswordError,
)
from quire.core.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from quire.core.version import VERSION

if TYPE_CHECKING:
    from quire.client.config import ClientConfig
    from quire.client.connecting import Connecting
    from quire.env.cyclic_garbage import ShortCollections
    from quire.log.client import QuireClient

__version__ = VERSION

__all__ = [
    "AlreadyExistsError",
    "CorruptMetadataError",
    "DigestMismatchError",
    "DigestType",
    "ElectionUnavailableError",
    "Fragment",
    "InvalidQuorumError",
    "LedgerClosedError",
    "LedgerFencedError",
    "LedgerIdReusedError",
    "LedgerMetadata",
    "LedgerState",
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
    "RecoveryInconclusiveError",
    "RefusedError",
    "StorageError",
    "StreamClosedError",
    "TermSupersededError",
    "TrimmedError",
    "WindowFullError",
    "WrongPasswordError",
    "connect",
    "keep_collections_short",
]


def connect(
    uri: str | None = None, config: ClientConfig | None = None, *, frame_bytes_max: int | None = None
) -> Connecting[QuireClient]:
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
