"""V3 frames against those that the Java product's encoders made (`v3_frames.json`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.wire import bookkeeper, v3
from quire.wire.proto.bookkeeper_protocol_pb2 import OperationType, Request, StatusCode

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "v3_frames.json").read_text())
FIELDS = {
    "ledger_id": "ledgerId", "entry_id": "entryId", "lac": "lac", "master_key_hex": "masterKey", "body_hex": "body",
    "previous_lac": "previousLAC", "timeout_ms": "timeOut", "plugin": "authPluginName", "payload_hex": "payload",
    "write_flags": "writeFlags", "requested": "requested", "max_lac": "maxLAC", "lac_body_hex": "lacBody",
    "lac_update_timestamp": "lacUpdateTimestamp", "last_entry_body_hex": "lastEntryBody",
    "total_disk_capacity": "totalDiskCapacity", "free_disk_space": "freeDiskSpace",
    "availability_hex": "availabilityOfEntriesOfLedger",
}  # fmt: skip


def fill(body: Any, case: dict[str, Any]) -> None:
    body.SetInParent()
    for name, field in FIELDS.items():
        if case.get(name) is not None:
            setattr(body, field, bytes.fromhex(case[name]) if name.endswith("_hex") else case[name])


def body_of(message: Any, case: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, field in FIELDS.items():
        if field in message.DESCRIPTOR.fields_by_name and message.HasField(field):
            value = getattr(message, field)
            found[name] = value.hex() if name.endswith("_hex") else value
    return found


def wanted_of(case: dict[str, Any]) -> dict[str, Any]:
    return {name: case[name] for name in FIELDS if case.get(name) is not None}


@pytest.mark.parametrize("case", VECTORS["requests"], ids=lambda case: f"{case['op']}-{case['txn_id']}")
def test_requests(case: dict[str, Any]) -> None:
    operation = OperationType.Value(case["op"])
    made = v3.request(operation, case["txn_id"], priority=case.get("priority", 0))
    body = getattr(made, v3.REQUEST_BODY[operation])
    fill(body, case)
    if "flag" in case:
        body.flag = type(body).Flag.Value(case["flag"])
    for key, value in case.get("request_context", {}).items():
        made.requestContext.add(key=key, value=value)
    assert v3.frame_of(made).hex() == case["frame_hex"]

    frame = bytes.fromhex(case["frame_hex"])
    parsed = v3.decode_request(frame)
    assert (parsed.header.operation, parsed.header.txnId) == (operation, case["txn_id"])
    assert parsed.header.priority == case.get("priority", 0)
    assert body_of(getattr(parsed, v3.REQUEST_BODY[operation]), case) == wanted_of(case)


def test_the_requests_that_are_made_by_hand() -> None:
    for case in VECTORS["requests"]:
        key = bytes.fromhex(case.get("master_key_hex") or "")
        recovery = case.get("flag") == "RECOVERY_ADD"
        if case["op"] == "ADD_ENTRY":
            body = bytes.fromhex(case["body_hex"])
            ids = (case["ledger_id"], case["entry_id"])
            priority, flags = case.get("priority", 0), case.get("write_flags", 0)
            made = b"".join(
                v3.encode_add(
                    case["txn_id"], *ids, key, body, recovery=recovery, priority=priority, write_flags=flags
                )
            )
            taken = v3.take_add(made + made, len(made))
            assert taken == (None if flags else v3.Add(case["txn_id"], priority, *ids, key, body, recovery))
        elif case["op"] == "READ_ENTRY" and "request_context" not in case:
            flag = case.get("flag")
            made = v3.encode_read(
                case["txn_id"],
                case["ledger_id"],
                case["entry_id"],
                key=key,
                flag=getattr(v3, flag) if flag else None,
                previous_lac=case.get("previous_lac"),
                timeout_ms=case.get("timeout_ms"),
                priority=case.get("priority", 0),
            )
            if flag is None:
                plain = v3.encode_plain_reads(case["txn_id"], case["ledger_id"], [case["entry_id"]])
                assert plain == made
        else:
            continue
        assert made.hex() == case["frame_hex"]


@pytest.mark.parametrize(
    "case", VECTORS["responses"], ids=lambda case: f"{case['op']}-{case['status']}-{case['txn_id']}"
)
def test_answers(case: dict[str, Any]) -> None:
    operation, status = OperationType.Value(case["op"]), StatusCode.Value(case["status"])
    header = Request().header
    header.operation, header.txnId = operation, case["txn_id"]
    made = v3.response(header, status)
    if "note" not in case:
        body = getattr(made, v3.RESPONSE_BODY[operation])
        fill(body, case)
        if hasattr(body, "status"):
            body.status = status
    assert v3.frame_of(made).hex() == case["frame_hex"]

    frame = bytes.fromhex(case["frame_hex"])
    parsed = v3.decode_response(frame)
    assert (parsed.header.operation, parsed.header.txnId) == (operation, case["txn_id"])
    assert v3.status_of(parsed) == status
    if "note" not in case:
        assert body_of(getattr(parsed, v3.RESPONSE_BODY[operation]), case) == wanted_of(case)
        if case["op"] == "ADD_ENTRY":
            txns, entry_ids = [v3.number(case["txn_id"])] * 2, [v3.number(case["entry_id"])] * 2
            assert v3.encode_add_answers(status, case["ledger_id"], txns, entry_ids) == frame + frame
            assert v3.take_add_answer(frame + frame, len(frame)) == (case["txn_id"], status)


def test_the_inner_status_counts_when_the_outer_one_is_fine() -> None:
    made = v3.decode_response(bytes.fromhex("000000130a060803100218071000aa0606080010001800"))
    made.addResponse.status = StatusCode.EFENCED
    assert v3.status_of(made) == StatusCode.EFENCED
    assert v3.take_add_answer(v3.frame_of(made), 0) == (7, StatusCode.EFENCED)


def test_each_answer_has_a_code_in_both_protocols() -> None:
    made_by_the_client = {Answer.TIMED_OUT, Answer.UNREACHABLE, Answer.BAD_DIGEST}
    for answer in set(Answer) - made_by_the_client:
        assert bookkeeper.v3_code(answer) in StatusCode.values()
        negative = {Answer.NO_ENTRY, Answer.NO_LEDGER}
        assert (bookkeeper.v2_answer(bookkeeper.v2_code(answer)) in negative) == (answer in negative)
        assert (bookkeeper.v3_answer(bookkeeper.v3_code(answer)) in negative) == (answer in negative)
    assert {bookkeeper.v3_answer(status) for status in StatusCode.values()} <= set(Answer)
    assert bookkeeper.v2_code(Answer.UNKNOWN) == 101  # 107 would make a Java client hang up


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ("00000000", "lacks a required field"),
        ("00000004 0a020803", "lacks a required field|does not parse"),
        ("0000000f 0a06080310631801a2060408001001", "lacks a required field|does not parse"),  # operation 99
        ("00000002 ffff", "does not parse"),
        ("00000005 0a0608", "says it has 5"),
    ],
)
def test_what_is_no_request(frame: str, said: str) -> None:
    with pytest.raises(MalformedFrameError, match=said):
        v3.decode_request(bytes.fromhex(frame))
