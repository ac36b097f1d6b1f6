"""What an Arrow body decodes to is known before it is decoded, and refused above a limit."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.wire.arrow_sizes import DECODED_BYTES_MAX, LayoutError, decoded_sizes
from quire.wire.batch import BatchHeader, BatchView, encode_batch
from quire.wire.batch_arrow import arrow_schema
from quire.wire.batch_format import Codec, MalformedBatchError

COLUMNS = ["key", "value", "timestamp_ms", "headers"]


def entry_of(values: list[bytes | None], compression: str | None) -> bytes:
    return encode_batch(values, base_ms=1, codec=Codec.ARROW, compression=compression)


def body_of(entry: bytes) -> bytes:
    return entry[BatchHeader.parse(entry).header_bytes :]


@given(
    st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=40),
    st.lists(st.none() | st.binary(max_size=30), min_size=40, max_size=40),
    st.sampled_from([None, "lz4", "zstd"]),
)
def test_sizes_are_those_of_the_decoded_columns(
    values: list[bytes | None], keys: list[bytes | None], compression: str | None
) -> None:
    headers = [[("h", key)] if key else None for key in keys[: len(values)]]
    entry = encode_batch(
        values,
        base_ms=1,
        keys=keys[: len(values)],
        headers=headers,
        codec=Codec.ARROW,
        compression=compression,
    )
    sizes = decoded_sizes(body_of(entry))
    batch = pa.ipc.read_record_batch(pa.py_buffer(body_of(entry)), arrow_schema())
    for name in COLUMNS:
        held = sum(buffer.size for buffer in batch.column(name).buffers() if buffer is not None)
        assert sizes[name] <= held <= sizes[name] + 64 * 9, "buffers are padded in memory"
    view = BatchView.parse(entry)
    assert view.decoded_bytes(["value"]) == sizes["value"] >= sum(len(value or b"") for value in values)
    assert view.decoded_bytes(COLUMNS) == sum(sizes.values())


def test_an_entry_that_decodes_to_too_much_is_refused_before_it_is_decoded() -> None:
    entry = entry_of([b"x" * 100_000], "zstd")
    frame = b"\x28\xb5\x2f\xfd"  # a zstd frame begins so; the decoded size stands before it
    claims = struct.pack("<q", 100_000) + frame
    assert entry.count(claims) == 1
    forged = entry.replace(claims, struct.pack("<q", DECODED_BYTES_MAX) + frame)
    for ask in (
        lambda view: view.values(),
        lambda view: view.to_arrow(),
        lambda view: view.decoded_bytes(["key"]),
    ):
        with pytest.raises(
            MalformedBatchError, match=r"decodes to .* more than the 1,073,741,824 of an entry"
        ):
            ask(BatchView.parse(forged))
    assert BatchView.parse(entry).decoded_bytes(["value"]) >= 100_000


@given(st.data())
def test_a_message_that_was_changed_is_read_or_refused(data: st.DataObject) -> None:
    body = bytearray(body_of(entry_of([b"abc" * 50, None, b"d"], data.draw(st.sampled_from([None, "lz4"])))))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(body)))
    for changed in (bytes(body), bytes(body[:end])):
        try:
            assert decoded_sizes(changed).keys() == set(COLUMNS)
        except LayoutError:
            pass
