"""The hello of the native protocol: which version is spoken, and what is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.wire import native_hello
from quire.wire.native_hello import Hello, HelloAnswer

U64 = st.integers(0, 2**64 - 1)


def body_of(frame: bytes) -> memoryview:
    split = native_hello.split_hello(frame)
    assert split is not None
    assert split[1] == len(frame)
    return split[0]


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20), U64, U64)
def test_answers_come_back(bookie: str, cluster: str, message: str, features: int, boot: int) -> None:
    answer = HelloAnswer(2, Answer.OK, bookie, cluster, message, features, boot)
    back = native_hello.decode_hello_answer(body_of(native_hello.encode_hello_answer(answer)))
    assert back == answer, "unknown features are kept"


@given(U64, st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1))
def test_hellos_come_back_with_features_that_nobody_knows(features: int, low: int, high: int) -> None:
    hello = Hello("c", "b", low, high, features)
    assert native_hello.decode_hello(body_of(native_hello.encode_hello(hello))) == hello
    assert native_hello.version_with(hello) == (2 if low <= 2 <= high else 0)


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
