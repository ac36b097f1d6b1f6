"""A ledger's record as bytes, against what the Java product wrote and read (tests/vectors/ledger_metadata.json)."""

import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import CorruptMetadataError, MisuseError
from quire.core.ids import NO_ENTRY
from quire.core.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState, new_ledger
from quire.wire import ledger_metadata

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "ledger_metadata.json").read_text())
CASES = VECTORS["cases"]
DIGESTS = {
    "CRC32": DigestType.CRC32,
    "MAC": DigestType.HMAC,
    "CRC32C": DigestType.CRC32C,
    "DUMMY": DigestType.DUMMY,
}


def record_of(fields):
    has_password = fields["password_hex"] is not None
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=fields["ensemble_size"],
        write_quorum=fields["write_quorum_size"],
        ack_quorum=fields["ack_quorum_size"],
        digest_type=DIGESTS[fields["digest_type"]] if has_password else DigestType.CRC32,
        password=bytes.fromhex(fields["password_hex"] or ""),
        state=LedgerState[fields["state"]],
        fragments=tuple(
            Fragment(int(first), tuple(members)) for first, members in fields["ensembles"].items()
        ),
        last_entry=fields["last_entry_id"],
        length=fields["length"],
        created_ms=fields["ctime"],
        custom=tuple(sorted((k, bytes.fromhex(v)) for k, v in fields["custom_metadata_hex"].items())),
        creation_token=fields["ctoken"],
        format_version=fields["format_version"],
        has_password=has_password,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_bytes_equal_javas(case):
    assert ledger_metadata.serialize(record_of(case["metadata"])).hex() == case["serialized_hex"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_javas_bytes_parse_to_what_java_reads(case):
    data = bytes.fromhex(case["serialized_hex"])
    record = ledger_metadata.parse(data, 7)
    assert record == record_of(case["parsed"])
    assert ledger_metadata.serialize(record) == data


@pytest.mark.parametrize("case", VECTORS["parse"], ids=lambda case: case["text"][:60])
def test_other_inputs_parse_or_fail_as_in_java(case):
    data = bytes.fromhex(case["bytes_hex"])
    if isinstance(case["result"], str):
        with pytest.raises(CorruptMetadataError, match="ledger 7 ") as caught:
            ledger_metadata.parse(data, 7)
        assert caught.value.ids == {"ledger_id": 7}
    else:
        assert ledger_metadata.parse(data, 7) == record_of(case["result"])


@pytest.mark.parametrize("name", ["custom-ctime-v3", "three-ensembles-v2", "closed-v1"])
def test_every_cut_is_an_error_or_another_record_never_a_crash(name):
    data = bytes.fromhex(next(c for c in CASES if c["name"] == name)["serialized_hex"])
    whole = ledger_metadata.parse(data, 7)
    for end in range(len(data)):
        try:
            cut = ledger_metadata.parse(data[:end], 7)
        except CorruptMetadataError:
            continue
        # Lines can lose their end in silence, as they do in Java; the length in front of format 3 cannot.
        assert whole.format_version != 3
        assert cut.format_version == whole.format_version


def test_bytes_behind_the_message_are_named():
    data = ledger_metadata.serialize(new_record()) + b"\0"
    with pytest.raises(CorruptMetadataError, match=r"should have \d+ bytes and has \d+"):
        ledger_metadata.parse(data, 7)


def test_a_record_that_breaks_a_rule_is_refused():
    data = ledger_metadata.serialize(replace(new_record(), ack_quorum=3, write_quorum=2))
    with pytest.raises(CorruptMetadataError, match="not a possible one"):
        ledger_metadata.parse(data, 7)


def test_a_format_that_does_not_exist_is_not_written():
    with pytest.raises(MisuseError, match="format 4"):
        ledger_metadata.serialize(replace(new_record(), format_version=4))


def new_record():
    return new_ledger(
        7, ["a", "b", "c"], write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
    )


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def records(draw):
    size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, size))
    firsts = sorted({0, *draw(st.lists(st.integers(1, 2**62), max_size=4))})
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(1, write_quorum)),
        digest_type=draw(st.sampled_from(DigestType)),
        password=draw(st.binary(max_size=8)),
        state=state,
        fragments=tuple(Fragment(f, tuple(f"b{f % 97}-{i}" for i in range(size))) for f in firsts),
        last_entry=draw(st.integers(-1, 2**63 - 1)) if closed else NO_ENTRY,
        length=draw(st.integers(0, 2**63 - 1)) if closed else 0,
        created_ms=draw(st.none() | st.integers(0, 2**62)),
        custom=tuple(sorted(draw(st.dictionaries(TEXT, st.binary(max_size=8), max_size=3)).items())),
        creation_token=draw(st.integers(0, 2**63 - 1)),
        format_version=3,
    )


@given(records(), st.sampled_from([2, 3]))
def test_what_is_written_is_read(record, format_version):
    record = replace(
        record,
        format_version=format_version,
        creation_token=record.creation_token if format_version == 3 else 0,
    )
    assert ledger_metadata.parse(ledger_metadata.serialize(record), 7) == record


@given(st.binary(max_size=80), st.sampled_from([1, 2, 3]))
def test_noise_is_corrupt_and_nothing_else(noise, format_version):
    with suppress(CorruptMetadataError):
        ledger_metadata.parse(ledger_metadata.HEADER + b"%d\n" % format_version + noise, 7)


def test_the_worked_bytes_of_the_format_page_are_real():
    page = (Path(__file__).parents[3] / "docs" / "formats" / "metadata.md").read_text()
    block = next(part for part in page.split("\n\n") if part.startswith("    426f6f6b"))
    written = "".join(
        "".join(re.match(r"\s+((?:[0-9a-f]{2,} {0,2})+)", line)[1].split()) for line in block.splitlines()
    )
    assert ledger_metadata.serialize(new_record()).hex() == written
