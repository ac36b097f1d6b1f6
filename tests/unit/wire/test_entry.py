"""Entries, digests and keys against the bytes that BookKeeper's own classes made (`tests/vectors/digests.json`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import DigestMismatchError, MisuseError
from quire.core.ledger_metadata import DigestType
from quire.wire.entry import EntryDigest, digest_type_of, explicit_lac_of, master_key

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "digests.json").read_text())


def pattern(seed: int, size: int) -> bytes:
    """The payload of the recorded large entries: byte j of entry i is (31 i + j) mod 256."""
    return bytes((31 * seed + j) % 256 for j in range(size))


def test_master_keys() -> None:
    for row in VECTORS["master_keys"]:
        assert master_key(bytes.fromhex(row["password_hex"])).hex() == row["master_key_hex"]


def test_every_recorded_entry_is_made_and_opened() -> None:
    for row in VECTORS["entries"]:
        payload = bytes.fromhex(row["payload_hex"])
        digest = EntryDigest(DigestType[row["digest"]], row["password"].encode())
        before = row["length"] - len(payload)
        [sealed] = digest.seal(
            row["ledger_id"], row["entry_id"], row["last_add_confirmed"], before, [payload]
        )
        assert (sealed + payload).hex() == row["entry_hex"]
        entry = digest.open(bytes.fromhex(row["entry_hex"]), row["ledger_id"], row["entry_id"])
        assert bytes(entry.payload) == payload
        assert (entry.last_add_confirmed, entry.length) == (row["last_add_confirmed"], row["length"])


def test_large_entries() -> None:
    for row in VECTORS["large_entries"]:
        payload = pattern(row["payload_pattern_seed"], row["payload_size"])
        digest = EntryDigest(DigestType[row["digest"]], row["password"].encode())
        sealed = digest.seal_one(
            row["ledger_id"], row["entry_id"], row["last_add_confirmed"], row["length"], payload
        )
        assert row["v2_add_frame_head_hex"].endswith(sealed.hex())


def test_explicit_lacs() -> None:
    for row in VECTORS["explicit_lac"]:
        digest = EntryDigest(DigestType[row["digest"]], row["password"].encode())
        body = digest.lac_body(row["ledger_id"], row["lac"])
        assert body.hex() == row["lac_body_hex"]
        assert digest.open_lac_body(body, row["ledger_id"]) == row["lac"] == explicit_lac_of(body)
        with pytest.raises(DigestMismatchError):
            digest.open_lac_body(body, row["ledger_id"] + 1)
        with pytest.raises(DigestMismatchError):
            digest.open_lac_body(body + b"x", row["ledger_id"])


def test_the_product_and_we_judge_altered_entries_alike() -> None:
    judged = {"ok": 0, "bad": 0}
    for row in VECTORS["verification"]:
        digest = EntryDigest(DigestType[row["digest"]], row.get("password", "secret").encode())
        entry = bytes.fromhex(row["entry_hex"])
        good = row["result"] == "ok"
        judged["ok" if good else "bad"] += 1
        if good:
            digest.open(entry, row["ledger_id"], row["entry_id"])
        else:
            with pytest.raises(DigestMismatchError):
                digest.open(entry, row["ledger_id"], row["entry_id"])
    assert judged["ok"] > 0
    assert judged["bad"] > 0


@given(
    digest_type=st.sampled_from(DigestType),
    ledger_id=st.integers(0, 2**63 - 1),
    first=st.integers(0, 2**40),
    payloads=st.lists(st.binary(max_size=200), min_size=1, max_size=8),
    password=st.binary(max_size=20),
)
def test_a_sealed_run_opens_again(
    digest_type: DigestType, ledger_id: int, first: int, payloads: list[bytes], password: bytes
) -> None:
    digest = EntryDigest(digest_type, password)
    length = 17
    for position, sealed in enumerate(digest.seal(ledger_id, first, first - 1, length, payloads)):
        length += len(payloads[position])
        entry = digest.open(sealed + payloads[position], ledger_id, first + position)
        assert bytes(entry.payload) == payloads[position]
        assert entry.length == length


@given(digest_type=st.sampled_from([DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC]), data=st.data())
def test_any_flipped_bit_is_seen(digest_type: DigestType, data: st.DataObject) -> None:
    digest = EntryDigest(digest_type, b"secret")
    entry = bytearray(digest.seal_one(7, 3, 2, 40, b"payload") + b"payload")
    bit = data.draw(st.integers(0, len(entry) * 8 - 1))
    entry[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DigestMismatchError):
        digest.open(bytes(entry), 7, 3)


def test_unknown_digest_names_the_known() -> None:
    assert digest_type_of("CRC32C") is DigestType.CRC32C
    with pytest.raises(MisuseError, match="crc32c, crc32, mac, dummy"):
        digest_type_of("md5")
