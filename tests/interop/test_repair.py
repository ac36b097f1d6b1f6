"""Ledgers move from Java's bookies to ours and back, fragment by fragment, by our repair; both languages read them then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.client.client import Client
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.core.errors import WrongPasswordError
from quire.core.ids import BookieId
from quire.core.repair.effects import RepairOutcome
from support.java_peers import PATIENT, PATIENT_CLIENT, JavaPeers, our_bookies, own_peers
from support.ledgers import COUNT, DIGESTS, LANGUAGES, Ledgers
from support.rounds import keep_figures, rounds

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]


def is_java(bookie: str) -> bool:
    return bookie.startswith("127.")


async def members(client: Client, ledger: int) -> list[BookieId]:
    record = await client.ledger_metadata(ledger)
    return [bookie for fragment in record.fragments for bookie in fragment.ensemble]


class Moves:
    """Repairs that replace one bookie of a ledger by one of a language, as if it were gone.

    Attributes:
        cells: how many slots went from which language to which.
        copied: entries.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.cells: Counter[str] = Counter()
        self.copied = 0

    async def move(
        self, ledger: int, old: BookieId, targets: Sequence[BookieId], password: bytes | None = None
    ) -> None:
        there = await members(self._client, ledger)
        free = [bookie for bookie in targets if bookie not in there]
        repair = LedgerRepair(
            ledger, self._client.context, lost_bookies=[old], candidates=free, password=password
        )
        ended = await repair.run()
        assert ended.outcome is RepairOutcome.WHOLE, ended
        ((first, left, came),) = ended.report.replaced
        assert (first, left) == (0, old)
        assert came in free
        languages = {True: "java", False: "python"}
        self.cells[f"{languages[is_java(old)]} to {languages[is_java(came)]}"] += 1
        self.copied += ended.report.copied


async def _cell(peers: JavaPeers, folder: Path) -> None:
    """A ledger of Java's on Java's bookies: one slot to ours and back."""
    async with quire.connect(peers.uri + PATIENT, config=PATIENT_CLIENT) as client, peers.client() as java:
        ledgers = Ledgers(client, java, peers.uri)
        made = [await ledgers.write("java", 0)]
        async with our_bookies(peers.uri, folder, 1):
            ours = [bookie for bookie in await client.bookies.bookies() if not is_java(bookie)]
            javas = [bookie for bookie in await client.bookies.bookies() if is_java(bookie)]
            moves = Moves(client)
            for ledger in made:
                (old, *_) = [bookie for bookie in await members(client, ledger) if is_java(bookie)]
                await moves.move(ledger, old, ours)
                for language in LANGUAGES:
                    await ledgers.read(language, ledger)
                (come,) = [bookie for bookie in await members(client, ledger) if bookie in ours]
                await moves.move(ledger, come, javas)
                assert (await client.verify_ledger(ledger, b"secret")).complete
            assert moves.cells == {"java to python": 1, "python to java": 1}
            # A record of format 1, as Java's oldest clients wrote it: nobody knows the password.
            record, version = await client.records.ledgers.read(made[0])
            plain = replace(record, format_version=1, has_password=False, password=b"", custom=())
            await client.records.ledgers.write(plain, version)
            with pytest.raises(WrongPasswordError, match="stores no password: give the ledger"):
                await LedgerRepair(made[0], client.context).run()


async def test_a_slot_moves_from_javas_bookies_to_ours_and_back(peers: JavaPeers, tmp_path: Path) -> None:
    await _cell(peers, tmp_path)


async def _four_cells(peers: JavaPeers, folder: Path, count: int) -> dict[str, Any]:
    async with quire.connect(peers.uri + PATIENT, config=PATIENT_CLIENT) as client, peers.client() as java:
        ledgers = Ledgers(client, java, peers.uri)
        made = [await ledgers.write(LANGUAGES[number % 2], number // 2) for number in range(count)]
        for number, ledger in enumerate(made):
            if number % 3 < 2:  # Java reads all three formats; CRC32 is what a record of format 1 means
                record, version = await client.records.ledgers.read(ledger)
                form = 2 if number % 3 else 1 if record.digest_type.name == "CRC32" else 3
                if form == 1 and record.ack_quorum != record.write_quorum:
                    record = replace(record, ack_quorum=record.write_quorum)
                custom = record.custom if form > 1 else ()
                password = record.password if form > 1 else b""
                await client.records.ledgers.write(
                    replace(
                        record,
                        format_version=form,
                        has_password=form > 1,
                        password=password,
                        custom=custom,
                    ),
                    version,
                )
        moves = Moves(client)
        async with our_bookies(peers.uri, folder, 4):
            everyone = sorted(await client.bookies.bookies())
            ours, javas = [b for b in everyone if not is_java(b)], [b for b in everyone if is_java(b)]
            for ledger in made:
                await moves.move(ledger, (await members(client, ledger))[0], javas, b"secret")
                for old in await members(client, ledger):
                    await moves.move(ledger, old, ours, b"secret")
                await moves.move(ledger, (await members(client, ledger))[0], ours, b"secret")
                for language in LANGUAGES:
                    await read(ledgers, client, language, ledger)
                for old in await members(client, ledger):
                    await moves.move(ledger, old, javas, b"secret")
                for language in LANGUAGES:
                    await read(ledgers, client, language, ledger)
            said = await java.shell(peers.folder / "conf/client.conf", f"readledger -l {made[2]}")
            assert said.count("Eid=") == COUNT
    return {
        "ledgers": count,
        "digests": len(DIGESTS),
        "slots_moved": dict(moves.cells),
        "entries_copied": moves.copied,
    }


async def read(ledgers: Ledgers, client: Client, language: str, ledger: int) -> None:
    """Read it back; our reader needs a record with its password."""
    record = await client.ledger_metadata(ledger)
    if record.has_password or language == "java":
        digest = record.digest_type.name.replace("HMAC", "MAC")
        await ledgers.read(language, ledger, digest=digest)


@pytest.mark.slow
async def test_the_four_cells_of_java_and_ours(tmp_path: Path) -> None:
    with own_peers(tmp_path / "java", 4) as peers:
        figures = await _four_cells(peers, tmp_path, rounds(12, 60))
    keep_figures("repair_beside_java", figures, seed=None)
