"""A bookie's directory put back from a copy, and a copy started beside its original: nothing acknowledged is denied.

Entries are acknowledged by b0 and b1 only. Then b0 is there again as it was before them, b1 is gone, and whoever recovers
hears b0 and b2. Each of these ways lost a tenth to a half of what was acknowledged in revision 9e5fe3a.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import Loader, eventually, pause
from quire.core.ids import BookieId
from quire.metadata.connect import open_store
from quire.metadata.keys import boot_key
from quire.storage.directory.boot_file import MARKER_FILE
from quire.wire.store_records import BOOT_CODEC, StoredBoot
from support.programs import NEW, BookieProcess
from support.rounds import FULL

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL else 300)]
Record = Callable[[str, dict[str, Any]], None]
Rounds = Callable[[int, int], int]
LEDGERS = 3
EXIT_REPLACED = 4
NOT_AS_IT_WAS = "may be older than its bookie's last start"


class Scene:
    """Three bookies, some writers, and a copy of b0.

    Args:
        directory: for all of it.
        chance: when what happens.
    """

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.uri = f"sqlite:{directory / 'metadata.db'}"
        self.chance = chance
        self.bookies = [
            BookieProcess(f"b{number}", directory / f"b{number}", self.uri) for number in range(3)
        ]
        self.copy = directory / "copy" / "b0"
        self.twin = BookieProcess("b0", self.copy, self.uri)
        self.loaders: dict[int, Loader] = {}

    async def play(self, spoil: Callable[[Scene], Any]) -> int:
        """One round; how many entries were acknowledged, all of which were read back."""
        for bookie in self.bookies:
            await asyncio.to_thread(bookie.start, NEW)
        try:
            await self._load(spoil)
            await self._look()
        finally:
            for bookie in (*self.bookies, self.twin):
                if bookie.process is not None:
                    await asyncio.to_thread(bookie.kill)
        return sum(loader.acknowledged for loader in self.loaders.values())

    async def _load(self, spoil: Callable[[Scene], Any]) -> None:
        async with quire.connect(self.uri) as client:
            writers = [
                await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
                for _ in range(LEDGERS)
            ]
            for number, writer in enumerate(writers):
                self.loaders[int(writer.ledger_id)] = Loader(writer, writer=number, window=20)
            loads = [asyncio.ensure_future(loader.run()) for loader in self.loaders.values()]
            await self.more(200)
            await spoil(self)
            for loader in self.loaders.values():
                loader.stop()
            await asyncio.to_thread(self.bookies[1].kill)
            await asyncio.wait(loads)
            for writer in writers:
                await writer.abandon()

    async def more(self, count: int) -> None:
        """Wait until each writer was acknowledged so many more."""
        await asyncio.gather(
            *(loader.reaches(loader.acknowledged + count) for loader in self.loaders.values())
        )

    async def _look(self) -> None:
        """Recover with the b0 that is there now and b2, which never had what is looked for; then with all three."""
        await asyncio.to_thread(self.bookies[2].start, NEW)
        async with quire.connect(self.uri) as client:
            for ledger, loader in self.loaders.items():
                try:
                    reader = await client.open_ledger(ledger)
                except quire.RecoveryInconclusiveError:
                    continue
                assert reader.last_add_confirmed + 1 >= loader.acknowledged, ledger
        await asyncio.to_thread(self.bookies[1].start, NEW)
        async with quire.connect(self.uri) as client:
            for ledger, loader in self.loaders.items():
                reader = await client.open_ledger(ledger)
                assert reader.last_add_confirmed + 1 >= loader.acknowledged, ledger
                number = -1
                async for entry in reader.read(0, reader.last_add_confirmed):
                    number += 1
                    assert bytes(entry.payload) == loader.value_of(number), (ledger, number)
                assert number == reader.last_add_confirmed
            for ledger in self.loaders:
                await client.recover_ledger(ledger)  # b0 is filled, and its negatives count again
        for ledger in self.loaders:
            done = await asyncio.to_thread(NEW.quire, "ledger", "verify", str(ledger), "--cluster", self.uri)
            assert f"Ledger {ledger} is good" in done.stdout, done.stdout + done.stderr
            assert f"{self.bookies[0].id} lacks" not in done.stdout, "only b2 was away; b0 was filled"

    # --- what is done to b0 --------------------------------------------------------------------------------------

    async def copied(self) -> None:
        """`cp -a` of b0's directory as it is."""
        shutil.rmtree(self.copy, ignore_errors=True)
        self.copy.parent.mkdir(exist_ok=True)
        done = await asyncio.create_subprocess_exec(
            "cp", "-a", str(self.bookies[0].directory), str(self.copy), stderr=asyncio.subprocess.DEVNULL
        )
        await done.wait()

    async def only_two(self) -> None:
        """From now on b0 and b1 acknowledge alone, some more seconds of load."""
        await asyncio.to_thread(self.bookies[2].kill)
        await self.more(500)

    async def told(self) -> None:
        """Wait until the cluster knows of what was acknowledged since."""
        async with await open_store(self.uri, create=False) as store:
            before = (await self._boot(store)).durable_lsn
            async with asyncio.timeout(30):
                while (await self._boot(store)).durable_lsn == before:
                    await pause(self.chance, 20, 50)

    async def _boot(self, store: Any) -> StoredBoot:
        bookie = BookieId(self.bookies[0].id)
        return BOOT_CODEC.decode((await store.get(boot_key(bookie))).value, bookie)

    async def put_back(self) -> None:
        """b0 is killed, and its directory becomes the copy."""
        await asyncio.to_thread(self.bookies[0].kill)
        shutil.rmtree(self.bookies[0].directory)
        shutil.move(self.copy, self.bookies[0].directory)
        await self.start_in_limbo(self.bookies[0])

    async def put_bytes_back(self) -> None:
        """The same, as a disk would do it: each file keeps its inode, and the marker all it has."""
        await asyncio.to_thread(self.bookies[0].kill)
        own = self.bookies[0].directory
        for file in own.rglob("*"):
            if file.is_file() and not (self.copy / file.relative_to(own)).exists():
                file.unlink()
        for file in self.copy.rglob("*"):
            place = own / file.relative_to(self.copy)
            if file.is_file() and file.name != MARKER_FILE:
                place.parent.mkdir(exist_ok=True)
                with place.open("r+b" if place.exists() else "wb") as out:
                    out.write(file.read_bytes())
                    out.truncate()
        await self.start_in_limbo(self.bookies[0])

    async def start_in_limbo(self, bookie: BookieProcess) -> None:
        """It serves, and says that it may have lost anything."""
        await asyncio.to_thread(bookie.start, NEW)
        assert NOT_AS_IT_WAS in bookie.logs[-1][1].read_text()


async def hot(scene: Scene) -> None:
    await scene.copied()
    await scene.only_two()
    await scene.put_back()


async def cold(scene: Scene) -> None:
    """The copy is made while b0 is down after a kill."""
    await asyncio.to_thread(scene.bookies[0].kill)
    await scene.copied()
    await asyncio.to_thread(scene.bookies[0].start, NEW)
    await scene.more(200)
    await scene.only_two()
    await scene.put_back()


async def blocks(scene: Scene) -> None:
    await scene.copied()
    await scene.only_two()
    await scene.told()
    await scene.told()
    await scene.put_bytes_back()


async def twin(scene: Scene) -> None:
    """A copy does not start while its original lives; when that is gone, it starts in limbo."""
    await scene.copied()
    starting = asyncio.ensure_future(asyncio.to_thread(scene.twin.try_to_start, NEW))
    await scene.only_two()
    facts, said = await starting
    assert facts.get("error", {}).get("code") == "already_exists", (facts, said)
    await scene.more(200)
    await asyncio.to_thread(scene.bookies[0].kill)
    await scene.start_in_limbo(scene.twin)


async def paused(scene: Scene) -> None:
    """A copy starts while its original is stopped for longer than its session; the original ends when it wakes."""
    await scene.copied()
    await scene.only_two()
    original = scene.bookies[0].process
    assert original is not None
    original.send_signal(signal.SIGSTOP)
    await scene.start_in_limbo(scene.twin)
    original.send_signal(signal.SIGCONT)
    await eventually(lambda: original.poll() is not None, "the original ends")
    assert original.poll() == EXIT_REPLACED, scene.bookies[0].logs[-1][1].read_text()
    assert original.stdout is not None
    assert b"identity_replaced" in original.stdout.read()


IN_FULL = [pytest.param(way, marks=pytest.mark.slow) for way in (paused, cold, blocks, twin)]


@pytest.mark.parametrize("way", [hot, *IN_FULL], ids=lambda way: way.__name__)
async def test_a_copied_directory_denies_nothing(
    way: Callable[[Scene], Any], tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record
) -> None:
    acknowledged = []
    for number in range(rounds(20, 1)):
        directory = tmp_path / str(number)
        directory.mkdir()
        acknowledged.append(await Scene(directory, chance).play(way))
        shutil.rmtree(directory)
    assert min(acknowledged) > 0
    record(
        f"copied-{way.__name__}",
        {"rounds": len(acknowledged), "acknowledged": sum(acknowledged), "missing": 0},
    )
