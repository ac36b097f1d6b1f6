"""A frame at a bookie's limit is served; one byte more is refused alone, and its connection goes on."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from quire.bookie.config import BookieConfig
from quire.core.answers import Answer
from quire.core.errors import MisuseError
from quire.storage.config import StorageConfig
from quire.wire import native
from quire.wire.frame_limits import FRAME_BYTES_LOWEST, NATIVE_ROOM, FrameLimits
from support.small_cluster import SmallCluster, small_cluster
from support.wire_adds import PROTOCOLS, WireAdds

LIMIT = 256 * 1024
PULSAR = 5_253_120
MIB = 1024 * 1024


def port_of(cluster: SmallCluster) -> int:
    return next(iter(cluster.servers.values())).address[1]


def limit_of(protocol: str, limits: FrameLimits) -> int:
    return limits.native if protocol == "native" else limits.bookkeeper


def test_the_limits() -> None:
    assert FrameLimits.of(None) == (8 * MIB, PULSAR)
    assert FrameLimits.of(LIMIT) == (LIMIT + NATIVE_ROOM, LIMIT)
    # An entry in the longest frame of V2 leaves in one of ours, as a request or as an answer.
    assert FrameLimits.of(LIMIT).native > LIMIT - 28 + native.REQUEST_BYTES + 60


@pytest.mark.parametrize("value", [FRAME_BYTES_LOWEST - 1, 1 << 30, 0, -1, True, 1.5])
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, value: object) -> None:
    with pytest.raises(MisuseError, match=r"`BookieConfig\.frame_bytes_max` .* from 65536 to"):
        BookieConfig(tmp_path, frame_bytes_max=value)  # type: ignore[arg-type] # what a file might say


def test_what_a_segment_cannot_hold_is_refused(tmp_path: Path) -> None:
    small = StorageConfig(segment_bytes=MIB)
    with pytest.raises(MisuseError, match=r"a segment of 1048576 bytes.* raise them first"):
        BookieConfig(tmp_path, storage=small, frame_bytes_max=MIB)
    with pytest.raises(MisuseError, match="receive_budget_bytes"):
        BookieConfig(tmp_path, receive_budget_bytes=MIB, frame_bytes_max=MIB)
    assert BookieConfig(tmp_path, frame_bytes_max=60 * MIB).frame_limits.bookkeeper == 60 * MIB


@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_one_byte_above_the_limit_is_refused_alone(
    tmp_path: Path, protocol: str, recovery: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with small_cluster(tmp_path, bookies=1, records=[7], frame_bytes_max=LIMIT) as cluster:
            server = next(iter(cluster.servers.values()))
            limit = limit_of(protocol, server.config.frame_limits)
            async with WireAdds(port_of(cluster), protocol) as client:
                # What came before it and what comes behind it are served, however the stream is cut.
                stream = client.frame(0, 1000, recovery=recovery)
                stream += client.frame(1, limit + 1, recovery=recovery)
                stream += client.frame(2, limit, recovery=recovery)
                stream += client.frame(3, 20 * limit, recovery=recovery)
                client.writer.write(stream)
                client.writer.write(client.frame(4, 1000, recovery=recovery))
                found = dict([(await client.answer())[::-1] for _ in range(5)])
                first = 1 if protocol != "v2" and protocol != "v3" else 0
                assert found == {
                    first: Answer.OK,
                    first + 1: Answer.BAD_REQUEST,
                    first + 2: Answer.OK,
                    first + 3: Answer.BAD_REQUEST,
                    first + 4: Answer.OK,
                }
                assert len(await client.read(2)) > limit - 200
                assert server.receive_budget.taken == 0
        lines = [record.getMessage() for record in caplog.records if "its frame has" in record.getMessage()]
        assert [f"{limit + 1} bytes, the limit is {limit}" in line for line in lines] == [True, False]
        assert all("--frame-bytes-max" in line for line in lines)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_default_takes_what_pulsar_sends(tmp_path: Path, protocol: str) -> None:
    async with small_cluster(tmp_path, bookies=1, records=[7], storage=StorageConfig()) as cluster:
        limit = limit_of(protocol, FrameLimits())
        async with WireAdds(port_of(cluster), protocol) as client:
            for entry_id, size in enumerate((PULSAR, limit)):
                client.writer.write(client.frame(entry_id, size))
                assert (await client.answer())[0] is Answer.OK
                assert await client.read(entry_id) == client.entry(entry_id, len(await client.read(entry_id)))
            client.writer.write(client.frame(2, limit + 1))
            assert (await client.answer())[0] is Answer.BAD_REQUEST
            client.writer.write(client.frame(2, limit))
            assert (await client.answer())[0] is Answer.OK


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("size", "rest", "why"),
    [
        (64 * (LIMIT + NATIVE_ROOM) + 1, b"", "far exceeds the limit"),
        (LIMIT + NATIVE_ROOM + 1, b"\x05" * 300, "cannot be answered: "),
        (LIMIT + NATIVE_ROOM + 1, b"\x0a" * 300, "cannot be answered: "),
    ],
)
async def test_what_begins_as_no_add_ends_the_connection(
    tmp_path: Path, protocol: str, size: int, rest: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with (
            small_cluster(tmp_path, bookies=1, records=[7], frame_bytes_max=LIMIT) as cluster,
            WireAdds(port_of(cluster), protocol) as client,
        ):
            client.writer.write(client.frame(0, 1000))
            assert (await client.answer())[0] is Answer.OK
            client.writer.write((size - 4).to_bytes(4, "big") + rest)
            assert await client.reader.read() == b""
    assert [why in record.getMessage() for record in caplog.records if "closing" in record.getMessage()] == [
        True
    ]


async def test_an_announced_frame_that_does_not_come_takes_nothing_and_ends(tmp_path: Path) -> None:
    async with small_cluster(
        tmp_path, bookies=1, frame_bytes_max=LIMIT, partial_frame_seconds=0.2
    ) as cluster:
        server = next(iter(cluster.servers.values()))
        async with WireAdds(port_of(cluster), "v3") as client:
            client.writer.write(client.frame(0, 2 * LIMIT)[:LIMIT])
            assert (await client.answer())[0] is Answer.BAD_REQUEST
            assert server.receive_budget.taken == 0
            async with asyncio.timeout(30):
                assert await client.reader.read() == b""
