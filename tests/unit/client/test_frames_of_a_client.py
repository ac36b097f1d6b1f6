"""What no frame holds is refused before it is sent, what one frame does not hold is sent in several, and what comes too
long is named."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.client.client import Client
from quire.client.config import ClientConfig, with_frames
from quire.core.answers import Answer
from quire.core.errors import MisuseError, ReadUnavailableError
from quire.storage.config import StorageConfig
from quire.wire.frame_limits import FRAME_BYTES_LOWEST, NATIVE_ROOM, FrameLimits
from support.small_cluster import small_cluster
from support.wire_adds import WireAdds

MIB = 1024 * 1024
PULSAR = 5_253_120
MESSAGE = 5 * MIB
PROTOCOLS = ["auto", "v2", "v3"]


async def create(client: Client, shape: tuple[int, int, int] = (1, 1, 1), digest: str = "mac") -> Any:
    ensemble, write, ack = shape
    return await client.create_ledger(
        ensemble_size=ensemble, write_quorum=write, ack_quorum=ack, digest=digest, password=b"pw"
    )


async def read_all(client: Client, ledger_id: int) -> list[bytes]:
    reader = await client.open_ledger(ledger_id, password=b"pw")
    return [bytes(entry.payload) async for entry in reader.read()]


def test_settings_that_cannot_be() -> None:
    for value in (FRAME_BYTES_LOWEST - 1, 64 * MIB, True, "big"):
        with pytest.raises(MisuseError, match=r"`ClientConfig\.frame_bytes_max` must be"):
            ClientConfig(frame_bytes_max=value)  # type: ignore[arg-type] # what a user might give
    with pytest.raises(MisuseError, match="unfinished answers have 67108864 bytes together"):
        quire.connect("sqlite:nowhere", frame_bytes_max=64 * MIB)
    with pytest.raises(MisuseError, match="raise `frame_bytes_max`"):
        ClientConfig(entry_bytes_max=8 * MIB)
    ClientConfig(entry_bytes_max=8 * MIB, frame_bytes_max=9 * MIB)
    assert ClientConfig().payload_bytes_max == PULSAR - 224 > MESSAGE + 9 * 1024
    assert ClientConfig(window_bytes_max=MIB).payload_bytes_max == MIB
    assert with_frames(None, None) is None


def test_a_shorter_frame_makes_runs_and_reads_shorter() -> None:
    config = with_frames(ClientConfig(read_timeout_ms=7), MIB)
    assert config is not None
    assert (config.read_timeout_ms, config.frame_limits.bookkeeper) == (7, MIB)
    assert (config.run_bytes_max, config.read_bytes_max, config.recovery_read_bytes_max) == 3 * (MIB // 2,)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_largest_entry_and_one_byte_more(tmp_path: Path, protocol: str) -> None:
    async with small_cluster(tmp_path, bookies=1, storage=StorageConfig()) as cluster:
        client = await cluster.client(ClientConfig(protocol=protocol))
        largest = client.config.payload_bytes_max
        async with await create(client) as ledger:
            # Pulsar's largest message with its own metadata, and the largest that any protocol carries.
            sizes = [MESSAGE, MESSAGE + 9 * 1024, largest]
            for size in sizes:
                await ledger.append(b"p" * size)
            for put in (ledger.append_nowait, ledger.append):
                with pytest.raises(MisuseError) as caught:
                    await put(bytes(largest + 1))
                for word in (str(largest + 1), str(largest), "`frame_bytes_max`", str(ledger.ledger_id)):
                    assert word in caught.value.message
            await ledger.append(b"the writer lives on")
        assert [len(one) for one in await read_all(client, ledger.ledger_id)] == [*sizes, 19]
        # Bookies that restarted read it from the disk, over every protocol, striped or not.
        for other in PROTOCOLS:
            reading = await cluster.client(ClientConfig(protocol=other))
            assert [len(one) for one in await read_all(reading, ledger.ledger_id)] == [*sizes, 19]


async def test_more_than_v2_and_v3_carry_goes_to_bookies_of_ours_alone(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, bookies=1, storage=StorageConfig()) as cluster:
        size = 7 * MIB
        for protocol in PROTOCOLS:
            client = await cluster.client(ClientConfig(protocol=protocol, entry_bytes_max=size))
            async with await create(client) as ledger:
                if protocol == "auto":
                    await ledger.append(bytes(size))
                    with pytest.raises(MisuseError, match=r"ClientConfig\.entry_bytes_max"):
                        await ledger.append(bytes(size + 1))
                    written = ledger.ledger_id
                else:
                    with pytest.raises(
                        MisuseError, match=r"V2 or V3, the protocol of b1.*: the limit is 5252896"
                    ):
                        await ledger.append(bytes(size))
                    await ledger.append(b"the writer lives on")
        reader = await cluster.client(ClientConfig(protocol="v3", read_timeout_ms=500))
        with pytest.raises(ReadUnavailableError) as caught:
            await read_all(reader, written)
        for word in ("b1", f"the limit of this client is {PULSAR}", "has 7340", "`frame_bytes_max`"):
            assert word in caught.value.message
        # With the limit that the message asks for, the same client reads it.
        reader = await cluster.client(ClientConfig(protocol="v3", frame_bytes_max=8 * MIB))
        assert [len(one) for one in await read_all(reader, written)] == [size]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_what_filled_a_frame_of_v2_is_read_over_every_protocol(tmp_path: Path, protocol: str) -> None:
    """In a batch, in V3 and in our own protocol its frame is longer than the one in which it came.

    Only V3 cannot write it back: the frame of a request has no more than the limit, for Java's bookies too.
    """
    limit = FRAME_BYTES_LOWEST
    async with small_cluster(tmp_path, bookies=1, frame_bytes_max=limit) as cluster:
        client = await cluster.client(ClientConfig(protocol=protocol, frame_bytes_max=limit))
        ledger = await create(client, digest="crc32c")
        port = next(iter(cluster.servers.values())).address[1]
        async with WireAdds(port, "v2", int(ledger.ledger_id)) as other:
            for entry_id in range(3):
                other.writer.write(other.frame(entry_id, limit))
                assert await other.answer() == (Answer.OK, entry_id)
        ours = await cluster.client(ClientConfig(frame_bytes_max=limit))
        await ours.recover_ledger(ledger.ledger_id, b"pw")
        found = await read_all(client, ledger.ledger_id)
        assert list(map(len, found)) == 3 * [limit - 28 - 36]
        await ledger.abandon()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 2)], ids=str)
async def test_tiny_entries_fit_however_many_one_turn_brings(
    tmp_path: Path, protocol: str, shape: tuple[int, int, int]
) -> None:
    """Their headers and their table are many times what they hold."""
    limit = FRAME_BYTES_LOWEST
    async with small_cluster(tmp_path, bookies=shape[0], frame_bytes_max=limit) as cluster:
        client = await cluster.client(ClientConfig(protocol=protocol, frame_bytes_max=limit))
        async with await create(client, shape) as ledger:
            futures = [ledger.append_nowait(b"x" * (number % 2)) for number in range(3_000)]
            assert await asyncio.gather(*futures) == list(range(3_000))
            largest = client.config.payload_bytes_max
            await asyncio.gather(*(ledger.append(b"y" * size) for size in (largest, 1, largest, largest)))
        found = await read_all(client, ledger.ledger_id)
        assert found[:3_000] == [b"x" * (number % 2) for number in range(3_000)]
        assert sorted(map(len, found[3_000:])) == [1, largest, largest, largest]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_answer_above_the_clients_limit_names_bookie_and_sizes(
    tmp_path: Path, protocol: str
) -> None:
    async with small_cluster(tmp_path, bookies=1, storage=StorageConfig()) as cluster:
        writer = await cluster.client(ClientConfig(protocol=protocol))
        async with await create(writer) as ledger:
            await ledger.append(bytes(MIB))
        limit = MIB // 2
        client = await cluster.client(
            ClientConfig(protocol=protocol, frame_bytes_max=limit, read_timeout_ms=500)
        )
        with pytest.raises(ReadUnavailableError) as caught:
            await read_all(client, ledger.ledger_id)
        takes = FrameLimits.of(limit).native if protocol == "auto" else limit
        for word in ("b1", "has 10", f"the limit of this client is {takes}", "`frame_bytes_max`"):
            assert word in caught.value.message
        assert NATIVE_ROOM + limit == FrameLimits.of(limit).native


async def test_recovery_and_copies_keep_to_the_limit_too(tmp_path: Path) -> None:
    limit = FRAME_BYTES_LOWEST
    async with small_cluster(tmp_path, bookies=3, frame_bytes_max=limit) as cluster:
        config = ClientConfig(frame_bytes_max=limit)
        client = await cluster.client(config)
        ledger = await create(client, (3, 3, 2))
        largest = config.payload_bytes_max
        await ledger.append_many([b"z" * size for size in (largest, 5, largest, *range(2000))])
        await ledger.abandon()
        other = await cluster.client(config)
        assert len(await read_all(other, ledger.ledger_id)) == 2003
        report = await other.verify_ledger(ledger.ledger_id, password=b"pw")
        assert report.good
