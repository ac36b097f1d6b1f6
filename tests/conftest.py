"""What holds for every test: Hypothesis judges results, never how long they took on a busy machine.

Four workers share the tests on two cores (`make test`), since what tests processes waits much of its time. A file's tests
stay together, since they share what they set up; so do all that need Spark, all that need Java peers, and all that need
ZooKeeper or etcd, which take long to start.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import tempfile
import threading
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.rounds import FULL

settings.register_profile(
    "quire",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not FULL,
)
settings.load_profile("quire")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts this in the background has Ctrl-C ignored, and the programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def no_clusters_of_the_user(tmp_path_factory):
    """The user's own contexts and clusters are none of the tests' business, of their processes neither."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.getbasetemp() / "no-data"))
        patch.delenv("QUIRE_CLUSTER", raising=False)
        yield


@pytest.fixture
async def cluster(tmp_path):
    """Three bookies in this process; `cluster.client()` is a client of them."""
    from support.small_cluster import small_cluster

    async with small_cluster(tmp_path) as made:
        yield made


@pytest.fixture
async def client(cluster):
    """A client of `cluster`."""
    return await cluster.client()


@pytest.fixture
async def at(tmp_path):
    """Three bookies in this process, and a client of logs."""
    from support.log_cluster import world

    async with world(tmp_path) as made:
        yield made


SHARED = ("tests/spark/", "tests/interop/", "tests/conformance/")
"""Folders whose tests share one expensive thing."""
FIRST = (*SHARED, "tests/check/test_continuous.py", "tests/faults/", "tests/unit/test_docs.py")
"""What takes longest begins first, so that no worker is left alone with it at the end."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hand out whole files, and of shared folders all files, to one worker."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFileOrFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return next((folder for folder in SHARED if file.startswith(folder)), file)

    return ByFileOrFolder(config, log)


MEMORY_BYTES_MAX = 6 << 30
"""More than any test has use for, and little enough that three workers do not exhaust a machine of 24 GiB."""


@pytest.fixture(scope="session", autouse=True)
def no_worker_takes_all_memory():
    """A test that allocates without end names itself: else the kernel ends some worker, and the run hangs."""
    stderr = os.dup(2)  # pytest captures the other one
    ended = threading.Event()

    def watch():
        while not ended.wait(1.0):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            if pages * os.sysconf("SC_PAGE_SIZE") > MEMORY_BYTES_MAX:
                os.write(
                    stderr, f"\n{os.environ.get('PYTEST_CURRENT_TEST')} takes too much memory\n".encode()
                )
                faulthandler.dump_traceback(stderr, all_threads=True)
                os._exit(70)

    watching = threading.Thread(target=watch, name="memory of the tests", daemon=True)
    watching.start()
    yield
    ended.set()
    watching.join()


DISK_BYTES = 6 << 30
"""What a whole run has on the disk at its fullest, and a little more: bookies blank their segments."""


def pytest_report_header():
    """A disk that will be full is said at once: what fails by it later names many other things."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free >= DISK_BYTES:
        return []
    return [
        f"WARNING: {free >> 20:,} MiB are free below {tempfile.gettempdir()}; all tests together need 6 GiB"
    ]


def pytest_configure(config):
    """Each worker begins to collect at another file: what one has compiled, the others read."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        files = sorted(map(str, Path(__file__).parent.rglob("test_*.py")))
        begin = int(worker.removeprefix("gw")) * len(files) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        config.args = files[begin:] + files[:begin]


def pytest_collection_modifyitems(items):
    """What takes longest first; and in whatever order they were found, one order."""

    @cache
    def rank(file):
        return next((place for place, start in enumerate(FIRST) if file.startswith(start)), len(FIRST)), file

    items.sort(key=lambda item: rank(item.nodeid.partition("::")[0]))
