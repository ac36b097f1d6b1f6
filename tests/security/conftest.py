import asyncio

import pytest
import uvloop

from quire.net.security.settings import BookieSecurity, BookieTls, ClientSecurity, ClientTls
from support.certificates import Authority

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


def pytest_asyncio_loop_factories(item):
    """Tests run on uvloop here, as the programs do, but for those whose mark says otherwise."""
    marked = any(mark.kwargs for mark in item.iter_markers("asyncio"))
    return LOOPS if marked else {"uvloop": LOOPS["uvloop"]}


class Keys:
    """One CA, and what a bookie and a client have of it.

    Attributes:
        authority: the CA.
        bookie, client: certificates for 127.0.0.1.
    """

    def __init__(self, folder):
        self.authority = Authority(folder)
        self.bookie = self.authority.issue("bookie")
        self.client = self.authority.issue("client")

    def of_bookie(self, sasl=None, pair=None, **settings):
        pair = pair or self.bookie
        return BookieSecurity(BookieTls(pair.certificate, pair.key, **settings), sasl)

    def of_client(self, sasl=None, **settings):
        return ClientSecurity(ClientTls(**({"ca": self.authority.ca} | settings)), sasl)


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("certificates"))
