"""The run body: encoded, opened, and refused when anything in it does not fit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import MalformedFrameError
from quire.core.ids import ID_MAX
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.quorum import stripes_of_slot, write_set
from quire.wire.entry import EntryDigest
from quire.wire.native import Kind, encode_request
from quire.wire.native_requests import plain_add
from quire.wire.run import RUN_HEADER_BYTES, RunView, checksum, count_ids, encode_run, ids_in, seal_plain_run

DIGEST = EntryDigest(DigestType.CRC32C, b"")


def make(ledger_id: int, ids: list[int], period: int = 1, stripes: int = 1) -> bytes:
    """A run of these ids, each entry with a payload that names it."""
    parts, sizes = [], []
    for entry_id in ids:
        payload = b"entry %d" % entry_id
        entry = DIGEST.seal_one(ledger_id, entry_id, -1, 0, payload) + payload
        parts.append(entry)
        sizes.append(len(entry))
    return encode_run(ledger_id, ids[0], ids[-1], parts, sizes, digest_type=3, period=period, stripes=stripes)


@st.composite
def striped_ids(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """The ids of one slot's stripes of a stretch of entries: (ids, period, stripes)."""
    ensemble = draw(st.integers(1, 7))
    write_quorum = draw(st.integers(1, ensemble))
    slot = draw(st.integers(0, ensemble - 1))
    first = draw(st.integers(0, 1000))
    stretch = range(first, first + draw(st.integers(ensemble, 40)))
    ids = [entry_id for entry_id in stretch if slot in write_set(entry_id, ensemble, write_quorum)]
    if ensemble == write_quorum:
        return ids, 1, 1
    return ids, ensemble, stripes_of_slot(slot, ensemble, write_quorum)


@given(striped_ids())
def test_stripes_are_opened_as_they_were_made(shape: tuple[list[int], int, int]) -> None:
    ids, period, stripes = shape
    run = RunView.parse(make(9, ids, period, stripes))
    run.check_identity()
    assert list(run.ids()) == ids
    assert [
        (entry_id, bytes(entry)[-len(b"entry %d" % entry_id) :]) for entry_id, entry in run.entries()
    ] == [(entry_id, b"entry %d" % entry_id) for entry_id in ids]
    assert [run.position(entry_id) for entry_id in ids] == list(range(len(ids)))
    assert [entry_id for entry_id in range(ids[0], ids[-1] + 1) if run.holds(entry_id)] == ids


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=70),
    st.integers(0, ID_MAX - 70),
    st.integers(-1, ID_MAX),
)
def test_a_plain_run_is_sealed_as_its_entries_and_its_body_are(
    payloads: list[bytes], first: int, lac: int
) -> None:
    headers = DIGEST.seal(9, first, lac, 1000, payloads)
    entries = [header + payload for header, payload in zip(headers, payloads, strict=True)]
    last, sizes = first + len(entries) - 1, [len(entry) for entry in entries]
    assert seal_plain_run(9, first, lac, 1000, payloads) == encode_run(
        9, first, last, entries, sizes, digest_type=DigestType.CRC32C
    )


@pytest.mark.parametrize("count", [1, 2, 5, 63, 64])
def test_a_plain_add_is_opened_exactly_where_its_run_would_be(count: int) -> None:
    """Each byte of header and table spoilt, their own checksums right or wrong; the run in another ledger or cut."""
    good = seal_plain_run(9, 7, 3, 0, [b"%d" % at for at in range(count)])
    table_end = RUN_HEADER_BYTES + 4 * count
    spoilt = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(table_end + 16)]
    other = seal_plain_run(9, 8, 3, 0, [b""] * count)[table_end:]
    for body in [good, *spoilt, *map(resealed, spoilt), good[:table_end] + other, good[:-1], good + b"x"]:
        opened = plain_add(frame_of(body))
        try:
            run = RunView.parse_sent(body)
        except MalformedFrameError:
            assert opened is None
            continue
        fits = (run.ledger_id, run.digest_type, run.period, run.scheme, run.origin_term) == (9, 3, 1, 0, 0)
        assert (opened is not None) == (fits and run.last > 3), body
    assert plain_add(frame_of(good)) is not None


def resealed(body: bytes) -> bytes:
    """A spoilt body whose checksums of table and header are right."""
    table = body[RUN_HEADER_BYTES : RUN_HEADER_BYTES + 4 * int.from_bytes(body[4:8], "big")]
    head = body[: RUN_HEADER_BYTES - 8] + checksum(table).to_bytes(4, "big")
    return head + checksum(head).to_bytes(4, "big") + body[RUN_HEADER_BYTES:]


def frame_of(body: bytes) -> bytes:
    """An ADD to ledger 9 with this body."""
    head = encode_request(
        Kind.ADD, 1, len(body), checksum(body), ledger_id=9, digest_type=3, key=b"k" * 20, lac=3
    )
    return head + body


@given(st.integers(0, 500), st.integers(0, 100), st.integers(1, 9), st.integers(1, 511))
def test_counting_ids_agrees_with_listing_them(first: int, length: int, period: int, stripes: int) -> None:
    stripes = stripes % (1 << period) or 1
    stripes = 1 if period == 1 else stripes
    assert count_ids(first, first + length, period, stripes) == len(
        ids_in(first, first + length, period, stripes)
    )


@settings(max_examples=300)
@given(striped_ids(), st.data())
def test_damage_is_never_opened_as_something_else(
    shape: tuple[list[int], int, int], data: st.DataObject
) -> None:
    ids, period, stripes = shape
    body = bytearray(make(9, ids, period, stripes))
    table_end = RUN_HEADER_BYTES + 4 * len(ids)
    bit = data.draw(st.integers(0, table_end * 8 - 1))
    body[bit // 8] ^= 1 << bit % 8
    with pytest.raises(MalformedFrameError):
        RunView.parse(bytes(body))


@given(striped_ids(), st.data())
def test_a_cut_run_is_refused(shape: tuple[list[int], int, int], data: st.DataObject) -> None:
    ids, period, stripes = shape
    body = make(9, ids, period, stripes)
    with pytest.raises(MalformedFrameError):
        RunView.parse(body[: data.draw(st.integers(0, len(body) - 1))])
    with pytest.raises(MalformedFrameError):
        RunView.parse(body + b"x")


def test_another_identity_inside_is_refused() -> None:
    entry = DIGEST.seal_one(8, 0, -1, 0, b"")
    run = RunView.parse(encode_run(9, 0, 0, [entry], [len(entry)], digest_type=3))
    with pytest.raises(MalformedFrameError, match="another identity"):
        run.check_identity()


def test_a_run_that_announces_ids_without_end_is_refused_at_once() -> None:
    entry = DIGEST.seal_one(9, 0, -1, 0, b"")
    body = encode_run(9, 0, 2**62, [entry], [len(entry)], digest_type=3, period=7, stripes=0x7F)
    with pytest.raises(MalformedFrameError, match="does not have 1 entries"):
        RunView.parse(body)
