"""What a verifier says of records that are not as they were written."""

import pytest

from quire.core.ids import LedgerId
from quire.log.records import Record
from quire.spark.given import SparkUseError
from quire.spark.jobs import soak

WRITER = soak.SoakWriter(seed=5, number=2, value_bytes=20)


def record(offset, key, value):
    return Record(offset, 0, key, value, (), LedgerId(1), 0, 0)


def right(offset):
    return record(offset, WRITER.key(offset), WRITER.value(offset))


def verdict(records, first=0, behind=10):
    found = soak.SoakVerdict(WRITER)
    for one in records:
        found.take(one)
    facts = found.facts(first, behind)
    return tuple(facts[name] for name in soak.VERDICTS)


def test_what_was_written_is_right():
    assert verdict(right(n) for n in range(10)) == (0, 0, 0, 0)
    values = {WRITER.value(n) for n in range(200)}
    assert len(values) == 200
    assert {len(value) for value in values} == set(range(10, 31))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda records: records.pop(4), (1, 0, 0, 0)),
        (lambda records: records.append(records[4]), (0, 1, 0, 0)),
        (lambda records: records.insert(4, record(4, WRITER.key(4), b"other")), (0, 1, 1, 0)),
        (lambda records: records.__setitem__(4, record(4, WRITER.key(4), b"other")), (0, 0, 1, 0)),
        (lambda records: records.__setitem__(4, record(4, b"3/4", WRITER.value(4))), (1, 0, 1, 0)),
        (lambda records: records.__setitem__(4, record(4, None, None)), (1, 0, 1, 0)),
        (lambda records: records.__setitem__(4, record(4, WRITER.key(5), WRITER.value(5))), (1, 1, 0, 1)),
    ],
)
def test_what_is_not_right_is_counted(change, expected):
    records = [right(n) for n in range(10)]
    change(records)
    assert verdict(records) == expected


def test_a_plan_is_the_same_each_time_and_covers_every_record_thrice():
    work = soak.plan("sqlite:x", writers=3, records=7, rounds=4, seed=9)
    assert work == soak.plan("sqlite:x", writers=3, records=7, rounds=4, seed=9)
    assert [group[0].step for group in work.rounds] == ["write", "verify"] * 4 + ["verify again"] * 4
    for step in (soak.WRITE, soak.VERIFY, soak.AGAIN):
        covered = [
            (unit.log, n)
            for group in work.rounds
            for unit in group
            if unit.step == step
            for n in range(unit.first, unit.behind)
        ]
        assert sorted(covered) == [(log, n) for log in work.logs for n in range(28)]
    names = [unit.name for group in work.rounds for unit in group]
    assert len(names) == len(set(names))
    with pytest.raises(SparkUseError, match="at least one"):
        soak.plan("sqlite:x", writers=0)
