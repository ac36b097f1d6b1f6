"""A million random and mutated answers to a client, over our protocol, V2 and V3: each request has its one outcome."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.cli.local.local_cluster import LocalCluster
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.metadata.connect import open_store
from quire.wire import native_hello
from quire.wire.bookie_service_info import NATIVE_PROPERTY, native_property
from quire.wire.v3 import FIRST_BYTE
from support.hostile_frames import Mutator
from support.hostile_worlds import NATIVE, V2, V3
from support.rounds import keep_figures, rounds

pytestmark = pytest.mark.timeout(7000)
SEED = 20261122
FRAMES = rounds(2000, 1_000_000)
GROWTH_MIB_MAX = 64
MIB = 1024 * 1024
PROTOCOLS = {"native": NATIVE, "v2": V2, "v3": V3}


class HostileBookies:
    """Three listeners that answer the first request of a connection with all answers they know, spoilt.

    Attributes:
        connections: connections served.
    """

    def __init__(self, mutator: Mutator) -> None:
        self.connections = 0
        self._mutator = mutator
        self._servers: list[asyncio.Server] = []
        self._serving: set[Any] = set()

    async def listen(self, protocol: int, bookie: str, cluster_instance: str) -> int:
        answer = native_hello.HelloAnswer(
            2, Answer.OK, bookie, cluster_instance, features=native_hello.OFFERED, boot=7
        )
        hello = native_hello.encode_hello_answer(answer) if protocol == NATIVE else b""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            first = await reader.read(65536)
            frames = self._mutator.canned[protocol]
            if protocol == V2:
                is_v3 = first[4:5] == bytes([FIRST_BYTE])
                frames = [frame for frame in frames if (frame[4] == FIRST_BYTE) == is_v3]
            if first and frames:
                count = min(len(frames), 20)
                at = random.randrange(len(frames) - count + 1)
                writer.write(
                    hello
                    + self._mutator.changed(
                        V3 if protocol == V2 and is_v3 else protocol, frames[at : at + count]
                    )
                )
            self.connections += 1
            with contextlib.suppress(OSError):
                writer.write_eof()
                while await reader.read(65536):
                    pass
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        await asyncio.gather(*self._serving, return_exceptions=True)


async def survive(local: LocalCluster, mutator: Mutator, folder: Path) -> dict[str, Any]:
    async with quire.connect(local.uri) as client:
        one = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
        async with await client.create_ledger(**one) as ledger:
            await ledger.append_many([b"entry %d" % number for number in range(100)])
            good = ledger.ledger_id
    store = await open_store(local.uri)
    registry, hostile = BookieRegistry(store), HostileBookies(mutator)
    bookies, registrations = {}, []
    for name, protocol in PROTOCOLS.items():
        bookies[name] = f"hostile-{name}"
        port = await hostile.listen(protocol, bookies[name], store.instance_id)
        properties = (
            {NATIVE_PROPERTY: native_property(port, native_hello.VERSION)} if protocol == NATIVE else {}
        )
        info = BookieInfo(BookieId(bookies[name]), "127.0.0.1", port, properties=properties, writable=False)
        registrations.append(await registry.register(info))
    lines = folder / "client.log"
    figures: dict[str, Any] = {}
    with lines.open("wb") as log:
        worker = await asyncio.create_subprocess_exec(
            sys.executable, str(Path(__file__).with_name("client_worker.py")),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        a_round = 13  # frames of four connections, about
        task = {"cluster": local.uri, "bookies": bookies, "good": good, "rounds": max(FRAMES // a_round, 1)}
        said, _ = await worker.communicate(json.dumps(task).encode() + b"\n")
        assert worker.returncode == 0, lines.read_text()[-3000:]
        figures = json.loads(said)
    await hostile.close()
    for registration in registrations:
        await registration.close()
    await store.close()
    text = lines.read_text().splitlines()
    return {
        "frames": mutator.made,
        "connections": hostile.connections,
        "grown_mib": round(figures["grown"] / MIB, 1),
        "descriptors": figures["descriptors"],
        "good_ledger_read": figures["good"],
        "answers": dict(sorted(figures["told"].items())),
        "log_lines": len(text),
        "tracebacks": sum(1 for line in text if "Traceback" in line or line.startswith("ERROR")),
    }


def test_mutated_answers(tmp_path: Path) -> None:
    mutator = Mutator(random.Random(SEED), "client", share=0.4)
    with LocalCluster(tmp_path, bookies=1) as local:
        figures = asyncio.run(survive(local, mutator, tmp_path))
    keep_figures("mutated_answers", figures, seed=SEED)
    assert figures["frames"] > 0.9 * FRAMES
    assert figures["good_ledger_read"]
    assert figures["tracebacks"] == 0
    assert figures["log_lines"] <= figures["connections"] + 20
    assert figures["grown_mib"] <= GROWTH_MIB_MAX
    assert figures["descriptors"][1] <= figures["descriptors"][0] + 8
    assert len(figures["answers"]) > 3, (
        "the answers never came so far that they were taken for different ones"
    )
