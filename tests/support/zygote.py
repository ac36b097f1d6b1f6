"""A process that has imported what commands need, and makes a process of each command line by fork.

    python -m support.zygote SOCKET_FD [BLOCKED_MODULE ...]

What is forked runs the entry point and ends as any interpreter does, so that what the end of the process does to its exit
code is seen too; only the third of a second that the imports take is saved. A request is a JSON object (`argv`, `env`,
`close`: numbers of standard streams to close, `encoding` of stdout) with four descriptors: the three streams, and a pipe,
which takes the process id and, at the end, the wait status.
"""

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PRELOADED = (
    *(
        "quire.cli.main",
        "quire.cli.local.local_cluster",
        "quire.cli.cluster.snapshot",
        "quire.log.client",
    ),
    *("rich.console", "rich.live", "rich.progress", "rich.table", "uvloop"),
)
REQUEST_BYTES_MAX = 1 << 20
TESTS = Path(__file__).resolve().parents[1]


@dataclass
class Forked:
    """One command line under way."""

    pid: int
    _results: int

    def code(self, timeout_s: float | None = None) -> int | None:
        """Its exit code, or minus the signal that ended it; None if it is still running then."""
        import select

        if not select.select([self._results], [], [], timeout_s)[0]:
            return None
        status = os.read(self._results, 64)
        os.close(self._results)
        return os.waitstatus_to_exitcode(int(status))


class Zygote:
    """Starts command lines.

    Args:
        blocked: modules that cannot be imported there, as if their packages were not installed.
    """

    def __init__(self, blocked: Sequence[str] = ()) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.zygote", str(theirs.fileno()), *blocked],
            pass_fds=[theirs.fileno()],
            cwd=TESTS,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        streams: tuple[int, int, int],
        *,
        close: Sequence[int] = (),
        encoding: str = "utf-8",
    ) -> Forked:
        """Start `quire ARGV`.

        Args:
            argv: without the program's name.
            env: its whole environment.
            streams: stdin, stdout and stderr; if stdin is a terminal, it becomes the controlling one.
            close: which of them are closed instead.
            encoding: of stdout.
        """
        results, end = os.pipe()
        request = {"argv": list(argv), "env": dict(env), "close": list(close), "encoding": encoding}
        socket.send_fds(self._socket, [json.dumps(request).encode()], [*streams, end])
        os.close(end)
        pid = b""
        while not pid.endswith(b"\n"):
            pid += os.read(results, 1)
        return Forked(int(pid), results)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@contextlib.contextmanager
def zygote(*blocked: str) -> Iterator[Zygote]:
    made = Zygote(blocked)
    try:
        yield made
    finally:
        made.close()


def become(request: dict, fds: list[int]) -> None:
    """In the child: be a fresh process with these streams."""
    os.setsid()
    results = fds.pop()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    if os.isatty(0):
        import fcntl

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(request["env"])
    closed = request["close"]
    streams = [open(0, closefd=False), open(1, "w", closefd=False, encoding=request["encoding"])]  # noqa: SIM115
    streams.append(open(2, "w", buffering=1, closefd=False, errors="backslashreplace"))  # noqa: SIM115
    sys.stdin, sys.stdout, sys.stderr = (
        None if number in closed else stream for number, stream in enumerate(streams)
    )
    for number in closed:
        os.close(number)
    sys.argv = ["quire", *request["argv"]]
    os.write(results, b"%d\n" % os.getpid())
    os.close(results)


def serve(connection: socket.socket) -> None:
    """Fork for each request; returns in the child."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, fds, _flags, _from = socket.recv_fds(connection, REQUEST_BYTES_MAX, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        _pid, status = os.waitpid(pid, 0)
        os.write(fds[3], b"%d" % status)
        os._exit(0)
    become(json.loads(message), fds)


def main() -> None:
    for name in sys.argv[2:]:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from quire.__main__ import main as quire

    serve(socket.socket(fileno=int(sys.argv[1])))
    quire()


if __name__ == "__main__":
    main()
