"""Many small ledgers become a large one: same records, same offsets, whatever happens beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import ListChangedError, MetadataUnknownError, MisuseError, StagedLedgerGoneError
from quire.core.ids import LedgerId
from quire.core.log.commit import CommitBatch, Part
from quire.core.log.list import (
    ItemFlags,
    ItemState,
    LogHead,
    LogItem,
    LogPage,
    PageLayout,
    PageRef,
    paged,
)
from quire.core.log.rewriting import Replacement, replaceable, with_replaced
from quire.env.real import RealClock
from quire.log.collecting import LogCollector
from quire.log.committing import LogCommitter
from quire.log.heads import LogHeads
from quire.log.log import Log
from quire.log.rewriting import LogRewriter
from quire.log.staging import StagedBy
from quire.metadata.memory import MemoryStore
from quire.metadata.store import Op, Put
from support.log_cluster import FAST, World, log_id_of, numbers, staged, take, values, world

BY = StagedBy(host="here")


async def many_small(at: World, ledgers: int = 12, each: int = 5) -> Log:
    """A log of closed ledgers with some records each, most of them in pages."""
    log = await at.made()
    async with await log.open_writer() as writer:
        for part in range(ledgers):
            first = part * each
            await writer.append_many(
                numbers(first, first + each), timestamps_ms=[1000 - n for n in range(first, first + each)]
            )
            await writer.roll()
    return log


async def rewriter(at: World) -> LogRewriter:
    log_id = await LogHeads(at.store).find("orders")
    assert log_id is not None
    return LogRewriter(at.client, log_id, config=FAST)


async def rolled_up(at: World, in_groups_of: int) -> list[Replacement]:
    work = await rewriter(at)
    head, items = await work.candidates()
    groups = [items[start : start + in_groups_of] for start in range(0, len(items), in_groups_of)]
    made = [await work.copy(group, head.settings, BY) for group in groups if len(group) > 1]
    await work.replace(made)
    return made


async def offsets_and_values(log: Log) -> list[tuple[int, bytes | None, int]]:
    return [(record.offset, record.value, record.timestamp_ms) async for record in log.read()]


@pytest.mark.parametrize("in_groups_of", [2, 3, 5, 100])
async def test_records_offsets_and_times_stay_and_the_list_is_short(at: World, in_groups_of: int) -> None:
    log = await many_small(at)
    before = await offsets_and_values(log)
    was = await log.describe()
    made = await rolled_up(at, in_groups_of)
    assert await offsets_and_values(log) == before
    now = await log.describe()
    assert len(now.items) == len(was.items) - sum(len(each.old) - 1 for each in made)
    assert (now.start_offset, now.end_offset) == (was.start_offset, was.end_offset)
    for each in made:
        [item] = [item for item in now.items if item.ledger_id == each.new.ledger_id]
        assert (item.first_offset, item.next_offset) == (
            each.old[0].first_offset,
            each.old[-1].next_offset,
        )
        assert item.min_time_ms == min(old.min_time_ms or 0 for old in each.old)
        assert item.max_time_ms == max(old.max_time_ms or 0 for old in each.old)
    # A seek into the middle of what was several ledgers.
    assert await values(log, 17, 23) == numbers(17, 23)
    # It can be done again with what is there now.
    await rolled_up(at, 2)
    assert await offsets_and_values(log) == before


class Meanwhile(MemoryStore):
    """A store that takes a list in, loses its response, and has another client do something before it is asked again."""

    then: Callable[[], Awaitable[object]] | None = None
    done = True

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        then, heads = self.then, [op for op in ops if isinstance(op, Put) and op.key.startswith("logs/")]
        if then is None or not heads:
            return await super().multi(ops)
        self.then = None
        if self.done:
            await super().multi(ops)
        await then()
        raise MetadataUnknownError("lost")


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("way", ["rewritten", "truncated", "appended"])
async def test_a_nameless_batch_whose_ledger_may_have_left_the_list_is_not_committed_again(
    tmp_path: Path, way: str, done: bool
) -> None:
    store = Meanwhile()
    async with world(tmp_path, store) as at:
        log = await many_small(at, 1)
        batch = CommitBatch((Part(await log_id_of(at), (await staged(at, [b"new"], by=BY),)),))

        async def appended() -> None:
            async with await log.open_writer() as writer:
                for each in (b"x", b"y"):
                    await writer.append(each)
                    await writer.roll()

        async def rewritten() -> None:
            await appended()
            await rolled_up(at, 100)

        async def truncated() -> None:
            await appended()
            await log.truncate(before=(await log.describe()).end_offset)

        store.then, store.done = (
            {"rewritten": rewritten, "truncated": truncated, "appended": appended}[way],
            done,
        )
        committer = LogCommitter(at.client, ["orders"], batch, config=FAST)
        if way == "appended":
            await committer.commit()
            others = [b"x", b"y"]
            assert await values(log, 5) == ([b"new", *others] if done else [*others, b"new"])
        else:
            before = [] if way == "truncated" else [b"new", b"x", b"y"] if done else [b"x", b"y"]
            with pytest.raises(MetadataUnknownError, match="rewritten or truncated after offset 5"):
                await committer.commit()
            start = (await log.describe()).start_offset
            assert await values(log, max(start, 5)) == before


async def test_a_leader_goes_on_and_a_reader_that_was_on_its_way_ends(at: World) -> None:
    clock = LaterClock()
    at.client.clock = clock
    log = await many_small(at)
    async with await log.open_writer() as writer:
        await writer.append_many(numbers(60, 65))
        reading = log.read_entries()
        first = await anext(reading)
        assert first.first_offset == 0
        await rolled_up(at, 100)
        await writer.append_many(numbers(65, 70))
        await writer.roll()
        await writer.append_many(numbers(70, 75))
        # Everything that left the list is deleted at last: the reader finds its records where they are now.
        collector = LogCollector(at.client, grace_ms=1000)
        await collector.collect()
        clock.later_ms = 2000
        gone = await collector.collect()
        assert len(gone.ledgers) > 5
        rest = [batch async for batch in reading]
        assert [batch.first_offset for batch in rest][:12] == list(range(5, 65, 5))
    assert await values(log) == numbers(0, 75)
    tail = log.tail(58)
    assert [record.value for record in await take(tail, 10)] == numbers(58, 68)


async def test_what_was_truncated_meanwhile_is_not_brought_back(at: World) -> None:
    log = await many_small(at)
    maker = await rewriter(at)
    head, items = await maker.candidates()
    early = await maker.copy(items[:4], head.settings, BY)
    late = await maker.copy(items[6:9], head.settings, BY)
    await log.truncate(before=17)
    with pytest.raises(ListChangedError, match="no longer has ledgers"):
        await maker.replace([early, late])
    await maker.replace([late])
    assert await values(log) == numbers(17, 60)
    with pytest.raises(ListChangedError):
        await maker.replace([await maker.copy(items[6:9], head.settings, BY)])
    await log.truncate(before=44)
    assert await values(log) == numbers(44, 60)


async def test_a_copy_that_the_collector_took_is_not_listed(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said at once: another attempt finds it no more than the first."""
    log = await many_small(at)
    maker = await rewriter(at)
    head, items = await maker.candidates()
    made = await maker.copy(items[:4], head.settings, BY)
    await at.client.delete_ledger(made.new.ledger_id)
    looked, guard = [], maker._guard
    monkeypatch.setattr(maker, "_guard", lambda new, *rest: (looked.append(new), guard(new, *rest))[1])
    with pytest.raises(StagedLedgerGoneError):
        await maker.replace([made])
    assert looked == [made.new]
    assert await values(log) == numbers(0, 60)


class ForgetfulStore(MemoryStore):
    """Says now and then that nobody knows what became of a transaction."""

    lost = 0
    """So many answers will be lost."""

    async def multi(self, operations: Any) -> Any:
        done = await super().multi(operations)
        if self.lost:
            self.lost -= 1
            raise MetadataUnknownError("the answer is lost")
        return done


async def test_a_cas_whose_answer_is_lost_happens_once(tmp_path: Path) -> None:
    store = ForgetfulStore()
    async with world(tmp_path, store) as at:
        log = await many_small(at)
        maker = await rewriter(at)
        head, items = await maker.candidates()
        made = await maker.copy(items[:4], head.settings, BY)
        store.lost = 1
        await maker.replace([made])
        assert store.lost == 0
        assert await values(log) == numbers(0, 60)
        assert [item.ledger_id for item in (await log.describe()).items].count(made.new.ledger_id) == 1


class LaterClock(RealClock):
    """The real clock, some time later."""

    later_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.later_ms


# --- the list alone -------------------------------------------------------------------------------------------------


def name_of(page: LogPage) -> str:
    return f"{page.level}:{(page.items or page.children)[0].first_offset}:{len(page.items or page.children)}"


def a_list(counts: list[int], layout: PageLayout) -> tuple[LogHead, dict[str, LogPage]]:
    """A head of closed ledgers with these counts, and its pages by name."""
    stored: dict[str, LogPage] = {}
    head = LogHead(b"0" * 16, "orders")
    for ledger_id, count in enumerate(counts):
        end = head.closed_end
        item = LogItem(
            LedgerId(ledger_id), 1, end, end + count, count, count * 10, 5, 9, state=ItemState.CLOSED
        )
        head, pages = paged(head.with_item(item), layout, name_of)
        stored |= {name_of(page): page for page in pages}
    return head, stored


def below(page: PageRef, stored: dict[str, LogPage]) -> list[LogItem]:
    found = stored[page.name]
    return [*found.items, *(item for child in found.children for item in below(child, stored))]


@given(
    counts=st.lists(st.integers(1, 9), min_size=3, max_size=60),
    layout=st.builds(PageLayout, st.integers(2, 5), st.integers(2, 4)),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    skip=st.integers(1, 3),
)
def test_any_neighbours_of_any_list_can_become_one(
    counts: list[int], layout: PageLayout, cuts: list[int], skip: int
) -> None:
    head, stored = a_list(counts, layout)
    pages = [(page, below(page, stored)) for page in head.pages]
    before = [*(item for _, items in pages for item in items), *head.items]
    allowed = replaceable(head, before)
    groups = [allowed[low:high] for low, high in pairwise(sorted({0, len(allowed), *cuts}))][::skip]
    made = [
        Replacement.by_copy(group, LogItem(LedgerId(1000 + place), 2, count=sum(i.count for i in group)))
        for place, group in enumerate(groups)
        if group and group[-1].ledger_id < len(counts)
    ]
    after, new_pages = with_replaced(head, pages, made, layout, name_of)
    stored |= {name_of(page): page for page in new_pages}
    items = [*(item for page in after.pages for item in below(page, stored)), *after.items]
    assert [item.next_offset for item in items][-1] == sum(counts)
    assert all(one.next_offset == other.first_offset for one, other in pairwise(items))
    replaced = {item.ledger_id: each.new.ledger_id for each in made for item in each.old}
    assert [item.ledger_id for item in items] == list(
        dict.fromkeys(replaced.get(item.ledger_id, item.ledger_id) for item in before)
    )
    assert [i.flags for i in items] == [ItemFlags.REWRITTEN if i.ledger_id >= 1000 else 0 for i in items]
    # The last items keep their places; the head stays as small as its layout wants it.
    assert after.first_item_index + len(after.items) == len(counts)
    assert len(after.items) <= layout.page_items + 2
    assert after.closed_end == head.closed_end


def test_what_is_no_neighbour_or_counts_otherwise_is_refused() -> None:
    head, _ = a_list([2, 3, 4, 5, 6], PageLayout(100, 100))
    one, _, three = head.items[:3]
    new = LogItem(LedgerId(9), 1, count=6)
    with pytest.raises(MisuseError, match="neighbours"):
        Replacement.by_copy((one, three), new)
    with pytest.raises(MisuseError, match="holds 6 records, the old ones 2"):
        Replacement.by_copy((one,), new)
    last = Replacement.by_copy((head.items[-1],), new)
    with pytest.raises(ListChangedError):
        with_replaced(head, [], [last], PageLayout(), name_of)
    changed = Replacement.by_copy((replace(one, digest=1),), replace(new, count=2))
    with pytest.raises(ListChangedError):
        with_replaced(head, [], [changed], PageLayout(), name_of)
