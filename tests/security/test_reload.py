"""Certificates and passwords that are renewed while a bookie serves."""

import logging

import pytest

from quire.client.config import ClientConfig
from quire.core.errors import MisuseError, QuorumLostError
from quire.net.security.reloaded import Reloaded
from quire.net.security.settings import BookieSasl, ClientSasl
from support.certificates import Pair, jaas, replace
from support.small_cluster import small_cluster


def shown(client):
    """The serial numbers of the certificates that the client's connections were shown."""
    return {
        peer.channel.transport.get_extra_info("peercert")["serialNumber"]
        for peer in client.bookies._peers.values()
        if peer.channel is not None and peer.channel.was_ready
    }


def serial(pair):
    from support.certificates import openssl

    return openssl("x509", "-in", pair.certificate, "-noout", "-serial").strip().partition("=")[2]


def copied(pair, folder):
    folder.mkdir()
    copy = Pair(folder / "bookie.pem", folder / "bookie.key")
    copy.certificate.write_bytes(pair.certificate.read_bytes())
    copy.key.write_bytes(pair.key.read_bytes())
    return copy


async def test_new_connections_see_the_new_certificate(tmp_path, keys):
    used = copied(keys.bookie, tmp_path / "used")
    renewed = keys.authority.issue("renewed")
    async with small_cluster(tmp_path, security=keys.of_bookie(pair=used)) as cluster:
        old = await cluster.client(ClientConfig(security=keys.of_client()))
        ledger = await old.create_ledger()
        await ledger.append(b"before")
        assert shown(old) == {serial(keys.bookie)}
        replace(used, renewed)
        new = await cluster.client(ClientConfig(security=keys.of_client()))
        async with await new.create_ledger() as other:
            await other.append(b"after")
        assert shown(new) == {serial(renewed)}
        await ledger.append(b"the old connections live on")
        assert shown(old) == {serial(keys.bookie)}
        await ledger.close()


async def test_files_that_do_not_fit_change_nothing(tmp_path, keys, caplog):
    """A renewal that stopped halfway: the certificate is new, the key is still the old one."""
    with caplog.at_level(logging.WARNING):
        used = copied(keys.bookie, tmp_path / "used")
        renewed = keys.authority.issue("half")
        async with small_cluster(tmp_path, 1, security=keys.of_bookie(pair=used)) as cluster:
            used.certificate.write_bytes(renewed.certificate.read_bytes())
            for _ in range(3):
                client = await cluster.client(ClientConfig(security=keys.of_client()))
                async with await client.create_ledger(
                    ensemble_size=1, write_quorum=1, ack_quorum=1
                ) as ledger:
                    await ledger.append(b"goes on")
                assert shown(client) == {serial(keys.bookie)}
            (server,) = cluster.servers.values()
            assert not server.keys.reload()
            used.key.write_bytes(renewed.key.read_bytes())
            assert server.keys.reload()
            client = await cluster.client(ClientConfig(security=keys.of_client()))
            async with await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as ledger:
                await ledger.append(b"now")
            assert shown(client) == {serial(renewed)}
    told = [record.getMessage() for record in caplog.records if "stay in use" in record.getMessage()]
    assert len(told) == 2, told  # once when the file changed, once when it was told to read again
    assert "the key does not belong to the certificate" in told[0]


def test_what_could_not_be_read_is_tried_again_though_no_file_has_changed(tmp_path, caplog):
    """The new key belonged to root until somebody saw it; or the process had no descriptor left at that moment."""
    path = tmp_path / "key"
    path.write_text("old")
    readable = True

    def read():
        if not readable:
            raise MisuseError("the key file cannot be read: Permission denied")
        return path.read_text()

    source = Reloaded([path], read)
    readable = False
    path.write_text("the new one")
    with caplog.at_level(logging.WARNING):
        assert [source.get() for _ in range(3)] == ["old"] * 3
    assert len(caplog.records) == 1, "and that is said once"
    readable = True
    assert source.get() == "the new one"


async def test_new_passwords(tmp_path, keys):
    users = jaas(tmp_path, users={"writer": "old"})
    asked = keys.of_bookie(BookieSasl(users))
    async with small_cluster(tmp_path, security=asked) as cluster:

        async def writes(password):
            name = ClientSasl(username="writer", password=password)
            client = await cluster.client(ClientConfig(security=keys.of_client(name)))
            async with await client.create_ledger() as ledger:
                await ledger.append(b"entry")

        await writes("old")
        jaas(tmp_path, users={"writer": "new", "another": "one"})
        await writes("new")
        with pytest.raises(QuorumLostError, match="password"):
            await writes("old")


def test_what_cannot_be_read_at_first_is_an_error(tmp_path):
    def read():
        raise MisuseError("nothing there")

    with pytest.raises(MisuseError):
        Reloaded([tmp_path / "none"], read)
