"""Why a ledger could not be recovered, or a stream taken over, as an error that says what its caller can do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

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
from quire.core.ids import NO_ENTRY
from quire.core.ledger.effects import RecoveryClosed, RecoveryInconclusive, RecoveryResult
from quire.core.ledger.metadata import LedgerMetadata

_KINDS: Final[dict[Answer | str, type[QuireError]]] = {
    "closed": StreamClosedError,
    "contradicted": RecoveryInconclusiveError,
    "inconclusive": RecoveryInconclusiveError,
    Answer.NO_LEDGER: NoSuchLedgerError,
    Answer.UNAUTHORISED: WrongPasswordError,
    Answer.READ_ONLY: NotEnoughBookiesError,
    Answer.ERROR: CorruptMetadataError,
}
_OF_LEDGER: Final[dict[Answer | str, str]] = {
    "contradicted": (
        "{where}: entry {entry} was acknowledged according to {contradicted_by}, but the bookies that should hold it respond "
        '"no such entry"{away}. Either they lost it, as after a directory was restored from a copy, or a Java client\'s '
        "recovery spread a last add confirmed that is too high. The ledger was not closed. Bring back the bookie or the "
        "directory that has the entry; `quire ledger recover {ledger_id} {ignoring}` closes the ledger without it{troubles}"
    ),
    "inconclusive": (
        "{where}: too few bookies gave a conclusive response about {what} (no response or unknown: {silent}); the ledger was "
        "not closed, open it again when they are back{troubles}"
    ),
    Answer.NO_LEDGER: "{where} was deleted during its recovery",
    Answer.UNAUTHORISED: "{where}: bookie {bookies} has the ledger with another password",
    Answer.READ_ONLY: (
        "{where}: too few bookies acknowledged the entries that recovery writes back (failed: {bookies}); the ledger stays "
        "IN_RECOVERY, open it again when they are back{way_out}{troubles}"
    ),
    Answer.ERROR: "{where}: its record changed back to OPEN during a recovery, which the protocol does not allow",
}
_OF_STREAM: Final[dict[Answer | str, str]] = {
    "closed": "{where} was closed for good at entry {last}: no client writes it any more",
    "contradicted": (
        "{where}: entry {entry} was acknowledged according to {contradicted_by}, but the bookies that should hold it respond "
        '"no such entry". The stream has no writer now. Bring back the bookie or the directory that has the entry; '
        "`quire stream take-over {name} {ignoring}` goes on without it{troubles}"
    ),
    "inconclusive": (
        "{where}: too few bookies gave a conclusive response about its end (no response or unknown: {silent}); the stream has "
        "no writer now, take it over again when they are back{troubles}"
    ),
    Answer.NO_LEDGER: "{where} was deleted while it was taken over",
    Answer.UNAUTHORISED: "{where}: bookie {bookies} has it with another password",
    Answer.READ_ONLY: (
        "{where}: too few bookies acknowledged the entries that a take-over writes back (failed: {bookies}); the stream has "
        "no writer now, take it over again when they are back{troubles}"
    ),
    Answer.ERROR: "{where}: its record changed during a take-over in a way that the protocol does not allow",
}


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
    record: LedgerMetadata, result: RecoveryResult, troubles: str, stream: str | None = None
) -> QuireError:
    """The error of a recovery that did not close its ledger, or of a take-over that did not open its stream.

    Args:
        record: as it was when that began.
        result: how it ended.
        troubles: which bookies accept no connection, to be said after it; or empty.
        stream: the name of the stream; None of a ledger.
    """
    ledger_id = record.ledger_id
    where = f"ledger {ledger_id}" if stream is None else f"stream {stream!r}"
    words: dict[str, object] = {"where": where, "ledger_id": ledger_id, "name": stream, "troubles": troubles}
    ids: dict[str, Any] = {"ledger_id": ledger_id}
    case: Answer | str
    if isinstance(result, RecoveryClosed):
        case, words["last"] = "closed", result.record.last_entry
    elif isinstance(result, RecoveryInconclusive):
        entry, silent, by = result.entry_id, ", ".join(result.silent), result.contradicting
        case = "contradicted" if by else "inconclusive"
        words |= {"entry": entry, "silent": silent or "none", "away": silent and f"; {silent} cannot tell"}
        words["what"] = "its last fragment's LAC" if entry == NO_ENTRY else f"entry {entry}"
        words["contradicted_by"] = ", ".join(f"{bookie} (last add confirmed {lac})" for bookie, lac in by)
        words["ignoring"] = " ".join(f"--ignore-lac {bookie}" for bookie, _ in by)
        ids |= {"entry_id": entry, "bookies": (*(bookie for bookie, _ in by), *result.silent)}
    else:
        case, words["bookies"] = result.answer, ", ".join(result.bookies)
        way_out = (
            f", or give its guaranteed write quorum up: `quire ledger recover {ledger_id} --at ack-quorum`"
        )
        words["way_out"] = way_out if record.guaranteed else ""
        ids |= {"bookies": result.bookies} if result.bookies else {}
    if stream is None:
        return _KINDS[case](_OF_LEDGER[case].format(**words), **ids)
    kind = NoSuchStreamError if case is Answer.NO_LEDGER else _KINDS[case]
    return kind(_OF_STREAM[case].format(**words), **ids)
