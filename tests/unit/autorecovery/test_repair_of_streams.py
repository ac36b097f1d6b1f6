"""Repair of streams with whole programs: what is decided of them is copied under its origin term, by command and by itself.

Source: docs/protocol/repair.md, "Streams"; docs/protocol/streams.md.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from quire.autorecovery.repair import ClusterRepair
from quire.cli.cluster.marked import marked_ledgers, shown
from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import AddRequester
from quire.client.client import Client
from quire.client.repairing.scrubbing import NO_TERMS, CopyVerdict, Finding, ReplicaCheck, windows
from quire.client.streams.unbounded import UnboundedLedger
from quire.client.writing.writer import LedgerWriter
from quire.core.answers import Answer
from quire.core.ids import BookieId, EntryId, LedgerId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.stripes import BookieStripes, bookie_stripes
from quire.core.repair.effects import RepairOutcome
from quire.core.repair.under_replicated_marks import LedgerRepairs, MarkReason, WaitsFor
from quire.metadata.repairs import Stored
from quire.wire.entries import copies
from quire.wire.entry import Entry
from quire.wire.requests import AddRun
from support.recovering_cluster import recovering_cluster
from support.small_cluster import SmallCluster, small_cluster
from support.stream_modes import BOTH, taken
from support.waiting import until_async

COUNT = 20


class _Answered(AddRequester):
    """One run's answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def add_answered(self, tag: object, answer: Answer) -> None:
        self.answer.set_result(answer)


async def leave(
    client: Client,
    record: LedgerMetadata,
    bookie: BookieId,
    entry_id: int,
    origin: int,
    payload: bytes = b"dirty!",
    length: int = 6,
) -> None:
    """A bookie has an entry, unless said otherwise one that no reader is given: of an earlier term."""
    access = LedgerAccess.of(record, record.term)
    entry = Entry(LedgerId(record.ledger_id), EntryId(entry_id), EntryId(-1), length, payload)
    (made,) = copies([entry], access.digest, 1 << 20, origin_term=origin)
    requester = _Answered()
    request = AddRun(access, made.body, made.body_crc, -1, recovery=True, term=record.term)
    client.bookies.add_run(bookie, request, requester, None)
    assert await requester.answer is Answer.OK


async def values(client: Client, record: LedgerMetadata, bookie: BookieId) -> set[tuple[int, int]]:
    """The entries that a bookie lists, each with its origin term."""
    answer, held = await client.bookies.list_entries(bookie, LedgerAccess.of(record), timeout_ms=5000)
    assert answer in {Answer.OK, Answer.NO_LEDGER}
    return {
        (entry, each.origin_term)
        for each in held
        for entry in range(each.first, each.last + 1)
        if each.stripes >> entry % each.period & 1
    }


async def appended(writer: LedgerWriter, first: int, count: int = COUNT) -> None:
    await asyncio.gather(*(writer.append(b"%d" % number) for number in range(first, first + count)))


def first_of_second(mode: str) -> int:
    """The first id that a user has in the second term of `in_two_terms`."""
    return COUNT + taken(mode, 2)


async def in_two_terms(
    cluster: SmallCluster, mode: str, **shape: Any
) -> tuple[Client, UnboundedLedger, LedgerWriter, BookieId]:
    """A stream of two terms that are both decided, in a fragment of which one bookie is gone, and its living writer.

    One bookie of the fragment and the spares have an entry of the first term at an id of the second.
    """
    client = await cluster.client()
    stream = client.unbounded_ledger("s", b"p", mode=mode)
    await stream.create(**shape)
    async with await stream.open_writer() as writer:
        await appended(writer, 0)
    other = (await cluster.client()).unbounded_ledger("s", b"p", mode=mode)
    writer = await other.open_writer()
    record = await stream.show()
    spares = {*cluster.servers} - {*record.last_fragment.ensemble}
    for bookie in (record.last_fragment.ensemble[1], *spares):
        await leave(client, record, bookie, first_of_second(mode), 2)
    await appended(writer, COUNT)
    gone = record.last_fragment.ensemble[0]
    await cluster.stop_bookie(gone, clean=False)
    await appended(writer, 2 * COUNT)
    assert gone not in (await stream.show()).last_fragment.ensemble
    return client, stream, writer, gone


async def _replaced(tmp_path: Path, mode: str, shape: dict[str, int]) -> None:
    async with small_cluster(tmp_path, shape["ensemble_size"] + 2) as cluster:
        client, stream, writer, gone = await in_two_terms(cluster, mode, **shape)
        before = await stream.show()
        repair = ClusterRepair(client, lost=[gone])
        found = await repair.look()
        assert set(found.ledgers) == {before.ledger_id}
        totals = await repair.run(found.to_repair)
        assert [ended.outcome for ended in totals.ended.values()] == [RepairOutcome.WHOLE]
        after = await stream.show()
        assert [fragment.first_entry for fragment in after.fragments] == [
            f.first_entry for f in before.fragments
        ]
        assert (after.terms, after.state) == (before.terms, before.state)
        named = {bookie for fragment in after.fragments for bookie in fragment.ensemble}
        assert gone not in named
        (replaced,) = totals.ended.values()
        ((first, _, target),) = replaced.report.replaced
        assert first == 0
        decided = after.fragments[1].first_entry
        slot = after.fragments[0].ensemble.index(target)
        expected = {
            (entry, after.origin_of(entry))
            for entry in range(decided)
            if (slot - entry) % after.ensemble_size < after.write_quorum
        }
        held = {value for value in await values(client, after, target) if value[0] < decided}
        left = {(first_of_second(mode), 2)} if mode == "identifiers" else set()
        assert held - expected == left, "what was there, and nothing of an earlier term was copied"
        assert expected <= held
        await appended(writer, 3 * COUNT)  # the writer goes on with a record that the repair has changed
        second = after.fragments[0].ensemble[1]
        await cluster.stop_bookie(second, clean=False)
        third = await stream.open_writer()
        await appended(third, 4 * COUNT)
        reader = await stream.open_reader()
        last = 5 * COUNT + taken(mode, 3) - 1

        async def is_known() -> bool:
            return await reader.refresh() >= last

        await until_async(is_known, "the last add confirmed to be told")
        read = [bytes(entry.payload) async for entry in reader.read(0, last)]
        assert read == [b"%d" % number for number in range(5 * COUNT)]
        report = await stream.verify()
        assert report.entries == last + 1
        assert (report.good, report.different, report.lost) == (True, [], [])
        assert {hole.bookie for hole in report.holes} == {second}, "nothing else is missing"
        again = ClusterRepair(client, lost=[gone])
        assert (await again.look()).ledgers.keys() <= {before.ledger_id}


@BOTH
async def test_a_bookie_that_is_gone_is_replaced_in_what_is_decided_of_a_stream(
    tmp_path: Path, mode: str
) -> None:
    await _replaced(tmp_path, mode, {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2})


@BOTH
async def test_a_striped_stream_is_repaired_class_by_class(tmp_path: Path, mode: str) -> None:
    await _replaced(tmp_path, mode, {"ensemble_size": 4, "write_quorum": 3, "ack_quorum": 2})


async def test_where_terms_fence_what_other_terms_left_on_a_target_is_dropped(tmp_path: Path) -> None:
    """What the target has of an earlier term goes, and what it has of the right one stays and is not copied."""
    async with small_cluster(tmp_path, 5) as cluster:
        client = await cluster.client()
        stream = client.unbounded_ledger("s", b"p", mode="fencing")
        await stream.create()
        async with await stream.open_writer() as writer:
            await appended(writer, 0)
        writer = await stream.open_writer()
        record = await stream.show()
        named = record.last_fragment.ensemble
        no_op = record.ranges[-1].first_entry
        for bookie in {*cluster.servers} - {*named}:
            await leave(client, record, bookie, no_op + 3, 2)
        await appended(writer, COUNT)
        for bookie in {*cluster.servers} - {*named}:
            await leave(client, record, bookie, no_op + 1, 3, b"20", 32)
            await leave(client, record, bookie, no_op + 2, 3, b"21", 34)
            await leave(client, record, bookie, no_op + 2, 2)
        gone = named[0]
        await cluster.stop_bookie(gone, clean=False)
        await appended(writer, 2 * COUNT)
        repair = ClusterRepair(client, lost=[gone])
        totals = await repair.run((await repair.look()).to_repair)
        (ended,) = totals.ended.values()
        assert ended.outcome is RepairOutcome.WHOLE
        after = await stream.show()
        ((_, _, target),) = ended.report.replaced
        decided = after.fragments[1].first_entry
        held = {value for value in await values(client, after, target) if value[0] < decided}
        assert held == {(entry, after.origin_of(entry)) for entry in range(decided)}
        assert ended.report.copied == decided - 1, "the one that was there already stays"
        report = await stream.verify()
        assert (report.complete, report.different) == (True, [])
        async with await stream.open_writer():
            pass  # all below its no-op is there for certain
        read = [bytes(entry.payload) async for entry in stream.read()]
        assert read == [b"%d" % number for number in range(3 * COUNT)]


async def _without_terms(tmp_path: Path, mode: str) -> None:
    async with small_cluster(tmp_path, 4) as cluster:
        client, stream, _, gone = await in_two_terms(
            cluster, mode, ensemble_size=3, write_quorum=3, ack_quorum=2
        )
        record = await stream.show()
        client.bookies.writable = lambda needs=(): [] if needs else sorted(cluster.servers)  # type: ignore[method-assign]
        repair = ClusterRepair(client, lost=[gone])
        totals = await repair.run((await repair.look()).to_repair)
        (ended,) = totals.ended.values()
        assert ended.outcome is RepairOutcome.INCOMPLETE
        assert ended.report.left == {gone: "it is gone, and no other bookie can take its place"}
        assert await stream.show() == record


@BOTH
async def test_a_bookie_that_does_not_know_terms_takes_no_slot(tmp_path: Path, mode: str) -> None:
    await _without_terms(tmp_path, mode)


@BOTH
def test_an_auditor_and_a_worker_repair_a_stream_and_leave_its_open_fragment(mode: str) -> None:
    with recovering_cluster(5, lost_delay_s=0) as cluster:
        stream = cluster.client.unbounded_ledger("s", mode=mode)

        async def write(count: int) -> tuple[int, list[str]]:
            async with await stream.open_writer() as writer:
                for number in range(count):
                    await writer.append(b"%d" % number)
            record = await stream.show()
            return record.ledger_id, [bookie.partition(".")[0] for bookie in record.last_fragment.ensemble]

        def named(fragment: int) -> set[str]:
            record = cluster.run(stream.show())
            return {bookie.partition(".")[0] for bookie in record.fragments[fragment].ensemble}

        async def create() -> None:
            await stream.create(ensemble_size=3, write_quorum=3, ack_quorum=2)

        cluster.run(create())
        cluster.run(write(10))
        ledger_id, ensemble = cluster.run(write(10))
        daemon = cluster.recover()
        gone = cluster.lose(ensemble[0])
        # An idle stream has nothing that is decided: it is marked, looked at, and left to who writes it next.
        cluster.until(lambda: ledger_id in cluster.marked() and daemon.worker.queue.counts.attempts > 0, 120)
        mark = cluster.marked()[ledger_id]
        assert isinstance(mark, Stored)
        assert isinstance(mark.mark, LedgerRepairs)
        assert [(each.reason, each.bookie) for each in mark.mark.marks] == [(MarkReason.GONE, gone)]
        cluster.wait(200)
        attempts = daemon.worker.queue.counts.attempts
        assert attempts < 10
        found = cluster.marked()[ledger_id].mark
        assert isinstance(found, LedgerRepairs)
        assert found.attempts is not None
        assert found.attempts.waits is WaitsFor.WRITER
        (row,), _ = cluster.run(marked_ledgers(cluster.client.records, cluster.marks))
        assert (row["ledger_id"], row["stream"], row["copies_left"], row["bookies"]) == (
            ledger_id,
            "s",
            2,
            [gone],
        )
        assert shown(row)["ledger_id"] == f"{ledger_id} (stream s)"
        assert cluster.run(stream.show()).term == 3, "nobody has taken it over"
        assert named(-1) == {*ensemble}
        # The next writer moves it on; what is decided then is repaired, and the marks go.
        cluster.run(write(10))
        assert named(-1) != {*ensemble}
        cluster.until(lambda: cluster.marked() == {}, 600)
        assert ensemble[0] not in named(0) | named(-1)


async def _looked_at(tmp_path: Path, mode: str) -> None:
    async with small_cluster(tmp_path, 5) as cluster:
        client, stream, _, gone = await in_two_terms(
            cluster, mode, ensemble_size=3, write_quorum=3, ack_quorum=2
        )
        record = await stream.show()
        check = ReplicaCheck(client.bookies, record, 1000)
        by_bookie: dict[BookieId, list[BookieStripes]] = {}
        for part in bookie_stripes(record):
            by_bookie.setdefault(part.bookie, []).append(part)
        decided = record.last_fragment.first_entry
        parts = [(each.first, each.last, each.origin_term) for each in by_bookie[gone]]
        second = COUNT + taken(mode)
        assert parts == [(0, second - 1, 2), (second, decided - 1, 3)]
        dirty = record.fragments[0].ensemble[1]
        for bookie, mine in by_bookie.items():
            listed = await check.audit(bookie, mine)
            read = [await check.scrub(window) for part in mine for window in windows(record, part)]
            found = [finding for window in read for finding in window.findings]
            if bookie == gone:
                assert {each.verdict for each in (*listed, *found)} == {CopyVerdict.UNKNOWN}
                continue
            assert sum(window.entries for window in read) == decided
            assert found == [], "what another term left is not read"
            left = first_of_second(mode)
            assert listed == ([Finding(left, left, CopyVerdict.OVER_REPLICATED)] if bookie == dirty else [])
        other = next(iter({*by_bookie} - {gone, dirty}))
        prints = [
            [
                (await check.scrub(window)).fingerprints
                for part in by_bookie[bookie]
                for window in windows(record, part)
            ]
            for bookie in (dirty, other)
        ]
        assert prints[0] == prints[1]
        # Under the wrong term nothing is there: a bookie that has only what another term left lacks the entry.
        wrong = [replace(part, origin_term=part.origin_term + 7) for part in by_bookie[other]]
        assert {each.verdict for each in await check.audit(other, wrong)} == {
            CopyVerdict.MISSING,
            CopyVerdict.OVER_REPLICATED,
        }
        read = [await check.scrub(part) for part in wrong]
        assert [(f.first, f.last, f.verdict) for window in read for f in window.findings] == [
            (part.first, part.last, CopyVerdict.MISSING) for part in wrong
        ]


@BOTH
async def test_a_scrub_looks_for_a_streams_entries_under_their_terms(tmp_path: Path, mode: str) -> None:
    await _looked_at(tmp_path, mode)


@BOTH
async def test_a_scrub_does_not_ask_a_bookie_that_does_not_know_terms_for_a_streams_entries(
    tmp_path: Path, mode: str
) -> None:
    async with small_cluster(tmp_path, 5) as cluster:
        client, stream, _, gone = await in_two_terms(
            cluster, mode, ensemble_size=3, write_quorum=3, ack_quorum=2
        )
        record = await stream.show()
        client.bookies.unable = lambda needs: sorted(cluster.servers)  # type: ignore[method-assign]
        check = ReplicaCheck(client.bookies, record, 1000)
        (part, *_) = [part for part in bookie_stripes(record) if part.bookie != gone]
        unknown = [Finding(part.first, part.last, CopyVerdict.UNKNOWN, NO_TERMS)]
        assert await check.audit(part.bookie, [part]) == unknown
        assert (await check.scrub(part)).findings == unknown
