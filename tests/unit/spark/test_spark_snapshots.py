"""Which snapshots of a state stay, and what a job does not take for an offset."""

import pytest

from quire.spark.given import SparkUseError
from quire.spark.jobs import command, materialise


@pytest.mark.parametrize(("end", "left"), [(500, [500]), (100, [100, 500])])
def test_the_snapshot_that_is_asked_for_stays_however_old_it_is(tmp_path, end, left):
    there = (100, 300, 500)
    work = materialise.MaterialisePlan("sqlite:x", "edits", "ab" * 16, str(tmp_path), end, end, there)
    for offset in there:
        (tmp_path / work.table(offset)).mkdir(parents=True)
    report = materialise.run(None, work, keep=1)
    assert report.removed == 3 - len(left)
    assert sorted(tmp_path.glob("*/*")) == [tmp_path / work.table(offset) for offset in left]
    for keep in (0, -1):
        with pytest.raises(SparkUseError, match=f"keep at least one snapshot, not {keep}"):
            materialise.run(None, work, keep=keep)
    assert len(list(tmp_path.glob("*/*"))) == len(left)


@pytest.mark.parametrize("span", [(-1, None), (None, -1), (0, -2)])
def test_a_number_below_zero_is_no_offset(span):
    with pytest.raises(SparkUseError, match=r"log 'edits': an offset is a number from 0, not -"):
        command.read_log(None, "sqlite:x", "edits", *span)
