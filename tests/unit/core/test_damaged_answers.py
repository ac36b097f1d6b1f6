"""DAMAGED tells a damaged copy from an outage, and decides nothing: every judgement takes it as it takes UNKNOWN."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.answers import NEGATIVES, Answer
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.effects import WaitForAnswers, WriteMetadata
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.core.ledger.reader import LacMachine, ReadMachine
from quire.core.recovery.machine import RecoveryMachine
from quire.core.recovery.rules import RULES

BOOKIES = [BookieId(f"b{number}") for number in range(3)]


def test_every_rule_takes_it_as_unknown() -> None:
    assert Answer.DAMAGED not in NEGATIVES
    for rule in (RULES.counts_as_negative, RULES.counts_as_known, RULES.add_outcome):
        assert rule(Answer.DAMAGED) == rule(Answer.UNKNOWN)  # type: ignore[operator]


@pytest.mark.parametrize("slot", range(3))
def test_a_read_fails_without_a_conclusive_no(slot: int) -> None:
    failures = []
    for answer in (Answer.DAMAGED, Answer.UNKNOWN):
        machine = ReadMachine(0, 0, BOOKIES, 3)
        machine.read(0)
        for each in [*range(machine._prefer, 3), *range(machine._prefer)]:
            machine.answered(each, answer if each == slot else Answer.NO_ENTRY, [], 0, [], 1)
        failures.append(machine.out[-1])
    assert [failure.conclusive for failure in failures] == [False, False]  # type: ignore[union-attr]


def effects_of(machine: Any) -> list[Any]:
    out, machine.out = machine.out, []
    return list(out)


@pytest.mark.parametrize("answered", [(0, 1), (0, 2), (1, 2)])
def test_a_recovery_closes_nothing_by_it(answered: tuple[int, int]) -> None:
    told = []
    for answer in (Answer.DAMAGED, Answer.UNKNOWN, Answer.NO_ENTRY):
        record = new_ledger(
            LedgerId(1), BOOKIES, write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
        )
        machine = RecoveryMachine(record, 1, window_entries=4)
        machine.recover()
        effects = effects_of(machine)
        machine.metadata_written(effects[0].record, 2)
        effects_of(machine)
        for slot in answered:
            machine.fence_answered(slot, Answer.OK, -1)
        effects_of(machine)
        for slot in answered:
            machine.read_answered(slot, answer, {}, -1, [])
        machine.waited()
        told.append([each for each in effects_of(machine) if not isinstance(each, WaitForAnswers)])
    assert told[:2] == [[], []]
    assert isinstance(told[2][0], WriteMetadata), "two conclusive negatives do close it"


def test_a_quorum_lac_read_does_not_count_it() -> None:
    told = []
    for answer in (Answer.DAMAGED, Answer.UNKNOWN):
        machine = LacMachine(BOOKIES, 3, 2)
        machine.read()
        effects_of(machine)
        machine.answered(0, Answer.OK, 4)
        machine.answered(1, answer, -1)
        told.append(effects_of(machine))
    assert told == [[], []]
