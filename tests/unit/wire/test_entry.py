"""Entries, digests and keys against the bytes that BookKeeper's own classes made (`tests/vectors/digests.json`)."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import DigestMismatchError, MisuseError
from quire.core.ledger.metadata import DigestType
from quire.wire.entries import open_entries
from quire.wire.entry import Entry, EntryDigest, digest_type_of, explicit_lac_of, master_key

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


@given(
    count=st.integers(1, 12),
    size=st.integers(0, 1500),
    odd=st.booleans(),
    digest_type=st.sampled_from([DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC]),
    flip=st.none() | st.integers(0, 1 << 20),
    data=st.data(),
)
def test_a_run_is_opened_as_its_entries_are_one_by_one(
    count: int, size: int, odd: bool, digest_type: DigestType, flip: int | None, data: st.DataObject
) -> None:
    digest = EntryDigest(digest_type, b"secret")
    payloads = [bytes([number]) * (size + (number == 1 and odd)) for number in range(count)]
    sealed = digest.seal(7, 100, 99, 0, payloads)
    entries = [head + payload for head, payload in zip(sealed, payloads, strict=True)]
    body = bytearray(b"run header").join([b"", b"".join(entries)])
    offsets = list(accumulate(map(len, entries), initial=10))
    if flip is not None:
        body[10 + flip % (len(body) - 10)] ^= 1 << data.draw(st.integers(0, 7))
    good, bad = open_entries(digest, 7, range(100, 100 + count), body, offsets)
    opened, wrong = [], []
    for position, entry_id in enumerate(range(100, 100 + count)):
        try:
            opened.append(digest.open(body[offsets[position] : offsets[position + 1]], 7, entry_id))
        except DigestMismatchError:
            wrong.append(entry_id)
    assert (list(good), bad) == (opened, wrong)
    assert len(bad) == (flip is not None)
    assert all(isinstance(entry, Entry) for entry in good)


@pytest.mark.parametrize(("ledger_id", "first"), [(8, 100), (7, 101)])
def test_a_good_run_of_another_ledger_or_place_is_refused(ledger_id: int, first: int) -> None:
    digest = EntryDigest(DigestType.CRC32C, b"secret")
    payloads = [b"x" * 1000] * 9
    sealed = digest.seal(7, 100, 99, 0, payloads)
    body = b"".join(part for pair in zip(sealed, payloads, strict=True) for part in pair)
    offsets = list(range(0, len(body) + 1, len(body) // 9))
    good, bad = open_entries(digest, ledger_id, range(first, first + 9), body, offsets)
    assert list(good) == []
    assert bad == list(range(first, first + 9))


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
