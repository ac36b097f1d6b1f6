"""Who should lead a log: the elector that ships, another one, one that fails. The log itself stays safe without any."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import NotLeaderError
from quire.core.log.list import LogHead
from quire.log.electing import CandidateStanding, Elector, StoreElector, election_of
from quire.log.heads import LogHeads
from quire.log.log import Log
from quire.log.writer import LogWriter
from quire.metadata.election import Election
from quire.metadata.memory import MemoryStore
from support.electors import Answering
from support.log_cluster import FAST, World, values, world
from support.waiting import until_async


class Overtaking:
    """Opens a log whose first compare-and-swaps come too late: right before each a rival takes the log over."""

    def __init__(self, at: World, times: int, elector: Elector | None) -> None:
        self.rivals: list[LogWriter] = []
        rivals, rival_log = self.rivals, at.log("orders")

        class Overtaken(LogHeads):
            async def write(self, head: LogHead, version: int, *pages: Any) -> int:
                if len(rivals) < times:
                    rivals.append(await rival_log.open_writer())
                return await super().write(head, version, *pages)

        class OvertakenLog(Log):
            _heads_kind = Overtaken

        self.log = OvertakenLog(at.client, "orders", config=FAST, elector=elector)

    async def close(self) -> None:
        for rival in self.rivals:
            await rival.abandon()


async def test_by_default_the_election_of_the_store_decides_who_tries_again(at: World) -> None:
    await at.made()
    log_id = (await at.log().identify()).log_id
    # Another writer stands already, and lives: who lost a duel steps back.
    other = Election(at.store, election_of(log_id), "other")
    await other.campaign()
    losing = Overtaking(at, 1, None)
    with pytest.raises(NotLeaderError, match="the election names another writer"):
        await losing.log.open_writer()
    assert len(losing.rivals) == 1
    assert await losing.rivals[0].append(b"the rival leads") == 0
    await losing.close()
    await other.resign()
    # Nobody else stands: it tries again and leads.
    await until_async(lambda: empty(at, log_id), "all candidates to be gone")
    winning = Overtaking(at, 1, None)
    writer = await winning.log.open_writer()
    assert await writer.append(b"mine") == 1
    await writer.close()
    await winning.close()
    assert await values(at.log()) == [b"the rival leads", b"mine"]


async def empty(at: World, log_id: bytes) -> bool:
    return await Election(at.store, election_of(log_id), "").candidates() == []


async def test_an_elector_that_cannot_be_asked_stops_nobody(at: World) -> None:
    await at.made()
    elector = Answering("silence")
    losing = Overtaking(at, 2, elector)
    writer = await losing.log.open_writer()
    assert await writer.append(b"mine") == 0
    assert elector.asked == 2
    await writer.close()
    await losing.close()


async def test_who_waits_for_the_lead_waits_again_after_a_lost_duel(at: World) -> None:
    await at.made()
    elector = Answering("rival")
    losing = Overtaking(at, 2, elector)
    writer = await losing.log.open_writer(wait_for_leadership=True)
    assert await writer.append(b"mine") == 0
    assert (elector.asked, elector.campaigns) == (2, 3)
    await writer.close()
    await losing.close()


async def test_beside_another_elector_a_writer_is_seen_in_the_stores_election(at: World) -> None:
    """A sink that finds no living leader there recovers what the leader has open."""
    await at.made()
    log = at.client.log("orders", config=FAST, elector=Answering("me"))
    writer = await log.open_writer()
    log_id = (await log.identify()).log_id
    await until_async(lambda: seen(at, log_id), "the writer among the store's candidates")
    await writer.close()
    assert await empty(at, log_id)


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("elector", [None, Answering("me")])
async def test_a_writer_whose_session_in_the_store_was_lost_is_seen_there_again(
    tmp_path: Path, elector: Elector | None, wait: bool
) -> None:
    """It leads on: who looks for a living leader must find it, and a command asks before it ends it."""
    store = MemoryStore()
    async with world(tmp_path, store) as at:
        await at.made()
        log = at.client.log("orders", config=FAST, elector=elector)
        log_id = (await log.identify()).log_id
        async with await log.open_writer(wait_for_leadership=wait) as writer:
            for number in range(2):
                await until_async(lambda: seen(at, log_id), "the writer among the store's candidates")
                store.lose_session()
                assert await empty(at, log_id)
                assert await writer.append(b"it leads on") == number
            await until_async(lambda: seen(at, log_id), "the writer among the store's candidates", seconds=5)
        assert await empty(at, log_id)


async def test_a_writer_that_nobody_closes_stands_no_longer_than_its_client(at: World) -> None:
    def standing() -> int:
        return sum("CandidateStanding._stand" in repr(task) for task in asyncio.all_tasks())

    log = await at.made()
    log_id = (await log.identify()).log_id
    writer = await log.open_writer()
    await until_async(lambda: seen(at, log_id), "the writer among the store's candidates")
    await at.client.close()
    await until_async(lambda: standing() == 0, "the end of its standing", seconds=5)
    await writer.abandon()


async def seen(at: World, log_id: bytes) -> bool:
    head = await at.log().identify()
    standing = await Election(at.store, election_of(log_id), "").candidates()
    return standing == [f"{head.leader.holder}@{head.leader.host}"]


async def test_two_that_both_should_lead_by_their_electors_still_write_one_log(at: World) -> None:
    """Leadership is a suggestion: electors that name everybody cost duels, no record."""
    await at.made()
    acknowledged: dict[int, bytes] = {}

    async def one(name: bytes) -> None:
        for number in range(10):
            log = at.client.log("orders", config=FAST, elector=Answering("me"))
            try:
                writer = await log.open_writer()
            except NotLeaderError:
                continue
            value = b"%s %d" % (name, number)
            answers = await asyncio.gather(writer.append(value), return_exceptions=True)
            if isinstance(answers[0], int):
                assert answers[0] not in acknowledged
                acknowledged[answers[0]] = value
            await writer.abandon()

    await asyncio.gather(one(b"a"), one(b"b"))
    async with await at.log().open_writer():
        pass  # it recovers what was abandoned
    found = await values(at.log())
    assert acknowledged
    assert all(found[offset] == value for offset, value in acknowledged.items())


async def test_a_place_is_given_up_even_if_it_was_never_taken(at: World) -> None:
    log_id = bytes(16)
    standing = CandidateStanding(StoreElector(at.store).candidacy(log_id, "me"), "me", wait=False)
    await standing.end()
    assert await empty(at, log_id)
