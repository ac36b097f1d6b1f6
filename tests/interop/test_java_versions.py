"""Java clients of every age on our bookies, our client on Java bookies of every age: V2 and V3, four digests, striped or not.

A cell is a ledger. Java writes and we read, or we write and Java reads; half of the ledgers were closed by their writer, the
others are recovered by whoever reads. `docs/moving.md` shows the counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import quire
from quire.core.errors import QuireError
from support.java_peers import PATIENT, PATIENT_CLIENT, JavaPeers, our_bookies, own_peers
from support.rounds import keep_figures

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(900)]

PROTOCOLS = ("v2", "v3")
CELLS = [
    ":".join(parts)
    for parts in itertools.product(
        PROTOCOLS, ("CRC32", "CRC32C", "MAC", "DUMMY"), ("3:3:2", "3:2:2"), ("closed", "open")
    )
]
ENTRIES = 20
BEFORE_IDS = ("4.9.2", "4.11.1")
"""These take a bookie's id for host:port."""
OPENED = [
    word
    for package in ("java.io", "java.nio", "java.util.zip", "jdk.internal.misc", "sun.nio.ch")
    for word in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
]
VERSIONS = (*BEFORE_IDS, "4.14.5", "4.16.6", "4.17.3", "4.18.0")


async def java(peers: JavaPeers, uri: str, what: str, cells: list[str]) -> dict[str, list[str]]:
    """What the Java client says of each cell: a ledger's id, its id and count, or `failed` and why."""
    process = await asyncio.create_subprocess_exec(
        "java",
        *OPENED,
        "-XX:TieredStopAtLevel=1",
        f"-Dlog4j.configurationFile={peers.folder}/conf/log4j2-shell.properties",
        "-cp",
        f"{peers.classpath}:{peers.classes}",
        "MatrixClient",
        uri,
        what,
        str(ENTRIES),
        *cells,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ,
    )
    out, _ = await process.communicate()
    lines = (line.split(" ", 1) for line in out.decode().splitlines())
    return {
        words[0]: words[1].split() for words in lines if words[0] in {cell.split("=")[0] for cell in cells}
    }


def payloads(cell: str) -> list[bytes]:
    return [f"{cell}/{number}".encode() for number in range(ENTRIES)]


async def we_write(client: quire.Client, cell: str) -> str:
    """A ledger for a cell, which its writer closes or leaves open; its id."""
    _, digest, ensemble, write, ack, end = cell.split(":")
    ledger = await client.create_ledger(
        ensemble_size=int(ensemble),
        write_quorum=int(write),
        ack_quorum=int(ack),
        password=b"secret",
        digest=digest.lower(),
    )
    await ledger.append_many(payloads(cell))
    await (ledger.close() if end == "closed" else ledger.abandon())
    return str(ledger.ledger_id)


async def we_read(client: quire.Client, cell: str, ledger_id: str) -> None:
    """Recover it if it is open, read all, and verify every copy."""
    reader = await client.open_ledger(int(ledger_id), password=b"secret")
    assert [bytes(entry.payload) async for entry in reader.read()] == payloads(cell)
    report = await client.verify_ledger(int(ledger_id), password=b"secret")
    assert report.good, report


async def matrix(peers: JavaPeers, uri: str, cells: list[str]) -> dict[str, str]:
    """Each cell in both directions: "" if it passed, else what failed."""
    found: dict[str, str] = {}
    written = await java(peers, uri, "write", cells)
    to_read: list[str] = []
    for protocol in PROTOCOLS:
        config = replace(PATIENT_CLIENT, protocol=protocol)
        async with quire.connect(uri + PATIENT, config) as client:
            for cell in (each for each in cells if each.startswith(protocol)):
                said = written.get(cell, ["failed", "nothing was said"])
                found[f"java writes {cell}"] = " ".join(said[1:])
                if said[0] != "failed":
                    with noted(found, f"we read {cell}"):
                        await we_read(client, cell, said[0])
                with noted(found, f"we write {cell}"):
                    to_read.append(f"{cell}={await we_write(client, cell)}")
    read = await java(peers, uri, "read", to_read)
    for named in to_read:
        cell, _, ledger_id = named.partition("=")
        said = read.get(cell, ["failed", "nothing was said"])
        found[f"java reads {cell}"] = "" if said == [ledger_id, str(ENTRIES)] else " ".join(said)
    return found


@contextlib.contextmanager
def noted(found: dict[str, str], step: str):
    """Keep why a step failed."""
    found[step] = ""
    try:
        yield
    except (QuireError, AssertionError) as error:
        found[step] = repr(error)


@pytest.mark.parametrize("version", VERSIONS)
async def test_clients_and_bookies_of_one_age(version: str, tmp_path: Path) -> None:
    async def work(peers: JavaPeers) -> dict[str, dict[str, str]]:
        on_java = await matrix(peers, peers.uri, CELLS)
        ours = peers.another_root()
        async with our_bookies(ours, tmp_path / "ours", 3, id_from_address=version in BEFORE_IDS):
            return {"java bookies": on_java, "our bookies": await matrix(peers, ours, CELLS)}

    with own_peers(tmp_path / "java", 3, version=version, program="MatrixClient") as peers:
        found = await work(peers)
    counts = {
        f"{bookies}, {protocol}": f"{sum(not why for why in those)} of {4 * len(CELLS) // 2}"
        for bookies, steps in found.items()
        for protocol in PROTOCOLS
        if (those := [why for step, why in steps.items() if f" {protocol}:" in step])
    }
    failed = {
        f"{bookies}: {step}": why for bookies, steps in found.items() for step, why in steps.items() if why
    }
    keep_figures(f"java_version_{version}", counts, seed=None, rows=failed)
    assert not failed, failed
