"""Whoever is not taken is told why, where and what to do; nothing is stored, and nothing is denied either."""

import pytest

from quire.client.config import ClientConfig
from quire.core.answers import NEGATIVES, Answer
from quire.core.errors import QuorumLostError, ReadUnavailableError, RecoveryInconclusiveError
from quire.net.security.settings import BookieSasl, BookieSecurity, ClientSasl, ClientSecurity
from support.certificates import Authority, jaas
from support.small_cluster import small_cluster

PROTOCOLS = ["auto", "v3", "v2"]
SASL_WRONG = ClientSecurity(sasl=ClientSasl(username="writer", password="wrong"))


def wrong_ca(keys, folder):
    return keys.of_bookie(), keys.of_client(ca=Authority(folder, "other").ca), "name the CA"


def expired(keys, folder):
    return (
        keys.of_bookie(pair=keys.authority.issue("expired", days=-1)),
        keys.of_client(),
        "expired; renew it",
    )


def another_host(keys, folder):
    pair = keys.authority.issue("far", "DNS:far.example")
    return keys.of_bookie(pair=pair), keys.of_client(), "verify_hostname"


def client_in_clear(keys, folder):
    return keys.of_bookie(), None, "in the file that QUIRE_SECURITY names"


def bookie_in_clear(keys, folder):
    return BookieSecurity(), keys.of_client(), ("refuses TLS", "no certificate")


def no_certificate(keys, folder):
    asked = keys.of_bookie(ca=keys.authority.ca, require_client_certificate=True)
    return asked, keys.of_client(), "certificate"


def certificate_of_another_ca(keys, folder):
    asked = keys.of_bookie(ca=keys.authority.ca, require_client_certificate=True)
    pair = Authority(folder, "other").issue("foreign")
    return asked, keys.of_client(certificate=pair.certificate, key=pair.key), "certificate"


def wrong_password(keys, folder):
    return BookieSecurity(sasl=BookieSasl(jaas(folder, users={"writer": "right"}))), SASL_WRONG, "password"


def unknown_user(keys, folder):
    return BookieSecurity(sasl=BookieSasl(jaas(folder, users={"other": "wrong"}))), SASL_WRONG, "password"


def user_that_is_not_allowed(keys, folder):
    users = BookieSasl(jaas(folder, users={"writer": "wrong"}), allowed_ids=".*bookkeeper.*")
    return BookieSecurity(sasl=users), SASL_WRONG, "password"


def no_password(keys, folder):
    return (
        BookieSecurity(sasl=BookieSasl(jaas(folder, users={"writer": "right"}))),
        None,
        "a user and a password",
    )


def password_in_clear(keys, folder):
    users = BookieSasl(jaas(folder, users={"writer": "wrong"}))
    return keys.of_bookie(users), SASL_WRONG, ("only TLS", "password")


def role_of_another(keys, folder):
    asked = keys.of_bookie(
        ca=keys.authority.ca, require_client_certificate=True, roles=("writers", "readers")
    )
    pair = keys.authority.issue("auditor", organizational_unit="0:auditors,writers;1:here")
    return asked, keys.of_client(certificate=pair.certificate, key=pair.key), ("CN=auditor", "a role that")


CASES = [
    role_of_another,
    wrong_ca,
    expired,
    another_host,
    client_in_clear,
    bookie_in_clear,
    no_certificate,
    certificate_of_another_ca,
    wrong_password,
    unknown_user,
    user_that_is_not_allowed,
    no_password,
    password_in_clear,
]


def says(error, wanted):
    return any(word in str(error) for word in ((wanted,) if isinstance(wanted, str) else wanted))


QUICK = {
    (role_of_another, "v3"),
    (wrong_ca, "v3"),
    (client_in_clear, "v3"),
    (wrong_password, "v3"),
    (client_in_clear, "v2"),
    (no_password, "v2"),
}


@pytest.mark.parametrize(
    ("case", "protocol"),
    [
        pytest.param(
            case, protocol, marks=() if protocol == "auto" or (case, protocol) in QUICK else pytest.mark.slow
        )
        for case in CASES
        for protocol in PROTOCOLS
    ],
)
async def test_who_is_not_taken(tmp_path, keys, case, protocol):
    asked, shown, wanted = case(keys, tmp_path / "of the case")
    async with small_cluster(tmp_path, security=asked) as cluster:
        # Some bookies end the connection without a word, as those do that stop: such ones are waited for.
        patience = {"recovery_patience_ms": 0, "read_timeout_ms": 500, "quorum_wait_ms": 300}
        client = await cluster.client(ClientConfig(protocol=protocol, security=shown, **patience))
        ledger = await client.create_ledger()
        with pytest.raises(QuorumLostError) as lost:
            await ledger.append(b"never")
        assert says(lost.value, wanted), lost.value
        ledger = await client.create_ledger()  # the writer of the first has closed it, empty as it is
        with pytest.raises(RecoveryInconclusiveError) as inconclusive:
            await client.open_ledger(ledger.ledger_id)
        assert says(inconclusive.value, wanted), inconclusive.value
        with pytest.raises(ReadUnavailableError) as unavailable:
            await client.open_ledger(ledger.ledger_id, recover=False)
        assert says(unavailable.value, wanted), unavailable.value
        for server in cluster.servers.values():
            assert server.ledgers.entries_added == 0
            assert not any(connection.has_requests() for connection in server._connections)
        for bookie in cluster.servers:
            reply = await client.bookies.read(bookie, ledger.access, 0, 0, 100)
            assert reply.answer not in NEGATIVES
            assert reply.answer in {Answer.UNREACHABLE, Answer.UNAUTHORISED}
