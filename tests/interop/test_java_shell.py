"""BookKeeper's own shell, command after command, on a cluster whose bookies are ours."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.bookie.server import BookieServer
from quire.core.ledger.metadata import LedgerState
from support.java_peers import PATIENT, JavaClient, JavaPeers, our_bookies
from support.rounds import keep_figures

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(900)]
COUNT = 60


class Shell:
    """The shell on one cluster, and the commands that it did."""

    def __init__(self, java: JavaClient, uri: str, folder: Path) -> None:
        self._java, self.uri = java, uri
        self.configuration = folder / "shell.conf"
        self.configuration.write_text(f"metadataServiceUri={uri}\nzkTimeout=60000\n")
        self.done: list[str] = []

    async def __call__(
        self, command: str, configuration: Path | None = None, *, refused: bool = False
    ) -> str:
        said = await self._java.shell(configuration or self.configuration, command, refused=refused)
        self.done.append(command.split()[0])
        return said


async def what_it_lists(shell: Shell, bookies: list[BookieServer], closed: int, left_open: int) -> None:
    listed = await shell("listbookies -rw")
    for bookie in bookies:
        host, port = bookie.address
        assert f"BookieID:{bookie.bookie_id}, IP:{host}, Port:{port}" in listed
    ledgers = re.findall(r"ledgerID: (\d+)", await shell("listledgers"))
    assert {closed, left_open} <= set(map(int, ledgers))
    first = str(bookies[0].bookie_id)
    assert f"ledgerID: {closed}" in await shell(f"listledgers -m -bookieid {first}")
    assert "state=CLOSED, length=6000, lastEntryId=59" in await shell(f"ledgermetadata -l {closed}")
    assert "state=OPEN" in await shell(f"ledgermetadata -l {left_open}")
    async with quire.connect(f"{shell.uri}{PATIENT}&ledger_format=2") as client:
        older = await our_ledger(client, close=True)
    assert "formatVersion=2" in await shell(f"ledgermetadata -l {older}")
    assert len(re.findall(r"Eid=", await shell(f"readledger -l {older}"))) == COUNT
    info = await shell("bookieinfo")
    assert all(re.search(rf"BookieID:{bookie.bookie_id}.*Free: [1-9]\d+\(", info) for bookie in bookies)
    endpoint = await shell(f"endpointinfo -b {first}")
    assert f"BookiedId: {first}" in endpoint
    assert f"127.0.0.1 : {bookies[0].address[1]}" in endpoint
    assert bookies[0].store.instance_id in await shell("whatisinstanceid")
    cluster = await shell("clusterinfo")
    facts = json.loads(cluster[cluster.index("{\n") :])
    assert (facts["totalBookiesCount"], facts["writableBookiesCount"]) == (len(bookies), len(bookies))


async def what_it_reads_and_writes(
    shell: Shell, client: Any, bookies: list[BookieServer], closed: int, left_open: int, folder: Path
) -> None:
    read = await shell(f"readledger -l {closed} -fe 10 -le 59 -m")
    assert re.findall(r"Eid=(\d+)", read) == [str(number) for number in range(10, COUNT)]
    read = await shell(f"readledger -l {left_open} -r -m")
    assert len(re.findall(r"Eid=\d+", read)) == COUNT
    record = await client.ledger_metadata(left_open)
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, COUNT - 1)

    said = await shell("simpletest -ensemble 3 -writeQuorum 3 -ackQuorum 2 -numEntries 500")
    made = int(re.findall(r"500 entries written to ledger (\d+)", said)[0])
    with pytest.raises(quire.NoSuchLedgerError):  # the shell removes what it tried
        await client.ledger_metadata(made)

    for bookie in bookies:
        # The shell's "local" bookie is the one that its configuration names: all it does goes over the network.
        settings = folder / f"{bookie.bookie_id}.conf"
        settings.write_text(shell.configuration.read_text() + f"bookieId={bookie.bookie_id}\n")
        said = await shell("bookiesanity", settings)
        assert "Read 10 entries" in said, said
        assert "Bookie sanity test succeeded" in said


async def what_it_changes(shell: Shell, client: Any, instance: str, closed: int) -> None:
    await shell("metaformat -nonInteractive", refused=True)  # without -force it touches nothing
    assert instance in await shell("whatisinstanceid")
    assert (await client.ledger_metadata(closed)).last_entry == COUNT - 1
    await shell("lostbookierecoverydelay -s 7")
    assert "LostBookieRecoveryDelay value in ZK: 7" in await shell("lostbookierecoverydelay -g")
    await shell("autorecovery -d")
    assert "Autorecovery is disabled" in await shell("autorecovery")
    await shell("autorecovery -e")
    assert "Under replicated ledger count: 0" in await shell("listunderreplicated")
    await shell(f"deleteledger -l {closed} -f")
    with pytest.raises(quire.NoSuchLedgerError):
        await client.ledger_metadata(closed)


async def our_ledger(client: Any, *, close: bool) -> int:
    ledger = await client.create_ledger()
    await ledger.append_many([bytes(100)] * COUNT)
    await (ledger.close() if close else ledger.abandon())
    return int(ledger.ledger_id)


async def every_command(peers: JavaPeers, folder: Path) -> list[str]:
    uri = peers.another_root()
    async with (
        our_bookies(uri, folder, 3) as bookies,
        quire.connect(uri + PATIENT) as client,
        peers.client() as java,
    ):
        shell = Shell(java, uri, folder)
        closed, left_open = await our_ledger(client, close=True), await our_ledger(client, close=False)
        await what_it_lists(shell, bookies, closed, left_open)
        await what_it_reads_and_writes(shell, client, bookies, closed, left_open, folder)
        await what_it_changes(shell, client, bookies[0].store.instance_id, closed)
    return shell.done


async def test_javas_shell_on_a_cluster_of_our_bookies(peers: JavaPeers, tmp_path: Path) -> None:
    done = await every_command(peers, tmp_path)
    keep_figures("javas_shell", {"commands": len(done), "different": len(set(done))}, seed=None)
