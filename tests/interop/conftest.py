"""The Java peers of a whole run: ZooKeeper and three bookies, which no test may stop."""

import pytest

from support.java_peers import JavaPeers, shared_peers


@pytest.fixture(scope="module")
def peers() -> JavaPeers:
    """They start when they are first asked for."""
    found = shared_peers()
    if isinstance(found, str):
        pytest.skip(found)
    return found
