"""Entries of scheme 1, which name their origin term and flags: there and back, and never taken for another scheme's."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import DigestMismatchError, MalformedFrameError
from quire.core.ledger.metadata import DigestType
from quire.storage.reading import cut_run
from quire.wire.entries import Entries, open_entries
from quire.wire.entry import NO_OP, TERM_HEADER, TERM_HEADER_BYTES, Entry, EntryDigest, NoOp
from quire.wire.run import RUN_HEADER, SCHEME_PLAIN, SCHEME_TERMS, RunView, encode_run

IDS = st.integers(0, 2**63 - 1)


@given(
    st.sampled_from(DigestType), IDS, IDS, st.integers(-1, 2**62), IDS,
    st.integers(0, 2**64 - 1), st.sampled_from([0, NO_OP]), st.binary(max_size=50),
)  # fmt: skip
def test_entries_come_back(
    digest_type: DigestType,
    ledger: int,
    entry_id: int,
    lac: int,
    length: int,
    term: int,
    flags: int,
    payload: bytes,
) -> None:
    digest = EntryDigest(digest_type, b"secret")
    head = digest.seal_with_term(ledger, entry_id, lac, length, payload, origin_term=term, flags=flags)
    assert len(head) == TERM_HEADER_BYTES + digest.mac_size == 44 + digest.mac_size
    for asked in (entry_id, None):
        found = digest.open_with_term(head + payload, ledger, asked)
        assert (found.origin_term, found.flags) == (term, flags)
        assert tuple(found.entry) == (ledger, entry_id, lac, length, payload)


SEALED = (
    EntryDigest(DigestType.CRC32C, b"").seal_with_term(7, 1, 0, 5, b"hi", origin_term=3, flags=NO_OP) + b"hi"
)


def test_worked_bytes() -> None:
    assert SEALED[:44].hex() == (
        "0000000000000007000000000000000100000000000000000000000000000005000000000000000300000001"
    )
    assert SEALED[44:].hex() == "125adf4f6869"
    assert crc32c(SEALED[:44] + b"hi") == 0x125ADF4F


def test_every_bit_is_under_the_digest() -> None:
    for bit in range(len(SEALED) * 8):
        spoilt = bytearray(SEALED)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DigestMismatchError):
            EntryDigest(DigestType.CRC32C, b"").open_with_term(spoilt, 7, 1)


@pytest.mark.parametrize("size", [0, 43, 47])
def test_what_is_cut_is_refused(size: int) -> None:
    with pytest.raises(DigestMismatchError, match=f"{size} bytes"):
        EntryDigest(DigestType.CRC32C, b"").open_with_term(SEALED[:size], 7, 1)


def test_another_place_and_unknown_flags_are_refused() -> None:
    digest = EntryDigest(DigestType.DUMMY, b"")
    with pytest.raises(DigestMismatchError, match="sent entry 1 of ledger 7"):
        digest.open_with_term(TERM_HEADER.pack(7, 1, 0, 0, 0, 0), 7, 2)
    with pytest.raises(MalformedFrameError, match="flags 0x2: a newer version"):
        digest.open_with_term(TERM_HEADER.pack(7, 1, 0, 0, 0, 2), 7, 1)


def test_neither_scheme_is_taken_for_the_other() -> None:
    digest = EntryDigest(DigestType.CRC32C, b"")
    with pytest.raises(DigestMismatchError):
        digest.open(SEALED, 7, 1)
    plain = digest.seal_one(7, 1, 0, 5, b"payload of some length") + b"payload of some length"
    with pytest.raises(DigestMismatchError):
        digest.open_with_term(plain, 7, 1)


def a_run(scheme: int) -> bytes:
    return encode_run(7, 1, 1, [SEALED], [len(SEALED)], digest_type=3, origin_term=3, scheme=scheme)


@pytest.mark.parametrize("scheme", [SCHEME_PLAIN, SCHEME_TERMS])
def test_a_run_names_the_scheme_of_its_entries(scheme: int) -> None:
    body = a_run(scheme)
    assert RUN_HEADER.unpack_from(body)[1] == scheme
    run = RunView.parse(body)
    assert (run.scheme, run.origin_term) == (scheme, 3)
    assert cut_run(run, 0, 1, run.entry(0)) == body


@pytest.mark.parametrize("scheme", [2, 255])
def test_a_scheme_of_a_newer_version_is_refused(scheme: int) -> None:
    with pytest.raises(
        MalformedFrameError, match=f"digest scheme {scheme} is not known here: a newer version"
    ):
        RunView.parse(a_run(scheme))


@pytest.mark.parametrize(
    ("payload", "no_ops", "taken"), [(b"", True, True), (b"x", True, False), (b"", False, False)]
)
@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.HMAC])
def test_a_no_op_has_no_payload_and_is_one_only_where_terms_fence(
    digest_type: DigestType, payload: bytes, no_ops: bool, taken: bool
) -> None:
    digest = EntryDigest(digest_type, b"p")
    body = digest.seal_with_term(7, 3, 2, 5, payload, origin_term=4, flags=NO_OP) + payload
    user = digest.seal_with_term(7, 4, 2, 5 + 2, b"ab", origin_term=4) + b"ab"
    ends = [0, len(body), len(body) + len(user)]
    found, bad = open_entries(digest, 7, [3, 4], body + user, ends, 4, no_ops=no_ops)
    assert bad == ([] if taken else [3])
    assert [(entry.entry_id, type(entry) is NoOp) for entry in found] == [(3, True)] * taken + [(4, False)]
    assert found.no_ops == (3,) * taken
    assert [entry.entry_id for entry in found.of_users()] == [4]
    assert [type(entry) is NoOp for entry in Entries.join(7, [found[:1], found[1:]])] == [True] * taken + [
        False
    ]
    assert type(found[0]) is (NoOp if taken else Entry)


def test_what_a_writer_seals_is_never_a_no_op() -> None:
    digest = EntryDigest(DigestType.CRC32C, b"p")
    (header,) = digest.seal_in_term(7, 3, 2, 5, [b""], 4)
    assert digest.open_with_term(header, 7, 3).flags == 0
