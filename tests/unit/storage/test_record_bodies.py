"""Bodies of records come back, and those that do not fit are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.ids import ID_MAX
from quire.storage.formats import record_bodies as bodies
from quire.storage.formats.segment_format import FormatError
from quire.storage.formats.state_format import StoredLedgerState, decode_state

U64 = st.integers(0, 2**64 - 1)
IDS = st.integers(0, ID_MAX)
SPANS = st.tuples(IDS, IDS).map(lambda pair: (min(pair), max(pair)))
DAMAGED = st.builds(lambda span, term, lsn: bodies.DamagedInterval(*span, term, lsn), SPANS, U64, U64)


@given(U64, U64, st.lists(st.integers(0, 2**32), unique=True, max_size=40).map(sorted))
def test_a_segment_list_comes_back(before: int, lsn: int, sequences: list[int]) -> None:
    read = bodies.decode_segment_list(bodies.encode_segment_list(before, lsn, sequences))
    assert (read.before_sequence, read.before_last_lsn) == (before, lsn)
    assert [one for first, last in read.ranges for one in range(first, last + 1)] == sequences


@given(st.builds(bodies.UnnamedLimbo, U64, st.booleans(), U64))
def test_an_unnamed_limbo_comes_back(limbo: bodies.UnnamedLimbo) -> None:
    assert bodies.decode_unnamed_limbo(bodies.encode_unnamed_limbo(limbo)) == limbo


@given(st.lists(U64, max_size=20), st.lists(DAMAGED, max_size=20))
def test_the_others_come_back(sequences: list[int], damaged: list[bodies.DamagedInterval]) -> None:
    assert bodies.decode_retirement(bodies.encode_retirement(sequences)) == sequences
    assert bodies.decode_damaged(bodies.encode_damaged(damaged)) == damaged


@given(st.lists(st.tuples(IDS, U64), max_size=20))
def test_tombstones_come_back_as_states(tombstones: list[tuple[int, int]]) -> None:
    read = bodies.decode_tombstones(bodies.encode_tombstones(tombstones))
    assert [(ledger, decode_state(ledger, state)) for ledger, state in read] == [
        (ledger, StoredLedgerState(None, through)) for ledger, through in tombstones
    ]


DECODERS = {
    "segment list": (bodies.decode_segment_list, bodies.encode_segment_list(1, 2, [3, 4, 9])),
    "retirement": (bodies.decode_retirement, bodies.encode_retirement([1, 2])),
    "unnamed limbo": (
        bodies.decode_unnamed_limbo,
        bodies.encode_unnamed_limbo(bodies.UnnamedLimbo(1, True, 2)),
    ),
    "damaged intervals": (
        bodies.decode_damaged,
        bodies.encode_damaged([bodies.DamagedInterval(1, 2, 0, 9)]),
    ),
    "tombstones": (bodies.decode_tombstones, bodies.encode_tombstones([(1, 2)])),
}


@pytest.mark.parametrize("what", DECODERS)
def test_a_cut_body_is_refused_by_name(what: str) -> None:
    decode, body = DECODERS[what]
    for size in range(len(body)):
        with pytest.raises(FormatError, match=what):
            decode(body[:size])


@pytest.mark.parametrize("what", DECODERS)
@given(data=st.data())
def test_mutated_bodies_are_read_or_refused(what: str, data: Any) -> None:
    decode, body = DECODERS[what]
    spoilt = bytearray(body)
    for _ in range(3):
        spoilt[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    said = what
    try:
        decode(bytes(spoilt))
    except FormatError as error:
        said = str(error)
    assert what.split()[0] in said
