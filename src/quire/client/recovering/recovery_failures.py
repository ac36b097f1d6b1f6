"""Why a ledger could not be recovered, as an error that says what its caller can do."""

from __future__ import annotations

from collections.abc import Collection

from quire.core.answers import Answer
from quire.core.errors import (
    CorruptMetadataError,
    MisuseError,
    NoSuchLedgerError,
    NoSuchStreamError,
    NotEnoughBookiesError,
    QuireError,
    RecoveryInconclusiveError,
    StreamClosedError,
    WrongPasswordError,
)
from quire.core.ids import NO_ENTRY, LedgerId
from quire.core.ledger.effects import RecoveryClosed, RecoveryFailed, RecoveryInconclusive
from quire.core.ledger.metadata import LedgerMetadata


def is_final(result: object) -> bool:
    """Whether bookies that come back would not change how a recovery or a take-over ended."""
    return not isinstance(result, RecoveryInconclusive) or bool(result.contradicting and not result.silent)


def check_ignored_lacs(where: str, what: str, record: LedgerMetadata, ignored_lacs: Collection[str]) -> None:
    """Whether all bookies whose LAC is to be ignored are asked.

    Args:
        where: the ledger or stream, as the error names it.
        what: what reads from them.
        record: of it.
        ignored_lacs: the bookies.

    Raises:
        MisuseError: one of them is not in the last fragment.
    """
    ensemble = record.last_fragment.ensemble
    if strange := [bookie for bookie in ignored_lacs if bookie not in ensemble]:
        msg = (
            f"{where}: {', '.join(strange)} is not in the ensemble of the last fragment, which {what} reads from "
            f"({', '.join(ensemble)})"
        )
        raise MisuseError(msg, ledger_id=record.ledger_id)


def not_recovered(
    record: LedgerMetadata, result: RecoveryInconclusive | RecoveryFailed, troubles: str
) -> QuireError:
    """The error of a recovery that did not close its ledger.

    Args:
        record: the ledger's record when the recovery began.
        result: how it ended.
        troubles: which bookies accept no connection, to be said after it; or empty.
    """
    ledger_id = record.ledger_id
    where = f"ledger {ledger_id}"
    if isinstance(result, RecoveryInconclusive) and result.contradicting:
        contradicted_by = ", ".join(
            f"{bookie} (last add confirmed {lac})" for bookie, lac in result.contradicting
        )
        contradicting = tuple(bookie for bookie, _ in result.contradicting)
        ignoring = " ".join(f"--ignore-lac {bookie}" for bookie in contradicting)
        away = f"; {', '.join(result.silent)} cannot tell" if result.silent else ""
        return RecoveryInconclusiveError(
            f"{where}: entry {result.entry_id} was acknowledged according to {contradicted_by}, but the bookies "
            f'that should hold it respond "no such entry"{away}. Either they lost it, as after a '
            "directory was restored from a copy, or a Java client's recovery spread a last add "
            "confirmed that is too high. The ledger was not closed. Bring back the bookie or the "
            f"directory that has the entry; `quire ledger recover {ledger_id} {ignoring}` closes the "
            f"ledger without it{troubles}",
            ledger_id=ledger_id,
            entry_id=result.entry_id,
            bookies=(*contradicting, *result.silent),
        )
    if isinstance(result, RecoveryInconclusive):
        silent = ", ".join(result.silent) or "none"
        what = "its last fragment's LAC" if result.entry_id == NO_ENTRY else f"entry {result.entry_id}"
        return RecoveryInconclusiveError(
            f"{where}: too few bookies gave a conclusive response about {what} (no response or "
            f"unknown: {silent}); the ledger was not closed, open it again when they are "
            f"back{troubles}",
            ledger_id=ledger_id,
            entry_id=result.entry_id,
            bookies=result.silent,
        )
    named = ", ".join(result.bookies)
    if result.answer is Answer.NO_LEDGER:
        return NoSuchLedgerError(f"{where} was deleted during its recovery", ledger_id=ledger_id)
    if result.answer is Answer.UNAUTHORISED:
        return WrongPasswordError(
            f"{where}: bookie {named} has the ledger with another password",
            ledger_id=ledger_id,
            bookies=result.bookies,
        )
    if result.answer is Answer.READ_ONLY:
        way_out = (
            f", or give its guaranteed write quorum up: `quire ledger recover {ledger_id} --at ack-quorum`"
            if record.guaranteed
            else ""
        )
        return NotEnoughBookiesError(
            f"{where}: too few bookies acknowledged the entries that recovery writes back (failed: "
            f"{named}); the ledger stays IN_RECOVERY, open it again when they are back{way_out}{troubles}",
            ledger_id=ledger_id,
            bookies=result.bookies,
        )
    return CorruptMetadataError(
        f"{where}: its record changed back to OPEN during a recovery, which the protocol does not allow",
        ledger_id=ledger_id,
    )


def not_taken(
    name: str,
    result: RecoveryClosed | RecoveryInconclusive | RecoveryFailed,
    stream_id: LedgerId,
    troubles: str,
) -> QuireError:
    """Why a take-over of a stream could not be done; `troubles`: with bookies that refuse this client."""
    where = f"stream {name!r}"
    if isinstance(result, RecoveryClosed):
        last = result.record.last_entry
        msg = f"{where} was closed for good at entry {last}: no client writes it any more"
        return StreamClosedError(msg, ledger_id=stream_id)
    if isinstance(result, RecoveryInconclusive) and result.contradicting:
        contradicted_by = ", ".join(
            f"{bookie} (last add confirmed {lac})" for bookie, lac in result.contradicting
        )
        ignoring = " ".join(f"--ignore-lac {bookie}" for bookie, _ in result.contradicting)
        return RecoveryInconclusiveError(
            f"{where}: entry {result.entry_id} was acknowledged according to {contradicted_by}, but the bookies that should hold "
            'it respond "no such entry". The stream has no writer now. Bring back the bookie or the directory that '
            f"has the entry; `quire stream take-over {name} {ignoring}` goes on without it{troubles}",
            ledger_id=stream_id,
            entry_id=result.entry_id,
            bookies=(*(bookie for bookie, _ in result.contradicting), *result.silent),
        )
    if isinstance(result, RecoveryInconclusive):
        silent = ", ".join(result.silent) or "none"
        return RecoveryInconclusiveError(
            f"{where}: too few bookies gave a conclusive response about its end (no response or unknown: {silent}); "
            f"the stream has no writer now, take it over again when they are back{troubles}",
            ledger_id=stream_id,
            entry_id=result.entry_id,
            bookies=result.silent,
        )
    named = ", ".join(result.bookies)
    if result.answer is Answer.NO_LEDGER:
        return NoSuchStreamError(f"{where} was deleted while it was taken over", ledger_id=stream_id)
    if result.answer is Answer.UNAUTHORISED:
        msg = f"{where}: bookie {named} has it with another password"
        return WrongPasswordError(msg, ledger_id=stream_id, bookies=result.bookies)
    if result.answer is Answer.READ_ONLY:
        msg = (
            f"{where}: too few bookies acknowledged the entries that a take-over writes back (failed: {named}); the "
            f"stream has no writer now, take it over again when they are back{troubles}"
        )
        return NotEnoughBookiesError(msg, ledger_id=stream_id, bookies=result.bookies)
    msg = f"{where}: its record changed during a take-over in a way that the protocol does not allow"
    return CorruptMetadataError(msg, ledger_id=stream_id)
