"""Frames of revision 9e5fe3a: read as they were meant, and made by the same bytes where version 1 is spoken."""

from __future__ import annotations

import dataclasses
import gzip
import json
from typing import Any

import pytest
from crc32c import crc32c

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.wire import native
from quire.wire.run import RunPlace, RunView
from support.golden import FOLDER
from support.version_1 import call

CASES = json.loads(gzip.decompress((FOLDER / "frames.json.gz").read_bytes()))


def of(what: str) -> list[Any]:
    return [
        pytest.param(case, id=f"{what}-{number}") for number, case in enumerate(CASES) if case["what"] == what
    ]


def plain(value: Any) -> Any:
    """As JSON has it; runs by their header and entries."""
    if isinstance(value, RunView):
        names = ("ledger_id", "first", "last", "count", "period", "residues", "digest_type", "origin_term")
        entries = {str(number): bytes(entry).hex() for number, entry in value.entries()}
        return {**{name: getattr(value, name) for name in names}, "entries": entries}
    if isinstance(value, RunPlace):
        return value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def assert_says(found: Any, expected: Any) -> None:
    """All that was said is there; what a later version knows besides may be there too."""
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        for name, value in expected.items():
            assert_says(found[name], value)
    elif isinstance(expected, list):
        if found and isinstance(found, list) and not isinstance(found[0], list | dict):
            found = found[: len(expected)]  # a tuple with fields of later versions behind
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_says(one, other)
    else:
        assert found == expected


@pytest.mark.parametrize("case", of("hello"))
def test_a_hello(case: dict[str, Any]) -> None:
    frame = bytes.fromhex(case["hex"])
    split = call("split_hello", frame)
    assert split is not None
    body, used = split
    assert used == len(frame)
    hello = call("decode_hello", body)
    assert_says(plain(hello), case["says"])
    assert call("encode_hello", hello) == frame


@pytest.mark.parametrize("case", of("hello_answer"))
def test_an_answer_to_a_hello(case: dict[str, Any]) -> None:
    frame = bytes.fromhex(case["hex"])
    split = call("split_hello", frame)
    assert split is not None
    answer = call("decode_hello_answer", split[0])
    assert_says(plain(answer), case["says"])
    assert call("encode_hello_answer", answer) == frame


@pytest.mark.parametrize("case", of("request"))
def test_a_request(case: dict[str, Any]) -> None:
    frame = bytes.fromhex(case["hex"])
    request = call("decode_request", memoryview(frame))
    assert_says(plain(request), case["says"])
    assert request.is_possible()
    assert request.is_intact()
    body = bytes(request.body)
    fields = ("ledger_id", "digest_type", "flags", "deadline_ms", "token", "term", "lac", "lafr")
    head = call(
        "encode_request",
        request.kind,
        request.number,
        len(body),
        crc32c(body),
        **{name: getattr(request, name) for name in fields},
        **({"key": request.key} if request.key else {}),
    )
    assert bytes(head) + body == frame


@pytest.mark.parametrize("case", of("refused_request"))
def test_a_request_that_version_1_refuses(case: dict[str, Any]) -> None:
    """A flag that a later version knows is sent only to who knows it too; the others are refused as ever."""
    frame = memoryview(bytes.fromhex(case["hex"]))
    flags = int.from_bytes(frame[6:8], "big")
    if flags & native.KNOWN_FLAGS:
        assert call("decode_request", frame).flags == flags == native.Flag.BACKGROUND
        return
    with pytest.raises(MalformedFrameError):
        call("decode_request", frame)


@pytest.mark.parametrize("case", of("part"))
def test_a_part_of_a_body(case: dict[str, Any]) -> None:
    body = bytes.fromhex(case["hex"])
    said = call(case["reader"], memoryview(body), **case["options"])
    assert_says(plain(said), case["says"])
    assert made_again(case, said) == body


def made_again(case: dict[str, Any], said: Any) -> bytes:
    """The bytes that the encoder of version 1 makes of what was read."""
    match case["reader"]:
        case "decode_read":
            parts = [call("encode_read", *case["says"])]
        case "decode_long_poll":
            parts = [call("encode_long_poll", *case["says"])]
        case "decode_lac_body":
            parts = call("encode_lac_body", *map(bytes.fromhex, case["says"]))
        case "decode_intervals":
            parts = [call("encode_intervals", said)]
        case "decode_info":
            parts = [call("encode_info", said)]
        case "decode_entries":
            parts = [call("encode_told", said.vouched_through, said.unknown)]
            if case["options"].get("placed"):
                parts.append(call("encode_places", said.places))
            parts += call("encode_runs", [run.body for run in said.runs])
        case _:
            raise AssertionError(case["reader"])
    return b"".join(bytes(part) for part in parts)


@pytest.mark.parametrize("case", of("answer"))
def test_an_answer(case: dict[str, Any]) -> None:
    frame = bytes.fromhex(case["hex"])
    answer = call("decode_answer", memoryview(frame))
    assert_says(plain(answer), case["says"])
    parts = call(
        "encode_answer",
        answer.kind,
        answer.answer,
        answer.number,
        **{name: getattr(answer, name) for name in ("flags", "ledger_id", "term", "lac", "durable_lsn")},
        body=[bytes.fromhex(part) for part in case["body"]],
        runs=[bytes.fromhex(part) for part in case["runs"]],
    )
    assert b"".join(bytes(part) for part in parts) == frame


def test_every_kind_flag_and_answer_of_version_1_is_there() -> None:
    requests = [case["says"] for case in CASES if case["what"] == "request"]
    assert {request["kind"] for request in requests} == set(range(1, 10))
    assert {0, 1, 2, 4, 128, 1 | 2 | 4 | 128} <= {request["flags"] for request in requests}
    answers = [case["says"] for case in CASES if case["what"] == "answer"]
    assert {answer["kind"] for answer in answers} == set(range(1, 10))
    assert set(range(18)) == {answer["answer"] for answer in answers} <= set(Answer)
