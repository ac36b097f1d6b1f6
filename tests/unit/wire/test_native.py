"""The native protocol's frames: what one side encodes the other decodes, and anything else is refused."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.wire import native, native_hello
from quire.wire.native import Flag, Kind

IDS = st.integers(0, 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)


def joined(parts: list[object]) -> bytes:
    return b"".join(bytes(part) for part in parts)  # type: ignore[call-overload]


@given(cluster=st.text(max_size=50), bookie=st.text(max_size=50), auth=st.binary(max_size=50), cut=st.data())
def test_hello(cluster: str, bookie: str, auth: bytes, cut: st.DataObject) -> None:
    hello = native_hello.Hello(cluster, bookie, auth_scheme="x", auth=auth, features=5)
    frame = native_hello.encode_hello(hello)
    body, used = native_hello.split_hello(frame + b"rest") or (memoryview(b""), 0)
    assert used == len(frame)
    assert native_hello.decode_hello(body) == hello
    assert native_hello.split_hello(frame[: cut.draw(st.integers(0, len(frame) - 1))]) is None


def test_hello_answer() -> None:
    answer = native_hello.HelloAnswer(1, Answer.WRONG_BOOKIE, "b1.x", "cluster", "this is another")
    body, _ = native_hello.split_hello(native_hello.encode_hello_answer(answer)) or (memoryview(b""), 0)
    assert native_hello.decode_hello_answer(body) == answer


@pytest.mark.parametrize("start", [b"\x00\x00\x00\x40", b"GET / HTTP/1.1\r\n", b"\xd1QUIRX"])
def test_another_protocol_is_refused_by_its_first_bytes(start: bytes) -> None:
    with pytest.raises(MalformedFrameError, match="not the native protocol"):
        native_hello.split_hello(start)


def test_a_hello_cannot_announce_more_than_the_limit() -> None:
    with pytest.raises(MalformedFrameError, match="longer than"):
        native_hello.split_hello(native_hello.MAGIC + struct.pack(">I", 2**31))


@given(
    kind=st.sampled_from(Kind),
    number=st.integers(0, 2**32 - 1),
    ledger_id=st.integers(-1, 2**63 - 1),
    flags=st.sampled_from([Flag.NONE, Flag.RECOVERY, Flag.FENCE | Flag.RECOVERY]),
    token=st.integers(0, 2**64 - 1),
    key=st.binary(min_size=20, max_size=20),
    lac=st.integers(-1, 2**63 - 1),
    body=st.binary(max_size=100),
)
def test_request(
    kind: Kind, number: int, ledger_id: int, flags: int, token: int, key: bytes, lac: int, body: bytes
) -> None:
    head = native.encode_request(
        kind,
        number,
        len(body),
        crc32c(body),
        ledger_id=ledger_id,
        digest_type=3,
        flags=flags,
        token=token,
        key=key,
        lac=lac,
    )
    assert len(head) == native.REQUEST_BYTES == 96
    frame = memoryview(head + body)
    request = native.decode_request(frame)
    assert (request.kind, request.number, request.ledger_id, request.flags) == (
        kind,
        number,
        ledger_id,
        flags,
    )
    assert (request.token, request.lac, bytes(request.body)) == (token, lac, body)
    assert request.key == (b"" if key == b"\0" * 20 else key), "zeros are no key"
    assert request.body_crc == crc32c(body)
    assert request.is_intact()


@given(st.integers(0, 96 * 8 - 1))
def test_any_flipped_bit_in_a_request_is_refused(bit: int) -> None:
    frame = bytearray(native.encode_request(Kind.READ, 1, 0, 0, ledger_id=5))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(MalformedFrameError):
        native.decode_request(memoryview(frame))


def reheaded(**fields: int) -> memoryview:
    """A request whose header checksum is right although its fields are not."""
    return memoryview(native.encode_request(Kind.READ, 1, 0, 0, **{"ledger_id": 5, **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"flags": int(Flag.TRUNCATE)}, "flags"),
        ({"flags": int(Flag.NO_OP)}, "flags"),
        ({"flags": 512}, "flags"),
        ({"flags": 1 << 15}, "flags"),
    ],
)
def test_what_this_version_does_not_know_is_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(MalformedFrameError, match=message):
        native.decode_request(reheaded(**fields))


def test_unknown_kind() -> None:
    with pytest.raises(MalformedFrameError, match="kind 99"):
        native.decode_request(memoryview(native.encode_request(99, 1, 0, 0)))  # type: ignore[arg-type]


@given(
    answer=st.sampled_from(Answer),
    number=st.integers(0, 2**32 - 1),
    lac=st.integers(-1, 2**40),
    body=st.binary(),
)
def test_answer(answer: Answer, number: int, lac: int, body: bytes) -> None:
    parts = native.encode_answer(Kind.READ, answer, number, ledger_id=3, lac=lac, durable_lsn=9, body=[body])
    frame = native.decode_answer(memoryview(joined(parts)))
    assert (frame.kind, frame.answer, frame.number, frame.lac) == (Kind.READ, answer, number, lac)
    assert bytes(frame.body) == body
    assert len(parts[0]) == native.ANSWER_BYTES == 56


def test_a_damaged_answer_is_refused() -> None:
    frame = bytearray(joined(native.encode_answer(Kind.READ, Answer.OK, 1, body=[b"hello"])))
    frame[-1] ^= 1
    with pytest.raises(MalformedFrameError, match="body"):
        native.decode_answer(memoryview(frame))


def test_the_checksum_of_an_answer_leaves_out_what_has_its_own() -> None:
    parts = native.encode_answer(Kind.READ, Answer.OK, 1, body=[b"told"], runs=[b"a ", b"run"])
    frame = bytearray(joined(parts))
    assert bytes(native.decode_answer(memoryview(frame)).body) == b"tolda run"
    for at, good in ((-1, True), (-6, False)):
        flipped = bytearray(frame)
        flipped[at] ^= 1
        if good:
            native.decode_answer(memoryview(flipped))
        else:
            with pytest.raises(MalformedFrameError, match="body"):
                native.decode_answer(memoryview(flipped))
    cut = memoryview(frame)[: native.ANSWER_BYTES + 3]
    with pytest.raises(MalformedFrameError, match="body"):
        native.decode_answer(cut)


def test_a_newer_version_may_be_announced() -> None:
    hello = replace(native_hello.Hello("c", "b"), version_min=1, version_max=9)
    body, _ = native_hello.split_hello(native_hello.encode_hello(hello)) or (memoryview(b""), 0)
    assert native_hello.decode_hello(body).version_max == 9
