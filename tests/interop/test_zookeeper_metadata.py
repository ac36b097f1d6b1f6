"""One cluster's metadata, read and written by Java's shell and client and by Quire."""

import asyncio
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from quire.core.ledger.metadata import DigestType, LedgerState, new_ledger
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.metadata.connect import format_store, open_store
from quire.metadata.records import OF_LEDGERS, RecordStore
from support.java_peers import QUICK_START
from support.records import tombstone_of
from support.zookeeper_server import ZookeeperServer, zookeeper_or_skip

pytestmark = pytest.mark.interop

CLIENT = Path(__file__).resolve().parents[2] / "tools" / "java-client" / "JavaClient.java"
BOOKIES = ["b0.k7f3q", "b1.k7f3q", "b2.k7f3q"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A ZooKeeper of its own: the shell knows one root only."""
    zookeeper_or_skip()
    server = ZookeeperServer(tmp_path_factory.mktemp("java"))
    yield server
    server.stop()


def record_of(ledger_id, format_version=3):
    record = new_ledger(
        ledger_id,
        BOOKIES,
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"secret",
        creation_token=7,
    )
    return replace(record, format_version=format_version)


async def shell(cluster, *arguments):
    return await asyncio.to_thread(cluster.run, "shell", *arguments)


@pytest.mark.slow
async def test_javas_shell_reads_a_cluster_that_quire_made(cluster):
    uri = f"zk+hierarchical://{cluster.host}/ledgers"
    instance = await format_store(uri, force=True)
    async with await open_store(uri) as store:
        registry, ledgers = BookieRegistry(store), RecordStore(store, OF_LEDGERS)
        for number, bookie in enumerate(BOOKIES):
            info = BookieInfo(bookie, "127.0.0.1", 4000 + number, writable=number != 2)
            await registry.register(replace(info, properties={"quire.native": "4000/1"}))
        await store.create("logs/of-quire", b"Java never looks here")
        made = [await ledgers.next_id() for _ in range(3)]
        for ledger_id, format_version in zip(made, (1, 2, 3), strict=True):
            await ledgers.create(record_of(ledger_id, format_version))
        await ledgers.create(record_of(5_000_000_000))
        assert instance in await shell(cluster, "whatisinstanceid")
        writable = await shell(cluster, "listbookies", "-rw")
        assert ["b0" in writable, "b1" in writable, "b2" in writable] == [True, True, False]
        assert "BookieID:b2.k7f3q, IP:127.0.0.1, Port:4002" in await shell(cluster, "listbookies", "-ro")
        listed = re.findall(r"ledgerID: (\d+)", await shell(cluster, "listledgers"))
        assert set(map(int, listed)) >= set(made)
        for ledger_id, format_version in zip(made, (1, 2, 3), strict=True):
            told = await shell(cluster, "ledgermetadata", "-l", str(ledger_id))
            assert f"formatVersion={format_version}, ensembleSize=3" in told
            assert "b0.k7f3q, b1.k7f3q, b2.k7f3q" in told
        assert "state=OPEN" in await shell(cluster, "ledgermetadata", "-l", "5000000000")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["zk+longhierarchical", "zk+flat"])
async def test_quire_reads_what_java_made_in_another_layout(tmp_path, scheme):
    zookeeper_or_skip()
    server = ZookeeperServer(tmp_path, environment={"JAVA_PEER_URI_SCHEME": scheme})
    try:
        server.run("start", "1")
        await java_writes(server, scheme)
    finally:
        server.stop()


async def test_quire_reads_what_java_made(peers):
    await java_writes(peers, "zk+hierarchical")


async def java_writes(server, scheme):
    uri = f"{scheme}://{server.host}/ledgers"
    async with await open_store(uri) as store:
        before = set(await RecordStore(store, OF_LEDGERS).list())
        written = await asyncio.to_thread(java_client, server, uri, "write", "10", "100", "--ensemble", "1")
        ledger_id = next(line["ledger"] for line in written if line["event"] == "created")
        assert set(await RecordStore(store, OF_LEDGERS).list()) - before == {ledger_id}
        record, _ = await RecordStore(store, OF_LEDGERS).read(ledger_id)
        assert (record.state, record.last_entry, record.length) == (LedgerState.CLOSED, 9, 1000)
        registry = BookieRegistry(store)
        available = await registry.available()
        [bookie] = record.fragments[0].ensemble
        assert f"{available[bookie].host}:{available[bookie].port}" == bookie
        assert set(await registry.list_cookies()) >= set(available)
        drawn = await store.next_ledger_id()
        assert drawn > ledger_id
        await RecordStore(store, OF_LEDGERS).delete(ledger_id)
        # Java sees it gone, and nothing new: the tombstone lies under Quire's own znode. Java's ledgers have no token.
        listed = re.findall(r"ledgerID: (\d+)", await shell(server, "listledgers"))
        assert set(map(int, listed)) == before
        assert (await tombstone_of(RecordStore(store, OF_LEDGERS), ledger_id))[0].token == 0
        again = await asyncio.to_thread(java_client, server, uri, "write", "1", "1", "--ensemble", "1")
        assert next(line["ledger"] for line in again if line["event"] == "created") > drawn


def java_client(server, uri, *arguments):
    """What the Java client prints."""
    classes = server.folder / "classes"
    classpath = server.run("classpath").strip()
    if not classes.exists():
        subprocess.run(
            [shutil.which("javac"), f"-J{QUICK_START}", "-cp", classpath, "-d", classes, CLIENT], check=True
        )
    command, *rest = arguments
    quorums = ["--wq", "1", "--aq", "1"]
    settings = f"-Dlog4j.configurationFile={server.folder}/conf/log4j2-shell.properties"
    java = ["java", "-Xmx128m", QUICK_START, settings, "-cp", f"{classpath}:{classes}"]
    done = subprocess.run(
        [*java, "JavaClient", uri, "CRC32C", "secret", command, *rest, *quorums],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
