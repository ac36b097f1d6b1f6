"""One real server for a whole test run: started when it is first asked for, stopped when the run ends."""

import atexit
import shutil
import subprocess
import tempfile

import pytest


def start_shared(name, reason, make):
    """A server for the whole run; a message instead if it cannot be.

    Args:
        name: what people call it.
        reason: why none can be started here, None if one can.
        make: starts it in a folder.
    """
    if reason is not None:
        return reason
    folder = tempfile.mkdtemp(prefix=f"quire-{name.lower()}-")
    try:
        server = make(folder)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        shutil.rmtree(folder, ignore_errors=True)
        return f"{name} did not start, nothing was tested against it: {error}"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.stop)
    return server


def or_skip(server):
    """The server; the test is skipped, loudly, where there is a message instead."""
    if isinstance(server, str):
        pytest.skip(server)
    return server


def run_tool(tool, command, folder, *arguments, seconds, check=True, environment=None):
    """What one command of a peer's tool prints."""
    done = subprocess.run(
        [tool, command, folder, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if check and done.returncode:
        raise RuntimeError(f"{tool.name} {command}: {done.stderr[-2000:]}")
    return done.stdout
