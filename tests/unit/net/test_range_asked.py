"""Ranges over V2 and V3: an entry that comes with "no such entry" is one if its digest and its ids say so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.ids import LedgerId
from quire.core.ledger_metadata import DigestType
from quire.net.bookkeeper_asked import PendingRequest, RangeAsked
from quire.wire.entry import EntryDigest, master_key
from quire.wire.requests import ReadRange
from quire.wire.responses import ReadReply

PASSWORD = b"pw"


class Connection:
    """Asks for nothing by itself, and keeps the response."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.replies: list[ReadReply] = []

    def ask_entries(self, asked: RangeAsked, entry_ids: Sequence[int]) -> None:
        self.asked += entry_ids

    def finished(self, asked: PendingRequest) -> None:
        assert asked.done

    def answered(self, tag: object, response: ReadReply) -> None:
        self.replies.append(response)


def denied_with(digest_type: DigestType, body: bytes, *, recovery: bool) -> ReadReply:
    """What is made of "no such entry" about entry 7 of ledger 5, with a body."""
    ledger = LedgerAccess(LedgerId(5), master_key(PASSWORD), 0, EntryDigest(digest_type, PASSWORD))
    connection = Connection()
    request = ReadRange(ledger, 7, 7, 1000, fence=recovery, recovery=recovery)
    asked = RangeAsked(connection, request, connection, None, 1.0)
    asked.start()
    assert connection.asked == [7]
    asked.got(7, Answer.NO_ENTRY, body, -1)
    [reply] = connection.replies
    return reply


def entry_of(digest_type: DigestType, ledger_id: int = 5, entry_id: int = 7) -> bytes:
    return EntryDigest(digest_type, PASSWORD).seal_one(ledger_id, entry_id, 6, 70, b"payload") + b"payload"


@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize("digest_type", [DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC])
def test_the_entry_itself_is_the_response(digest_type: DigestType, recovery: bool) -> None:
    entry = entry_of(digest_type)
    reply = denied_with(digest_type, entry, recovery=recovery)
    assert [bytes(one) for run in reply.runs for _, one in run.entries()] == [entry]


@pytest.mark.parametrize(
    ("digest_type", "body"),
    [
        (DigestType.CRC32C, b""),
        (DigestType.CRC32C, b"x" * 60),
        (DigestType.CRC32C, entry_of(DigestType.CRC32C)[:-1]),
        (DigestType.CRC32C, entry_of(DigestType.CRC32C, entry_id=8)),
        (DigestType.CRC32C, entry_of(DigestType.CRC32C, ledger_id=6)),
        (DigestType.CRC32C, entry_of(DigestType.HMAC)),
        (DigestType.DUMMY, entry_of(DigestType.DUMMY)),
    ],
)
def test_what_proves_nothing_stays_a_negative(digest_type: DigestType, body: bytes) -> None:
    for recovery in (False, True):
        reply = denied_with(digest_type, body, recovery=recovery)
        assert not reply.runs
        assert reply.answer is Answer.OK
        assert (reply.vouched_through, reply.unknown) == (7, [])
