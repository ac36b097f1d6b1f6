"""TLS, mutual TLS and DIGEST-MD5 with Java: its clients on our bookies, our client on its bookies, its own words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.client.config import ClientConfig
from quire.core.errors import QuorumLostError
from quire.metadata.connect import open_store
from quire.net.security.settings import (
    BookieSasl,
    BookieSecurity,
    BookieTls,
    ClientSasl,
    ClientSecurity,
    ClientTls,
)
from support.certificates import Authority, Pair, jaas
from support.java_peers import JavaPeers, shared_peers

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

COUNT = 60
SIZE = 20_000
PATIENT = "?session_timeout_ms=40000"
USER, PASSWORD = "hd", "testpwd"
MODES = ["tls", "mutual", "sasl", "mutual+sasl"]
SHAPE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
JAVA_SHAPE = ("--ensemble", 1, "--wq", 1, "--aq", 1)


class Keys:
    """What both languages show each other."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.bookie = self.authority.issue("bookie", organizational_unit="0:bookie;1:cluster")
        self.client = self.authority.issue("client", organizational_unit="0:client;1:cluster")
        self.jaas = jaas(folder, users={USER: PASSWORD}, user=(USER, PASSWORD))
        self.wrong = jaas(folder / "wrong", user=(USER, "wrong"))

    def of_java(self, mode: str, pair: Pair, *, names: bool) -> dict[str, object]:
        """A Java side's configuration."""
        conf: dict[str, object] = {"zkTimeout": 40000}
        if "tls" in mode or "mutual" in mode:
            conf |= {
                "tlsProvider": "JDK",
                "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
                "tlsTrustStoreType": "PEM",
                "tlsTrustStore": self.authority.ca,
                "tlsKeyStoreType": "PEM",
                "tlsKeyStore": pair.key,
                "tlsCertificatePath": pair.certificate,
            }
        if "mutual" in mode:
            conf["tlsClientAuthentication"] = "true"
        if "sasl" in mode and names:
            conf |= {
                "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
                "clientAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLClientProviderFactory",
                "saslJaasClientAllowedIds": ".*",
            }
        return conf

    def of_our_bookie(self, mode: str) -> BookieSecurity:
        tls = None
        if mode != "sasl":
            mutual = "mutual" in mode
            tls = BookieTls(
                self.bookie.certificate,
                self.bookie.key,
                ca=self.authority.ca,
                require_client_certificate=mutual,
            )
        return BookieSecurity(tls, BookieSasl(self.jaas) if "sasl" in mode else None)

    def of_our_client(self, mode: str) -> ClientSecurity:
        tls = None
        if mode != "sasl":
            own = (self.client.certificate, self.client.key) if "mutual" in mode else (None, None)
            tls = ClientTls(self.authority.ca, *own)
        return ClientSecurity(tls, ClientSasl(self.jaas) if "sasl" in mode else None)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def peers() -> JavaPeers:
    found = shared_peers()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def payload(number: int) -> bytes:
    return bytes((31 * number + position) % 256 for position in range(SIZE))


def options(conf: dict[str, object], version: str) -> list[object]:
    words: list[object] = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    return [*words, "--v2"] if version == "v2" else words


def config(version: str, security: ClientSecurity | None) -> ClientConfig:
    return ClientConfig(
        protocol=version,
        security=security,
        add_timeout_ms=60_000,
        read_timeout_ms=60_000,
        recovery_timeout_ms=60_000,
        slow_after_ms=30_000,
    )


async def we_write_and_read(client: Any, java_wrote: int | None = None) -> int:
    async with await client.create_ledger(password=b"secret", digest="crc32c", **SHAPE) as ledger:
        await ledger.append_many([payload(number) for number in range(COUNT)])
    for ledger_id in (ledger.ledger_id, java_wrote):
        if ledger_id is not None:
            reader = await client.open_ledger(ledger_id, password=b"secret")
            found = [bytes(entry.payload) async for entry in reader.read()]
            assert found == [payload(number) for number in range(COUNT)]
    return int(ledger.ledger_id)


def cells(quick: set[tuple[str, str]]) -> list[Any]:
    return [
        pytest.param(mode, version, marks=() if (mode, version) in quick else pytest.mark.slow)
        for mode in MODES
        for version in ("v3", "v2")
    ]


@pytest.mark.parametrize(("mode", "version"), cells({("mutual+sasl", "v3")}))
async def test_java_clients_on_our_bookies(
    peers: JavaPeers, keys: Keys, tmp_path: Path, mode: str, version: str
) -> None:
    uri = peers.another_root()
    asked = BookieConfig(
        directory=tmp_path / "b1", name="b1", garbage_seconds=0, security=keys.of_our_bookie(mode)
    )
    server = BookieServer(asked, await open_store(uri + PATIENT, create=True))
    await server.start()
    said = keys.of_java(mode, keys.client, names=True) | {"tlsHostnameVerificationEnabled": "true"}
    try:
        async with peers.client(f"-Djava.security.auth.login.config={keys.jaas}") as java:
            words = options(said, version)
            events = await java.run(uri, "CRC32C", "write", COUNT, SIZE, *JAVA_SHAPE, "--quiet", *words)
            assert events[-1]["event"] == "written", events
            java_wrote = int(events[0]["ledger"])
            async with quire.connect(uri + PATIENT, config(version, keys.of_our_client(mode))) as client:
                we_wrote = await we_write_and_read(client, java_wrote)
            for ledger_id, command in ((we_wrote, "read"), (java_wrote, "recover-open")):
                events = await java.run(uri, "CRC32C", command, ledger_id, *words)
                entries = [event for event in events if event["event"] == "entry"]
                assert [entry["entry"] for entry in entries] == list(range(COUNT)), events[-1]
                assert all(entry["pattern"] for entry in entries)
            # Somebody without the keys is told so, and gets nothing.
            plain = options({"zkTimeout": 40000, "addEntryTimeoutSec": 3}, version)
            events = await java.run(uri, "CRC32C", "write", 1, 10, *JAVA_SHAPE, *plain)
            assert events[-1]["event"] == "error", events
            before = server.ledgers.entries_added
            assert before == 2 * COUNT
    finally:
        await server.stop()
        await server.store.close()


@pytest.mark.slow
async def test_a_java_client_with_a_wrong_password(peers: JavaPeers, keys: Keys, tmp_path: Path) -> None:
    uri = peers.another_root()
    asked = BookieConfig(directory=tmp_path / "b1", name="b1", security=keys.of_our_bookie("sasl"))
    server = BookieServer(asked, await open_store(uri + PATIENT, create=True))
    await server.start()
    try:
        for version in ("v3", "v2"):
            async with peers.client(f"-Djava.security.auth.login.config={keys.wrong}") as java:
                said = keys.of_java("sasl", keys.client, names=True) | {"addEntryTimeoutSec": 3}
                words = options(said, version)
                events = await java.run(uri, "CRC32C", "write", 1, 10, *JAVA_SHAPE, *words)
                assert events[-1]["event"] == "error", events
        assert server.ledgers.entries_added == 0
    finally:
        await server.stop()
        await server.store.close()


@contextlib.contextmanager
def java_bookie(folder: Path, keys: Keys, mode: str) -> Iterator[JavaPeers]:
    """ZooKeeper and one Java bookie that asks for this."""
    conf = keys.of_java(mode, keys.bookie, names=True)
    # For the bookie's own client in the same configuration nothing is needed here.
    lines = "".join(f"{key}={value}\n" for key, value in conf.items() if not key.startswith("client"))
    folder.mkdir()
    made = JavaPeers(folder, 1, lines, f"-Djava.security.auth.login.config={keys.jaas}")
    try:
        yield made
    finally:
        made.run("stop", check=False)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
async def test_our_client_on_a_java_bookie(peers: JavaPeers, keys: Keys, tmp_path: Path, mode: str) -> None:
    async def work(made: JavaPeers) -> None:
        for version in ("v3", "v2"):
            async with quire.connect(made.uri + PATIENT, config(version, keys.of_our_client(mode))) as client:
                we_wrote = await we_write_and_read(client)
            async with made.client(f"-Djava.security.auth.login.config={keys.jaas}") as java:
                # A Java V2 client cannot have both: its bookie says in V3, after the handshake, that no name came yet.
                its_version = "v3" if mode == "mutual+sasl" else version
                words = options(keys.of_java(mode, keys.client, names=True), its_version)
                events = await java.run(made.uri, "CRC32C", "read", we_wrote, "--quiet", *words)
                assert (events[-1]["event"], events[-1]["entries"]) == ("read", COUNT)
            wrong = {
                "tls": ClientSecurity(ClientTls(Authority(tmp_path / version, "other").ca)),
                "mutual": keys.of_our_client("tls"),
                "sasl": ClientSecurity(sasl=ClientSasl(username=USER, password="wrong"), opening_seconds=2.0),
                "mutual+sasl": keys.of_our_client("mutual"),
            }[mode]
            async with quire.connect(made.uri + PATIENT, config(version, wrong)) as client:
                with pytest.raises(QuorumLostError) as lost:
                    async with await client.create_ledger(password=b"secret", **SHAPE) as ledger:
                        await ledger.append(b"never")
                assert any(word in str(lost.value) for word in ("certificate", "password")), lost.value

    with java_bookie(tmp_path / "java", keys, mode) as made:
        await work(made)
