"""The notes of a ledger as bytes: in its record's custom metadata, or as a record of their own where it has none.

Formats 2 and 3 of a ledger's record carry custom metadata, which Java keeps when it changes the record. Format 1 does
not; the notes of such a ledger are one record under `ledger-notes/<ledger id>`. Pure; `metadata/records.py` writes it.

Source: `docs/formats/metadata.md`, "Holes and accepted losses".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from google.protobuf.unknown_fields import UnknownFieldSet

from quire.core.errors import MisuseError
from quire.core.ledger.metadata import FORMAT_KEY, TOKEN_KEY, LedgerMetadata
from quire.core.ledger.notes import AcceptedLoss, BookieHoles, EntryRange, LedgerNotes
from quire.wire.layout import FieldUse, Message, NamedValues
from quire.wire.proto import quire_metadata_pb2 as pb
from quire.wire.records import check_version, corrupt, message_of, parse, part_of, unknown_of, with_unknown

FORMAT_VERSION: Final = 1
NOTES_BYTES_MAX: Final = 64 * 1024
"""Of all notes of one ledger: they are read with its record each time it is opened."""
HOLES_KEY: Final = "quire.holes"
"""Custom metadata: which bookies lack which entries."""
LOST_KEY: Final = "quire.lost"
"""Custom metadata: the losses that a person accepted."""
PLAIN_RECORD: Final = 1
"""The format of a ledger's record that has no custom metadata."""


def record_with_notes(record: LedgerMetadata, notes: LedgerNotes) -> LedgerMetadata:
    """A ledger's record with these notes in its custom metadata, instead of those that are there.

    Raises:
        MisuseError: the record has format 1; or the notes are not possible, or too long.
    """
    if record.format_version == PLAIN_RECORD:
        msg = f"the record of ledger {record.ledger_id} has format 1, which holds no custom metadata"
        raise MisuseError(msg, ledger_id=record.ledger_id)
    holes, lost = _messages(notes, record.ledger_id)
    custom = {key: value for key, value in record.custom if key not in {HOLES_KEY, LOST_KEY}}
    for key, message in ((HOLES_KEY, holes), (LOST_KEY, lost)):
        if message is not None:
            custom[key] = message.SerializeToString(deterministic=True)
    _check_size(sum(len(custom.get(key, b"")) for key in (HOLES_KEY, LOST_KEY)), record.ledger_id)
    return replace(record, custom=tuple(sorted(custom.items())))


def notes_of_record(record: LedgerMetadata) -> LedgerNotes:
    """The notes in a record's custom metadata.

    Raises:
        CorruptMetadataError: they cannot be read, or have a later version.
    """
    custom, where = dict(record.custom), _where(record.ledger_id)
    holes = parse(pb.LedgerHoles, custom.get(HOLES_KEY, b""), f"{where}, {HOLES_KEY},", NOTES_BYTES_MAX)
    lost = parse(pb.LedgerLosses, custom.get(LOST_KEY, b""), f"{where}, {LOST_KEY},", NOTES_BYTES_MAX)
    return _notes(
        holes if HOLES_KEY in custom else None, lost if LOST_KEY in custom else None, record.ledger_id
    )


def encode_notes(notes: LedgerNotes, ledger_id: int) -> bytes:
    """The record `ledger-notes/<ledger id>`.

    Raises:
        MisuseError: they are not possible, or too long.
    """
    holes, lost = _messages(notes, ledger_id)
    message = pb.LedgerNotes(format_version=FORMAT_VERSION, ledger_id=ledger_id, holes=holes, lost=lost)
    data = message.SerializeToString(deterministic=True)
    _check_size(len(data), ledger_id)
    return data


def decode_notes(data: bytes, ledger_id: int) -> LedgerNotes:
    """The notes in such a record.

    Raises:
        CorruptMetadataError: not such a record, of a later version, or of another ledger.
    """
    where = _where(ledger_id)
    message = parse(pb.LedgerNotes, data, where, NOTES_BYTES_MAX)
    check_version(message.format_version, FORMAT_VERSION, where)
    if message.ledger_id != ledger_id:
        raise corrupt(where, f"they are of ledger {message.ledger_id}")
    if len(UnknownFieldSet(message)):
        raise corrupt(where, "they have fields that this program does not know: use a newer Quire")
    return _notes(
        message.holes if message.HasField("holes") else None,
        message.lost if message.HasField("lost") else None,
        ledger_id,
    )


# --- messages ---------------------------------------------------------------------------------------------------


def _messages(notes: LedgerNotes, ledger_id: int) -> tuple[pb.LedgerHoles | None, pb.LedgerLosses | None]:
    """One message for each of the two lists that is not empty."""
    notes.checked(ledger_id)
    holes = lost = None
    if notes.holes or notes.unknown_of_holes:
        bookies = [
            message_of(pb.BookieHoles, each, ranges=_range_messages(each.ranges)) for each in notes.holes
        ]
        holes = pb.LedgerHoles(format_version=FORMAT_VERSION, bookies=bookies)
        with_unknown(holes, notes.unknown_of_holes)
    if notes.losses or notes.unknown_of_losses:
        losses = [
            message_of(pb.AcceptedLoss, each, ranges=_range_messages(each.ranges), gone=each.lost_bookies)
            for each in notes.losses
        ]
        lost = pb.LedgerLosses(format_version=FORMAT_VERSION, losses=losses)
        with_unknown(lost, notes.unknown_of_losses)
    return holes, lost


def _notes(holes: pb.LedgerHoles | None, lost: pb.LedgerLosses | None, ledger_id: int) -> LedgerNotes:
    where = _where(ledger_id)
    for message in (holes, lost):
        if message is not None:
            check_version(message.format_version, FORMAT_VERSION, where)
    found = LedgerNotes(
        tuple(
            part_of(BookieHoles, each, ranges=_ranges(each.ranges, where))
            for each in (holes.bookies if holes is not None else ())
        ),
        tuple(
            part_of(AcceptedLoss, each, ranges=_ranges(each.ranges, where), lost_bookies=tuple(each.gone))
            for each in (lost.losses if lost is not None else ())
        ),
        unknown_of(holes) if holes is not None else b"",
        unknown_of(lost) if lost is not None else b"",
    )
    if flaw := found.flaw():
        raise corrupt(where, flaw)
    return found


def _range_messages(ranges: Iterable[EntryRange]) -> list[pb.EntryRange]:
    return [pb.EntryRange(first=r.first, last=r.last, period=r.period, residues=r.stripes) for r in ranges]


def _ranges(messages: Sequence[pb.EntryRange], where: str) -> tuple[EntryRange, ...]:
    for message in messages:
        if len(UnknownFieldSet(message)):  # it may say which of these entries are meant
            raise corrupt(where, "a range has a field that this program does not know: use a newer Quire")
    return tuple(EntryRange(m.first, m.last, m.period, m.residues) for m in messages)


def _check_size(size: int, ledger_id: int) -> None:
    if size > NOTES_BYTES_MAX:
        msg = (
            f"the notes of ledger {ledger_id} (holes and accepted losses) would have {size} bytes; they may have"
            f" {NOTES_BYTES_MAX}: fill holes before more are made"
        )
        raise MisuseError(msg, ledger_id=ledger_id)


def _where(ledger_id: int) -> str:
    return f"the notes of ledger {ledger_id}"


# --- the tables of the pages ------------------------------------------------------------------------------------

_HOLES: Final = FieldUse("writers that close or leave a ledger; repair", "ledger show, ledger verify, repair")
_LOST: Final = FieldUse("`quire ledger repair --accept-loss`", "repair, collectors")
_EITHER: Final = FieldUse("as the list it is in", "as the list it is in")
_PLAIN: Final = FieldUse("clients that write notes of a record of format 1", "the same")

RANGE_FIELDS: Final = Message("Range of entries in notes", pb.EntryRange.DESCRIPTOR, _EITHER)
HOLES_FIELDS: Final = Message("Custom metadata quire.holes", pb.LedgerHoles.DESCRIPTOR, _HOLES)
BOOKIE_HOLES_FIELDS: Final = Message("Holes of one bookie", pb.BookieHoles.DESCRIPTOR, _HOLES)
LOSSES_FIELDS: Final = Message("Custom metadata quire.lost", pb.LedgerLosses.DESCRIPTOR, _LOST)
LOSS_FIELDS: Final = Message("Accepted loss", pb.AcceptedLoss.DESCRIPTOR, _LOST)
NOTES_FIELDS: Final = Message(
    "Notes of a ledger whose record has format 1", pb.LedgerNotes.DESCRIPTOR, _PLAIN
)
CUSTOM_METADATA: Final = NamedValues(
    "Custom metadata of a ledger's record",
    {
        TOKEN_KEY: (
            "8 random bytes, made with the ledger",
            FieldUse("the client that creates the ledger", "clients and bookies"),
        ),
        FORMAT_KEY: ("what the entries are", FieldUse("the client that creates the ledger", "clients")),
        HOLES_KEY: ("which bookies lack which entries", _HOLES),
        LOST_KEY: ("losses that a person accepted", _LOST),
    },
)
