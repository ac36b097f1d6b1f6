"""Small records in the metadata store, one a key: tombstones, and what bookies and their collectors write down.

Each names what it belongs to, so that a record under another's key is refused, and carries the fields that it does not
know. Pure; the keys are in `metadata/keys.py`.

Source: `docs/formats/metadata.md`, "Records".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quire.core.ids import ID_MAX, BookieId, LedgerId
from quire.wire.layout import FieldUse, Message
from quire.wire.proto import quire_metadata_pb2 as pb
from quire.wire.records import U64_MAX, Number, RecordCodec

STOPPED_LENGTH_MAX: Final = 500
"""Characters of the reason for which collection is stopped; a longer one is cut."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A ledger was deleted: a bookie with entries of it may drop them, whatever other records are there.

    Attributes:
        ledger_id: which.
        token: the ledger's token; 0 where it had none. Another ledger under the same id has another.
        deleted_ms: wall time, for people; nothing is decided by it.
        record_version: the version of the record that was deleted; 0 where there was none.
        by_hand: a person ordered it: bookies drop the entries whatever token they know of the ledger.
        unknown: fields of later versions.
    """

    ledger_id: LedgerId
    token: int
    deleted_ms: int
    record_version: int
    by_hand: bool = False
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class Watermark:
    """A bookie has dropped the entries of every ledger that was deleted up to a revision.

    Attributes:
        bookie: which.
        revision: of the store.
        instance: the store's instance id.
        generation: the store's then: how often it was found restored or copied, plus 1; 0 where it cannot tell.
        unknown: fields of later versions.
    """

    bookie: BookieId
    revision: int
    instance: str
    generation: int
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class StoredBoot:
    """How far a bookie's directory is known to be: an older one is a copy that was put back.

    Attributes:
        bookie: which.
        boot: how often it was started.
        durable_lsn: everything up to here was on its disk.
        marker_inode: of the directory's marker file.
        marker_changed_ns: when the marker file was changed last, as its filesystem says.
        clean: whether the bookie was stopped, and not killed, with this very LSN.
        owner: random bits of the process that began this boot.
        unknown: fields of later versions.
    """

    bookie: BookieId
    boot: int
    durable_lsn: int
    marker_inode: int
    marker_changed_ns: int
    clean: bool = False
    owner: int = 0
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class Passes:
    """How many passes a bookie's collector has begun: a store that shows fewer than the bookie knows of went back in time.

    Attributes:
        bookie: which.
        passes: the number.
        own: the bookie's own number when it found that the store had been rolled back; 0 while collection is not stopped.
        held: why it drops nothing at present; empty while it does. At most `STOPPED_LENGTH_MAX` characters are written.
        accepted: the `own` with which a person accepted the store as it is; 0: not accepted.
        chain: a random number, drawn anew when the counter does not go on from the value that the bookie wrote last.
        unknown: fields of later versions.
    """

    bookie: BookieId
    passes: int
    own: int = 0
    held: str = ""
    accepted: int = 0
    chain: int = 0
    unknown: bytes = b""


# --- codecs -----------------------------------------------------------------------------------------------------

TOMBSTONE_CODEC: Final = RecordCodec(
    Tombstone,
    pb.Tombstone,
    "the tombstone of ledger {ledger_id}",
    ("ledger_id",),
    {
        "ledger_id": Number("the ledger's id", ID_MAX),
        "token": Number("the token", U64_MAX),
        "deleted_ms": Number("the time"),
        "record_version": Number("the record's version"),
    },
)
"""`tombstones/<ledger id>`."""
WATERMARK_CODEC: Final = RecordCodec(
    Watermark,
    pb.Watermark,
    "the watermark of bookie {bookie}",
    ("bookie",),
    {"revision": Number("the revision", U64_MAX), "generation": Number("the generation", U64_MAX)},
    needed={"instance": "it names no instance of a store"},
)
"""`watermarks/<bookie id>`."""
BOOT_CODEC: Final = RecordCodec(
    StoredBoot,
    pb.Boot,
    "the boot record of bookie {bookie}",
    ("bookie",),
    {
        "boot": Number("the boot number", U64_MAX),
        "durable_lsn": Number("the LSN", U64_MAX),
        "marker_inode": Number("the inode", U64_MAX),
        "marker_changed_ns": Number("the change time"),
        "owner": Number("the owner", U64_MAX),
    },
)
"""`boots/<bookie id>`."""
PASSES_CODEC: Final = RecordCodec(
    Passes,
    pb.Passes,
    "the pass counter of bookie {bookie}",
    ("bookie",),
    {
        "passes": Number("the number of passes", U64_MAX),
        "own": Number("the bookie's own number of passes", U64_MAX),
        "accepted": Number("the accepted number of passes", U64_MAX),
        "chain": Number("the chain", U64_MAX),
    },
    texts={"held": STOPPED_LENGTH_MAX},
)
"""`passes/<bookie id>`."""


# --- the tables of the pages ------------------------------------------------------------------------------------

_DELETER: Final = FieldUse("clients that delete a ledger", "a bookie's collector; operators")
_COLLECTOR: Final = FieldUse("a bookie's collector", "the collector")
_STOPPED: Final = FieldUse("a bookie's collector", "the collector; operators")
_BOOKIE: Final = FieldUse(
    "the bookie", "the bookie at its start, and before it goes on after its lease was pending"
)

TOMBSTONE_FIELDS: Final = Message(
    "Tombstone of a deleted ledger",
    pb.Tombstone.DESCRIPTOR,
    _DELETER,
    by_hand=FieldUse("a person, with `quire cluster orphans --delete`", "a bookie's collector"),
)
WATERMARK_FIELDS: Final = Message("Watermark of a bookie", pb.Watermark.DESCRIPTOR, _COLLECTOR)
BOOT_FIELDS: Final = Message("Boot record of a bookie", pb.Boot.DESCRIPTOR, _BOOKIE)
PASSES_FIELDS: Final = Message(
    "Pass counter of a bookie",
    pb.Passes.DESCRIPTOR,
    _COLLECTOR,
    own=_STOPPED,
    held=_STOPPED,
    accepted=FieldUse("a person, with `quire cluster accept-store`", "the collector"),
)
