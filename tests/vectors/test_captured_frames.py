"""Frames that went between the Java client and Java bookies, and probes of a Java bookie, all taken apart and put back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import MalformedFrameError
from quire.wire import bookkeeper, v2, v3

FOLDER = Path(__file__).parent
CAPTURES: list[dict[str, Any]] = json.loads((FOLDER / "captures.json").read_text())
PROBES: list[dict[str, Any]] = json.loads((FOLDER / "probes.json").read_text())["probes"]


def frames_of(scenario: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        frame for frame in scenario["frames"] if "hex" in frame and "protocol" in (frame.get("decoded") or {})
    ]


def is_whole(data: bytes) -> bool:
    return len(data) > 4 and int.from_bytes(data[:4], "big") == len(data) - 4


@pytest.mark.parametrize("scenario", CAPTURES, ids=lambda scenario: scenario["name"])
def test_captured_frames_are_what_we_would_send(scenario: dict[str, Any]) -> None:
    for frame in frames_of(scenario):
        data = bytes.fromhex(frame["hex"])
        assert is_whole(data)
        check(data, frame["decoded"], request=frame["dir"] == ">", exact=True)


@pytest.mark.parametrize("scenario", PROBES, ids=lambda scenario: scenario["name"][:60])
def test_probes_parse(scenario: dict[str, Any]) -> None:
    frames = frames_of(scenario)
    for position, frame in enumerate(frames):
        data = bytes.fromhex(frame["hex"])
        if not is_whole(data):
            continue
        following = scenario["frames"][scenario["frames"].index(frame) + 1 :][:1]
        refused = frame["dir"] == ">" and bool(following) and following[0].get("event") == "closed by bookie"
        try:
            check(data, frame["decoded"], request=frame["dir"] == ">", exact=False)
        except MalformedFrameError:
            assert refused, (position, frame)


def check(data: bytes, decoded: dict[str, Any], *, request: bool, exact: bool) -> None:
    if decoded["protocol"] == 3:
        message: Any = v3.decode_request(data) if request else v3.decode_response(data)
        assert message.header.txnId == decoded["header"]["txnId"]
        if exact:
            assert v3.frame_of(message) == data
        added = v3.take_add(data, 0) if request else None
        if added is not None:
            assert added.txn_id == message.header.txnId
            assert added.priority == message.header.priority
            sent = message.addRequest
            assert added[2:6] == (sent.ledgerId, sent.entryId, sent.masterKey, sent.body)
            assert added.recovery == sent.HasField("flag")
        answered = None if request else v3.take_add_answer(data, 0)
        if answered is not None:
            assert answered == (message.header.txnId, v3.status_of(message))
        return
    if request:
        parsed = v2.decode_request(data)
        assert parsed.flags == decoded["flags"]
        if isinstance(parsed, v2.AddRequest):
            again = b"".join(v2.encode_add(parsed.key, parsed.entry, parsed.flags, parsed.version))
        elif isinstance(parsed, v2.ReadRequest):
            again = v2.encode_read(
                parsed.ledger_id, parsed.entry_id, parsed.flags, parsed.key, parsed.version
            )
        else:
            return
        assert not exact or again == data
        return
    answer = v2.decode_answer(data)
    assert answer.version == decoded["version"]
    if "errorCode" in decoded:
        assert (answer.code, answer.ledger_id) == (decoded["errorCode"], decoded["ledgerId"])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "case", json.loads((FOLDER / "availability.json").read_text()), ids=lambda case: str(len(case["entries"]))
)
def test_lists_of_entries(case: dict[str, Any]) -> None:
    ids = sorted(set(case["entries"]))
    stretches: list[tuple[int, int]] = []
    for entry_id in ids:
        if stretches and stretches[-1][1] == entry_id - 1:
            stretches[-1] = (stretches[-1][0], entry_id)
        else:
            stretches.append((entry_id, entry_id))
    data = bytes.fromhex(case["serialized_hex"])
    made = bookkeeper.encode_entry_list((first, last, 1, 1) for first, last in stretches)
    assert made.hex() == data.hex()
    assert bookkeeper.decode_entry_list(data) == [(first, last, 1, 1) for first, last in stretches]
