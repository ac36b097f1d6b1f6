"""Where terms only fence, a bookie joins a fragment only once it has truncated: docs/decisions/039-join-after-truncation.md."""

from __future__ import annotations

from typing import Any

import pytest

from quire.client.access import LedgerAccess
from quire.client.writing.joining import truncated_first
from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from quire.core.ledger.effects import ChooseReplacements
from quire.core.ledger.metadata import DigestType, new_ledger

B = [BookieId(f"b{number}") for number in range(6)]
RECORD = new_ledger(
    LedgerId(7), B[:3], write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
)


class Spares:
    """Bookies that answer a truncation as the test says."""

    def __init__(self, answers: dict[BookieId, Answer]) -> None:
        self.answers = answers
        self.asked: list[tuple[BookieId, int]] = []

    def choose(self, effect: ChooseReplacements) -> tuple[dict[int, BookieId], bool]:
        free = [each for each in self.answers if each not in {*effect.failed, *effect.ensemble}]
        return dict(zip(effect.slots, free, strict=False)), False

    async def truncate(self, bookie: BookieId, _access: Any, first: int, *, timeout_ms: int) -> Answer:
        assert timeout_ms > 0
        self.asked.append((bookie, first))
        return self.answers[bookie]


@pytest.mark.parametrize(
    ("answers", "found", "asked"),
    [
        ({B[3]: Answer.OK, B[4]: Answer.OK}, {1: B[3], 2: B[4]}, [B[3], B[4]]),
        ({B[3]: Answer.TIMED_OUT, B[4]: Answer.OK, B[5]: Answer.OK}, {1: B[5], 2: B[4]}, [B[3], B[4], B[5]]),
        ({B[3]: Answer.TIMED_OUT, B[4]: Answer.INVALID_TERM}, {}, [B[3], B[4]]),
        ({}, {}, []),
    ],
    ids=["both do", "one is silent", "none does", "no spare"],
)
async def test_who_did_not_truncate_does_not_join_and_another_is_asked(
    answers: dict[BookieId, Answer], found: dict[int, BookieId], asked: list[BookieId]
) -> None:
    spares = Spares(answers)
    effect = ChooseReplacements(
        (1, 2), RECORD.fragments[0].ensemble, (B[1], B[2]), required=False, truncated_from=EntryId(5)
    )
    chosen = await truncated_first(effect, spares.choose, LedgerAccess.of(RECORD), spares)  # type: ignore[arg-type]
    assert chosen == found
    assert spares.asked == [(bookie, 5) for bookie in asked]


async def test_where_nothing_is_to_be_truncated_the_first_choice_joins() -> None:
    spares = Spares({B[3]: Answer.TIMED_OUT})
    effect = ChooseReplacements(
        (1,), RECORD.fragments[0].ensemble, (B[1],), required=False, truncated_from=NO_ENTRY
    )
    assert await truncated_first(effect, spares.choose, LedgerAccess.of(RECORD), spares) == {1: B[3]}  # type: ignore[arg-type]
    assert spares.asked == []
