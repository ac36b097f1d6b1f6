"""The client that a process keeps for its tasks, while clusters come and go."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.blocking import loop
from quire.core.errors import NoClusterError
from quire.metadata.sqlite.store import SqliteStore
from quire.spark import cluster


def make(path: Path) -> None:
    async def made() -> None:
        await (await SqliteStore.open(path, create=True)).close()

    loop.current().run(made)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "cluster" / "metadata.db"
    yield made
    client = cluster._clients.pop((os.getpid(), f"sqlite:{made}"), None)
    if client is not None:
        loop.current().run(client.close)


def test_a_process_keeps_its_client(path: Path) -> None:
    make(path)
    assert cluster.client_of(f"sqlite:{path}") is cluster.client_of(f"sqlite:{path}")


def test_a_cluster_that_was_made_anew_in_the_same_place_gets_a_client_of_its_own(path: Path) -> None:
    make(path)
    before = cluster.client_of(f"sqlite:{path}")
    shutil.rmtree(path.parent)
    with pytest.raises(NoClusterError, match="no such file"):
        cluster.client_of(f"sqlite:{path}")
    make(path)
    after = cluster.client_of(f"sqlite:{path}")
    assert after.store.instance_id != before.store.instance_id
    assert cluster.client_of(f"sqlite:{path}") is after
