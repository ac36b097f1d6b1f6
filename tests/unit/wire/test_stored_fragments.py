"""The fragments of a long closed ledger: bytes until they are looked at, and never handed out unchecked."""

import copy
from dataclasses import replace

import pytest

from quire.core.errors import CorruptMetadataError
from quire.core.ledger.metadata import DigestType, Fragment, LedgerState, StoredFragments, new_ledger
from quire.wire import ledger_metadata
from quire.wire.proto.ledger_metadata_pb2 import LedgerMetadataFormat

BOOKIES = ("b1", "b2", "b3")
COUNT = ledger_metadata.FRAGMENTS_AT_ONCE + 4
LAST = 10 * COUNT - 1


def long_record(count=COUNT, format_version=3):
    made = new_ledger(
        7, BOOKIES, write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32, password=b"", created_ms=5
    )
    fragments = tuple(
        Fragment(number * 10, BOOKIES[number % 3 :] + BOOKIES[: number % 3]) for number in range(count)
    )
    return replace(made.closed(LAST, 1000), fragments=fragments, format_version=format_version).checked()


def parsed(record):
    return ledger_metadata.parse(ledger_metadata.serialize(record), 7)


def damaged(change):
    """The parsed record after `change` was made to the stored message, past all checks."""
    data = ledger_metadata.serialize(long_record())
    body = data[data.index(b"\n") + 3 :]
    message = LedgerMetadataFormat.FromString(body)
    change(message)
    body = message.SerializePartialToString()
    size = bytes([len(body) & 0x7F | 0x80, len(body) >> 7])
    return ledger_metadata.parse(ledger_metadata.HEADER + b"3\n" + size + body, 7)


def test_they_are_the_same_as_a_tuple():
    record, read = long_record(), parsed(long_record())
    assert isinstance(read.fragments, StoredFragments)
    assert read == record
    assert record == read
    assert hash(read) == hash(record)
    assert repr(read) == repr(record)
    assert read != replace(record, fragments=record.fragments[:-1])
    assert read.fragments != list(record.fragments)
    assert read.fragments[-1] == read.last_fragment == record.fragments[-1]
    assert read.fragments[2:5] == record.fragments[2:5]
    with pytest.raises(IndexError):
        read.fragments[COUNT]


def test_a_copy_is_a_tuple():
    read = parsed(long_record())
    assert type(copy.deepcopy(read).fragments) is tuple
    assert copy.deepcopy(read) == read


def test_entries_are_found_as_in_a_tuple():
    record, read = long_record(), parsed(long_record())
    for entry_id in range(LAST + 1):
        assert read.fragment_index(entry_id) == record.fragment_index(entry_id)
        assert read.ensemble_of(entry_id) == record.ensemble_of(entry_id)
    for index in range(COUNT):
        assert read.last_entry_of_fragment(index) == record.last_entry_of_fragment(index)


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_what_was_read_is_written_again(format_version):
    record = long_record(1000, format_version)
    if format_version == 1:
        record = replace(record, has_password=False, ack_quorum=3, created_ms=None)
    data = ledger_metadata.serialize(record)
    assert ledger_metadata.parse(data, 7) == record
    assert ledger_metadata.serialize(ledger_metadata.parse(data, 7)) == data


def test_few_and_those_of_an_open_ledger_are_looked_at_at_once():
    assert type(parsed(long_record(ledger_metadata.FRAGMENTS_AT_ONCE)).fragments) is tuple
    opened = replace(long_record(), state=LedgerState.OPEN, last_entry=-1, length=0)
    assert type(parsed(opened).fragments) is tuple


def first_entry(index, value):
    return lambda message: setattr(message.segment[index], "firstEntryId", value)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (first_entry(0, 5), "its first fragment starts at 5, not 0"),
        (first_entry(9, 80), "fragment 80 does not come after 80"),
        (first_entry(9, 101), "fragment 100 does not come after 101"),
        (lambda message: message.segment[9].ClearField("firstEntryId"), "20 fragments have 19 first entries"),
    ],
)
def test_damaged_first_entries_are_found_at_the_first_look(change, what):
    read = damaged(change)
    with pytest.raises(CorruptMetadataError, match=what):
        read.ensemble_of(15)
    with pytest.raises(CorruptMetadataError, match=what):
        read.fragments[-1]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda message: message.segment[9].ensembleMember.pop(), "fragment 90 has 2 bookies, not 3"),
        (
            lambda message: message.segment[9].ensembleMember.insert(0, "b4"),
            "fragment 90 has 4 bookies, not 3",
        ),
        (
            lambda message: message.segment[9].ensembleMember.__setitem__(0, "b2"),
            "fragment 90 names a bookie twice",
        ),
    ],
)
def test_a_damaged_ensemble_is_never_handed_out(change, what):
    read = damaged(change)
    assert len(read.ensemble_of(85)) == 3
    for look in (lambda: read.ensemble_of(95), lambda: tuple(read.fragments), lambda: read == long_record()):
        with pytest.raises(CorruptMetadataError, match=what):
            look()
    with pytest.raises(CorruptMetadataError, match=what):
        ledger_metadata.serialize(read)


def test_a_segment_that_disagrees_with_the_list_of_first_entries_is_damage():
    fragments = StoredFragments(7, 3, 2, lambda: [0, 10], lambda index: Fragment(index, BOOKIES))
    assert fragments[0].first_entry == 0
    with pytest.raises(CorruptMetadataError, match="fragment 1 starts at 1 and at 10"):
        fragments[1]
