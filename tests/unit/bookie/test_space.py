"""What a bookie says of its space: what only its collector knows, a pass on request, and questions that make no sense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from quire.bookie.collecting.space_report import ASKED_MAX
from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError, NoClusterError
from quire.metadata.accepting import accept_store
from quire.storage.config import KIB, StorageConfig
from quire.storage.space_reasons import FreeSpace
from quire.wire.native_info import InfoQuestion, SpaceTask, decode_info_question, encode_info_question
from support.one_collector import At, one_collector

SMALL = StorageConfig(segment_bytes=256 * KIB, recent_bytes_max=0)


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[At]:
    async with one_collector(tmp_path) as made:
        yield made


async def asked(at: At, task: SpaceTask = SpaceTask.MEASURE) -> dict[str, Any]:
    """What the bookie answers over its connection."""
    answer, says = await at.client.bookies.space(at.server.bookie_id, task, timeout_ms=20_000)
    assert answer is Answer.OK
    return says


def reasons(says: dict[str, Any]) -> dict[str, int]:
    return {one["reason"]: one["bytes"] for one in says["space"]["reasons"]}


@pytest.fixture(autouse=True)
def a_roomy_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine of the tests has left."""
    for module in ("cleaning", "space_report"):
        monkeypatch.setattr(f"quire.bookie.collecting.{module}.free_space", lambda _: FreeSpace(71, 100))


async def fill(at: At, segments: int = 1) -> int:
    """A ledger that fills some segments."""
    before = at.server.storage.statistics()["segments"]
    async with await at.client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as ledger:
        while at.server.storage.statistics()["segments"] < before + segments:
            await ledger.append(bytes(20_000))
    return int(ledger.ledger_id)


async def test_a_pass_on_request_returns_what_was_deleted_and_says_so(tmp_path: Path) -> None:
    async with one_collector(tmp_path, storage=SMALL) as at:
        assert at.server.info()["space"] is None, "nobody has asked yet"
        ledger_id = await fill(at, 3)
        (kept,) = await at.write(1)
        says = await asked(at)
        assert says["came_back"] == {}
        assert says["failure"] is None
        assert reasons(says)["live"] > 400_000
        assert at.server.info()["space"] == says["space"]
        assert says["space"]["bytes"] == sum(reasons(says).values())
        await at.client.delete_ledger(ledger_id)
        says = await asked(at, SpaceTask.COLLECT)
        assert says["came_back"]["dropped"] == 1
        assert says["came_back"]["retired"] >= 2
        assert says["came_back"]["compacted"] == 0
        assert "deleted" not in reasons(says)
        assert at.holds(kept)


async def test_compaction_on_request_needs_no_full_disk(tmp_path: Path) -> None:
    async with one_collector(tmp_path, storage=SMALL) as at:
        (kept,) = await at.write(1)
        ledger_id = await fill(at, 2)
        assert reasons(await asked(at))["live"] > 256 * KIB
        await at.client.delete_ledger(ledger_id)
        assert (await asked(at, SpaceTask.COLLECT))["came_back"]["compacted"] == 0
        says = await asked(at, SpaceTask.COMPACT)
        assert says["came_back"]["compacted"] == 1
        assert says["came_back"]["retired"] == 1
        assert at.holds(kept)


async def test_one_pass_compacts_all_that_is_worth_it_where_the_disk_has_room_for_little(
    tmp_path: Path,
) -> None:
    async with one_collector(tmp_path, storage=SMALL) as at:
        kept, filling = [], []
        for _ in range(3):
            kept += await at.write(1)
            filling.append(await fill(at))
        for ledger_id in filling:
            await at.client.delete_ledger(ledger_id)
        says = await asked(at, SpaceTask.COMPACT)
        assert says["came_back"]["compacted"] > 1
        assert says["came_back"]["retired"] == says["came_back"]["compacted"]
        assert all(map(at.holds, kept))


async def test_ledgers_without_a_record_are_named_until_a_person_deletes_them(at: At) -> None:
    (ledger_id,) = await at.write(1)
    await at.passes()
    live = reasons(await asked(at))["live"]
    await at.forget_record(ledger_id)
    held = reasons(await asked(at, SpaceTask.COLLECT))
    assert held["orphans"] == live
    assert "live" not in held
    await at.records.delete_orphan(ledger_id)
    assert "orphans" not in reasons(await asked(at, SpaceTask.COLLECT))


async def test_what_a_held_collector_keeps_is_named_until_the_store_is_accepted(at: At) -> None:
    (ledger_id,) = await at.write(1)
    await at.passes(2)
    live = reasons(await asked(at))["live"]
    await at.store.delete(f"passes/{at.server.bookie_id}")
    await at.client.delete_ledger(ledger_id)
    says = await asked(at, SpaceTask.COLLECT)
    assert reasons(says)["held"] == live
    (told,) = [one for one in says["space"]["reasons"] if one["reason"] == "held"]
    assert "the store has no counter" in told["returns"]
    assert told["sooner"] == "quire cluster accept-store"
    await accept_store(at.store)
    assert "held" not in reasons(await asked(at, SpaceTask.COLLECT))


async def test_two_passes_do_not_meet(at: At) -> None:
    dead, _ = await at.write(2)
    await at.client.delete_ledger(dead)
    both = await asyncio.gather(asked(at, SpaceTask.COLLECT), asked(at, SpaceTask.COMPACT))
    assert at.server.collector.report.passes == 2
    assert sorted(one["came_back"]["dropped"] for one in both) == [0, 1]


async def test_many_who_ask_at_once_share_a_pass_and_too_many_are_refused(at: At) -> None:
    space, said = at.server.space, []
    for _ in range(ASKED_MAX + 100):
        space.ask(SpaceTask.COLLECT, said.append)
    assert [one["failure"] for one in said] == [said[0]["failure"]] * 100
    assert "wait for this already" in said[0]["failure"]
    assert len(space._tasks) == 1
    await asked(at)
    assert at.server.collector.report.passes == 1
    assert [one["failure"] for one in said[100:]] == [None] * ASKED_MAX
    await asked(at, SpaceTask.COLLECT)
    assert at.server.collector.report.passes == 2, "who asks later gets a later pass"


async def test_a_pass_that_fails_says_why(at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away() -> None:
        raise NoClusterError("the store is away")

    monkeypatch.setattr(at.server.collector._store, "passes", away)
    says = await asked(at, SpaceTask.COLLECT)
    assert says["failure"] == "the store is away"
    assert says["came_back"] == {"dropped": 0, "retired": 0, "compacted": 0}


def test_questions() -> None:
    for question in (InfoQuestion(), InfoQuestion(7), *(InfoQuestion(space=task) for task in SpaceTask)):
        assert decode_info_question(encode_info_question(question)) == question
    for body in (b'{"space":"all"}', b'{"space":7}', b'{"space":["collect"]}', b"{}", b"[]",
                 b'{"space":"collect","orphans_after":3}'):  # fmt: skip
        with pytest.raises(MalformedFrameError):
            decode_info_question(body)
