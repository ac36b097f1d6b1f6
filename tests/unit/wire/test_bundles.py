"""A bundle's rows and the parts of its responses: what is read is what was written, and a wrong one says what is wrong."""

from __future__ import annotations

import struct

import pytest

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.wire import native
from quire.wire.bundles import PART, ROW, BundlePart, decode_parts, encode_bundle, encode_parts, open_bundle

ROWS = [(7, 5, b"k" * 20, -1, 3, 11), (1 << 62, 0, bytes(20), 9, 0, 0), (8, 1, b"x" * 20, 2, 4, 12)]
FRAME = encode_bundle(9, [ROW.pack(*row) for row in ROWS], [b"abc", b"", b"defg"])


def test_rows_and_bodies_are_read_as_they_were_written() -> None:
    rows, at = open_bundle(FRAME)
    assert (rows, FRAME[at:]) == (ROWS, b"abcdefg")
    assert native.receive_request(memoryview(FRAME), terms=True)[1] is Answer.OK


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (FRAME[:-1], "other sizes"),
        (FRAME + b"x", "other sizes"),
        (FRAME[: native.REQUEST_BYTES + 3], "announces 0 runs"),
        (FRAME[: native.REQUEST_BYTES] + struct.pack(">I", 1001) + bytes(60_000), "announces 1001 runs"),
        (FRAME[: native.REQUEST_BYTES] + struct.pack(">I", 1000) + bytes(50_000), "announces 1000 runs"),
        (
            FRAME[: native.REQUEST_BYTES + 9] + b"x" + FRAME[native.REQUEST_BYTES + 10 :],
            "checksum of the rows",
        ),
    ],
)
def test_a_frame_that_is_no_bundle_says_why(frame: bytes, says: str) -> None:
    with pytest.raises(MalformedFrameError, match=says):
        open_bundle(frame)


def test_parts_are_read_as_they_were_written() -> None:
    parts = [BundlePart(0, 2, Answer.OK, native.FOLLOWED), BundlePart(2, 1, Answer.FENCED)]
    said = native.decode_answer(memoryview(encode_parts(9, parts, 44)))
    assert (said.number, said.answer, said.durable_lsn, decode_parts(said.body, 3)) == (
        9,
        Answer.OK,
        44,
        parts,
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        PART.pack(0, 1, 0, 0)[:-1],
        PART.pack(0, 0, 0, 0),
        PART.pack(0, 4, 0, 0),
        PART.pack(3, 1, 0, 0),
        PART.pack((1 << 32) - 1, 2, 0, 0),
        PART.pack(0, 1, 60_000, 0),
    ],
)
def test_parts_that_cannot_be_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        decode_parts(body, 3)
