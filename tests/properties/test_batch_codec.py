"""Batch entries give back what went in, through every codec, and nothing damaged passes."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import MisuseError
from quire.wire.batch import HEADER_BYTES, BatchHeader, BatchView, encode_arrow_batch, encode_batch, with_gaps
from quire.wire.batch_format import Codec, MalformedBatchError

I64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
BLOB = st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | BLOB), max_size=3)
RECORD = st.tuples(st.none() | BLOB, st.none() | BLOB, I64, st.none() | HEADERS)
RECORDS = st.lists(RECORD, min_size=1, max_size=30)
CODECS = st.sampled_from(
    [(Codec.ROWS, None), (Codec.ARROW, None), (Codec.ARROW, "lz4"), (Codec.ARROW, "zstd")]
)


def encoded(records: list, codec: Codec, compression: str | None, **header: int) -> bytes:
    keys, values, times, headers = (list(column) for column in zip(*records, strict=True))
    return encode_batch(
        values,
        base_ms=times[0],
        keys=keys,
        times_ms=times,
        headers=headers,
        codec=codec,
        compression=compression,
        **header,
    )


@settings(max_examples=150, deadline=None)
@given(RECORDS, CODECS, st.data())
def test_every_codec_gives_the_records_back(records: list, codec: tuple, data: st.DataObject) -> None:
    entry = encoded(records, *codec, records_before=7, epoch=3, ledger_min_ms=5, ledger_max_ms=9)
    view = BatchView.parse(entry)
    keys, values, times, headers = zip(*records, strict=True)
    assert (view.count, view.header.records_before, view.header.records_through) == (
        len(records),
        7,
        7 + len(records),
    )
    assert (view.header.min_ms, view.header.max_ms) == (min(times), max(times))
    assert (view.header.ledger_min_ms, view.header.ledger_max_ms) == (min(5, *times), max(9, *times))
    start = data.draw(st.integers(0, len(records)))
    stop = data.draw(st.integers(start, len(records)) | st.none())
    assert view.keys(start, stop) == list(keys[start:stop])
    assert view.values(start, stop) == list(values[start:stop])
    assert list(view.times_ms(start, stop)) == list(times[start:stop])
    assert view.headers(start, stop) == [tuple(each or ()) for each in headers[start:stop]]
    table = view.to_arrow(start, stop)
    assert table.column("key").to_pylist() == list(keys[start:stop])
    assert table.column("value").to_pylist() == list(values[start:stop])
    assert table.column("timestamp_ms").to_pylist() == list(times[start:stop])
    assert [
        tuple((pair["key"], pair["value"]) for pair in each or ())
        for each in table.column("headers").to_pylist()
    ] == view.headers(start, stop)


@settings(max_examples=60, deadline=None)
@given(BLOB, I64)
def test_one_bare_record_is_its_own_body(value: bytes, time_ms: int) -> None:
    entry = encode_batch([value], base_ms=time_ms)
    view = BatchView.parse(memoryview(entry))
    assert (view.header.codec, entry[HEADER_BYTES:]) == (Codec.RAW, value)
    assert (view.values(), view.keys(), view.headers()) == ([value], [None], [()])
    assert list(view.times_ms()) == [time_ms]
    assert view.to_arrow(columns=["value", "key"]).to_pydict() == {"value": [value], "key": [None]}


@settings(max_examples=100, deadline=None)
@given(RECORDS, CODECS, st.data())
def test_a_flipped_bit_in_the_header_is_noticed(records: list, codec: tuple, data: st.DataObject) -> None:
    entry = bytearray(encoded(records, *codec))
    entry[data.draw(st.integers(0, HEADER_BYTES - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(MalformedBatchError):
        BatchView.parse(entry)


@settings(max_examples=100, deadline=None)
@given(RECORDS, CODECS, st.data())
def test_a_damaged_body_is_an_error_or_other_records_never_a_crash(
    records: list, codec: tuple, data: st.DataObject
) -> None:
    entry = bytearray(encoded(records, *codec))
    if len(entry) == HEADER_BYTES:
        return
    entry[data.draw(st.integers(HEADER_BYTES, len(entry) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        view = BatchView.parse(entry)
        assert len(view.values()) == len(view.keys()) == len(view.headers()) == view.count
        view.to_arrow()
    except MalformedBatchError:
        pass


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.data())
def test_a_cut_entry_is_refused(records: list, data: st.DataObject) -> None:
    entry = encoded(records, Codec.ROWS, None)
    with pytest.raises(MalformedBatchError):
        BatchView.parse(entry[: data.draw(st.integers(0, len(entry) - 1))])


def test_the_header_can_grow() -> None:
    """A later version's longer header is covered by the checksum, and its extra bytes are passed over."""
    import struct

    from crc32c import crc32c

    entry = bytearray(encode_batch([b"a", b"b"], base_ms=1))
    extra = b"\x00\x01\x02\x03"
    struct.pack_into(">H", entry, 6, HEADER_BYTES + len(extra))
    checksum = crc32c(extra, crc32c(bytes(entry[: HEADER_BYTES - 4])))
    struct.pack_into(">I", entry, HEADER_BYTES - 4, checksum)
    grown = bytes(entry[:HEADER_BYTES]) + extra + bytes(entry[HEADER_BYTES:])
    assert BatchView.parse(grown).values() == [b"a", b"b"]
    with pytest.raises(MalformedBatchError, match="checksum"):
        BatchHeader.parse(grown[:HEADER_BYTES] + b"\x09" + grown[HEADER_BYTES + 1 :])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"flags": 128}, "unknown to this program"),
        ({"flags": 64}, "some are missing"),
        ({"count": 0}, "no record"),
    ],
)
def test_what_a_header_may_not_say(change: dict, text: str) -> None:
    header = BatchHeader.parse(encode_batch([b"a", b"b"], base_ms=1))
    with pytest.raises(MalformedBatchError, match=text):
        BatchHeader.parse(replace(header, **change, header_bytes=HEADER_BYTES).encode())


def test_misuse_is_named() -> None:
    with pytest.raises(MisuseError, match="at least one record"):
        encode_batch([], base_ms=1)
    with pytest.raises(MisuseError, match="at least one record"):
        encode_batch([b"a"], base_ms=1, keys=[])
    with pytest.raises(MisuseError, match="raw codec"):
        encode_batch([b"a", b"b"], base_ms=1, codec=Codec.RAW)


def test_arrow_batches_go_in_as_they_are() -> None:
    batch = BatchView.parse(encode_batch([b"a", None], base_ms=4, keys=[None, b"k"])).to_arrow()
    view = BatchView.parse(encode_arrow_batch(batch, records_before=3, epoch=2, compression="zstd"))
    assert view.to_arrow().equals(batch)
    assert (view.header.records_through, view.header.min_ms, view.header.epoch) == (5, 4, 2)
    with pytest.raises(MisuseError, match="schema"):
        encode_arrow_batch(batch.select(["value"]))


@settings(max_examples=100, deadline=None)
@given(RECORDS, CODECS, st.data())
def test_positions_of_a_batch_with_gaps_come_back(records: list, codec: tuple, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(1, 5), min_size=len(records) - 1, max_size=len(records) - 1))
    positions = [0, *accumulate(steps)]
    dense = encoded(records, *codec, records_before=7)
    entry = with_gaps(dense, positions)
    assert (entry == dense) == (positions == list(range(len(records))))
    view = BatchView.parse(entry)
    assert (list(view.positions()), view.header.records_through) == (positions, 7 + positions[-1] + 1)
    assert view.values() == BatchView.parse(dense).values()
    assert view.to_arrow().equals(BatchView.parse(dense).to_arrow())
    low, high = data.draw(st.integers(-2, 80)), data.draw(st.integers(-2, 80) | st.none())
    start, stop = view.between(low, high)
    wanted = [place for place in positions if low <= place and (high is None or place < high)]
    assert list(view.positions(start, stop)) == wanted
    moved = BatchView.parse(view.moved(70, 0, 0))
    assert (list(moved.positions()), moved.values()) == (positions, view.values())


@pytest.mark.parametrize("positions", [[1, 2], [0, 0], [0], [0, 2**32 - 1]])
def test_positions_that_cannot_be_are_refused(positions: list) -> None:
    with pytest.raises(MisuseError, match="positions"):
        with_gaps(encode_batch([b"a", b"b"], base_ms=0), positions)


def test_a_damaged_table_of_positions_is_refused() -> None:
    entry = with_gaps(encode_batch([b"a", b"b"], base_ms=0), [0, 5])
    for place in range(1, 9):
        with pytest.raises(MalformedBatchError, match="positions"):
            BatchView.parse(entry[:-place] + bytes([entry[-place] ^ 1]) + entry[len(entry) - place + 1 :])
