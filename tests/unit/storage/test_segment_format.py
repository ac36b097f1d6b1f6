"""The bytes of docs/formats/segment.md."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from quire.core.bookie.ledger import LedgerFacts
from quire.core.bookie.limbo import Limbo
from quire.storage.formats import footer_format as footer
from quire.storage.formats import record_bodies as bodies
from quire.storage.formats import segment_format as form
from quire.storage.formats.state_format import StoredLedgerState, decode_state, encode_state
from support.storage_disk import FaultyFiles, open_storage


def test_worked_bytes_of_a_new_bookie() -> None:
    files = FaultyFiles()
    open_storage(files)
    (path,) = files.segments()
    data = bytes(files.nodes[path].data)
    header = form.decode_segment_header(data[:4096])
    assert (header.sequence, header.segment_bytes, header.recycled) == (1, 128 * 1024, False)
    assert (header.cluster_instance, header.bookie_id) == ("cluster-1", "b1.k7f3q")
    seed = crc32c(struct.pack(">QQ", 1, header.nonce))
    group = form.decode_group_header(data[4096:5120], 4096, 1, seed)
    assert group is not None
    assert (group.first_lsn, group.last_lsn, group.records, group.flags) == (1, 2, 2, 0)
    body = bytes.fromhex("0000000000000000 0000000000000000 00000001 0000000000000001 0000000000000001")
    head = (
        bytes.fromhex(
            "00000090 86 00 00 00 0000000000000001 ffffffffffffffff ffffffffffffffff ffffffffffffffff"
            "0000000000000000 0000000000000000 ffffffffffffffff 0000000000000000 00000000 00000000 00000000"
            "00000000 00000024"
        )
        + struct.pack(">I", crc32c(body))
        + bytes(4)
    )
    expected = head + struct.pack(">I", crc32c(head, seed ^ 5120)) + body + bytes(4)
    assert data[5120 : 5120 + len(expected)] == expected
    assert len(expected) == 0x90


def test_headers_come_back_and_do_not_verify_elsewhere() -> None:
    header = form.SegmentHeader(1 << 20, 5, 99, 17, True, "cluster", "bookie.abcde")
    block = form.encode_segment_header(header)
    assert len(block) == 4096
    assert form.decode_segment_header(block) == header
    with pytest.raises(form.FormatError, match="checksum"):
        form.decode_segment_header(block[:100] + b"\1" + block[101:])
    with pytest.raises(form.FormatError, match="truncated"):
        form.decode_segment_header(block[:4000])
    seed = form.seed_of(5, 99)
    group = form.GroupHeader(8192, 3, 9, 2, 77, 4000, 7, 1, [(1, 2, 3), (4, -1, -1)])
    data = bytearray(b"old " * form.GROUP_HEADER_BYTES)
    checksum = form.write_group_header(
        memoryview(data), 8192, (3, 9), (2, 77), 4000, 7, 1, [(1, 2, 3), (4, -1, -1)], 5, seed
    )
    assert data[form.GROUP_HEADER_BYTES :].startswith(b"old old"), "only the header is written"
    read = form.decode_group_header(data, 8192, 5, seed)
    assert read is not None
    assert read.checksum == checksum
    assert read._replace(checksum=0) == group
    assert not read.names_all
    assert read.end == 8192 + 8192
    assert form.decode_group_header(data, 12288, 5, seed) is None
    assert form.decode_group_header(data, 8192, 6, seed) is None
    assert form.decode_group_header(data, 8192, 5, form.seed_of(5, 98)) is None


def test_a_segment_of_a_newer_version_is_refused_by_name() -> None:
    block = bytearray(form.encode_segment_header(form.SegmentHeader(1 << 20, 1, 1, 1, False, "c", "b")))
    block[48:56] = (4).to_bytes(8)
    block[-4:] = crc32c(bytes(block[:-4])).to_bytes(4)
    with pytest.raises(form.FormatError, match="newer version"):
        form.decode_segment_header(bytes(block))


def test_states_lists_and_unnamed_limbo_come_back() -> None:
    facts = LedgerFacts(7, b"k" * 20, 5, 3, True, Limbo(4), 2, 99, b"explicit", 12345)
    state = StoredLedgerState(facts, 17)
    assert decode_state(7, encode_state(state)) == state
    with pytest.raises(form.FormatError, match="ledger 7"):
        decode_state(7, encode_state(state) + b"x")
    read = bodies.decode_segment_list(bodies.encode_segment_list(3, 40, [1, 2, 3, 7, 9, 10]))
    assert read == bodies.SegmentList(3, 40, [(1, 3), (7, 7), (9, 10)])
    assert bodies.decode_retirement(bodies.encode_retirement([1, 5])) == [1, 5]
    limbo = bodies.UnnamedLimbo(1 << 40, True, 77)
    assert bodies.decode_unnamed_limbo(bodies.encode_unnamed_limbo(limbo)) == limbo


def test_rows_that_begin_alike_are_in_the_order_of_their_lsns() -> None:
    """The second of them ends before the first, which the order of their bytes would put behind."""
    lasts = {5: 30, 6: 20, 7: 40}
    rows = [footer.Row(2, 0, 10, last, lsn, 640, 100, 10, 1, 0, 3, 0x81, 1) for lsn, last in lasts.items()]
    packed = footer.sort_rows(b"".join(footer.ROW.pack(*row) for row in reversed(rows)))
    assert [footer.row_at(packed, at).lsn for at in range(3)] == list(lasts)


def test_trailer_and_directory_come_back() -> None:
    trailer = footer.Trailer(3, 8192, 1, 9, 100, 200, 300, 400, 1, 2, 3, 4, 5)
    block = footer.encode_trailer(trailer, 77, 1 << 16)
    assert footer.decode_trailer(block, 3, 77, 1 << 16) == trailer
    assert footer.decode_trailer(bytes(4096), 3, 77, 1 << 16) is None
    with pytest.raises(footer.FormatError):
        footer.decode_trailer(block[:50] + b"\xff" + block[51:], 3, 77, 1 << 16)
    rows = [
        footer.Row(2, 0, 10, 19, 5, 640, 100, 10, 1, 0, 3, 0x81, 1),
        footer.Row(1, 0, 5, 9, 4, 1280, 100, 5, 1, 0, 3, 0x81, 1),
        footer.Row(2, 0, 15, 15, 6, 1920, 100, 1, 1, 0, 3, 0x81, 1),
    ]
    packed = footer.sort_rows(b"".join(footer.ROW.pack(*row) for row in rows))
    assert [footer.row_at(packed, i) for i in range(3)] == [rows[1], rows[0], rows[2]]
    one, two = footer.read_directory(footer.build_directory(packed, {2: 8}, 0))
    assert (one.ledger_id, one.first, one.last, one.lac, one.rows, one.flags) == (
        1,
        5,
        9,
        -1,
        1,
        footer.DENSE,
    )
    assert (two.ledger_id, two.first, two.last, two.lac, two.row_index, two.rows, two.flags) == (
        2,
        10,
        19,
        8,
        1,
        2,
        0,
    )
    assert (two.lowest_lsn, two.highest_lsn) == (5, 6)
