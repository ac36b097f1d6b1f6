"""The commands of docs/moving.md on a real cluster: a Java bookie goes, one of ours comes, and back, under two writers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import judged, new_history
from quire.metadata.bookies import BookieRegistry
from quire.metadata.connect import open_store
from support.both_writers import each_reads_the_other, load_of_both
from support.java_peers import PATIENT, PATIENT_CLIENT, PATIENT_JAVA, TOOLS, JavaPeers, own_peers
from support.ledgers import LANGUAGES, Ledgers
from support.rounds import keep_figures
from support.waiting import until_async

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(1800)]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "moving.md"
BLOCK = re.compile(r"^```console\n(.*?)^```", re.M | re.S)
COMMANDS = """
bookkeeper() { shift; "$JAVA_PEER" shell "$PEERS" "$@"; }
bookkeeper-daemon.sh() { "$JAVA_PEER" "$1-bookie" "$PEERS" 0; }
quire() { "$PYTHON" -m quire.cli.main "$@"; }
set -euo pipefail
"""
"""What the page's words are here: bookie 0 is the one whose machine they are said on."""


class Page:
    """The page's commands, block after block, with its variables."""

    def __init__(self, peers: JavaPeers, folder: Path) -> None:
        self.blocks = [
            [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
            for block in BLOCK.findall(PAGE.read_text())
        ]
        self.done = 0
        self.variables = {
            "QUIRE_CLUSTER": peers.uri,
            "QUIRE_PASSWORD": "secret",
            "DIR": str(folder / "quire-1"),
            "ADDRESS": "127.0.0.1:0",
            "OLD": peers.bookies()[0],
            "JAVA_PEER": str(TOOLS / "java-peer"),
            "PEERS": str(peers.folder),
            "PYTHON": sys.executable,
        }

    async def start(self, command: str) -> asyncio.subprocess.Process:
        """Begin a command of the page."""
        self.done += 1
        return await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            COMMANDS + command,
            env=os.environ | self.variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )

    async def do(self, number: int) -> None:
        """All commands of a block; each must succeed."""
        for command in self.blocks[number]:
            process = await self.start(command)
            said, _ = await process.communicate()
            assert process.returncode == 0, f"{command}: {said.decode()[-3000:]}"


async def moving(peers: JavaPeers, folder: Path) -> dict[str, Any]:
    """There and back."""
    page, history = Page(peers, folder), new_history()
    assert len(page.blocks) == 7, "the page has other blocks than this test does"
    async with (
        quire.connect(peers.uri + PATIENT, config=PATIENT_CLIENT) as client,
        peers.client() as java,
        await open_store(peers.uri + PATIENT) as store,
    ):
        registry, ledgers = BookieRegistry(store), Ledgers(client, java, peers.uri)
        made = [await ledgers.write(language, number) for number in range(6) for language in LANGUAGES]
        page.variables["LEDGER"] = str(made[0])
        async with load_of_both(history, peers, peers.uri, client, registry, *PATIENT_JAVA) as load:
            ours = await page.start(page.blocks[0][0])
            try:
                [page.variables["NEW"]] = await until_async(lambda: new_ones(registry), "our bookie", 120)
                await page.do(1)
                await page.do(2)
                await load.goes_on()  # so both writers have put another bookie into its place
                await page.do(3)
                await page.do(4)
                made += [
                    await ledgers.write(language, number) for number in range(3) for language in LANGUAGES
                ]
                await page.do(5)
                await load.goes_on()
            finally:
                os.killpg(ours.pid, signal.SIGTERM)
                await ours.wait()
            await load.goes_on()
            await page.do(6)
            await load.goes_on()
        for ledger in made:
            for language in LANGUAGES:
                await ledgers.read(language, ledger)
        figures = await each_reads_the_other(history, java, peers.uri, client, load)
        judged(history.events, 1, 2, 3, 4, 5, 8, 9)
    return {"commands": page.done, "ledgers": len(made), **figures}


async def new_ones(registry: BookieRegistry) -> list[str]:
    """The bookies that are ours."""
    return [str(bookie) for bookie in await registry.available() if str(bookie).startswith("quire-1.")]


async def test_moving_there_and_back(tmp_path: Path) -> None:
    with own_peers(tmp_path / "java", 3) as peers:
        figures = await moving(peers, tmp_path)
    keep_figures("moving_there_and_back", figures, seed=None)
