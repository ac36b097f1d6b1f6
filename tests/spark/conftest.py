"""One local Spark session for every test of this folder: a JVM takes six to ten seconds to start."""

import pytest

from quire.spark.local import session


@pytest.fixture(scope="session")
def spark():
    running = session(
        master="local[2]",
        app_name="quire-tests",
        **{
            "spark.sql.shuffle.partitions": 2,
            "spark.driver.memory": "1g",
            "spark.log.level": "OFF",
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
