"""Real file systems that are filled to the last segment under load, and give their space back by themselves.

Bookies in default settings on a small ext4 in a file and on a tmpfs. While the disk is full, appends are refused with
READ_ONLY, and reads and recoveries are served; after a deletion the bookies take entries again without a restart or a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.restored import Cluster
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.log.config import LogConfig
from quire.storage.space_reasons import SCARCE_SHARE
from quire.wire.native_info import SpaceTask
from support.programs import BookieProcess
from support.small_disks import small_disk

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

SIZE = 60_000
ENTRIES = 16
"""Of a ledger: about a MiB."""
PARTS = 4
"""Ledgers that are written side by side, so that each segment has as much of each."""
MIB = 1 << 20
A_SECOND = 8 * MIB
"""So much a log on a small disk gets: all of the disk in a minute."""
KEPT_MIB = 135
"""Of a log, and as much beside it: more than half of a disk of 512 MiB."""


def value_of(ledger_id: int, number: int) -> bytes:
    return (b"%d of %d " % (number, ledger_id) * (SIZE // 8))[:SIZE]


class Filled:
    """Ledgers that are written until nothing more is taken.

    Args:
        client: writes them.

    Attributes:
        kept: by ledger, how many of its entries were acknowledged; those that live.
        refused: what writers were told when the disk was full.
    """

    def __init__(self, client: quire.Client) -> None:
        self._client = client
        self.kept: dict[int, int] = {}
        self.parts: list[list[int]] = [[] for _ in range(PARTS)]
        self.refused: list[str] = []

    async def _write(self, part: int, ensemble: int) -> bool:
        """One ledger; False when it is refused."""
        try:
            ledger = await self._client.create_ledger(
                ensemble_size=ensemble, write_quorum=ensemble, ack_quorum=min(ensemble, 2), password=b"p"
            )
        except quire.QuireError as error:
            self.refused.append(str(error))
            return False
        ledger_id = int(ledger.ledger_id)
        self.kept[ledger_id] = 0
        self.parts[part].append(ledger_id)
        try:
            for number in range(ENTRIES):
                await ledger.append(value_of(ledger_id, number))
                self.kept[ledger_id] += 1
            await ledger.close()
        except quire.QuireError as error:
            self.refused.append(str(error))
            return False
        return True

    async def fill(self, full: Callable[[], Any], *, ensemble: int = 3) -> None:
        """Write in all parts side by side until the disk is full."""
        going = True
        while going:
            done = await asyncio.gather(*(self._write(part, ensemble) for part in range(PARTS)))
            going = all(done) and not await full()

    async def verify(self, some: list[int]) -> None:
        """Open these ledgers, which recovers those that were left open, and read all that was acknowledged."""
        for ledger_id in some:
            async with await self._client.open_ledger(ledger_id, password=b"p") as reader:
                assert reader.last_add_confirmed >= self.kept[ledger_id] - 1
                if self.kept[ledger_id]:
                    numbers = iter(range(self.kept[ledger_id]))
                    async for entry in reader.read(0, self.kept[ledger_id] - 1):
                        assert bytes(entry.payload) == value_of(ledger_id, next(numbers))
                    assert next(numbers, None) is None

    async def delete(self, parts: list[int]) -> None:
        """Delete what was written in these parts."""
        gone = [ledger_id for part in parts for ledger_id in self.parts[part]]
        for part in parts:
            self.parts[part].clear()
        for ledger_id in gone:
            del self.kept[ledger_id]
        await asyncio.gather(*(self._client.delete_ledger(ledger_id) for ledger_id in gone))


async def is_full(tools: quire.Client, bookies: list[BookieProcess]) -> bool:
    """Whether each of these bookies says that its disk is full."""
    for bookie in bookies:
        answer, info = await tools.bookies.info(BookieId(bookie.id))
        assert answer is Answer.OK
        if not info["storage"]["full"]:
            return False
    return True


async def rounds_of(
    directory: Path, disks: list[Path], count: int, *, small: int, deleted: list[int]
) -> list[dict[str, Any]]:
    """Fill, look, delete, and wait until a ledger on all bookies is taken again.

    Args:
        directory: for the metadata and the other bookies.
        disks: the bookies' folders.
        count: rounds.
        small: so many of the bookies have small disks, the first ones.
        deleted: the parts of which the ledgers are deleted, first; then the next ones, so that what stays does not fill the disk.
    """
    cluster = Cluster(directory, f"sqlite:{directory / 'metadata.db'}")
    cluster.bookies = [BookieProcess(f"b{n}", disk, cluster.uri) for n, disk in enumerate(disks)]
    rows: list[dict[str, Any]] = []
    async with cluster.serving() as tools, quire.connect(cluster.uri) as client:
        filled = Filled(client)
        full = cluster.bookies[:small]
        for turn in range(count):
            filled.refused.clear()
            async with asyncio.timeout(900):
                # A few bookies are full before the others, and again and again one finds something to compact.
                ensembles = itertools.chain((3, 2), itertools.repeat(1))
                while not await is_full(tools, full):
                    await filled.fill(lambda: is_full(tools, full), ensemble=next(ensembles))
            open_or_not = [ledger_id for part in filled.parts for ledger_id in part[-2:]]
            await filled.verify(open_or_not)
            told = " ".join(await cluster_conditions(tools, full))
            assert "the disk is full" in told, told
            if small == len(disks):
                assert filled.refused, "with all disks full a writer finds no bookies"
            await filled.delete([(part + turn) % PARTS for part in deleted])
            since = time.monotonic()
            tries = 0
            while True:
                tries += 1
                with contextlib.suppress(quire.QuireError):
                    ledger = await client.create_ledger(
                        ensemble_size=len(disks), write_quorum=len(disks), ack_quorum=len(disks)
                    )
                    async with ledger:
                        await ledger.append(b"taken again")
                    await client.delete_ledger(int(ledger.ledger_id))
                    break
                if time.monotonic() - since > 120:
                    pytest.fail(f"the bookies take no entries again: {await held_by(tools, cluster.bookies)}")
                await asyncio.sleep(0.25)
            took = time.monotonic() - since
            while not await has_come_back(tools, full):
                if time.monotonic() - since > 120:
                    pytest.fail(f"what is dead stays: {await held_by(tools, full)}")
                await asyncio.sleep(0.25)
            back = time.monotonic() - since
            await filled.verify(list(filled.kept))
            row = {"ledgers_left": len(filled.kept), "writable_s": took, "tries": tries, "back_s": back}
            rows.append({name: round(value, 1) for name, value in row.items()})
            print(rows[-1], flush=True)
        assert all(bookie.process is not None and bookie.process.poll() is None for bookie in cluster.bookies)
    return rows


async def has_come_back(tools: quire.Client, bookies: list[BookieProcess]) -> bool:
    """Whether of each of these disks either enough is free, or little of what its files hold is dead.

    The more is free, the less has to live in a segment for it to be compacted.
    """
    for bookie_id, says in (await held_by(tools, bookies)).items():
        _, info = await tools.bookies.info(BookieId(bookie_id))
        held = {one["reason"]: one["bytes"] for one in says["space"]["reasons"]}
        dead = sum(held.get(reason, 0) for reason in ("deleted", "retired", "sparse"))
        is_scarce = info["disk"]["free_bytes"] < SCARCE_SHARE / 2 * info["disk"]["bytes"]
        if is_scarce and dead > sum(held.values()) / 5:
            return False
    return True


async def held_by(tools: quire.Client, bookies: list[BookieProcess]) -> dict[str, Any]:
    """What holds the space of each of these bookies."""
    asked = (
        tools.bookies.space(BookieId(bookie.id), SpaceTask.MEASURE, timeout_ms=60_000) for bookie in bookies
    )
    return {bookie.id: says for bookie, (_, says) in zip(bookies, await asyncio.gather(*asked), strict=True)}


async def cluster_conditions(tools: quire.Client, bookies: list[BookieProcess]) -> list[str]:
    """What each of these bookies says of itself."""
    found: list[str] = []
    for bookie in bookies:
        _, info = await tools.bookies.info(BookieId(bookie.id))
        found += [str(each) for each in info.get("conditions", [])]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
@pytest.mark.parametrize("small", [1, 5])
@pytest.mark.parametrize("deleted", [[0, 1], [0, 1, 2]], ids=["half", "three quarters"])
async def test_a_full_disk_is_written_to_again_by_itself(
    tmp_path: Path,
    record: Callable[[str, dict[str, Any]], None],
    rounds: Callable[[int, int], int],
    kind: str,
    small: int,
    deleted: list[int],
) -> None:
    with contextlib.ExitStack() as stack:
        disks = [
            stack.enter_context(small_disk(kind, tmp_path / f"disk{number}", 256)) for number in range(small)
        ]
        disks += [tmp_path / f"b{number}" for number in range(small, 5)]
        rows = await rounds_of(tmp_path, disks, rounds(5, 1), small=small, deleted=deleted)
    slowest, back = (max(row[name] for row in rows) for name in ("writable_s", "back_s"))
    name = f"full_disks_{kind}_{small}_{'half' if len(deleted) == 2 else 'quarter'}"
    record(name, {"rounds": rows, "slowest_s": slowest, "back_s": back, "lost": 0})
    assert slowest <= (30 if small == 1 else 60)
    assert back <= 60


@pytest.mark.slow
async def test_a_small_full_disk_is_written_to_again_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_COLLECT_EVERY", "0.5")
    with contextlib.ExitStack() as stack:
        disks = [
            stack.enter_context(small_disk("tmpfs", tmp_path / f"disk{number}", 24)) for number in range(3)
        ]
        rows = await rounds_of(tmp_path, disks, 1, small=3, deleted=[0, 1])
    assert rows[0]["ledgers_left"] >= 2


# --- a log on a small disk ----------------------------------------------------------------------------------------


async def all_given_back(tools: quire.Client, bookie: BookieId) -> None:
    """A pass, and the files of what it retired: they are kept for a second, for readers that know where entries lay."""
    async with asyncio.timeout(30):
        while True:
            answer, says = await tools.bookies.space(bookie, SpaceTask.COLLECT, timeout_ms=60_000)
            assert answer is Answer.OK
            held = {one["reason"]: one["bytes"] >> 20 for one in says["space"]["reasons"]}
            if not held.get("retired"):
                print(f"{bookie}, in MiB: {held}", flush=True)
                return
            await asyncio.sleep(0.25)


async def rolled_and_truncated(cluster: Cluster, seconds: float, kept_mib: int) -> dict[str, Any]:
    """A log of ledgers of a MiB, of which the oldest go; every tenth MiB goes into a ledger that is kept for ten times as long."""
    acknowledged = 0
    kept: list[int] = []
    async with cluster.serving() as tools, quire.connect(cluster.uri) as client:
        log = client.log("rolled", config=LogConfig(roll_bytes=MIB, batch_bytes_max=64 * 1024))
        await log.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
        offsets: list[int] = []
        ledgers = 0
        value = bytes(range(250)) * 40
        async with await log.open_writer() as writer:
            begun = time.monotonic()
            while time.monotonic() < begun + seconds:
                some = [writer.append_nowait(value) for _ in range(MIB // len(value))]
                last = [await one for one in some][-1]
                acknowledged += len(some) * len(value)
                await asyncio.sleep(begun + acknowledged / A_SECOND - time.monotonic())
                offsets.append(int(last))
                ledgers += 1
                if ledgers % 10 == 0:
                    beside = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
                    async with beside:
                        for number in range(ENTRIES):
                            await beside.append(value_of(int(beside.ledger_id), number))
                    acknowledged += ENTRIES * SIZE
                    kept.append(int(beside.ledger_id))
                    if len(kept) > kept_mib:
                        await client.delete_ledger(kept.pop(0))
                if len(offsets) > kept_mib and ledgers % 8 == 0:
                    await log.truncate(offsets[-kept_mib])
                    del offsets[:-kept_mib]
        held = [(await tools.bookies.info(BookieId(one.id)))[1]["storage"] for one in cluster.bookies]
        figures: list[dict[str, Any]] = []
        for bookie in cluster.bookies:
            await all_given_back(tools, BookieId(bookie.id))
            answer, info = await tools.bookies.info(BookieId(bookie.id))
            assert answer is Answer.OK
            storage = info["storage"]
            assert not storage["full"]
            figures.append(storage)
        for ledger_id in kept:
            async with await client.open_ledger(ledger_id) as reader:
                numbers = iter(range(ENTRIES))
                async for entry in reader.read(0, ENTRIES - 1):
                    assert bytes(entry.payload) == value_of(ledger_id, next(numbers))
    live = (len(offsets) + len(kept)) * MIB
    return {
        "ledgers_rolled": ledgers,
        "acknowledged_mib": acknowledged >> 20,
        "written_per_acknowledged": round(max(one["bytes_written"] for one in figures) / acknowledged, 3),
        "carried_mib": max(one["carried_bytes"] for one in figures) >> 20,
        "live_mib": live >> 20,
        "held_under_load_mib": max(one["segment_bytes"] for one in held) >> 20,
        "held_mib": max(one["segment_bytes"] for one in figures) >> 20,
        "segments": max(one["segments"] for one in figures),
        "reserve_mib": 2 * (max(one["segment_bytes"] // one["segments"] for one in figures) >> 20),
    }


@pytest.mark.slow
async def test_a_log_is_rolled_and_truncated_on_a_small_disk(
    tmp_path: Path,
    record: Callable[[str, dict[str, Any]], None],
    rounds: Callable[[int, int], int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(tmp_path, f"sqlite:{tmp_path / 'metadata.db'}")
    with contextlib.ExitStack() as stack:
        for bookie in cluster.bookies:
            bookie.directory = stack.enter_context(small_disk("ext4", tmp_path / f"disk-{bookie.name}", 512))
        figures = await rolled_and_truncated(cluster, rounds(600, 20), KEPT_MIB)
    figures["refused"] = sum("no bookie can replace" in each.message for each in caplog.records)
    record("log_on_a_small_disk", figures)
    assert not figures["refused"]
    assert figures["written_per_acknowledged"] <= 2.1
    assert figures["held_mib"] <= 1.3 * figures["live_mib"] + figures["reserve_mib"]
