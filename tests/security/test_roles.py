"""A certificate's role, read as Java reads it, and who is served because of it.

Source: BookKeeper source, `CertUtils` and `BookieAuthZFactory`.
"""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from quire.client.config import ClientConfig
from quire.core.errors import MisuseError, QuorumLostError
from quire.net.security.roles import role_of, written
from quire.net.security.settings import BookieSecurity, BookieTls
from support.certificates import openssl
from support.small_cluster import small_cluster


def named(*units):
    return ((("countryName", "DE"),), *((("organizationalUnitName", unit),) for unit in units))


@pytest.mark.parametrize(
    ("subject", "role"),
    [
        (named("0:writers;1:here"), "writers"),
        (named("1:here;0: writers "), "writers"),
        (named("0:writers,readers"), "writers"),
        (named("0:readers;0:writers"), "writers"),
        (named("0:a:b"), "a:b"),
        (named("0:first", "0:second"), "first"),
        (named("no fields", "0:second"), ""),
        (named("writers"), ""),
        (named(" 0:writers"), ""),
        (named("00:writers"), ""),
        (named("0:"), ""),
        (named("0:,writers"), ""),
        (named(), ""),
        ((), ""),
        (((("organizationalUnitName", "0:writers"), ("commonName", "x")),), ""),
    ],
)
def test_the_role_is_the_first_of_field_0_of_the_first_unit(subject, role):
    assert role_of(subject) == role


def test_a_subject_is_shown_in_one_short_line():
    assert written(named("a\x1b[2J\nb")) == "C=DE, OU=a?[2J?b"
    assert written(((("commonName", "é"), ("userId", "1")),)) == "CN=é+userId=1"
    assert len(written(named("x" * 9_000))) == 201


async def served(tmp_path, security, shown, protocol):
    async def work():
        async with small_cluster(tmp_path, security=security) as cluster:
            client = await cluster.client(ClientConfig(protocol=protocol, security=shown))
            ledger = await client.create_ledger()
            await ledger.append(b"value")
            await ledger.close()
            reader = await client.open_ledger(ledger.ledger_id)
            return [bytes(entry.payload) async for entry in reader.read(0, 0)]

    return await work()


@pytest.mark.parametrize("protocol", ["auto", "v3", "v2"])
async def test_a_certificate_with_a_role_is_served(tmp_path, keys, protocol):
    asked = keys.of_bookie(
        ca=keys.authority.ca, require_client_certificate=True, roles=("readers", "writers")
    )
    pair = keys.authority.issue("writer", organizational_unit="1:here;0:writers")
    shown = keys.of_client(certificate=pair.certificate, key=pair.key)
    assert await served(tmp_path, asked, shown, protocol) == [b"value"]


async def test_a_unit_that_is_not_utf8_is_read_as_java_reads_it(tmp_path, keys):
    """Teletex: one character a byte. What is said to be UTF-8 and is none, OpenSSL refuses before anybody looks at it."""
    pair = keys.authority.issue("old", organizational_unit="0:é", string_mask="default")
    der = ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())
    teletex, units = b"\x14\x04", "0:é".encode()
    assert teletex + units in der
    shown = keys.of_client(certificate=pair.certificate, key=pair.key)
    settings = {"ca": keys.authority.ca, "require_client_certificate": True}
    assert await served(
        tmp_path / "taken", keys.of_bookie(roles=("\u00c3\u00a9",), **settings), shown, "auto"
    ) == [b"value"]
    with pytest.raises(QuorumLostError, match="OU=0:\u00c3\u00a9, CN=old"):
        await served(tmp_path / "refused", keys.of_bookie(roles=("é",), **settings), shown, "auto")
    spoilt = tmp_path / "spoilt.pem"
    spoilt.write_text(ssl.DER_cert_to_PEM_cert(der.replace(teletex + units, b"\x0c\x040:\xff\xff")))
    with pytest.raises(MisuseError, match="not a certificate"):
        keys.of_client(certificate=spoilt, key=pair.key).tls.source().get()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('require_client_certificate = true\nca = "ca.pem"\nroles = []', "at least one role"),
        ('require_client_certificate = true\nca = "ca.pem"\nroles = [""]', "at least one role"),
        ('require_client_certificate = true\nca = "ca.pem"\nroles = [" a"]', "at least one role"),
        ('require_client_certificate = true\nca = "ca.pem"\nroles = "a"', "a list of texts"),
        ('require_client_certificate = true\nca = "ca.pem"\nroles = [1]', "a list of texts"),
        ('roles = ["a"]', "require_client_certificate"),
        (
            'require_client_certificate = true\nallow_plain = true\nca = "ca.pem"\nroles = ["a"]',
            "allow_plain",
        ),
    ],
)
def test_roles_that_nobody_could_have_are_refused(tmp_path, settings, says):
    path = tmp_path / "security.toml"
    path.write_text(f'[tls]\ncertificate = "bookie.pem"\n{settings}\n')
    with pytest.raises(MisuseError, match=says) as refused:
        BookieSecurity.load(path)
    assert str(path) in str(refused.value)


def test_roles_of_a_file(tmp_path):
    path = tmp_path / "security.toml"
    path.write_text(
        '[tls]\ncertificate = "b.pem"\nca = "ca.pem"\nrequire_client_certificate = true\nroles = ["a", "b"]\n'
    )
    assert BookieSecurity.load(path).tls == BookieTls(
        tmp_path / "b.pem", ca=tmp_path / "ca.pem", require_client_certificate=True, roles=("a", "b")
    )


@pytest.mark.skipif(shutil.which("keytool") is None, reason="keytool is of a Java runtime")
def test_a_java_key_store_becomes_pem_by_the_commands_of_the_page(tmp_path, keys):
    """The three commands of docs/security.md, as they stand there."""
    page = Path(__file__).resolve().parents[2] / "docs" / "security.md"
    commands = (
        page.read_text("utf-8")
        .split("<!-- not run: tests/security/test_roles.py runs them -->")[1]
        .split("```console\n")[1]
        .split("```")[0]
    )
    pair = keys.authority.issue("moved")
    shutil.copyfile(keys.authority.pkcs12(pair, "secret"), tmp_path / "bookie.p12")
    subprocess.run(
        ["keytool", "-importkeystore", "-srckeystore", "bookie.p12", "-srcstorepass", "secret", "-destkeystore", "bookie.jks",
         "-deststoretype", "JKS", "-deststorepass", "secret", "-noprompt"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    (tmp_path / "bookie.p12").unlink()
    (tmp_path / "password").write_text("secret\n")
    for line in commands.strip().splitlines():
        done = subprocess.run(
            ["bash", "-c", line.removeprefix("$ ")], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert openssl("x509", "-in", tmp_path / "bookie.pem", "-noout", "-subject") == openssl(
        "x509", "-in", pair.certificate, "-noout", "-subject"
    )
    BookieTls(tmp_path / "bookie.pem", tmp_path / "bookie.key").source().get()
