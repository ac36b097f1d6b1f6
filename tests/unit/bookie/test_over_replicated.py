"""Over-replicated entries: real bookies drop what the record does not give them, and nothing that may be needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from quire.bookie.server import BookieServer
from quire.client.member_lists import MemberLister
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.core.bookie.ledger import LedgerFacts
from quire.core.bookie.limbo import Limbo
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import AcceptedLoss, EntryRange
from quire.core.ledger.replica import Replica
from quire.metadata.memory import MemoryStore
from quire.storage.segments.segment import NO_CALLBACK
from support.small_cluster import SmallCluster, small_cluster
from support.storage_disk import make_run

ENTRIES = 5


class At:
    """A closed ledger on two of three bookies, of which the first was replaced by the third and holds its copies still."""

    def __init__(self, cluster: SmallCluster, record: LedgerMetadata, left: BookieId) -> None:
        self.cluster, self.record, self.left = cluster, record, left
        self.lister = MemberLister(MemoryStore(cluster.space))
        self.server.collector.over_replicated.lists = self.lister

    @property
    def ledger_id(self) -> int:
        return int(self.record.ledger_id)

    @property
    def server(self) -> BookieServer:
        return self.cluster.servers[self.left]

    async def passes(self, count: int = 2) -> None:
        for _ in range(count):
            await self.server.collector.collect()

    def ids(self) -> list[int]:
        held = self.server.storage.held(self.ledger_id)
        return [entry_id for first, last, *_ in held for entry_id in range(first, last + 1)]

    def put(self, first: int, last: int) -> None:
        run = make_run(self.ledger_id, first, last)
        self.server.storage.put_run(
            run,
            crc32c(run.body),
            lac=-1,
            token=self.record.token,
            recovery=True,
            callback=NO_CALLBACK,
            tag=None,
        )
        self.server.storage.flush()

    async def cas(self, change: Callable[[LedgerMetadata], LedgerMetadata] = lambda record: record) -> None:
        store = self.cluster.clients[0].records.ledgers
        record, version = await store.read(LedgerId(self.ledger_id))
        await store.write(change(record), version)

    async def accept_loss(self, first: int, last: int) -> None:
        store = self.cluster.clients[0].records.ledgers
        record, notes, version = await store.read_with_notes(self.ledger_id)
        loss = AcceptedLoss((EntryRange(first, last),), 1, "operator", (self.left,))
        await store.write_with_notes(record, replace(notes, losses=(loss,)), version)

    async def restart(self) -> None:
        name = await self.cluster.stop_bookie(self.left)
        await self.cluster.start_bookie(name)
        self.server.collector.over_replicated.lists = self.lister


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[At]:
    async with small_cluster(tmp_path, bookies=3, garbage_seconds=0, tombstone_seconds=0) as cluster:
        client = await cluster.client()
        async with await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2) as ledger:
            await asyncio.gather(*[ledger.append(b"entry %d" % number) for number in range(ENTRIES)])
        record = await client.ledger_metadata(ledger.ledger_id)
        left = record.fragments[0].ensemble[0]
        (spare,) = cluster.servers.keys() - set(record.fragments[0].ensemble)
        await LedgerRepair(ledger.ledger_id, client.context, lost_bookies=[left], candidates=[spare]).run()
        at = At(cluster, await client.ledger_metadata(ledger.ledger_id), left)
        assert left not in at.record.fragments[0].ensemble
        assert at.ids() == [*range(ENTRIES)]
        yield at
        await at.lister.close()


async def test_a_replaced_bookie_drops_its_copies_at_the_second_look(at: At) -> None:
    await at.passes(1)
    assert at.ids() == [*range(ENTRIES)], "nothing goes at the first look"
    facts = at.server.storage.facts(at.ledger_id)
    await at.passes(1)
    assert at.ids() == []
    assert at.server.storage.last_entry(at.ledger_id) == -1
    assert at.server.storage.facts(at.ledger_id) == facts, "fence and key stay"
    assert at.server.collector.info()["extras_dropped"] == 1
    await at.restart()
    assert at.ids() == []
    assert at.server.storage.facts(at.ledger_id) == facts
    reader = await at.cluster.clients[0].open_ledger(at.ledger_id)
    assert [bytes(entry.payload) async for entry in reader.read(0, ENTRIES - 1)] == [
        b"entry %d" % number for number in range(ENTRIES)
    ]
    await reader.close()


async def test_who_was_in_limbo_leaves_it_with_the_drop_and_is_fenced(at: At) -> None:
    facts = at.server.storage.facts(at.ledger_id)
    assert isinstance(facts, LedgerFacts)
    at.server.storage.put_facts(replace(facts, limbo=Limbo(7), fenced=False), NO_CALLBACK, None)
    await at.restart()
    await at.passes()
    assert at.ids() == []
    facts = at.server.storage.facts(at.ledger_id)
    assert isinstance(facts, LedgerFacts)
    assert facts.limbo is None
    assert facts.fenced
    assert at.ledger_id not in at.server.storage.states.limbo


async def test_what_stands_above_the_end_goes_without_lists(at: At) -> None:
    async def nobody(_record: LedgerMetadata, _members: Sequence[BookieId]) -> dict[BookieId, Replica]:
        return {}

    at.server.collector.over_replicated.lists = nobody
    at.put(ENTRIES, ENTRIES + 3)
    assert at.ids() == [*range(ENTRIES + 4)]
    await at.passes()
    assert at.ids() == [*range(ENTRIES)], "what is of the ledger needs lists"


async def _put_between(at: At) -> None:
    at.put(0, 0)


async def _changed_between(at: At) -> None:
    await at.cas(lambda record: replace(record, custom=(("k", b"v"),)))


async def _lost_between(at: At) -> None:
    await at.accept_loss(2, 2)


@pytest.mark.parametrize("between", [_put_between, _changed_between, _lost_between])
async def test_whatever_happens_between_the_looks_keeps_the_copies(
    at: At, between: Callable[[At], Coroutine[Any, Any, None]]
) -> None:
    await at.passes(1)
    await between(at)
    await at.passes(1)
    assert at.ids() == [*range(ENTRIES)]


@pytest.mark.parametrize("between", [_put_between, _changed_between, _lost_between])
async def test_so_does_what_happens_while_the_members_are_asked(
    at: At, between: Callable[[At], Coroutine[Any, Any, None]]
) -> None:
    async def lists(record: LedgerMetadata, members: Sequence[BookieId]) -> dict[BookieId, Replica]:
        assert at.ids() == [], "pending deletion: a repairer that lists now makes copies anew"
        found = await at.lister(record, members)
        await between(at)
        return found

    at.server.collector.over_replicated.lists = lists
    await at.passes()
    assert at.ids() == [*range(ENTRIES)]


async def test_an_accepted_loss_is_never_over_replicated(at: At) -> None:
    await at.accept_loss(2, 2)
    await at.passes(4)
    assert at.ids() == [*range(ENTRIES)]


async def test_a_member_that_lacks_one_keeps_them_all(at: At) -> None:
    other = at.cluster.servers[at.record.fragments[0].ensemble[0]]
    other.storage.drops.drop(at.ledger_id, 3, 3, other.storage.journal.last_lsn, NO_CALLBACK, None)
    other.storage.flush()
    await at.passes(3)
    assert at.ids() == [*range(ENTRIES)]


async def test_a_full_cluster_of_them_needs_several_passes(at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.bookie.collecting.over_replicated.LOOKED_AT_MAX", 1)
    client = at.cluster.clients[0]
    for _ in range(3):
        async with await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) as ledger:
            await ledger.append(b"own")
    await at.passes(8)
    assert at.ids() == []
    assert len([one for one in list(at.server.storage.states.ledgers) if at.server.storage.held(one)]) == 3


async def test_what_holds_space_names_them_until_they_are_dropped(at: At) -> None:
    async def nobody(_record: LedgerMetadata, _members: Sequence[BookieId]) -> dict[BookieId, Replica]:
        return {}

    async def held() -> dict[str, int]:
        await at.server.space.measure()
        assert at.server.space.last is not None
        return {one["reason"]: one["bytes"] for one in at.server.space.last["reasons"]}

    before = await held()
    assert "grace" not in before
    await at.passes(1)
    waiting = await held()
    assert waiting["grace"] == before["live"], "it has nothing else"
    assert "live" not in waiting
    at.server.collector.over_replicated.lists = nobody
    await at.passes(1)
    kept = await held()
    assert kept["extras"] == before["live"]
    assert "grace" not in kept
    at.server.collector.over_replicated.lists = at.lister
    await at.passes(1)
    gone = await held()
    assert not gone.keys() & {"extras", "grace", "live"}
    assert gone["sparse"] == before["live"]
