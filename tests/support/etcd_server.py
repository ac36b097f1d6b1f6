"""A real etcd for tests, on loopback; one for a whole test run. It is found, not built: `make etcd` builds one."""

import functools
import subprocess
from pathlib import Path

from support.shared_server import or_skip, run_tool, start_shared

ETCD_PEER = Path(__file__).resolve().parents[2] / "tools" / "etcd-peer"
START_S = 120


class EtcdServer:
    """One server; `folder` is what `tools/etcd-peer` works in.

    Args:
        folder: for its data.
        flags: etcd's own.
    """

    def __init__(self, folder, *flags):
        self.folder = Path(folder)
        self.flags = flags
        try:
            self.host = self.start()
        except BaseException:
            self.run("stop", check=False)
            raise

    def run(self, command, *arguments, check=True):
        """What one command of `tools/etcd-peer` prints."""
        return run_tool(ETCD_PEER, command, self.folder, *arguments, seconds=START_S, check=check)

    def start(self):
        """Start it, or start it again; where it listens."""
        return self.run("start", *self.flags).strip()

    def stop(self):
        self.run("stop", check=False)

    def kill(self):
        self.run("kill")


@functools.cache
def why_not():
    """Why no server can be started here; None if one can."""
    looked = subprocess.run([ETCD_PEER, "binary"], capture_output=True, text=True, check=False)
    if looked.returncode:
        return f"nothing was tested against a real etcd: {looked.stderr.strip()}"
    return None


@functools.cache
def shared_server():
    """The run's server, started when it is first asked for; a message instead if it cannot be."""
    # Tests need no durability of the machine's disk; what they kill is the process.
    return start_shared("etcd", why_not(), lambda folder: EtcdServer(folder, "--unsafe-no-fsync"))


def own_server(folder):
    """A server that a test may kill at will; a message instead if it cannot be."""
    reason = why_not()
    if reason is not None:
        return reason
    try:
        return EtcdServer(folder, "--unsafe-no-fsync")
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return f"etcd did not start, nothing was tested against it: {error}"


def etcd_or_skip():
    """The run's server; the test is skipped, loudly, where there can be none."""
    return or_skip(shared_server())
