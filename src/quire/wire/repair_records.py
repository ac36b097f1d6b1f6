"""What auto-recovery keeps in addition to BookKeeper's marks: Quire's marks of a ledger, and how long bookies have been away.

Pure; the keys are in `metadata/keys.py`.

Source: `docs/formats/metadata.md`, "Under-replicated marks".
"""

from __future__ import annotations

from typing import Final

from quire.core.errors import MisuseError
from quire.core.ids import ID_MAX
from quire.core.ledger.notes import EntryRange
from quire.core.repair.under_replicated_marks import (
    MARKS_MAX,
    AwayCount,
    LedgerRepairs,
    MarkReason,
    RepairAttempts,
    RepairWorkerState,
    UnderReplicatedMark,
    WaitsFor,
)
from quire.wire.layout import FieldUse, Message
from quire.wire.proto import quire_metadata_pb2 as pb
from quire.wire.records import (
    U63_MAX,
    Number,
    RecordCodec,
    check_number,
    check_version,
    corrupt,
    cut,
    message_of,
    parse,
    part_of,
    serialized,
    unknown_of,
)

FORMAT_VERSION: Final = 1
REPAIRS_BYTES_MAX: Final = 64 * 1024
NAME_LENGTH_MAX: Final = 256
"""Characters of the name of a client; a longer one is cut."""
COUNT_MAX: Final = 2**32 - 1
WHY_LENGTH_MAX: Final = 1024
"""Characters of the reason that an attempt gives; a longer one is cut."""


def encode_repairs(repairs: LedgerRepairs, ledger_id: int) -> bytes:
    """The record `repairs/<ledger id>`.

    Raises:
        MisuseError: there are too many marks, or a range or a number is not possible.
    """
    where = _of_ledger(ledger_id)
    if len(repairs.marks) > MARKS_MAX:
        msg = f"{where} would be {len(repairs.marks)}, and may be {MARKS_MAX}"
        raise MisuseError(msg, ledger_id=ledger_id)
    message = pb.LedgerRepairs(
        format_version=FORMAT_VERSION,
        ledger_id=check_number(ledger_id, "the ledger's id", where, ID_MAX),
        marks=[_message(mark, where) for mark in repairs.marks],
        attempts=None if repairs.attempts is None else _attempts_message(repairs.attempts, where),
    )
    return serialized(message, repairs.unknown, where, REPAIRS_BYTES_MAX)


def decode_repairs(data: bytes, ledger_id: int) -> LedgerRepairs:
    """The marks of a ledger.

    Raises:
        CorruptMetadataError: not such a record, of a later version, or of another ledger.
    """
    where = _of_ledger(ledger_id)
    message = parse(pb.LedgerRepairs, data, where, REPAIRS_BYTES_MAX)
    check_version(message.format_version, FORMAT_VERSION, where)
    if message.ledger_id != ledger_id:
        raise corrupt(where, f"they are of ledger {message.ledger_id}")
    if len(message.marks) > MARKS_MAX:
        raise corrupt(where, f"they are {len(message.marks)}, more than {MARKS_MAX}")
    attempts = _attempts(message.attempts, where) if message.HasField("attempts") else None
    return LedgerRepairs(tuple(_mark(each, where) for each in message.marks), unknown_of(message), attempts)


def _message(mark: UnderReplicatedMark, where: str) -> pb.RepairMark:
    entries = mark.entries
    if flaw := entries.flaw():
        raise MisuseError(f"{where}: {flaw}")
    check_number(mark.record_version, "the record's version", where)
    check_number(mark.seen_ms, "the time", where)
    return message_of(
        pb.RepairMark,
        mark,
        reason=mark.reason.value,
        entries=pb.EntryRange(
            first=entries.first, last=entries.last, period=entries.period, residues=entries.stripes
        ),
        seen_by=cut(mark.seen_by, NAME_LENGTH_MAX),
    )


def _mark(message: pb.RepairMark, where: str) -> UnderReplicatedMark:
    try:
        reason = MarkReason(message.reason)
    except ValueError:
        raise corrupt(
            where, f"one has the reason {message.reason}, which this program does not know"
        ) from None
    found = message.entries
    entries = EntryRange(found.first, found.last, found.period, found.residues)
    flaw = entries.flaw()
    if flaw is not None or message.seen_ms < 0 or message.record_version > U63_MAX:
        raise corrupt(
            where, flaw or f"one was seen at {message.seen_ms} ms, version {message.record_version}"
        )
    return part_of(UnderReplicatedMark, message, reason=reason, entries=entries)


def _attempts_message(attempts: RepairAttempts, where: str) -> pb.RepairAttempts:
    check_number(attempts.count, "the number of attempts", where, COUNT_MAX)
    check_number(attempts.tried_ms, "the time", where)
    return message_of(
        pb.RepairAttempts,
        attempts,
        waits=attempts.waits.value,
        why=cut(attempts.why, WHY_LENGTH_MAX),
        tried_by=cut(attempts.tried_by, NAME_LENGTH_MAX),
    )


def _attempts(message: pb.RepairAttempts, where: str) -> RepairAttempts:
    try:
        waits = WaitsFor(message.waits)
    except ValueError:
        raise corrupt(where, f"they wait for {message.waits}, which this program does not know") from None
    return part_of(RepairAttempts, message, waits=waits, tried_ms=max(0, message.tried_ms))


def _of_ledger(ledger_id: int) -> str:
    return f"the under-replicated marks of ledger {ledger_id}"


WORKER_CODEC: Final = RecordCodec(
    RepairWorkerState,
    pb.RepairWorker,
    "the registration of repair worker {name}",
    ("name",),
    {
        "ledgers": Number("the number of ledgers"),
        "bytes": Number("the number of bytes"),
        "bytes_per_s": Number("the rate"),
        "ledgers_per_hour": Number("the rate of ledgers"),
    },
)
"""The value of the registration `repair-workers/<name>`."""
AWAY_CODEC: Final = RecordCodec(
    AwayCount,
    pb.Away,
    "how long bookie {bookie} has been away or read-only",
    ("bookie",),
    {"seconds": Number("the number of seconds")},
    texts={"counted_by": NAME_LENGTH_MAX},
)
"""`away/<bookie id>` and `read-only-for/<bookie id>`."""

_MARKER: Final = FieldUse("clients that see it; auditors", "workers")
_WORKER: Final = FieldUse("the worker", "operators' commands")
_AUDITOR: Final = FieldUse("the auditor", "auditors")

REPAIRS_FIELDS: Final = Message(
    "Under-replicated marks of a ledger", pb.LedgerRepairs.DESCRIPTOR, _MARKER, attempts=_WORKER
)
ATTEMPTS_FIELDS: Final = Message(
    "What attempts to repair a ledger left", pb.RepairAttempts.DESCRIPTOR, _WORKER
)
WORKER_FIELDS: Final = Message("A repair worker's registration", pb.RepairWorker.DESCRIPTOR, _WORKER)
MARK_FIELDS: Final = Message("One under-replicated mark", pb.RepairMark.DESCRIPTOR, _MARKER)
AWAY_FIELDS: Final = Message("How long a bookie has been away", pb.Away.DESCRIPTOR, _AUDITOR)
