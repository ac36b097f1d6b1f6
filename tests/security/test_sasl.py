"""DIGEST-MD5 against bytes that Java made, against the library, and JAAS files."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.core.errors import AuthenticationError, MisuseError
from quire.net.security.jaas import options_of, user_of, users_of
from quire.net.security.sasl import SaslClient, SaslServer, Users
from support.certificates import jaas

VECTORS = Path(__file__).parents[1] / "vectors" / "captures.json"
NAMES = st.text(
    st.characters(codec="latin-1", min_codepoint=32, exclude_characters="\x7f"), min_size=1, max_size=20
)


def recorded():
    """The tokens of the exchange that a Java client and a Java bookie had: user hd, password testpwd."""
    (capture,) = [one for one in json.loads(VECTORS.read_text()) if one["name"] == "v3-auth-sasl"]
    tokens = []
    for frame in capture["frames"]:
        body = frame["decoded"].get("authRequest") or frame["decoded"].get("authResponse")
        if body and frame["bookie"] == 3:
            raw = bytes.fromhex(frame["hex"])
            at = raw.index(body["authPluginName"].encode()) + len(body["authPluginName"])
            tokens.append(raw[at:].lstrip(b"\x12"))
    return tokens


def test_the_proofs_that_java_made():
    _, challenge, response, proof, *_ = recorded()
    challenge = challenge[challenge.index(b"realm") :]
    response = response[response.index(b"charset") :]
    server = SaslServer(Users({"hd": "testpwd"}))
    server._nonce = re.search(rb'nonce="([^"]*)"', challenge)[1]
    assert server.step(b"") == challenge
    assert server.step(response) == proof[proof.index(b"rspauth") :]
    assert server.complete
    assert server.username == "hd"


def test_the_example_of_rfc_2831():
    """Section 4, with another service and realm; so by its own formula."""

    def h(data):
        return hashlib.md5(data).digest()

    a1 = h(b"chris:elwood.innosoft.com:secret") + b":OA6MG9tEQGm2hh:OA6MHXh6VqTrRk"
    a2 = b"AUTHENTICATE:imap/elwood.innosoft.com"
    middle = b":OA6MG9tEQGm2hh:00000001:OA6MHXh6VqTrRk:auth:"
    assert h(h(a1).hex().encode() + middle + h(a2).hex().encode()).hex() == "d388dad90d4bbd760a152321f2143af7"


def exchange(client, server):
    token = b""
    for _ in range(3):
        answer = server.step(token)
        token = client.step(answer)
        if client.complete:
            return
    raise AssertionError("no end")


@given(name=NAMES, password=NAMES)
def test_the_library_and_our_server(name, password):
    client, server = SaslClient(name, password), SaslServer(Users({name: password}))
    exchange(client, server)
    assert server.complete
    assert server.username == name


@given(password=NAMES, other=NAMES)
def test_another_password(password, other):
    if password != other:
        server = SaslServer(Users({"u": password}))
        with pytest.raises(AuthenticationError):
            exchange(SaslClient("u", other), server)
        assert not server.complete


def test_a_bookie_that_does_not_know_the_password():
    client, server = SaslClient("u", "p"), SaslServer(Users({"u": "p"}))
    client.step(server.step(b""))
    with pytest.raises(AuthenticationError):
        client.step(b"rspauth=00000000000000000000000000000000")
    assert not client.complete


WORDS = [
    b"nonce",
    b"realm",
    b"rspauth",
    b"qop",
    b"maxbuf",
    b"=",
    b",",
    b'"',
    b"auth",
    b"x",
    b"\xff",
    b" ",
    b"auth-int",
]
TOKENS = st.binary(max_size=300) | st.lists(st.sampled_from(WORDS), max_size=14).map(b"".join)


@given(TOKENS)
@example(b"rspauth=x")
def test_any_token(token):
    server = SaslServer(Users({"u": "p"}))
    server.step(b"")
    with pytest.raises(AuthenticationError):
        server.step(token)
    assert not server.complete
    try:
        client = SaslClient("u", "p")
        client.step(token)
    except AuthenticationError:
        pass
    assert not client.complete


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nonce", '"another"'),
        ("nc", "00000002"),
        ("digest-uri", '"imap/bookkeeper"'),
        ("qop", "auth-int"),
        ("authzid", '"root"'),
        ("username", '"root"'),
        ("realm", '"another"'),
        ("cnonce", '""'),
        ("response", "0" * 32),
    ],
)
def test_a_response_with_another_field(field, value):
    client, server = SaslClient("hd", "testpwd"), SaslServer(Users({"hd": "testpwd", "root": "x"}))
    response = client.step(server.step(b"")).decode()
    changed = re.sub(rf'\b{field}=("[^"]*"|[^,]*)', f"{field}={value}", response)
    if changed == response:
        changed = f"{response},{field}={value}"
    with pytest.raises(AuthenticationError):
        server.step(changed.encode())
    assert not server.complete


def test_a_proof_serves_once():
    client, first, second = SaslClient("u", "p"), SaslServer(Users({"u": "p"})), SaslServer(Users({"u": "p"}))
    response = client.step(first.step(b""))
    second.step(b"")
    with pytest.raises(AuthenticationError, match="another challenge"):
        second.step(response)


# --- JAAS files --------------------------------------------------------------------------------------------------


def test_a_file_as_java_reads_it(tmp_path):
    path = tmp_path / "jaas.conf"
    path.write_text(
        """/* for
        bookies */
        Client { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/etc/a.keytab"; };
        Bookie {   // users
            org.apache.zookeeper.server.auth.DigestLoginModule required
            # one a line
            user_hd="test;pwd" user_other="with \\"quotes\\" and \\\\";
        };
        BookKeeper { org.apache.zookeeper.server.auth.DigestLoginModule required username=hd password="test;pwd"; };
        """
    )
    assert users_of(path, "Bookie", ".*").passwords == {"hd": "test;pwd", "other": 'with "quotes" and \\'}
    assert user_of(path, "BookKeeper") == ("hd", "test;pwd")
    assert options_of(path, "Client") == {"useKeyTab": "true", "keyTab": "/etc/a.keytab"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no section Bookie, it has: none"),
        ("Other { m required; };", "it has: Other"),
        ("Bookie { m required; };", "names no user"),
        ('Bookie { m required user_a="b"; }', "does not look like"),
        ('Bookie m required user_a="b"; };', "does not look like"),
        ('Bookie { m required\n user_a="b; };', "line 2"),
        ("Bookie", "does not look like"),
    ],
)
def test_a_file_that_is_none(tmp_path, text, says):
    path = tmp_path / "jaas.conf"
    path.write_text(text)
    with pytest.raises(MisuseError, match=says) as error:
        users_of(path, "Bookie", ".*")
    assert str(path) in str(error.value)


def test_what_else_can_be_wrong(tmp_path):
    with pytest.raises(MisuseError, match="No such file"):
        users_of(tmp_path / "none", "Bookie", ".*")
    path = jaas(tmp_path, users={"a": "b"})
    with pytest.raises(MisuseError, match="regular expression"):
        users_of(path, "Bookie", "(")
    with pytest.raises(MisuseError, match="no section BookKeeper"):
        user_of(path, "BookKeeper")
