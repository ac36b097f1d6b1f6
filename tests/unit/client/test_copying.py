"""Entries made into runs again."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import AddRequester, BookieClient
from quire.client.reading.range_read import open_runs
from quire.client.repairing.ledger_repair import unlimited
from quire.client.repairing.range_copy import RangeCopier
from quire.core.answers import Answer
from quire.core.ids import BookieId, EntryId, LedgerId, Term
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.terms import TermRange
from quire.core.repair.effects import CopyRange
from quire.wire.entries import copies
from quire.wire.entry import Entry, EntryDigest
from quire.wire.native_bodies import BY_ID
from quire.wire.requests import AddRun
from quire.wire.responses import ReadReply
from quire.wire.run import RunView, checksum

ACCESS = LedgerAccess(LedgerId(5), b"k" * 20, 1, EntryDigest(DigestType.CRC32C, b""))


def entry(entry_id: int) -> Entry:
    return Entry(LedgerId(5), EntryId(entry_id), EntryId(entry_id - 1), 7 * entry_id, b"x" * (entry_id % 9))


@given(
    st.lists(st.integers(0, 60), unique=True).map(sorted),
    st.integers(1, 400),
    st.sampled_from([(1, 1), (3, 0b011), (4, 0b1101), (6, 0b000111)]),
    st.sampled_from([None, -1, 4]),
)
def test_copies_hold_the_stripes_and_nothing_else(ids, bytes_max, shape, lac) -> None:
    period, stripes = shape
    runs = list(
        copies([entry(e) for e in ids], ACCESS.digest, bytes_max, period=period, stripes=stripes, lac=lac)
    )
    wanted = [e for e in ids if stripes >> e % period & 1]
    views = [RunView.parse(run.body) for run in runs]
    assert all(run.body_crc == checksum(run.body) for run in runs)
    assert [e for view in views for e in view.ids()] == wanted
    found, bad, _ = open_runs(views, ACCESS, 0, 100)
    assert not bad
    for got in found:
        before = entry(got.entry_id)
        assert (got.length, got.payload) == (before.length, before.payload)
        assert got.last_add_confirmed == (before.last_add_confirmed if lac is None else lac)


def test_the_bytes_of_a_copy_are_those_of_the_original() -> None:
    (run,) = copies([entry(e) for e in range(5, 20)], ACCESS.digest, 10_000)
    (again,) = copies(open_runs([RunView.parse(run.body)], ACCESS, 0, 99)[0], ACCESS.digest, 10_000)
    assert again.body == run.body


def test_runs_that_overlap_are_put_in_order_and_clipped() -> None:
    low = [RunView.parse(run.body) for run in copies([entry(e) for e in range(10)], ACCESS.digest, 10_000)]
    high = [
        RunView.parse(run.body) for run in copies([entry(e) for e in range(5, 15)], ACCESS.digest, 10_000)
    ]
    found, bad, _ = open_runs(high + low, ACCESS, 3, 12)
    assert [got.entry_id for got in found] == list(range(3, 13))
    assert not bad


def test_an_entry_with_a_wrong_digest_is_named() -> None:
    (run,) = copies([entry(e) for e in range(10)], ACCESS.digest, 10_000)
    body = bytearray(run.body)
    body[RunView.parse(run.body).offsets()[4] + 3] ^= 1
    found, bad, _ = open_runs([RunView.parse(bytes(body))], ACCESS, 0, 9)
    assert bad == [(4, 4)]
    assert [got.entry_id for got in found] == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_by_id_what_a_newer_term_has_put_anew_is_left_over() -> None:
    """A bookie whose directory was put back has entries of term 1 where the record names term 2."""
    ranges = (TermRange(Term(1), EntryId(0)), TermRange(Term(2), EntryId(5)))
    old, new = (
        [
            RunView.parse(run.body)
            for run in copies([entry(e) for e in ids], ACCESS.digest, 10_000, origin_term=term)
        ]
        for term, ids in ((1, range(10)), (2, range(5, 8)))
    )
    found = [open_runs(runs, ACCESS, 0, 9, BY_ID, ranges=ranges)[0].entry_ids for runs in (old, old + new)]
    assert [list(ids) for ids in found] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert list(open_runs(old, ACCESS, 0, 9, BY_ID)[0].entry_ids) == list(range(10))


class Sources:
    """b1 has none of the entries that it is asked for; b2 hangs."""

    def __init__(self) -> None:
        self.asked: list[BookieId] = []

    async def read(
        self, source: BookieId, access: LedgerAccess, first: int, last: int, *_: Any, **__: Any
    ) -> ReadReply:
        self.asked.append(source)
        if source == "b2":
            return ReadReply(Answer.TIMED_OUT)
        found = [
            RunView.parse(run.body)
            for run in copies([entry(e) for e in range(first, last + 1) if e % 100], access.digest, 1 << 20)
        ]
        return ReadReply(Answer.OK, found, last)

    def add_run(
        self, bookie: BookieId, run: AddRun, requester: AddRequester, tag: object, timeout_ms: int
    ) -> bool:
        asyncio.get_running_loop().call_soon(requester.add_answered, tag, Answer.OK)
        return True


async def test_a_source_that_hangs_is_waited_for_once() -> None:
    sources = Sources()
    copier = RangeCopier(
        cast("BookieClient", sources),
        ACCESS,
        run_bytes_max=1 << 20,
        timeout_ms=1,
        may_send=unlimited,
        lists={},
    )
    piece = CopyRange(BookieId("b3"), EntryRange(0, 999), (BookieId("b2"), BookieId("b1")))
    outcome = await copier.copy(piece)
    assert (outcome.answer, outcome.count) == (Answer.OK, 990)
    assert sources.asked == ["b1", "b2"]
