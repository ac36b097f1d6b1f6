"""A cluster of bookie processes for the tests of a module, and the command line on it."""

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from quire.cli.local.local_cluster import LocalCluster
from quire.cli.main import app
from support.commands import Quire


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), 3) as local:
        yield local


@pytest.fixture(scope="module")
def quire(cluster: LocalCluster) -> Quire:
    """A command on the cluster, which ends with this code."""
    runner = CliRunner(env={"QUIRE_CLUSTER": cluster.uri, "NO_COLOR": "1", "TERM": "dumb"})

    def call(*arguments: str, given: bytes | str = b"", code: int | None = 0, **env: str) -> Result:
        result = runner.invoke(app, list(arguments), input=given, env=env)
        assert code in {None, result.exit_code}, result.output
        return result

    return call
