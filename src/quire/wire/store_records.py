"""Small records in the metadata store, one a key: tombstones, and what bookies and their collectors write down.

Each names what it belongs to, so that a record under another's key is refused, and carries the fields that it does not
know. Pure; the keys are in `metadata/keys.py`.

Source: `docs/formats/metadata.md`, "Records".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quire.core.errors import MisuseError
from quire.core.ids import ID_MAX, BookieId, LedgerId
from quire.wire.layout import FieldUse, Message
from quire.wire.proto import quire_metadata_pb2 as pb
from quire.wire.records import (
    U64_MAX,
    check_number,
    check_version,
    corrupt,
    parse,
    serialized,
    unknown_of,
)

FORMAT_VERSION: Final = 1
RECORD_BYTES_MAX: Final = 4096
"""More than any of these needs; what later versions add has to fit too."""
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


# --- tombstones -------------------------------------------------------------------------------------------------


def encode_tombstone(tombstone: Tombstone) -> bytes:
    """The record `tombstones/<ledger id>`.

    Raises:
        MisuseError: a number is out of bounds.
    """
    where = _of_ledger("tombstone", tombstone.ledger_id)
    message = pb.Tombstone(
        format_version=FORMAT_VERSION,
        ledger_id=check_number(tombstone.ledger_id, "the ledger's id", where, ID_MAX),
        token=check_number(tombstone.token, "the token", where, U64_MAX),
        deleted_ms=check_number(tombstone.deleted_ms, "the time", where),
        record_version=check_number(tombstone.record_version, "the record's version", where),
        by_hand=tombstone.by_hand,
    )
    return serialized(message, tombstone.unknown, where, RECORD_BYTES_MAX)


def decode_tombstone(data: bytes, ledger_id: int) -> Tombstone:
    """The tombstone of a ledger.

    Raises:
        CorruptMetadataError: not such a record, of a later version, or of another ledger.
    """
    where = _of_ledger("tombstone", ledger_id)
    message = parse(pb.Tombstone, data, where, RECORD_BYTES_MAX)
    check_version(message.format_version, FORMAT_VERSION, where)
    if message.ledger_id != ledger_id:
        raise corrupt(where, f"it is of ledger {message.ledger_id}")
    if message.deleted_ms < 0 or message.record_version > ID_MAX:
        raise corrupt(where, f"it is of {message.deleted_ms} ms, version {message.record_version}")
    return Tombstone(
        LedgerId(ledger_id),
        message.token,
        message.deleted_ms,
        message.record_version,
        message.by_hand,
        unknown_of(message),
    )


# --- what belongs to a bookie -----------------------------------------------------------------------------------


def encode_watermark(watermark: Watermark) -> bytes:
    """The record `watermarks/<bookie id>`.

    Raises:
        MisuseError: a number is out of bounds, or the instance is missing.
    """
    where = _of_bookie("watermark", watermark.bookie)
    if not watermark.instance:
        raise MisuseError(f"{where}: it names no instance of a store")
    message = pb.Watermark(
        format_version=FORMAT_VERSION,
        bookie=watermark.bookie,
        revision=check_number(watermark.revision, "the revision", where, U64_MAX),
        instance=watermark.instance,
        generation=check_number(watermark.generation, "the generation", where, U64_MAX),
    )
    return serialized(message, watermark.unknown, where, RECORD_BYTES_MAX)


def decode_watermark(data: bytes, bookie: str) -> Watermark:
    """The watermark of a bookie.

    Raises:
        CorruptMetadataError: not such a record, of a later version, or of another bookie.
    """
    where = _of_bookie("watermark", bookie)
    message = parse(pb.Watermark, data, where, RECORD_BYTES_MAX)
    _check(message.format_version, message.bookie, bookie, where)
    if not message.instance:
        raise corrupt(where, "it names no instance of a store")
    return Watermark(
        BookieId(bookie), message.revision, message.instance, message.generation, unknown_of(message)
    )


def encode_boot(boot: StoredBoot) -> bytes:
    """The record `boots/<bookie id>`.

    Raises:
        MisuseError: a number is out of bounds.
    """
    where = _of_bookie("boot record", boot.bookie)
    message = pb.Boot(
        format_version=FORMAT_VERSION,
        bookie=boot.bookie,
        boot=check_number(boot.boot, "the boot number", where, U64_MAX),
        durable_lsn=check_number(boot.durable_lsn, "the LSN", where, U64_MAX),
        marker_inode=check_number(boot.marker_inode, "the inode", where, U64_MAX),
        marker_changed_ns=check_number(boot.marker_changed_ns, "the change time", where),
        clean=boot.clean,
        owner=check_number(boot.owner, "the owner", where, U64_MAX),
    )
    return serialized(message, boot.unknown, where, RECORD_BYTES_MAX)


def decode_boot(data: bytes, bookie: str) -> StoredBoot:
    """The boot record of a bookie.

    Raises:
        CorruptMetadataError: not such a record, of a later version, or of another bookie.
    """
    where = _of_bookie("boot record", bookie)
    message = parse(pb.Boot, data, where, RECORD_BYTES_MAX)
    _check(message.format_version, message.bookie, bookie, where)
    if message.marker_changed_ns < 0:
        raise corrupt(where, f"its marker file was changed at {message.marker_changed_ns} ns")
    return StoredBoot(
        BookieId(bookie),
        message.boot,
        message.durable_lsn,
        message.marker_inode,
        message.marker_changed_ns,
        message.clean,
        message.owner,
        unknown_of(message),
    )


def encode_passes(passes: Passes) -> bytes:
    """The record `passes/<bookie id>`; a long reason is cut.

    Raises:
        MisuseError: a number is out of bounds.
    """
    where = _of_bookie("pass counter", passes.bookie)
    message = pb.Passes(
        format_version=FORMAT_VERSION,
        bookie=passes.bookie,
        passes=check_number(passes.passes, "the number of passes", where, U64_MAX),
        own=check_number(passes.own, "the bookie's own number of passes", where, U64_MAX),
        # An error's text may hold what is no Unicode, such as a path; it must not stop the record.
        held=passes.held[:STOPPED_LENGTH_MAX].encode(errors="replace").decode(),
        accepted=check_number(passes.accepted, "the accepted number of passes", where, U64_MAX),
        chain=check_number(passes.chain, "the chain", where, U64_MAX),
    )
    return serialized(message, passes.unknown, where, RECORD_BYTES_MAX)


def decode_passes(data: bytes, bookie: str) -> Passes:
    """The pass counter of a bookie.

    Raises:
        CorruptMetadataError: not such a record, of a later version, or of another bookie.
    """
    where = _of_bookie("pass counter", bookie)
    message = parse(pb.Passes, data, where, RECORD_BYTES_MAX)
    _check(message.format_version, message.bookie, bookie, where)
    return Passes(
        BookieId(bookie),
        message.passes,
        message.own,
        message.held,
        message.accepted,
        message.chain,
        unknown_of(message),
    )


def _check(version: int, named: str, bookie: str, where: str) -> None:
    check_version(version, FORMAT_VERSION, where)
    if named != bookie:
        raise corrupt(where, f"it is of bookie {named!r}")


def _of_ledger(what: str, ledger_id: int) -> str:
    return f"the {what} of ledger {ledger_id}"


def _of_bookie(what: str, bookie: str) -> str:
    return f"the {what} of bookie {bookie}"


# --- the tables of the pages ------------------------------------------------------------------------------------

_DELETER: Final = FieldUse("clients that delete a ledger", "a bookie's collector; operators")
_COLLECTOR: Final = FieldUse("a bookie's collector", "the collector; commands that end tombstones")
_STOPPED: Final = FieldUse("a bookie's collector", "the collector; operators")
_BOOKIE: Final = FieldUse(
    "the bookie", "the bookie at its start, and before it goes on after its lease was pending"
)

TOMBSTONE_FIELDS: Final = Message(
    "Tombstone of a deleted ledger",
    pb.Tombstone.DESCRIPTOR,
    {
        **dict.fromkeys(("format_version", "ledger_id", "token", "deleted_ms", "record_version"), _DELETER),
        "by_hand": FieldUse("a person, with `quire cluster orphans --delete`", "a bookie's collector"),
    },
)
WATERMARK_FIELDS: Final = Message(
    "Watermark of a bookie",
    pb.Watermark.DESCRIPTOR,
    dict.fromkeys(("format_version", "bookie", "revision", "instance", "generation"), _COLLECTOR),
)
BOOT_FIELDS: Final = Message(
    "Boot record of a bookie",
    pb.Boot.DESCRIPTOR,
    dict.fromkeys(
        (
            "format_version",
            "bookie",
            "boot",
            "durable_lsn",
            "marker_inode",
            "marker_changed_ns",
            "clean",
            "owner",
        ),
        _BOOKIE,
    ),
)
PASSES_FIELDS: Final = Message(
    "Pass counter of a bookie",
    pb.Passes.DESCRIPTOR,
    {
        **dict.fromkeys(("format_version", "bookie", "passes", "chain"), _COLLECTOR),
        **dict.fromkeys(("own", "held"), _STOPPED),
        "accepted": FieldUse("a person, with `quire cluster accept-store`", "the collector"),
    },
)
