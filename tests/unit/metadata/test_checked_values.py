"""Values with a checksum: what is opened is what was sealed, under the same key; everything else is an error by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import CorruptMetadataError
from quire.metadata.checked import (
    HEAD,
    SEAL_BYTES,
    TAIL,
    DamagedValue,
    listed,
    open_sealed,
    seal,
)
from quire.wire.ledger_metadata import HEADER

KEYS = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=40)
VALUES = st.binary(max_size=300) | st.sampled_from([HEAD, TAIL, HEAD + TAIL, seal("k", b"v"), b"\0"])


@given(KEYS, VALUES)
def test_what_was_sealed_is_opened(key, value):
    stored = seal(key, value)
    assert len(stored) == len(value) + SEAL_BYTES
    assert open_sealed(key, stored) == value


def test_the_bytes_are_those_of_the_page():
    assert seal("cookies/a:3181", b"4\n").hex(" ") == "00 51 43 31 73 b8 d7 8f 34 0a 31 43 51 00"


@given(KEYS, KEYS, VALUES)
def test_a_value_under_another_key_does_not_verify(key, other, value):
    if key == other:
        return
    with pytest.raises(CorruptMetadataError) as caught:
        open_sealed(other, seal(key, value))
    assert caught.value.ids["key"] == other


@pytest.mark.parametrize("value", [b"", b"v", HEADER + b"3\n\x28\x08\x03", bytes(40), TAIL, HEAD])
def test_no_flipped_bit_makes_another_value(value):
    stored = seal("ledgers/1", value)
    for bit in range(8 * len(stored)):
        spoilt = bytearray(stored)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptMetadataError, match=r"ledgers/1 .*backup"):
            open_sealed("ledgers/1", bytes(spoilt))


@given(KEYS, VALUES, st.integers(0, 400), st.binary(max_size=5))
def test_what_is_cut_or_grown_is_damage(key, value, cut, more):
    stored = seal(key, value)
    for spoilt in (stored[: cut % len(stored)], stored[1 + cut % (len(stored) - 1) :], stored + b"x" + more):
        with pytest.raises(CorruptMetadataError) as caught:
            open_sealed(key, spoilt)
        assert caught.value.ids["key"] == key


def test_a_damaged_item_of_a_list_has_a_version_and_raises_when_it_is_looked_at():
    assert listed("k", seal("k", b"v"), 7).value == b"v"
    item = listed("k", seal("other", b"v"), 7)
    assert isinstance(item, DamagedValue)
    assert item.version == 7
    assert repr(item) == "DamagedValue(version=7)"
    assert item == item
    assert len({item, item}) == 1
    for _ in range(2):
        with pytest.raises(CorruptMetadataError, match="value of k ") as caught:
            _ = item.value
        assert caught.value.ids["key"] == "k"
