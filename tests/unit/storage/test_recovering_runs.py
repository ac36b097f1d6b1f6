"""Parts of runs: cut by position, and what is left of a run whose body does not verify."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from quire.core.ledger.metadata import DigestType
from quire.core.ledger.quorum import stripes_of_slot
from quire.storage.formats.footer_format import Row
from quire.storage.reading import cut_run, ends_of, positions_of, recover_run
from quire.wire.run import RUN_HEADER_BYTES, RunView, ids_in
from support.storage_disk import make_run, payload_of


@st.composite
def runs(draw: st.DrawFn) -> RunView:
    """A run of a striped ledger or of another one, or of a stream."""
    period = draw(st.integers(1, 5))
    stripes = stripes_of_slot(draw(st.integers(0, period - 1)), period, draw(st.integers(1, period)))
    low = draw(st.integers(0, 1000))
    ids = ids_in(low, low + draw(st.integers(period, 30)), period, stripes if period > 1 else 1)
    return make_run(
        9, ids[0], ids[-1], period=period, stripes=stripes if period > 1 else 1, payload=b"p" * 30,
        origin_term=draw(st.sampled_from((0, 3))),
    )  # fmt: skip


def row_of(run: RunView) -> Row:
    return Row(
        9, run.origin_term, run.first, run.last, 5, 64, len(run.body), run.count, run.period, 0,
        int(DigestType.CRC32C), 0x81, run.stripes,
    )  # fmt: skip


@given(runs(), st.integers(0, 1040), st.integers(0, 40))
def test_a_part_holds_what_lies_within(run: RunView, first: int, length: int) -> None:
    within = [entry_id for entry_id in run.ids() if first <= entry_id <= first + length]
    row = row_of(run)
    start, end = positions_of(row, first, first + length)
    assert list(run.ids()[start:end]) == within
    assert ends_of(row, first, first + length) == ((within[0], within[-1]) if within else None)
    if within:
        offsets = run.offsets()
        cut = RunView.parse(cut_run(run, start, end, memoryview(run.body)[offsets[start] : offsets[end]]))
        cut.check_identity()
        assert list(cut.ids()) == within


@given(runs(), st.integers(0, 2**32), st.integers(0, 4), st.integers(0, 1040), st.integers(0, 40))
def test_whatever_is_turned_each_entry_is_whole_or_called_damaged(
    run: RunView, seed: int, turned: int, first: int, length: int
) -> None:
    chance, body, offsets = random.Random(seed), bytearray(run.body), run.offsets()
    at = [chance.randrange(len(body)) for _ in range(turned)]
    for place in at:
        body[place] ^= 1 << chance.randrange(8)
    row = row_of(run)
    left = recover_run(bytes(body), row, first, first + length)
    wanted = [entry_id for entry_id in run.ids() if first <= entry_id <= first + length]
    good = {entry_id: bytes(entry) for one in left.runs for entry_id, entry in one.entries()}
    bad = [entry_id for low, high in left.damaged for entry_id in ids_in(low, high, run.period, run.stripes)]
    assert sorted([*good, *bad]) == wanted
    for entry_id, entry in good.items():
        assert payload_of(memoryview(entry), 9, entry_id, run.origin_term)
        assert entry == bytes(run.entry(run.position(entry_id)))
    table = RUN_HEADER_BYTES + 4 * run.count
    touched = {
        position
        for position in range(run.count)
        for place in at
        if offsets[position] <= place < offsets[position + 1]
    }
    if bytes(body[:table]) == bytes(run.body[:table]):
        assert set(good) >= {entry_id for entry_id in wanted if run.position(entry_id) not in touched}


def test_without_a_digest_that_a_bookie_can_verify_all_of_a_run_is_damaged() -> None:
    run = make_run(9, 3, 7)
    assert [one.count for one in recover_run(run.body, row_of(run), 0, 100).runs] == [5]
    for row in (
        row_of(run)._replace(digest_type=int(DigestType.HMAC)),
        row_of(run)._replace(last=8, entries=6),
    ):
        left = recover_run(run.body, row, 0, 6)
        assert (left.runs, left.damaged) == ((), ((3, 6),))
    assert recover_run(run.body, row_of(run), 8, 9) == ((), ())
