"""The hello of the native protocol: which version is spoken, and that version 1 is bit for bit what it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ledger.shares import HeldInterval
from quire.wire import native_bodies, native_hello
from quire.wire.native_hello import Hello, HelloAnswer
from quire.wire.run import RunPlace

U64 = st.integers(0, 2**64 - 1)
OF_THE_FIRST_REVISIONS = {
    "hello": "d151554952450d0a0000001f0001000100000000000000000007636c757374657200026231000000000000cb4c0e6e",
    "answer": "d151554952450d0a0000001b000100000000000000040000000262310007636c75737465720000ebd86b8f",
    "refusal": "d151554952450d0a0000001d00000000000000000000000d000262310007636c757374657200026e6f27f6508f",
    "READ": "0000000000000003000000000000000900000064",
    "LONG_POLL": "ffffffffffffffff000000000000000000000000000000090000006400000032",
    "told": "0000000000000007000000020000000000000001000000000000000200000000000000040000000000000004",
    "places": "000000010000000000001000000000630000000700062f312e736567",
    "READ_LAC": "000000036c616300000005656e747279",
    "LIST_ENTRIES": (
        "0000000200000000000000000000000000000009010000000000000001000000000000000a000000000000001e050000000000000007"
    ),
}


def as_written_now() -> dict[str, str]:
    """The same, with all that version 1 cannot say filled in."""
    features = native_hello.BESIDE | native_hello.OFFERED
    no = HelloAnswer(0, Answer.WRONG_BOOKIE, "b1", "cluster", "no", features=native_hello.OFFERED, boot=3)
    held = [HeldInterval(0, 9, 1, 1, 5), HeldInterval(10, 30, 5, 7, 6)]
    made = {
        "hello": native_hello.encode_hello(Hello("cluster", "b1", 1, 1)),
        "answer": native_hello.encode_hello_answer(
            HelloAnswer(1, Answer.OK, "b1", "cluster", "", features, boot=3)
        ),
        "refusal": native_hello.encode_hello_answer(no),
        "READ": native_bodies.encode_read(3, 9, 100, version=1),
        "LONG_POLL": native_bodies.encode_long_poll(-1, 0, 9, 100, 50, 8, version=1),
        "told": native_bodies.encode_told(7, [(1, 2), (4, 4)], [(4, 4)], 9, version=1),
        "places": native_bodies.encode_places([RunPlace("/1.seg", 4096, 99, 7, 5)], version=1),
        "READ_LAC": b"".join(map(bytes, native_bodies.encode_lac_body(b"lac", b"entry", 4, 5, version=1))),
        "LIST_ENTRIES": native_bodies.encode_held(held, version=1),
    }
    return {name: data.hex() for name, data in made.items()}


@pytest.mark.parametrize("name", OF_THE_FIRST_REVISIONS)
def test_a_peer_of_version_1_sees_the_bytes_that_it_knows(name: str) -> None:
    assert as_written_now()[name] == OF_THE_FIRST_REVISIONS[name]


def body_of(frame: bytes) -> memoryview:
    split = native_hello.split_hello(frame)
    assert split is not None
    assert split[1] == len(frame)
    return split[0]


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20), U64, U64, st.sampled_from([1, 2]))
def test_answers_come_back(
    bookie: str, cluster: str, message: str, features: int, boot: int, version: int
) -> None:
    answer = HelloAnswer(version, Answer.OK, bookie, cluster, message, features, boot)
    back = native_hello.decode_hello_answer(body_of(native_hello.encode_hello_answer(answer)))
    if version > 1:
        assert back == answer, "unknown features are kept"
    else:
        assert back == HelloAnswer(1, Answer.OK, bookie, cluster, message, features & 7)


@given(U64, st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1))
def test_hellos_come_back_with_features_that_nobody_knows(features: int, low: int, high: int) -> None:
    hello = Hello("c", "b", low, high, features)
    assert native_hello.decode_hello(body_of(native_hello.encode_hello(hello))) == hello
    spoken = native_hello.version_with(hello)
    both = [version for version in (1, 2) if low <= version <= high]
    assert spoken == max(both, default=0)


def test_what_a_later_hello_adds_is_left_alone() -> None:
    body = bytes(body_of(native_hello.encode_hello(Hello("c", "b"))))
    assert native_hello.decode_hello(body + b"more") == Hello("c", "b")
    answer = HelloAnswer(2, Answer.OK, "b", "c", boot=9)
    body = bytes(body_of(native_hello.encode_hello_answer(answer)))
    assert native_hello.decode_hello_answer(body + b"more") == answer


@pytest.mark.parametrize(
    ("size", "field"),
    [
        (5, "versions and features"), (13, "cluster instance"), (15, "bookie id"), (18, "auth scheme"),
        (20, "size of auth"), (24, "auth"),
    ],
)  # fmt: skip
def test_a_cut_hello_is_refused_by_the_field_that_is_cut(size: int, field: str) -> None:
    body = body_of(native_hello.encode_hello(Hello("c", "b", auth=b"12")))
    with pytest.raises(MalformedFrameError, match=f"in its {field}$"):
        native_hello.decode_hello(body[:size])


def test_an_answer_without_its_boot_number_is_refused() -> None:
    body = body_of(native_hello.encode_hello_answer(HelloAnswer(2, Answer.OK, "b", "c")))
    with pytest.raises(MalformedFrameError, match="in its boot number"):
        native_hello.decode_hello_answer(body[:-1])


def test_features_have_names_in_a_fixed_order() -> None:
    assert native_hello.feature_names(native_hello.OFFERED) == [
        "background",
        "terms",
        "fencing",
        "lacs",
        "bundles",
    ]
    assert native_hello.feature_names(2**64 - 1) == ["background", "terms", "fencing", "lacs", "bundles"]
