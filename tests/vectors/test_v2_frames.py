"""V2 frames against those that the Java product's encoders made (`v2_frames.json`, `digests.json`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import MalformedFrameError
from quire.core.ledger.metadata import DigestType
from quire.wire import v2
from quire.wire.entry import EntryDigest, master_key

FOLDER = Path(__file__).parent
VECTORS: dict[str, Any] = json.loads((FOLDER / "v2_frames.json").read_text())
DIGESTS: dict[str, Any] = json.loads((FOLDER / "digests.json").read_text())


def unhex(value: str | None) -> bytes:
    return bytes.fromhex(value or "")


@pytest.mark.parametrize("case", VECTORS["packet_headers"], ids=lambda case: case["int_hex"])
def test_packet_headers(case: dict[str, Any]) -> None:
    header = v2.packet_header(case["version"], case["opcode"], case["flags"])
    assert header.to_bytes(4, "big").hex() == case["int_hex"]
    parsed = (case["parsed_version"], case["parsed_opcode"], case["parsed_flags"])
    assert v2.split_packet_header(header) == parsed


@pytest.mark.parametrize(
    "case", VECTORS["requests"], ids=lambda case: f"{case['op']}-{case['frame_hex'][8:16]}"
)
def test_requests(case: dict[str, Any]) -> None:
    frame = unhex(case["frame_hex"])
    key = unhex(case.get("master_key_hex"))
    match case["op"]:
        case "READ":
            made = v2.encode_read(case["ledger_id"], case["entry_id"], case["flags"], key)
            seen_key = key if case["flags"] & v2.V2Flag.DO_FENCING else b""
            wanted: v2.Request = v2.ReadRequest(
                2, case["flags"], case["ledger_id"], case["entry_id"], seen_key
            )
        case "BATCH_READ":
            fields = (
                case["ledger_id"],
                case["entry_id"],
                case["request_id"],
                case["max_count"],
                case["max_size"],
            )
            made = v2.encode_batch_read(*fields, case["flags"], key)
            seen_key = key if case["flags"] & v2.V2Flag.DO_FENCING else b""
            wanted = v2.BatchReadRequest(2, case["flags"], *fields, seen_key)
        case "AUTH":
            made = v2.encode_auth(case["plugin"], unhex(case["payload_hex"]))
            wanted = v2.AuthPacket(2, 0, case["plugin"], unhex(case["payload_hex"]))
        case _:
            entry = frame[v2.ADD_ENTRY_AT :]
            digest = EntryDigest(DigestType[case["digest"]], case["password"].encode())
            payload = unhex(case["payload_hex"])
            sealed = digest.seal_one(
                case["ledger_id"], case["entry_id"], case["last_add_confirmed"], case["length"], payload
            )
            assert sealed + payload == entry
            assert key == master_key(case["password"].encode())
            made = b"".join(v2.encode_add(key, entry, case["flags"]))
            wanted = v2.AddRequest(
                2, case["flags"], key, case["ledger_id"], case["entry_id"], memoryview(entry)
            )
    assert made.hex() == frame.hex()
    assert v2.decode_request(frame) == wanted


@pytest.mark.parametrize(
    "case",
    VECTORS["responses"],
    ids=lambda case: f"{case['op']}-{case.get('error_code', '')}",
)
def test_answers(case: dict[str, Any]) -> None:
    frame = unhex(case["frame_hex"])
    code, ledger_id, entry_id = (case.get(name, 0) for name in ("error_code", "ledger_id", "entry_id"))
    match case["op"]:
        case "ADD":
            made = v2.encode_add_answer(code, ledger_id, entry_id)
            assert v2.encode_add_answers(code, ledger_id, [entry_id, entry_id]) == frame + frame
            wanted: v2.Response = v2.AddAnswer(2, code, ledger_id, entry_id)
        case "READ":
            entry = unhex(case["entry_hex"])
            made = b"".join(v2.encode_read_answer(code, ledger_id, entry_id, entry))
            wanted = v2.ReadAnswer(2, code, ledger_id, entry_id, memoryview(entry))
        case "BATCH_READ":
            entries = [unhex(entry) for entry in case["entries_hex"]]
            parts = v2.encode_batch_read_answer(code, ledger_id, entry_id, case["request_id"], entries)
            made = b"".join(parts)
            views = tuple(memoryview(entry) for entry in entries)
            wanted = v2.BatchReadAnswer(2, code, ledger_id, entry_id, case["request_id"], views)
        case _:
            made = v2.encode_auth(case["plugin"], unhex(case["payload_hex"]))
            wanted = v2.AuthPacket(2, 0, case["plugin"], unhex(case["payload_hex"]))
    assert made.hex() == frame.hex()
    assert v2.decode_answer(frame) == wanted


def test_add_frames_of_all_digests() -> None:
    for case in DIGESTS["entries"]:
        if case["v2_add_frame_hex"] is None:
            continue
        entry, key = unhex(case["entry_hex"]), master_key(case["password"].encode())
        assert b"".join(v2.encode_add(key, entry)).hex() == case["v2_add_frame_hex"]
        recovery = v2.V2Flag.RECOVERY_ADD | v2.V2Flag.HIGH_PRIORITY
        assert b"".join(v2.encode_add(key, entry, recovery)).hex() == case["v2_recovery_add_frame_hex"]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ("00000004 02090000", "V2 has no operation 9"),
        ("00000004 02040000", "V2 has no operation 4"),
        ("00000004 02010000", "an ADD of 8 bytes is shorter"),
        ("00000014 02020001 0000000000000001 0000000000000005", "a fencing read of 24 bytes is shorter"),
        ("00000008 02030000 0a0174 00", "does not parse"),
        ("00000007 02030000 0a0174", "lacks"),
        ("00000099 02010000", "says it has 153 bytes"),
    ],
)
def test_what_is_no_request(frame: str, said: str) -> None:
    with pytest.raises(MalformedFrameError, match=said):
        v2.decode_request(bytes.fromhex(frame))
