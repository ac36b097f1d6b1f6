"""Each way in which a recovery or a take-over fails has an error that says what its caller can do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.client.recovering.recovery_failures import is_final, not_recovered
from quire.core.answers import Answer
from quire.core.errors import (
    CorruptMetadataError,
    NoSuchLedgerError,
    NoSuchStreamError,
    NotEnoughBookiesError,
    QuireError,
    RecoveryInconclusiveError,
    StreamClosedError,
    WrongPasswordError,
)
from quire.core.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from quire.core.ledger.effects import RecoveryClosed, RecoveryFailed, RecoveryInconclusive
from quire.core.ledger.metadata import DigestType, new_ledger

B = [BookieId(f"b{number}") for number in range(3)]
RECORD = new_ledger(
    LedgerId(7), B, write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b"secret"
)
SILENT = RecoveryInconclusive(EntryId(4), (B[1], B[2]))
CONTRADICTED = RecoveryInconclusive(EntryId(4), (), ((B[1], EntryId(9)),))


def failed(answer: Answer) -> RecoveryFailed:
    return RecoveryFailed(answer, (B[1],))


@pytest.mark.parametrize(
    ("result", "kind", "of_ledger", "of_stream", "stream_kind"),
    [
        (SILENT, RecoveryInconclusiveError, "open it again when", "take it over again when", None),
        (
            CONTRADICTED,
            RecoveryInconclusiveError,
            "`quire ledger recover 7 --ignore-lac b1`",
            "`quire stream take-over ticks --ignore-lac b1`",
            None,
        ),
        (failed(Answer.NO_LEDGER), NoSuchLedgerError, "during its recovery", "deleted", NoSuchStreamError),
        (failed(Answer.UNAUTHORISED), WrongPasswordError, "b1 has the ledger", "b1 has it", None),
        (failed(Answer.READ_ONLY), NotEnoughBookiesError, "stays IN_RECOVERY", "has no writer now", None),
        (failed(Answer.ERROR), CorruptMetadataError, "back to OPEN", "does not allow", None),
    ],
    ids=["silent", "contradicted", "deleted", "password", "too few", "record"],
)
def test_a_failure_has_its_error(
    result: RecoveryInconclusive | RecoveryFailed,
    kind: type[QuireError],
    of_ledger: str,
    of_stream: str,
    stream_kind: type[QuireError] | None,
) -> None:
    error = not_recovered(RECORD, result, "")
    assert (type(error), error.ids["ledger_id"]) == (kind, 7)
    assert of_ledger in str(error)
    error = not_recovered(RECORD, result, "", "ticks")
    assert (type(error), error.ids["ledger_id"]) == (stream_kind or kind, 7)
    assert of_stream in str(error)


def test_where_nothing_was_fenced_it_is_the_end_that_is_unknown() -> None:
    fence = RecoveryInconclusive(NO_ENTRY, (B[1],))
    assert "about its last fragment's LAC" in str(not_recovered(RECORD, fence, ""))


def test_a_stream_that_was_closed_for_good_says_where() -> None:
    closed = RecoveryClosed(replace(RECORD).in_recovery().closed(11, 100), 3, accepted=True)
    error = not_recovered(RECORD, closed, "", "ticks")
    assert isinstance(error, StreamClosedError)
    assert "at entry 11" in str(error)


def test_only_what_bookies_may_still_say_can_change_an_end() -> None:
    assert not is_final(SILENT)
    assert is_final(CONTRADICTED)
    assert not is_final(replace(CONTRADICTED, silent=(B[2],)))
    assert is_final(failed(Answer.UNAUTHORISED))
