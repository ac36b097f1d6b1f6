"""Entries as large as Pulsar's largest message, written and read by Java's client and by ours, on Java's bookies and ours;
and one byte more than a frame holds, which is refused alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.core.errors import MisuseError
from quire.wire.bookkeeper import FRAME_BYTES_MAX
from support import java_peers
from support.java_peers import PATIENT, PATIENT_CLIENT, PATIENT_JAVA, JavaClient, JavaPeers, our_bookies
from support.ledgers import RAMP

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

PULSAR = 5 * 1024 * 1024 + 9 * 1024
"""A message of Pulsar's `maxMessageSize`, with nearly all that it may have of metadata around."""
ENTRY_HEADER = 36
SMALLEST_FRAME = {"v2": 28, "v3": 49}
"""What V2 has around an entry, and V3 as long as all numbers are below 128."""
LARGEST_FRAME = {"v2": 28, "v3": 82}
JAVA_FRAMES = ["--conf", f"nettyMaxFrameSizeBytes={FRAME_BYTES_MAX}"]
CLUSTERS = ["ours", "mixed", "java"]
SPOKEN = ["v2", "v3"]


def largest(version: str) -> int:
    """The largest payload that fits a frame of this version in any case, with the digest CRC32C."""
    return FRAME_BYTES_MAX - LARGEST_FRAME[version] - ENTRY_HEADER


def too_large(version: str) -> int:
    """The smallest that fits none; in V2, one byte above the largest."""
    return FRAME_BYTES_MAX - SMALLEST_FRAME[version] - ENTRY_HEADER + 1


def payload(size: int) -> bytes:
    """What the Java client writes as entry 0."""
    return (RAMP * (size // len(RAMP) + 1))[:size]


class World:
    """A cluster with a Java client and ways to make ours."""

    def __init__(self, uri: str, java: JavaClient) -> None:
        self.uri, self._java = uri, java

    async def java(self, version: str, command: str, *arguments: object) -> list[dict[str, Any]]:
        options = [*PATIENT_JAVA, *JAVA_FRAMES, *(["--v2"] if version == "v2" else [])]
        return await self._java.run(self.uri, "CRC32C", command, *arguments, *options)

    def ours(self, protocol: str) -> Any:
        return quire.connect(self.uri + PATIENT, config=replace(PATIENT_CLIENT, protocol=protocol))

    async def java_reads(self, version: str, ledger_id: int, size: int) -> None:
        events = await self.java(version, "read", ledger_id)
        entries = [(event["size"], event["pattern"]) for event in events if event["event"] == "entry"]
        assert entries == [(size, True)], events

    async def we_read(self, protocol: str, ledger_id: int, size: int) -> None:
        async with self.ours(protocol) as client:
            reader = await client.open_ledger(ledger_id, password=b"secret")
            found = [bytes(entry.payload) async for entry in reader.read()]
        assert found == [payload(size)]

    async def we_write(self, client: Any, size: int) -> int:
        async with await client.create_ledger(password=b"secret", digest="crc32c") as ledger:
            await ledger.append(payload(size))
        return int(ledger.ledger_id)


Work = Callable[[World], Coroutine[Any, Any, None]]


async def in_a_world(peers: JavaPeers, folder: Path, cluster: str, work: Work) -> None:
    uri = peers.another_root() if cluster == "ours" else peers.uri
    count = {"ours": 3, "mixed": 2, "java": 0}[cluster]
    async with our_bookies(uri, folder, count), peers.client() as java:
        await work(World(uri, java))


def cells(*columns: list[str], quick: set[tuple[str, ...]]) -> list[Any]:
    """The whole matrix, of which `make test` runs a few cells."""
    return [
        pytest.param(*cell, marks=() if cell in quick else pytest.mark.slow) for cell in product(*columns)
    ]


def test_the_peers_have_pulsars_limit() -> None:
    assert java_peers.FRAME_BYTES_MAX == FRAME_BYTES_MAX == 5_253_120
    assert largest("v3") > PULSAR


@pytest.mark.parametrize(("cluster", "version"), cells(CLUSTERS, SPOKEN, quick={("ours", "v2")}))
async def test_java_writes_and_all_read(peers: JavaPeers, tmp_path: Path, cluster: str, version: str) -> None:
    async def work(world: World) -> None:
        sizes = [PULSAR, largest(version)]
        events = await world.java(version, "write-each", *sizes)
        written = [event["ledger"] for event in events if event["event"] == "written"]
        assert len(written) == len(sizes), events
        for ledger_id, size in zip(written, sizes, strict=True):
            await world.java_reads(version, ledger_id, size)
            for protocol in ("v2", "v3", "auto"):
                await world.we_read(protocol, ledger_id, size)
        # Java's client takes no frame above its limit: what fits every protocol it reads over both.
        for other in SPOKEN:
            await world.java_reads(other, written[0], PULSAR)

    await in_a_world(peers, tmp_path, cluster, work)


@pytest.mark.parametrize(
    ("cluster", "protocol"),
    cells(CLUSTERS, ["v2", "v3", "auto", "auto-v2"], quick={("java", "v2")}),
)
async def test_we_write_and_all_read(peers: JavaPeers, tmp_path: Path, cluster: str, protocol: str) -> None:
    async def work(world: World) -> None:
        async with world.ours(protocol) as client:
            for size in (PULSAR, client.config.payload_bytes_max):
                ledger_id = await world.we_write(client, size)
                for version in SPOKEN:
                    await world.java_reads(version, ledger_id, size)
                await world.we_read(protocol, ledger_id, size)
            ledger = await client.create_ledger(password=b"secret")
            with pytest.raises(MisuseError, match=r"5252897 bytes .* 5252896 .*`frame_bytes_max`"):
                await ledger.append(bytes(client.config.payload_bytes_max + 1))
            await ledger.append(b"the writer lives on")
            await ledger.close()

    await in_a_world(peers, tmp_path, cluster, work)


@pytest.mark.parametrize("version", [pytest.param("v2", marks=pytest.mark.slow), "v3"])
async def test_one_byte_more_is_refused_and_javas_connection_lives(
    peers: JavaPeers, tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(world: World) -> None:
        events = await world.java(version, "write-each", largest(version), too_large(version), PULSAR)
        assert [event["event"] for event in events] == [
            *["created", "added", "written"],
            *["created", "refused"],
            *["created", "added", "written"],
        ], events

    with caplog.at_level(logging.WARNING):
        await in_a_world(peers, tmp_path, "ours", work)
    lines = [record.getMessage() for record in caplog.records]
    assert any(
        f"the limit is {FRAME_BYTES_MAX} (frame_bytes_max, --frame-bytes-max)" in line for line in lines
    )
    assert not any("closing the connection" in line for line in lines), lines
