"""A stream's offsets are one text, whatever order they were made in."""

import json

import pytest

from quire.spark.options import SparkUseError
from quire.spark.positions import Position, from_json, to_json

TEXT = '{"v": 1, "logs": {"a": {"id": "00ff", "offset": 5}, "b": {"id": "11ee", "offset": 9007199254740993}}}'
POSITIONS = {"b": Position("11ee", 2**53 + 1), "a": Position("00ff", 5)}


def test_the_text_is_fixed():
    assert json.dumps(to_json(POSITIONS)) == TEXT
    assert json.dumps(to_json(dict(reversed(POSITIONS.items())))) == TEXT
    assert json.dumps(to_json(from_json(json.loads(TEXT)))) == TEXT
    assert json.dumps(to_json({})) == '{"v": 1, "logs": {}}'


@pytest.mark.parametrize("other", [{}, [], 7, None, {"orders": {"0": 23}}, {"v": 1, "logs": {"a": 5}}])
def test_offsets_of_another_source_are_refused(other):
    with pytest.raises(SparkUseError, match="not of this source"):
        from_json(other)


def test_offsets_of_a_later_version_are_refused():
    with pytest.raises(SparkUseError, match="have version 2, this program reads 1"):
        from_json({"v": 2, "logs": {}})
