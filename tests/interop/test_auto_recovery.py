"""Java's auto-recovery, auditor and replication worker, on a cluster of Python and Java bookies; alone, and beside ours."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.recoverers import Recoverer, no_marks
from quire.cli.local.local_cluster import LocalCluster
from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.quorum import stripes_of_slot
from quire.core.repair.under_replicated_marks import MarkReason, UnderReplicatedMark
from quire.env.real import RealClock
from quire.metadata.repairs import RepairStore
from support.java_peers import PATIENT, PATIENT_CLIENT, JavaClient, JavaPeers, own_peers
from support.ledgers import COUNT, LANGUAGES, Ledgers
from support.rounds import keep_figures
from support.waiting import until_async

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(1800)]
EACH = 12
REPAIRED_WITHIN_S = 600.0
GRACE = "openLedgerRereplicationGracePeriod=1000\n"
"""Milliseconds until the open ledger of a writer that may be gone is recovered; Java's own default is half a minute."""


def members(record: LedgerMetadata) -> set[str]:
    return {str(bookie) for fragment in record.fragments for bookie in fragment.ensemble}


async def listed(client: Any, record: LedgerMetadata) -> dict[str, int]:
    """How many entries of a closed ledger each of its bookies lists, as far as they are in its stripes."""
    access, found = LedgerAccess.of(record), Counter[str]()
    ends = [int(fragment.first_entry) for fragment in record.fragments] + [int(record.last_entry) + 1]
    for fragment, (first, end) in zip(record.fragments, pairwise(ends), strict=True):
        for slot, bookie in enumerate(fragment.ensemble):
            answer, groups = await client.bookies.list_entries(
                bookie, access, timeout_ms=PATIENT_CLIENT.read_timeout_ms
            )
            assert answer is Answer.OK, (bookie, answer)
            held = {
                number
                for low, high, period, stripes, _ in groups
                for number in range(low, high + 1)
                if stripes >> number % period & 1
            }
            stripes = stripes_of_slot(slot, record.ensemble_size, record.write_quorum)
            wanted = {number for number in range(first, end) if stripes >> number % record.ensemble_size & 1}
            found[str(bookie)] += len(held & wanted)
    return found


async def nobody_needs(client: Any, ledgers: list[int], gone: str) -> bool:
    for ledger in ledgers:
        record = await client.ledger_metadata(ledger)
        if gone in members(record):
            return False
    return True


async def all_is_there(client: Any, java: JavaClient, uri: str, made: list[int]) -> int:
    """Both languages read every ledger, and every bookie of its record lists its entries of it."""
    copies = 0
    ledgers = Ledgers(client, java, uri)
    for ledger in made:
        record = await client.ledger_metadata(ledger)
        wanted = COUNT * record.write_quorum

        async def every_share(record: LedgerMetadata = record, wanted: int = wanted) -> bool:
            return sum((await listed(client, record)).values()) == wanted

        # A Java bookie's list may lag behind what it has acknowledged.
        await until_async(every_share, f"every copy of ledger {ledger} in its bookie's list", 120)
        for language in LANGUAGES:
            await ledgers.read(language, ledger)
        report = await client.verify_ledger(ledger, b"secret")
        assert report.complete, report
        copies += wanted
    return copies


async def auto_recovery(peers: JavaPeers, folder: Path, each: int = EACH) -> dict[str, Any]:
    ours = LocalCluster(folder / "ours", 3, cluster=peers.uri + PATIENT)
    await asyncio.to_thread(ours.start)
    try:
        async with (
            quire.connect(peers.uri + PATIENT, config=PATIENT_CLIENT) as client,
            peers.client() as java,
        ):
            ledgers = Ledgers(client, java, peers.uri)
            made = [await ledgers.write(language, number) for number in range(each) for language in LANGUAGES]
            made += [await ledgers.write(language, 0, close=False) for language in LANGUAGES]
            figures: dict[str, Any] = {"ledgers": len(made), "entries": len(made) * COUNT}
            await asyncio.to_thread(peers.run, "start-autorecovery")
            before = {ledger: await client.ledger_metadata(ledger) for ledger in made}
            held = Counter(bookie for record in before.values() for bookie in members(record))
            victim = max(ours.bookies, key=lambda bookie: held[bookie.id])
            await asyncio.to_thread(ours.kill, ours.bookies.index(victim))
            await until_async(
                lambda: nobody_needs(client, made, victim.id), "a record without it", REPAIRED_WITHIN_S
            )
            figures["of_a_killed_python_bookie"] = await moved(client, before, victim.id)
            assert all(figures["of_a_killed_python_bookie"].values()), figures
            figures["copies_listed"] = await all_is_there(client, java, peers.uri, made)

            before = {ledger: await client.ledger_metadata(ledger) for ledger in made}
            held = Counter(bookie for record in before.values() for bookie in members(record))
            gone = max((bookie for bookie in held if bookie.startswith("127.")), key=held.__getitem__)
            await asyncio.to_thread(peers.run, "kill-bookie", str(peers.bookies().index(gone)))
            await until_async(
                lambda: nobody_needs(client, made, gone), "a record without it", REPAIRED_WITHIN_S
            )
            figures["of_a_killed_java_bookie"] = await moved(client, before, gone)
            figures["copies_listed"] += await all_is_there(client, java, peers.uri, made)
            said = await java.shell(peers.folder / "conf/client.conf", "listunderreplicated")
            assert "Under replicated ledger count: 0" in said
            assert "Auditor: " in await java.shell(peers.folder / "conf/client.conf", "whoisauditor")
            return figures
    finally:
        await asyncio.to_thread(peers.run, "stop-autorecovery")
        await asyncio.to_thread(ours.stop)


async def moved(client: Any, before: dict[int, LedgerMetadata], gone: str) -> dict[str, int]:
    """Onto how many bookies of which language the entries of a bookie went, ledger by ledger."""
    onto = {"python": 0, "java": 0}
    for ledger, record in before.items():
        if gone not in members(record):
            continue
        now = await client.ledger_metadata(ledger)
        assert now.state is LedgerState.CLOSED
        for bookie in members(now) - members(record):
            onto["java" if bookie.startswith("127.") else "python"] += 1
    return onto


async def test_javas_auto_recovery_restores_the_share_of_a_killed_bookie(tmp_path: Path) -> None:
    with own_peers(tmp_path / "java", 3, GRACE) as peers:
        figures = await auto_recovery(peers, tmp_path)
    keep_figures("javas_auto_recovery", figures, seed=None)


async def beside_each_other(peers: JavaPeers, folder: Path, each: int = EACH) -> dict[str, Any]:
    """Java's auto-recovery and ours on one cluster: one switch, one delay, one list of marks, one lock for a ledger."""
    ours = LocalCluster(folder / "ours", 3, cluster=peers.uri + PATIENT)
    await asyncio.to_thread(ours.start)
    recoverer = None
    try:
        async with (
            quire.connect(peers.uri + PATIENT, config=PATIENT_CLIENT) as client,
            peers.client() as java,
        ):
            marks, settings = (
                RepairStore(client.store, RealClock(), "test"),
                peers.folder / "conf/client.conf",
            )
            ledgers = Ledgers(client, java, peers.uri)
            made = [await ledgers.write(language, number) for number in range(each) for language in LANGUAGES]
            await java.shell(settings, "lostbookierecoverydelay -s 3")
            assert await marks.lost_delay_s() == 3
            await marks.set_lost_delay_s(2)
            said = await java.shell(settings, "lostbookierecoverydelay -g")
            assert "LostBookieRecoveryDelay value in ZK: 2" in said

            # What a bookie that is there lacks: Java's worker neither fills it nor takes the mark away.
            held = LedgerId(made[0])
            record, version = await client.records.ledgers.read(held)
            (fragment,) = record.fragments
            short = next(each for each in ours.bookies if each.id not in fragment.ensemble)
            fragments = (replace(fragment, ensemble=(BookieId(short.id), *fragment.ensemble[1:])),)
            await client.records.ledgers.write(replace(record, fragments=fragments), version)
            hole = UnderReplicatedMark(
                MarkReason.HOLE, BookieId(short.id), EntryRange(0, COUNT - 1), version, "", 0
            )
            await marks.mark(held, [hole])
            stood = await marks.marks(held)

            await asyncio.to_thread(peers.run, "start-autorecovery")
            await java.shell(settings, "autorecovery -d")
            assert not await marks.is_enabled()
            before = {ledger: await client.records.ledgers.read(ledger) for ledger in made}
            names = Counter(bookie for record, _ in before.values() for bookie in members(record))
            victim = max((each for each in ours.bookies if each is not short), key=lambda one: names[one.id])
            touched = [ledger for ledger in made if victim.id in members(before[ledger][0])]
            for ledger in touched:
                await marks.mark_missing(ledger, [BookieId(victim.id)])
            await asyncio.to_thread(ours.kill, ours.bookies.index(victim))
            said = await java.shell(settings, "listunderreplicated")
            assert f"Under replicated ledger count: {len(touched)}" in said, said
            assert stood == await marks.marks(held), "the hole of a living bookie stays marked"

            recoverer = await Recoverer.start(peers.uri + PATIENT)
            await until_async(lambda: victim.id not in client.bookies.writable(), "its session is over", 180)
            await java.shell(settings, "autorecovery -e")
            locks = dict[int, set[str]]()

            async def repaired() -> bool:
                for ledger, holder in (await marks.locks()).items():
                    locks.setdefault(int(ledger), set()).add(holder)
                return await nobody_needs(client, touched, victim.id) and not await marks.missing_page(
                    limit=1
                )

            await until_async(repaired, "records without it, and no mark", REPAIRED_WITHIN_S)
            await until_async(lambda: no_marks(marks), "the hole is filled", REPAIRED_WITHIN_S)
            figures = await recoverer.figures()
            copies = await all_is_there(client, java, peers.uri, made)
            writes = {}
            for ledger in touched:
                writes[ledger] = (await client.records.ledgers.read(ledger))[1] - before[ledger][1]
            assert set(writes.values()) == {1}, "each record was changed once: by one of the two"
            assert "Auditor: " in await java.shell(settings, "whoisauditor")
            assert "Under replicated ledger count: 0" in await java.shell(settings, "listunderreplicated")
            mine = sum(figures["name"] in each for each in locks.values())
            return {
                "ledgers": len(made),
                "touched": len(touched),
                "repaired_by_ours": figures["repaired"],
                "locks_seen": len(locks),
                "locks_seen_of_ours": mine,
                "copies_listed": copies,
            }
    finally:
        if recoverer is not None:
            await recoverer.stop()
        await asyncio.to_thread(peers.run, "stop-autorecovery")
        await asyncio.to_thread(ours.stop)


async def test_ours_and_javas_repair_one_cluster_beside_each_other(tmp_path: Path) -> None:
    with own_peers(tmp_path / "java", 3, GRACE) as peers:
        figures = await beside_each_other(peers, tmp_path)
    keep_figures("auto_recovery_beside_javas", figures, seed=None)
