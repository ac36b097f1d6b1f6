"""The text of a transcript."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import LedgerFencedError
from quire.core.ledger import effects
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.core.transcript import block, effect_line, record_text

ENSEMBLE = ("b1", "b2", "b3")


@dataclass(frozen=True)
class OtherEffect:
    """An effect that the transcript has no words for."""

    entry_id: int


def test_a_record_is_one_line():
    record = new_ledger(
        1, ENSEMBLE, write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
    )
    changed = record.with_ensemble(4, ("b1", "b4", "b3"))
    assert record_text(changed) == "OPEN 0:[b1 b2 b3] 4:[b1 b4 b3]"
    assert record_text(record.closed(3, 40)) == "CLOSED at 3 length 40 0:[b1 b2 b3]"


def test_slots_are_named_by_their_bookies():
    assert effect_line(effects.SendRun(0, 0, 2, -1, (0, 2)), ENSEMBLE) == "-> b1 b3 add 0..2 lac=-1"
    assert effect_line(effects.SendRun(0, 0, 2, -1, ()), ENSEMBLE) == "-> nobody add 0..2 lac=-1"


def test_a_problem_is_its_code():
    problem = effects.Problem(LedgerFencedError, "long story")
    assert effect_line(effects.Failed(1, 2, problem), ENSEMBLE) == "=> failed 1..2: ledger_fenced"
    assert isinstance(problem.exception(ledger_id=1), LedgerFencedError)


def test_unknown_effects_show_their_fields():
    assert effect_line(OtherEffect(3), ENSEMBLE) == "-> OtherEffect entry_id=3"
    assert block("append 1", ["nothing"], ["# why"]) == "# why\nappend 1\n----\nnothing\n"
