"""A bookie that lies about locations and about what it holds, beside two honest ones: every entry is read, in bounded memory."""

from __future__ import annotations

import logging
import os
import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.bookie.connections.connection import Connection
from quire.client.access import LedgerAccess
from quire.client.bookies import short_circuit
from quire.client.client import Client
from quire.client.config import ClientConfig
from quire.core.answers import Answer
from quire.core.errors import ReadUnavailableError
from quire.core.ids import LedgerId
from quire.net.channel import Channel
from quire.wire.run import RunLocation
from support.lying_bookie import FOLDER, LIES, MISSED, REFUSED, UNASKED, LyingBookie
from support.rounds import keep_figures, rounds
from support.small_cluster import SmallCluster

pytestmark = pytest.mark.timeout(600)
SEED = 20261122
LONG = 100_000
ENTRIES = rounds(60, 300)
READS = rounds(1, 3)
GROWTH_MAX = 32 << 20
HONEST = "no lie"
SOON = ClientConfig(read_timeout_ms=500, quarantine_ms=1)


class World:
    """Two honest bookies, one that lies, and a ledger of long entries that are on their disks and in no memory."""

    def __init__(self, cluster: SmallCluster, liar: LyingBookie, ledger_id: LedgerId) -> None:
        self.cluster, self.liar, self.ledger_id = cluster, liar, ledger_id

    async def client(self, config: ClientConfig = SOON) -> Client:
        """A client that every bookie has told what it offers."""
        client = await self.cluster.client(config)
        for bookie in self.cluster.servers:
            answer, _ = await client.bookies.info(bookie)
            assert answer is Answer.OK
        return client

    def channel(self, client: Client) -> Channel:
        """The connection to the liar."""
        channel = client.bookies._channel(self.liar.bookie_id)
        assert isinstance(channel, Channel)
        return channel

    async def ask_the_liar(self, client: Client, last: int = 9) -> Any:
        """What a client makes of the liar's own response."""
        access = LedgerAccess.of(await client.ledger_metadata(self.ledger_id))
        return await client.bookies.read(self.liar.bookie_id, access, 0, last, 4 << 20)

    async def check_every_entry(self, client: Client) -> None:
        expected = random.Random(SEED)
        async with await client.open_ledger(self.ledger_id, recover=False) as reader:
            count = 0
            async for entry in reader.read():
                assert entry.entry_id == count
                assert entry.payload == expected.randbytes(LONG), count
                count += 1
        assert count == ENTRIES


@asynccontextmanager
async def world(directory: Path, **liar: Any) -> AsyncIterator[World]:
    cluster = SmallCluster(directory)
    try:
        for name in ("b1", "b2", "b3"):
            await cluster.start_bookie(name)
        client = await cluster.client()
        chance = random.Random(SEED)
        async with await client.create_ledger() as writer:
            await writer.append_many([chance.randbytes(LONG) for _ in range(ENTRIES)])
        for bookie in list(cluster.servers):
            name = await cluster.stop_bookie(bookie)
            if name != "b2":
                await cluster.start_bookie(name)
        server = await cluster.start_bookie("b2", LyingBookie, **liar)
        assert isinstance(server, LyingBookie)
        server.folder = directory
        yield World(cluster, server, writer.ledger_id)
    finally:
        await cluster.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that the client opens because a bookie named them."""
    paths: list[str] = []
    really = short_circuit._opened

    def noted(location: RunLocation) -> Any:
        paths.append(location.path)
        return really(location)

    monkeypatch.setattr(short_circuit, "_opened", noted)
    return paths


async def test_every_entry_is_read_whatever_one_bookie_says(
    tmp_path: Path, opened: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "pipe.seg")
    (tmp_path / "outside.seg").write_bytes(bytes(1 << 20))
    caplog.set_level(logging.INFO, short_circuit.__name__)
    peaks: dict[str, int] = {}

    async def read_it(client: Client, name: str) -> Any:
        tracemalloc.start()
        reply = await at.ask_the_liar(client)
        for _ in range(READS):
            await at.check_every_entry(client)
        peaks[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return reply

    async with world(tmp_path) as at:
        await read_it(await at.client(), HONEST)
        assert opened, "honest bookies' files are read"
        for name, lie in LIES.items():
            client = await at.client(replace(SOON, short_circuit_reads=name != UNASKED))
            at.liar.lie, at.liar.lies = lie, 0
            caplog.clear()
            reply = await read_it(client, name)
            assert at.liar.lies, name
            assert not reply.locations, name
            assert at.channel(client).colocated or name != UNASKED
            if name in REFUSED:
                # One line for the connection, however many responses lie.
                [line] = caplog.messages
                assert line.startswith(f"bookie {at.liar.bookie_id}: the bookie's response names "), name
                assert line.endswith("no more short-circuit reads on this connection"), name
                assert not at.channel(client).colocated
        # Also where its locations were refused, no other file was opened.
        folders = {server.config.directory / "segments" for server in at.cluster.servers.values()}
        assert {Path(path).parent for path in opened} <= folders
    grown = {name: max(peak - peaks[HONEST], 0) for name, peak in peaks.items()}
    keep_figures("lying_places", {"grown_bytes": grown, "reads_of_all": READS, "entries": ENTRIES}, seed=SEED)
    assert max(grown.values()) <= GROWTH_MAX


async def test_only_a_file_that_cannot_be_opened_or_three_misses_end_the_reads_of_files(
    tmp_path: Path, opened: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, short_circuit.__name__)
    async with world(tmp_path) as at:
        for name, lie in MISSED.items():
            client = await at.client()
            channel = at.channel(client)
            for _ in range(short_circuit.MISSES_MAX):
                # One segment is recycled at the wrong moment: the next response is read from the files again.
                at.liar.lie = lie
                assert (await at.ask_the_liar(client)).answer is Answer.OK
                at.liar.lie = None
                opened.clear()
                assert (await at.ask_the_liar(client)).runs
                assert opened, name
            assert channel.colocated, name
            at.liar.lie = lie
            for misses in range(1, short_circuit.MISSES_MAX + 1):
                assert channel.colocated
                await at.ask_the_liar(client)
                assert channel.location_misses == misses
            assert not channel.colocated, name
        assert any("ends before byte" in line for line in caplog.messages)
        client = await at.client()
        (at.liar.config.directory / "segments" / FOLDER).mkdir()
        at.liar.lie = LIES["a folder"]
        await at.ask_the_liar(client)
        assert not at.channel(client).colocated


async def test_only_registered_directories_of_this_machine_are_opened(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The liar says that it is on the client's machine; the client compares both ends of its own socket.
    monkeypatch.setattr(Connection, "_is_colocated", lambda _: True)
    async with world(tmp_path, host="127.0.0.2") as at:
        client = await at.client()
        assert not at.channel(client).colocated
        opened.clear()
        assert (await at.ask_the_liar(client)).runs
        assert opened == []
        at.channel(client).colocated = True
        assert (await at.ask_the_liar(client)).runs
        assert opened
        bookies = client.bookies
        info = bookies._known[at.liar.bookie_id]
        for directory in ("", "/", "relative", "/a/../b", "/a\0b", str(tmp_path / "b2") + "/"):
            bookies._known[at.liar.bookie_id] = replace(info, properties={"quire.directory": directory})
            at.channel(client).colocated = True
            opened.clear()
            assert (await at.ask_the_liar(client)).runs
            assert opened == [], directory


async def test_one_bookies_word_is_no_negative(tmp_path: Path) -> None:
    async with world(tmp_path) as at:
        for bookie in [bookie for bookie in at.cluster.servers if bookie != at.liar.bookie_id]:
            await at.cluster.stop_bookie(bookie)
        client = await at.cluster.client(replace(SOON, read_timeout_ms=100))
        reader = await client.open_ledger(at.ledger_id, recover=False)
        for name in ("no such entry", "no such ledger"):
            at.liar.lie, at.liar.lies = LIES[name], 0
            with pytest.raises(ReadUnavailableError):
                await anext(reader.read(3, 3))
            assert at.liar.lies, name
