"""An entry is gone when all of its write set says so: anything less is, or may be, an outage."""

from __future__ import annotations

import itertools

import pytest

from quire.core.answers import Answer
from quire.core.ledger.losses import proves_loss

GONE = (Answer.NO_ENTRY, Answer.NO_LEDGER, Answer.DAMAGED)


@pytest.mark.parametrize("write_quorum", [1, 2, 3])
def test_only_a_whole_write_set_without_a_copy_proves_a_loss(write_quorum: int) -> None:
    for answers in itertools.product(Answer, repeat=write_quorum):
        assert proves_loss(answers, write_quorum) == all(answer in GONE for answer in answers)


@pytest.mark.parametrize("gone", GONE)
def test_who_was_not_asked_has_said_nothing(gone: Answer) -> None:
    assert not proves_loss([], 1)
    assert not proves_loss([gone, gone], 3)
    assert proves_loss([gone, gone, gone], 3)
