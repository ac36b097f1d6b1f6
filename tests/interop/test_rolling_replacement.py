"""All Java bookies of a cluster are replaced by ours, one after another, and back, under a writer of each language.

Auto-recovery is ours and copies what a bookie held that has gone. Every connection is TLS with certificates on both sides
that name hosts, and a bookie's id is its host's name and port.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import judged, new_history
from quire.metadata.bookies import BookieRegistry
from quire.metadata.connect import open_store
from quire.net.security.settings import ClientSecurity, ClientTls
from support.both_writers import each_reads_the_other, load_of_both
from support.certificates import Authority, Pair
from support.java_peers import PATIENT, PATIENT_CLIENT, PATIENT_JAVA, JavaPeers, free_port, own_peers
from support.ledgers import LANGUAGES, Ledgers
from support.rounds import keep_figures
from support.waiting import until_async

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(3600)]

COUNT = 3
HOST = "localhost"
MOVED_WITHIN_S = 300.0
LOST_DELAY_S = 5


class Keys:
    """A certificate authority, a bookie's certificate, a client's, and the files that say so to our programs."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.bookie = self.authority.issue("bookie", f"DNS:{HOST},IP:127.0.0.1")
        self.client = self.authority.issue("client")
        self.client_file = folder / "client.toml"
        self.bookie_file = folder / "bookie.toml"
        self.client_file.write_text(f"[tls]\n{self._paths(self.client)}")
        self.bookie_file.write_text(f"[tls]\n{self._paths(self.bookie)}require_client_certificate = true\n")

    def _paths(self, pair: Pair) -> str:
        return f'ca = "{self.authority.ca}"\ncertificate = "{pair.certificate}"\nkey = "{pair.key}"\n'

    def of_java(self, pair: Pair) -> dict[str, object]:
        """A Java side's configuration."""
        return {
            "tlsProvider": "JDK",
            "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": self.authority.ca,
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": pair.key,
            "tlsCertificatePath": pair.certificate,
            "tlsClientAuthentication": "true",
        }


@asynccontextmanager
async def program(log: Path, keys: Keys, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """One of our programs, stopped as an operator stops it."""
    with log.open("ab") as said:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "quire.cli.main",
            *words,
            env=os.environ | {"QUIRE_SECURITY": str(keys.client_file)},
            stdout=said,
            stderr=said,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


class Replacement:
    """One cluster whose bookies are replaced.

    Attributes:
        ours: our bookies' processes, by id.
    """

    def __init__(
        self, peers: JavaPeers, keys: Keys, folder: Path, client: Any, registry: BookieRegistry
    ) -> None:
        self._peers, self._keys, self._folder = peers, keys, folder
        self._client, self._registry = client, registry
        self.ours: dict[str, Any] = {}

    async def start_ours(self, number: int) -> str:
        """One more bookie of ours; its id."""
        port = free_port()
        bookie = f"{HOST}:{port}"
        made = program(
            self._folder / f"bookie-{number}.log", self._keys, "bookie",
            "--dir", str(self._folder / f"b{number}"), "--cluster", self._peers.uri + PATIENT,
            "--listen", f"127.0.0.1:{port}", "--advertise", bookie, "--id-from-address",
            "--security", str(self._keys.bookie_file), "--segment-bytes", "16777216",
        )  # fmt: skip
        await made.__aenter__()
        self.ours[bookie] = made
        await self._registered(bookie, there=True)
        return bookie

    async def stop_ours(self, bookie: str) -> None:
        """One of ours ends."""
        await self.ours.pop(bookie).__aexit__(None, None, None)

    async def _registered(self, bookie: str, *, there: bool) -> None:
        async def known() -> bool:
            return (bookie in {str(one) for one in await self._registry.available()}) is there

        await until_async(known, f"{bookie} in the registry: {there}", MOVED_WITHIN_S)

    async def is_replaced(self, bookie: str, ledgers: Sequence[int]) -> None:
        """No record names it any more; then its cookie is removed."""

        async def unnamed() -> bool:
            for ledger in ledgers:
                record = await self._client.ledger_metadata(ledger)
                if any(bookie == str(one) for fragment in record.fragments for one in fragment.ensemble):
                    return False
            return True

        await until_async(unnamed, f"no record that names {bookie}", MOVED_WITHIN_S)
        async with program(
            self._folder / "forget.log", self._keys, "bookie", "forget", bookie, "--cluster", self._peers.uri
        ) as forgetting:
            assert await forgetting.wait() == 0, (self._folder / "forget.log").read_text()


async def there_and_back(peers: JavaPeers, keys: Keys, folder: Path) -> dict[str, Any]:
    security = ClientSecurity(
        ClientTls(keys.authority.ca, keys.client.certificate, keys.client.key, verify_hostname=True)
    )
    history = new_history()
    uri = peers.uri + PATIENT
    async with (
        quire.connect(uri, config=replace(PATIENT_CLIENT, security=security)) as client,
        peers.client() as java,
        await open_store(uri) as store,
        program(
            folder / "autorecovery.log", keys, "autorecovery",
            "--cluster", uri, "--lost-delay", str(LOST_DELAY_S),
        ),
    ):  # fmt: skip
        registry, ledgers = BookieRegistry(store), Ledgers(client, java, peers.uri)
        moving = Replacement(peers, keys, folder, client, registry)
        made = [await ledgers.write(language, number) for number in range(4) for language in LANGUAGES]
        came: list[str] = []
        try:
            async with load_of_both(history, peers, peers.uri, client, registry, *PATIENT_JAVA) as load:
                for number, old in enumerate(peers.bookies()):
                    came.append(await moving.start_ours(number))
                    await asyncio.to_thread(peers.run, "stop-bookie", str(number))
                    await load.goes_on()
                    await moving.is_replaced(old, [*made, int(load.writer.ledger_id), load.java.ledger])
                    made += [await ledgers.write(language, number) for language in LANGUAGES]
                for number, old in enumerate(came):
                    shutil.rmtree(peers.folder / "data" / f"bookie{number}")
                    for kind in ("journal", "ledgers", "index"):
                        (peers.folder / "data" / f"bookie{number}" / kind).mkdir(parents=True)
                    await asyncio.to_thread(peers.run, "start-bookie", str(number))
                    await load.goes_on()
                    await moving.stop_ours(old)
                    await load.goes_on()
                    await moving.is_replaced(old, [*made, int(load.writer.ledger_id), load.java.ledger])
                    made += [await ledgers.write(language, number) for language in LANGUAGES]
            for ledger in made:
                for language in LANGUAGES:
                    await ledgers.read(language, ledger)
            figures = await each_reads_the_other(history, java, peers.uri, client, load)
            judged(history.events, 1, 2, 3, 4, 5, 8, 9)
            made += [int(load.writer.ledger_id), load.java.ledger]
            async with (
                program(folder / "repair.log", keys, "cluster", "repair", "--cluster", uri) as repairing
            ):  # a writer that was killed, and slots that were absent while a bookie changed, left holes
                assert await repairing.wait() == 0, (folder / "repair.log").read_text()
            for ledger in made:
                report = await client.verify_ledger(ledger, password=b"secret")
                assert report.complete, report
        finally:
            for bookie in list(moving.ours):
                await moving.stop_ours(bookie)
    return {"replaced": 2 * COUNT, "ledgers": len(made), **figures, "incomplete ledgers at the end": 0}


async def test_java_bookies_are_replaced_by_ours_and_back(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    conf = "".join(f"{key}={value}\n" for key, value in keys.of_java(keys.bookie).items())
    with own_peers(tmp_path / "java", COUNT, conf, name=HOST) as peers:
        words = keys.of_java(keys.client) | {"tlsHostnameVerificationEnabled": "true"}
        peers.client_options = tuple(
            word for key, value in words.items() for word in ("--conf", f"{key}={value}")
        )
        figures = await there_and_back(peers, keys, tmp_path)
    keep_figures("rolling_replacement_over_tls", figures, seed=None)
