"""What can be said wrong about TLS and passwords, and the file in which it stands."""

import pytest

import quire
from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.client.config import ClientConfig
from quire.core.errors import MisuseError
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.net.security.settings import (
    BookieKeys,
    BookieSasl,
    BookieSecurity,
    BookieTls,
    ClientKeys,
    ClientSasl,
    ClientSecurity,
    ClientTls,
)
from support.certificates import jaas


def test_a_file_of_a_bookie_and_of_a_client(tmp_path):
    path = tmp_path / "security.toml"
    path.write_text(
        """
        [tls]
        certificate = "keys/bookie.pem"
        key = "/etc/keys/bookie.key"
        ca = "keys/ca.pem"
        require_client_certificate = true
        [sasl]
        jaas = "jaas.conf"
        allowed_ids = "writer.*"
        """
    )
    assert BookieSecurity.load(path) == BookieSecurity(
        BookieTls(
            tmp_path / "keys/bookie.pem",
            tmp_path / "/etc/keys/bookie.key",
            ca=tmp_path / "keys/ca.pem",
            require_client_certificate=True,
        ),
        BookieSasl(tmp_path / "jaas.conf", allowed_ids="writer.*"),
    )
    path.write_text('[tls]\nca = "ca.pem"\nverify_hostname = false\n[sasl]\nusername = "a"\npassword = "b"')
    assert ClientSecurity.load(path) == ClientSecurity(
        ClientTls(tmp_path / "ca.pem", verify_hostname=False), ClientSasl(username="a", password="b")
    )
    path.write_text("")
    assert ClientKeys.of(ClientSecurity.load(path)) is None
    assert BookieKeys.of(BookieSecurity.load(path)) is None


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (BookieSecurity, "[tls", "cannot be read"),
        (BookieSecurity, "[tsl]", r"has tsl; it may have \[tls\] and \[sasl\]"),
        (BookieSecurity, "tls = 1", "must be a table"),
        (
            BookieSecurity,
            '[tls]\ncert = "x"',
            "cert is not known here; known are allow_plain, ca, certificate",
        ),
        (BookieSecurity, '[tls]\ncertificate = "x"\nallow_plain = "yes"', "must be true or false, not 'yes'"),
        (BookieSecurity, "[tls]\ncertificate = 3", "must be a text, not 3"),
        (BookieSecurity, '[tls]\nca = "x"', "must say certificate"),
        (BookieSecurity, '[tls]\ncertificate = "x"\nrequire_client_certificate = true', "needs ca"),
        (BookieSecurity, "[sasl]", "must say jaas"),
        (ClientSecurity, "[sasl]", "takes a jaas file, or a username"),
        (ClientSecurity, '[sasl]\njaas = "x"\nusername = "y"', "takes a jaas file, or a username"),
        (ClientSecurity, "[tls]\nallow_plain = true", "allow_plain is not known"),
    ],
)
def test_a_file_that_says_something_else(tmp_path, kind, text, says):
    path = tmp_path / "security.toml"
    path.write_text(text)
    with pytest.raises(MisuseError, match=says) as error:
        kind.load(path)
    assert str(path) in str(error.value)


def test_files_that_are_not_what_they_should_be(tmp_path, keys):
    none, other = tmp_path / "none", keys.authority.issue("another")
    locked = keys.authority.issue("locked-too", password="hidden")
    wrong = tmp_path / "wrong"
    wrong.write_text("not hidden")
    text = tmp_path / "text"
    text.write_text("hello")
    latin = tmp_path / "latin"
    latin.write_bytes("geheimnisträger".encode("latin-1"))
    for security, says in [
        (BookieTls(none), f"certificate file {none} cannot be read: No such file"),
        (BookieTls(keys.bookie.certificate, other.key), "the key does not belong to the certificate"),
        (BookieTls(keys.bookie.certificate), "not a certificate and its key"),
        (BookieTls(text, text), "not a certificate and its key"),
        (BookieTls(locked.certificate, locked.key), "no key_password_file is named"),
        (BookieTls(locked.certificate, locked.key, wrong), f"{wrong} has another password"),
        (BookieTls(locked.certificate, locked.key, latin), f"key password file {latin} is not UTF-8"),
        (BookieTls(keys.bookie.certificate, keys.bookie.key, ca=text), "holds no certificate"),
        (ClientTls(none), f"ca file {none} cannot be read"),
        (ClientTls(keys.authority.ca, keys.client.certificate, other.key), "does not belong"),
    ]:
        with pytest.raises(MisuseError) as error:
            security.source()
        assert says in str(error.value)


def test_a_bookie_that_cannot_read_its_files_does_not_start(tmp_path):
    security = BookieSecurity(sasl=BookieSasl(tmp_path / "none"))
    config = BookieConfig(directory=tmp_path / "b", security=security)
    with pytest.raises(MisuseError, match="none cannot be read"):
        BookieServer(config, MemoryStore(MemorySpace()))


def test_passwords_are_not_shown(tmp_path):
    sasl = ClientSasl(username="a", password="hidden")
    assert "hidden" not in repr(ClientConfig(security=ClientSecurity(sasl=sasl)))
    users = BookieSasl(jaas(tmp_path, users={"a": "hidden"})).source().get()
    assert "hidden" not in repr(users)


async def test_the_environment_names_the_clients_file(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIRE_SECURITY", str(tmp_path / "missing"))
    with pytest.raises(MisuseError, match="missing cannot be read"):
        async with quire.connect(f"sqlite:{tmp_path / 'metadata.db'}"):
            pass
