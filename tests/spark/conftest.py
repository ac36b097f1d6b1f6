"""One local Spark session and one small cluster for every test of this folder: a JVM takes seconds to start.

The bookies run on a thread of the test's process; Spark's workers reach them over loopback like any other client.
"""

import contextlib
import os

import pytest

import quire
from quire.bookie.server import BookieServer
from quire.log.config import LogConfig
from quire.spark import cluster as drivers
from quire.spark.local import session
from support.local_bookies import LocalBookies


@pytest.fixture(scope="session")
def spark():
    running = session(
        master="local[2]",
        app_name="quire-tests",
        **{
            "spark.sql.shuffle.partitions": 2,
            "spark.driver.memory": "1g",
            # Many small queries: compiling each costs more than running it, and the JVM need not be the server one.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.log.level": "OFF",
            # A machine that stands still for minutes must not make Spark give its own executor up and exit.
            "spark.network.timeout": "3600s",
            "spark.sql.warehouse.dir": "/nonexistent/quire-tests",
        },
    )
    yield running
    running.stop()


@pytest.fixture
def setting(spark):
    """Change a setting of the session for one test."""
    changed = {}

    def set_to(name, value):
        changed.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)

    yield set_to
    for name, value in changed.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


class LocalCluster(LocalBookies):
    """Bookies, a metadata store and a client of this process; `run` runs a coroutine function with the client."""

    async def _start(self, count):
        await super()._start(count)
        self.client = await quire.connect(self.uri)

    def run(self, function, *args, **kwargs):
        return self._background.run(function, self.client, *args, **kwargs)

    def stop_bookie(self, index):
        self._background.run(self.bookies.pop(index).stop)

    def start_bookies(self, configs):
        """Start bookies that were stopped, with their directories."""

        async def start():
            for config in configs:
                self.bookies.append(BookieServer(config, self.store))
                await self.bookies[-1].start()

        self._background.run(start)

    def with_bookies_stopped(self, change):
        """Stop all bookies, call `change` with their directories, start them again."""

        async def stop_and_start():
            for bookie in self.bookies:
                await bookie.stop()
            change([bookie.config.directory for bookie in self.bookies])
            self.bookies = [BookieServer(bookie.config, self.store) for bookie in self.bookies]
            for bookie in self.bookies:
                await bookie.start()

        self._background.run(stop_and_start)

    def stop(self):
        # The driver's own client of this cluster would warn into another test's log when the folder is removed.
        of_the_driver = drivers._clients.pop((os.getpid(), self.uri), None)

        async def stop():
            if of_the_driver is not None:
                await of_the_driver.close()
            await self.client.close()
            for bookie in self.bookies:
                await bookie.stop()
            await self.store.close()

        self._background.run(stop)

    def fill(self, name, records, *, rolls=False, **log):
        """Make a log of (key, value, headers, time) and close it; with `rolls`, a ledger for each five thousand of them.

        A writer rolls by size beside its appends, so how many ledgers `roll_bytes` makes depends on the machine.
        """

        async def fill(client):
            await client.log(name).create()
            async with await client.log(name, config=LogConfig(**log)).open_writer() as writer:
                keys, values, headers, times = zip(*records, strict=True)
                for start in range(0, len(records), 1000):
                    part = slice(start, start + 1000)
                    await writer.append_many(
                        values[part], keys=keys[part], headers=headers[part], timestamps_ms=times[part]
                    )
                    if rolls and part.stop % 5000 == 0 and part.stop < len(records):
                        await writer.roll()

        self.run(fill)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    with contextlib.closing(_Stopping(LocalCluster(tmp_path_factory.mktemp("cluster"), 3))) as stopping:
        yield stopping.cluster


@pytest.fixture
def own_cluster(tmp_path):
    with contextlib.closing(_Stopping(LocalCluster(tmp_path, 3))) as stopping:
        yield stopping.cluster


@pytest.fixture
def four_bookies(tmp_path):
    with contextlib.closing(_Stopping(LocalCluster(tmp_path / "cluster", 4))) as stopping:
        yield stopping.cluster


class _Stopping:
    def __init__(self, cluster):
        self.cluster = cluster

    def close(self):
        self.cluster.stop()
