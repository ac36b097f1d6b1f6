"""How a batch stands to its query's sink position, case by case."""

from __future__ import annotations

import pytest

from quire.core.log.fingerprints import Fingerprint, RowSum, is_same_batch, of_input, of_rows
from quire.core.log.list import LogHead, SinkPosition
from quire.core.log.sink_positions import POSITION_LAG_MAX, Standing, lags, standing, with_position

ONE = of_input(5, ['{"logs":{"a":7}}'])
OTHER = of_input(5, ['{"logs":{"a":8}}'])
OLD = of_input(4, ['{"logs":{"a":6}}'])
"""Of the batch before: an older program carried it along."""
DAMAGED = Fingerprint(5, b"short")


@pytest.mark.parametrize(
    ("number", "known", "own", "stands"),
    [
        (6, ONE, ONE, Standing.NEW),
        (6, ONE, OTHER, Standing.OTHER_HISTORY),
        (6, ONE, None, Standing.NEW),
        (6, None, ONE, Standing.NEW),
        (6, OLD, OTHER, Standing.NEW),
        (5, ONE, ONE, Standing.REPLAY),
        (5, ONE, OTHER, Standing.OTHER_HISTORY),
        (5, ONE, None, Standing.REPLAY),
        (5, None, ONE, Standing.REPLAY),
        (5, OLD, OTHER, Standing.REPLAY),
        (4, ONE, ONE, Standing.BEHIND),
        (4, None, None, Standing.BEHIND),
        (5, DAMAGED, ONE, Standing.DAMAGED),
        (6, DAMAGED, None, Standing.DAMAGED),
    ],
)
def test_the_table_of_standings(number, known, own, stands):
    assert standing(SinkPosition("q", 5, fingerprint=known), number, own=own) is stands


def test_without_a_mark_every_batch_is_new_and_another_checkpoint_is_a_reset():
    assert standing(None, 0, own=ONE) is Standing.NEW
    position = SinkPosition("app:etl", 5, incarnation="a", fingerprint=ONE)
    assert standing(position, 5, "b", ONE) is Standing.WAS_RESET
    assert standing(position, 0, "b") is Standing.WAS_RESET
    assert standing(position, 6, "b") is Standing.NEW


def test_only_the_sources_lines_make_a_fingerprint_and_no_line_runs_into_the_next():
    assert of_input(5, ["ab", "c"]) != of_input(5, ["a", "bc"])
    assert of_input(5, ["ab"]) != of_input(5, ["ab", ""])
    # Files are compared only where both sides know them, in any order.
    known = of_input(5, ['{"logOffset":5}'], ["x", "y"])
    assert is_same_batch(known, of_input(5, ['{"logOffset":5}'], ["y", "x"]))
    assert is_same_batch(known, of_input(5, ['{"logOffset":5}']))
    assert is_same_batch(known, of_input(5, ['{"logOffset":5}'], ["x", "z"])) is False
    # Of another number it says nothing.
    assert is_same_batch(known, of_input(6, ['{"logOffset":5}'], ["x", "y"])) is None


def test_rows_are_summed_without_regard_to_order():
    parts = [RowSum(1, 7, 9), RowSum(2, 2**64 - 1, 3), RowSum()]
    there = back = RowSum()
    for part in parts:
        there = there.plus(part)
    for part in reversed(parts):
        back = back.plus(part)
    assert there == back == RowSum(3, 6, 12)
    assert of_rows(5, there) == of_rows(5, back)
    assert of_rows(5, there) != of_rows(5, RowSum(2, 6, 12))
    assert str(of_rows(5, there)).startswith("3 rows, ")


@pytest.mark.parametrize(
    "broken",
    [
        Fingerprint(5, b""),
        Fingerprint(5, b"x" * 17),
        Fingerprint(-1, b"x" * 16),
        Fingerprint(5, b"x" * 16, files=b"y"),
        Fingerprint(5, b"x" * 16, rows=-1),
    ],
)
def test_a_fingerprint_that_no_program_writes_is_damaged(broken):
    assert broken.is_damaged
    assert not ONE.is_damaged
    assert not of_input(0, ["a"], ["f"]).is_damaged
    assert not of_rows(0, RowSum()).is_damaged


def test_a_mark_that_moves_takes_its_fingerprint_with_it_and_keeps_what_it_does_not_know():
    head = with_position(LogHead(b"\x01" * 16), SinkPosition("q", 5, unknown=b"later", fingerprint=ONE))
    [position] = with_position(head, SinkPosition("q", 6)).sink_positions
    assert (position.batch_id, position.fingerprint, position.unknown) == (6, None, b"later")


def test_a_mark_that_lags_is_moved_before_spark_forgets_its_batch():
    assert lags(5 + POSITION_LAG_MAX, SinkPosition("q", 5))
    assert not lags(4 + POSITION_LAG_MAX, SinkPosition("q", 5))
    assert POSITION_LAG_MAX < 100
