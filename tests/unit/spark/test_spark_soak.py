"""What a verifier says of records that are not as they were written."""

from types import SimpleNamespace

import pytest
from pyspark.sql import Row

from quire.core.ids import LedgerId
from quire.log.records import Record
from quire.spark.jobs import soak
from quire.spark.options import SparkUseError

WRITER = soak.SoakWriter(seed=5, number=2, value_bytes=20)


def record(offset, key, value):
    return Record(offset, 0, key, value, (), LedgerId(1), 0, 0)


def right(offset):
    return record(offset, WRITER.key(offset), WRITER.value(offset))


def verdict(records, first=0, stop=10):
    found = soak.SoakVerdict(WRITER)
    for one in records:
        found.take(one)
    facts = found.facts(first, stop)
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
            for n in range(unit.first, unit.stop)
        ]
        assert sorted(covered) == [(log, n) for log in work.logs for n in range(28)]
    names = [unit.name for group in work.rounds for unit in group]
    assert len(names) == len(set(names))
    with pytest.raises(SparkUseError, match="at least one"):
        soak.plan("sqlite:x", writers=0)


class Table:
    """Rounds that are worked at here, and what is kept of them."""

    def __init__(self, monkeypatch, work):
        self.rows = []
        self._work = work
        for name in ("done", "run_round", "append", "results"):
            monkeypatch.setattr(soak.units, name, getattr(self, name))

    def done(self, *_):
        return {row["unit"] for row in self.rows}

    def run_round(self, _, units, *_more):
        facts = [
            dict.fromkeys((*soak.VERDICTS, "records", "bytes", "reopened", "slowest_ms", "error"))
            for _ in units
        ]
        return self._frame(
            [
                {
                    **row,
                    "unit": unit.name,
                    "step": unit.step,
                    "writer": unit.writer.number,
                    "round": unit.round,
                }
                | {"first_offset": unit.first, "seconds": 1.0, **self._work(unit)}
                for unit, row in zip(units, facts, strict=True)
            ]
        )

    def append(self, _spark, _table, rows, _schema):
        self.rows += rows

    def results(self, *_):
        return self._frame(self.rows)

    def _frame(self, rows):
        return SimpleNamespace(collect=lambda: [Row(**row) for row in rows])


def test_records_that_were_never_acknowledged_are_not_called_missing(monkeypatch):
    failing, written = True, set()

    def worked(unit):
        if unit.step != soak.WRITE:
            return {"missing": 0 if unit.stretch in written else 10}
        if failing and unit.stretch == (1, 0):
            return {"error": "no bookies"}
        written.add(unit.stretch)
        return {}

    table = Table(monkeypatch, worked)
    work = soak.plan("sqlite:x", writers=2, records=10, rounds=2)
    report = soak.run(None, work, "t")
    assert (report.missing, report.failed) == (0, ["no bookies"])
    assert not report.ok
    assert len(table.rows) == 12 - 3
    failing = False
    assert soak.run(None, work, "t").ok
    assert len(table.rows) == 12
