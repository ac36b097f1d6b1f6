"""A real ZooKeeper for tests: Java's, from its Maven artefacts, on loopback, one for a whole test run.

Its ticks are short, so that a test of a lost session need not wait for seconds; sessions may also be long.
"""

import functools
import os
import shutil
from pathlib import Path

from support.shared_server import or_skip, run_tool, start_shared

JAVA_PEER = Path(__file__).resolve().parents[2] / "tools" / "java-peer"
CONFIGURATION = "tickTime=100\nminSessionTimeout=200\nmaxSessionTimeout=600000\n"
START_S = 240


class ZookeeperServer:
    """One server; `folder` is what `tools/java-peer` works in."""

    def __init__(
        self, folder, configuration=CONFIGURATION, options="-XX:TieredStopAtLevel=1", environment=None
    ):
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
        return run_tool(
            JAVA_PEER,
            command,
            self.folder,
            *arguments,
            seconds=START_S,
            check=check,
            environment=self.environment,
        )

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
    return start_shared("ZooKeeper", why_not(), ZookeeperServer)


def zookeeper_or_skip():
    """The run's server; the test is skipped, loudly, where there can be none."""
    return or_skip(shared_server())
