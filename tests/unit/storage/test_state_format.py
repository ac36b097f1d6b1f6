"""The bytes of ledger states: they come back, and what does not fit is refused by the field's name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.bookie.ledger import LedgerFacts
from quire.core.bookie.limbo import EVERY_ID, RANGES_MAX, Limbo
from quire.core.ids import ID_MAX
from quire.storage.formats.segment_format import FormatError
from quire.storage.formats.state_format import (
    DEAD_RANGES_MAX,
    STATE,
    DeadRange,
    StoredLedgerState,
    check_acted_on,
    decode_state,
    encode_state,
)

U64 = st.integers(0, 2**64 - 1)
IDS = st.integers(0, ID_MAX)
LACS = st.integers(-1, ID_MAX)
SPANS = st.tuples(IDS, IDS).map(lambda pair: (min(pair), max(pair)))


def _apart(ends: list[int]) -> tuple[tuple[int, int], ...]:
    """Ranges that are apart, from distinct ends."""
    ordered = sorted(ends)
    return tuple(zip(ordered[::2], ordered[1::2], strict=False))


RANGES = st.lists(IDS, min_size=2, max_size=2 * RANGES_MAX, unique=True).map(_apart)
LIMBOS = st.one_of(
    st.none(),
    st.builds(Limbo, U64, st.one_of(st.just(EVERY_ID), st.integers(1, ID_MAX)), st.just(())),
    st.builds(Limbo, U64, st.just(0), RANGES),
)
FACTS = st.builds(
    LedgerFacts,
    ledger_id=IDS,
    key=st.one_of(st.just(b""), st.binary(min_size=20, max_size=20)),
    token=U64,
    digest_type=st.integers(0, 4),
    fenced=st.booleans(),
    limbo=LIMBOS,
    term=U64,
    lac=LACS,
    explicit_lac=st.binary(max_size=64),
    deleted_until_ms=U64,
    term_lsn=U64,
    lac_term=U64,
    lafr=LACS,
)
DEAD = st.lists(
    st.builds(lambda span, through: DeadRange(*span, through), SPANS, U64), max_size=DEAD_RANGES_MAX
)
STATES = st.one_of(
    st.builds(StoredLedgerState, FACTS, U64, IDS, DEAD.map(tuple)),
    st.builds(StoredLedgerState, st.none(), U64, st.just(0), st.just(())),
)


@given(STATES)
def test_a_state_comes_back(state: StoredLedgerState) -> None:
    ledger_id = state.facts.ledger_id if state.facts is not None else 7
    assert decode_state(ledger_id, encode_state(state)) == state


@given(STATES, st.data())
def test_no_bytes_but_a_state_or_an_error_that_names_the_ledger(state: StoredLedgerState, data: Any) -> None:
    body = bytearray(encode_state(state))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    cut = body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body
    said = "ledger 7"
    try:
        read = decode_state(7, bytes(cut))
    except FormatError as error:
        said = str(error)
    else:
        assert read.facts is None or read.facts.ledger_id == 7
    assert "ledger 7" in said


@pytest.mark.parametrize("version", [1, 3])
def test_another_version_is_refused(version: int) -> None:
    body = bytes([version]) + encode_state(StoredLedgerState(LedgerFacts(7)))[1:]
    with pytest.raises(FormatError, match=f"state of ledger 7 has version {version}; this program reads 2"):
        decode_state(7, body)


def test_the_65th_dead_range_is_refused() -> None:
    ranges = tuple(DeadRange(3 * number, 3 * number, 9) for number in range(DEAD_RANGES_MAX + 1))
    full = StoredLedgerState(LedgerFacts(7), 0, 0, ranges[:-1])
    assert decode_state(7, encode_state(full)) == full
    with pytest.raises(FormatError, match=r"would have 65 dead ranges.*nothing more is dropped until"):
        encode_state(full._replace(dead_ranges=ranges))


def test_a_limbo_that_covers_nothing_is_refused() -> None:
    body = bytearray(encode_state(StoredLedgerState(LedgerFacts(7))))
    at = STATE.offsets["LSN of the limbo"]
    body[at : at + 8] = (99).to_bytes(8, "big")
    with pytest.raises(FormatError, match="ledger 7 has a limbo, LSN 99, that covers no entry"):
        decode_state(7, bytes(body))
    with pytest.raises(FormatError, match="covers no entry"):
        encode_state(StoredLedgerState(LedgerFacts(7, limbo=Limbo(99, 0))))


@pytest.mark.parametrize(
    ("held", "what"),
    [
        (Limbo(1, 5, ((1, 2),)), "or about 1 to 16 ranges"),
        (Limbo(1, EVERY_ID + 1), "or about 1 to 16 ranges"),
        (Limbo(1, 0, tuple((3 * n, 3 * n) for n in range(17))), "with 17 ranges"),
        (Limbo(1, 0, ((5, 4),)), "range 5..4"),
        (Limbo(1, 0, ((1, 5), (5, 7))), "not apart"),
    ],
)
def test_an_impossible_limbo_is_refused(held: Limbo, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        encode_state(StoredLedgerState(LedgerFacts(7, limbo=held)))


def test_what_is_read_and_not_acted_on_is_refused() -> None:
    check_acted_on(7, StoredLedgerState(LedgerFacts(7), 5))
    check_acted_on(7, StoredLedgerState(LedgerFacts(7), 5, 0, (DeadRange(1, 2, 3),)))
    with pytest.raises(FormatError, match="ledger 7 has entries dead below 1, which this version does not"):
        check_acted_on(7, StoredLedgerState(LedgerFacts(7), 5, 1))
