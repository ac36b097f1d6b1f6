"""A real ZooKeeper for tests: Java's, from its Maven artefacts, on loopback, one for a whole test run.

Its ticks are short, so that a test of a lost session need not wait for seconds; sessions may also be long.
"""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

JAVA_PEER = Path(__file__).resolve().parents[2] / "tools" / "java-peer"
CONFIGURATION = "tickTime=100\nminSessionTimeout=200\nmaxSessionTimeout=600000\n"
START_S = 240


class ZookeeperServer:
    """One server; `folder` is what `tools/java-peer` works in."""

    def __init__(self, folder, configuration=CONFIGURATION, options="", environment=None):
        self.folder = Path(folder)
        settings = self.folder / "zookeeper.conf"
        settings.write_text(configuration)
        self.environment = os.environ | {
            "JAVA_PEER_ZOOKEEPER_CONF": str(settings),
            "JAVA_PEER_ZOOKEEPER_OPTS": options,
            **(environment or {}),
        }
        try:
            self.host = self.run("start", "0").strip()
        except BaseException:
            self.stop()
            raise

    def run(self, command, *arguments, check=True):
        """What one command of `tools/java-peer` prints."""
        done = subprocess.run(
            [JAVA_PEER, command, self.folder, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"java-peer {command}: {done.stderr[-2000:]}")
        return done.stdout

    def stop(self):
        self.run("stop", check=False)


def why_not():
    """Why no server can be started here; None if one can."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            return f"no {program} on this machine: nothing was tested against a real ZooKeeper"
    return None


@functools.cache
def shared_server():
    """The run's server, started when it is first asked for; a message instead if it cannot be."""
    reason = why_not()
    if reason is not None:
        return reason
    folder = tempfile.mkdtemp(prefix="quire-zookeeper-")
    try:
        server = ZookeeperServer(folder)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        shutil.rmtree(folder, ignore_errors=True)
        return f"ZooKeeper did not start, nothing was tested against it: {error}"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.stop)
    return server


def zookeeper_or_skip():
    """The run's server; the test is skipped, loudly, where there can be none."""
    server = shared_server()
    if isinstance(server, str):
        pytest.skip(server)
    return server
