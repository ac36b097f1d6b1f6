"""A whole cluster on this machine: a process for each bookie and one for auto-recovery, started, watched, killed, stopped.

Holds no event loop and imports neither the client nor the bookie: the parent process stays small.

A directory holds `metadata.db`, `bookies.json` (names, ports, another cluster that they joined: a second start continues), and
for each bookie `bookie-N/` with its data and `bookie-N.log` with what it said. It is locked while its cluster runs.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from quire.cli.console.failures import BookieStartError, PortInUseError
from quire.cli.console.named_clusters import MEMBERS_FILE, METADATA_FILE, write_json
from quire.cli.local.local_bookie import HOST, LocalBookie
from quire.core.errors import CorruptMetadataError, DirectoryInUseError, MisuseError, WrongDirectoryError
from quire.env.private import check_owner, close_folder, open_private
from quire.env.real import RealFiles, RealLock, require_linux

if TYPE_CHECKING:
    from types import TracebackType

_LOG: Final = logging.getLogger(__name__)
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
PORT_MAX: Final = 65535
DEFAULT_BOOKIES: Final = 3
RECOVERY: Final = "autorecovery"
"""The name of the process that audits and repairs."""


class LocalCluster:
    """The bookies of one directory.

    Args:
        directory: where everything lies; made if missing.
        bookies: how many; None means as many as the directory has, or three.
        cluster: the metadata store's URI; by default SQLite in the directory.
        port: the first bookie's port (the others count up); None keeps the former ports or takes free ones.
        security: the file that says what bookies ask of clients.
        frame_bytes_max: the longest frame that they take; None: the defaults.
        segment_bytes: the size of their segments; None: what suits the disk.
        recovers: run auto-recovery too.

    Attributes:
        joined: its metadata lie elsewhere, in a cluster that it joined.
        options: what every bookie's command line has.
    """

    def __init__(
        self,
        directory: Path,
        bookies: int | None = None,
        *,
        cluster: str | None = None,
        port: int | None = None,
        security: Path | None = None,
        frame_bytes_max: int | None = None,
        segment_bytes: int | None = None,
        recovers: bool = False,
    ) -> None:
        self.directory = directory.absolute()
        settings = {
            "--security": security and security.absolute(),
            "--frame-bytes-max": frame_bytes_max,
            "--segment-bytes": segment_bytes,
        }
        self.options = [
            word for name, value in settings.items() if value is not None for word in (name, str(value))
        ]
        self.uri = cluster or f"sqlite:{self.directory / METADATA_FILE}"
        self.joined = not _is_own(self.uri, self.directory)
        self._former = ""
        known = self._remembered()
        self._made = bool(known)
        count = bookies or len(known) or DEFAULT_BOOKIES
        if count < len(known):
            text = (
                f"{self.directory} holds {len(known)} bookies, and entries may lie on any of them: start all of "
                f"them (leave --bookies out), or choose another --dir."
            )
            raise MisuseError(text, path=str(self.directory))
        self.bookies = [
            self._bookie(number, known.get(f"bookie-{number}", 0)) for number in range(1, count + 1)
        ]
        if port is not None:
            if port + count - 1 > PORT_MAX:
                text = f"There are no {count} ports from {port} on, one for each bookie: the last one is {PORT_MAX}."
                raise MisuseError(text, port=port)
            for number, bookie in enumerate(self.bookies):
                bookie.port, bookie.chosen_port = port + number, True
        log = self.directory / f"{RECOVERY}.log"
        self.recovery = LocalBookie(RECOVERY, self.directory, log) if recovers else None
        self._selector = selectors.DefaultSelector()
        self._lock: RealLock | None = None
        self.failed: list[tuple[LocalBookie, BookieStartError]] = []
        """Bookies that did not start, and why."""
        self.moved: list[str] = []
        """Names of bookies whose former port was taken, so that they got another."""

    # --- start and stop -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, *, some: bool = False) -> None:
        """Start every bookie and wait until all of them serve.

        Args:
            some: it is enough that one serves; `failed` says which do not.

        Raises:
            MisuseError: this is not Linux.
            DirectoryInUseError: another process runs this directory's cluster.
            NoClusterError: the metadata file is missing, and bookies have data of the cluster that it was of.
            WrongDirectoryError: another user made the directory where everybody may make one, or it is another cluster's,
                or lies in a bookie's.
            PortInUseError: a port that was asked for is taken.
            BookieStartError: a bookie did not come up; the others are stopped again.
        """
        require_linux()
        self._check_directory()
        self._take_lock()
        try:
            for bookie in self.bookies:
                self._check_port(bookie)
            # The first one makes the metadata store, the others find it.
            for launched in (self.bookies[:1], self.bookies[1:]):
                for bookie in launched:
                    self._launch(bookie)
                self.failed += self._await_each(launched)
                if self.failed and not some:
                    raise self.failed[0][1]
            if len(self.failed) == len(self.bookies):
                raise BookieStartError(
                    "No bookie started. " + " ".join(one.message for _, one in self.failed)
                )
            self._remember()
            if self.recovery is not None:
                self._run(self.recovery, ["-m", "quire.cli.local.recovering", "--cluster", self.uri])
        except BaseException:
            self.stop()
            raise

    def stop(self) -> list[LocalBookie]:
        """Stop every process cleanly; one that does not end in time is killed.

        Returns:
            The processes that did not stop cleanly.
        """
        # Auto-recovery stops first: else it sees all bookies leave.
        recovery = [] if self.recovery is None else [self.recovery]
        unclean = self._stop(recovery) + self._stop(self.bookies)
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        return unclean

    def _stop(self, processes: list[LocalBookie]) -> list[LocalBookie]:
        for bookie in processes:
            if bookie.running and bookie.process:
                bookie.process.send_signal(signal.SIGCONT)
                bookie.process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        unclean = []
        for bookie in processes:
            if bookie.process is None:
                continue
            try:
                bookie.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                bookie.process.kill()
                bookie.process.wait()
            self._forget(bookie)
            early = (
                bookie is self.recovery and bookie.process.returncode == -signal.SIGTERM
            )  # it had not begun
            if bookie.process.returncode and not early:
                unclean.append(bookie)
        return unclean

    def kill(self, index: int) -> LocalBookie:
        """Kill one bookie with SIGKILL and wait until it has ended.

        Args:
            index: 0 is the first.
        """
        bookie = self.bookies[index]
        if bookie.process:
            bookie.process.kill()
            bookie.process.wait()
            self._forget(bookie)
        return bookie

    def restart(self, index: int) -> LocalBookie:
        """Start a bookie that is not running again, on its data and its port, and wait until it serves."""
        bookie = self.bookies[index]
        if bookie.running:
            text = f"{bookie.name} is running; kill it first."
            raise MisuseError(text)
        self._check_port(bookie)
        self._launch(bookie)
        self._await_ready([bookie])
        return bookie

    # --- watching -------------------------------------------------------------------------------------------

    def wait(self, wakeup: int | None = None, timeout_s: float | None = None) -> list[LocalBookie]:
        """Wait until a bookie dies or `wakeup` becomes readable.

        Args:
            wakeup: a file descriptor (a signal pipe).
            timeout_s: the longest wait; None waits for ever.

        Returns:
            The bookies that have died since the last call; none when `wakeup` or the time ended the wait.
        """
        if wakeup is not None:
            self._selector.register(wakeup, selectors.EVENT_READ, None)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        dead: list[LocalBookie] = []
        try:
            while not dead:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                events = self._selector.select(left)
                if not events or any(key.data is None for key, _ in events):
                    break
                for key, _ in events:
                    # Only the end of its stdout says that the process has ended or is about to.
                    if not os.read(key.fd, 65536):
                        key.data.process.wait()
                        self._forget(key.data)
                        dead.append(key.data)
        finally:
            if wakeup is not None:
                self._selector.unregister(wakeup)
        return dead

    # --- inside ---------------------------------------------------------------------------------------------

    def _bookie(self, number: int, port: int) -> LocalBookie:
        name = f"bookie-{number}"
        return LocalBookie(name, self.directory / name, self.directory / f"{name}.log", port)

    def _check_directory(self) -> None:
        """Refuse a directory whose bookies are of another cluster, and one that lies in a bookie's."""
        own = self.directory / METADATA_FILE
        if self._made and self.joined and own.exists():
            text = (
                f"{self.directory} holds a cluster of its own ({METADATA_FILE}); its bookies cannot join {self.uri}: leave "
                "--cluster out, or choose another --dir."
            )
            raise WrongDirectoryError(text, path=str(self.directory))
        if self._made and not self.joined and self._former:
            text = (
                f"The bookies of {self.directory} belong to the cluster {self._former}: give --cluster {self._former}, or "
                "choose another --dir."
            )
            raise WrongDirectoryError(text, path=str(self.directory))
        real = self.directory.resolve()
        for folder in (real, *real.parents):
            if is_a_bookies(folder):
                where = "is" if folder == real else f"is in {folder},"
                text = f"{self.directory} {where} a bookie's own directory: choose another --dir."
                raise WrongDirectoryError(text, path=str(folder))

    def _take_lock(self) -> None:
        if not self.joined:
            self._check_store()
        RealFiles().make_directory(self.directory)
        check_owner(self.directory)
        try:
            self._lock = RealFiles().lock(self.directory)
        except BlockingIOError as error:
            text = (
                f"Another `quire up` runs the cluster in {self.directory}: use it (--cluster {self.uri}), stop it, "
                "or choose another --dir."
            )
            raise DirectoryInUseError(text, path=str(self.directory)) from error
        # The process that opens the metadata file closes it, and SQLite's own files with it.
        metadata = [path.name for path in self.directory.glob(f"{METADATA_FILE}*")]
        for sentence in close_folder(self.directory, _is_ours, untouched=metadata):
            _LOG.warning("%s", sentence)

    def _check_store(self) -> None:
        """Refuse to make a new metadata file where bookies have data, before anything is made."""
        path = self.directory / METADATA_FILE
        if not path.exists() or not path.stat().st_size:
            from quire.metadata.sqlite.place import check_lost

            check_lost(path, create=True)

    def _check_port(self, bookie: LocalBookie) -> None:
        if not bookie.port or _is_free(bookie.port):
            return
        if bookie.chosen_port:
            text = (
                f"Port {bookie.port} on {HOST}, meant for {bookie.name}, is in use by another program; choose "
                f"another with --port, or leave --port out to take free ones."
            )
            raise PortInUseError(text, port=bookie.port)
        self.moved.append(bookie.name)
        bookie.port = 0

    def _launch(self, bookie: LocalBookie) -> None:
        command = ["-m", "quire.cli.local.serve", "--dir", str(bookie.directory), "--cluster", self.uri]
        command += ["--host", HOST, "--port", str(bookie.port), "--name", bookie.name]
        self._run(bookie, command + self.options)

    def _run(self, bookie: LocalBookie, command: list[str]) -> None:
        """Start one process, whose end closes its standard output."""
        bookie.first_line = b""
        with open_private(bookie.log, "ab") as log:
            # Its own process group: Ctrl-C in the terminal reaches the parent, which stops the bookies in order.
            bookie.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,
            )
        self._selector.register(bookie.process.stdout, selectors.EVENT_READ, bookie)  # type: ignore[arg-type]

    def _await_ready(self, waited: list[LocalBookie]) -> None:
        for _, failed in self._await_each(waited):
            raise failed

    def _await_each(self, waited: list[LocalBookie]) -> list[tuple[LocalBookie, BookieStartError]]:
        """Wait until each serves or has ended; returns those that do not serve, which are no longer running."""
        deadline, failed = time.monotonic() + START_TIMEOUT_S, []
        with selectors.DefaultSelector() as waiting:  # of the others `wait` hears
            for bookie in waited:
                assert bookie.process is not None
                assert bookie.process.stdout is not None
                waiting.register(bookie.process.stdout, selectors.EVENT_READ, bookie)
            while waiting.get_map():
                events = waiting.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    break
                for key, _ in events:
                    bookie = key.data
                    data = os.read(key.fd, 65536)
                    bookie.first_line += data
                    if b"\n" not in bookie.first_line and data:
                        continue
                    waiting.unregister(key.fileobj)
                    why = self._read_first(bookie)
                    if why:
                        failed.append((bookie, why))
            late = sorted((key.data for key in waiting.get_map().values()), key=lambda one: one.name)
        failed += [(bookie, self._too_late(bookie)) for bookie in late]
        return failed

    def _too_late(self, bookie: LocalBookie) -> BookieStartError:
        self._stop([bookie])
        bookie.process = None
        text = f"{bookie.name} did not come up in {START_TIMEOUT_S:.0f} s; its log: {bookie.log}"
        return BookieStartError(text, bookie=bookie.name, path=str(bookie.log))

    def _read_first(self, bookie: LocalBookie) -> BookieStartError | None:
        """The first line of a bookie is whole (or its stdout ended): None if it serves."""
        try:
            facts = json.loads(bookie.first_line or b"{}")
        except ValueError:
            facts = {}
        if "address" in facts:
            bookie.id = facts["id"]
            bookie.port = int(facts["address"].rpartition(":")[2])
            return None
        assert bookie.process is not None
        bookie.process.wait(STOP_TIMEOUT_S)
        self._forget(bookie)
        reason = facts.get("error", {}).get("message") or "\n".join(bookie.last_lines()) or "it said nothing"
        text = f"{bookie.name} did not start ({bookie.how_it_ended()}): {reason} Its log: {bookie.log}"
        bookie.process = None
        return BookieStartError(text, bookie=bookie.name, path=str(bookie.log))

    def _forget(self, bookie: LocalBookie) -> None:
        process = bookie.process
        if process is None or process.stdout is None or process.stdout.closed:
            return
        self._selector.unregister(process.stdout)
        process.stdout.close()
        if process.stdin:
            process.stdin.close()

    def _remembered(self) -> dict[str, int]:
        path = self.directory / MEMBERS_FILE
        try:
            facts = json.loads(path.read_text("utf-8"))
            self._former = str(facts.get("cluster") or "")
            return {str(item["name"]): int(item["port"]) for item in facts["bookies"]}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = (
                f"{path} is damaged ({error}); it only lists names and ports: delete it and give --bookies with the "
                f"number of bookie-N directories."
            )
            raise CorruptMetadataError(text, path=str(path)) from error

    def _remember(self) -> None:
        # A cluster of its own is not named: the directory may be moved.
        bookies = [{"name": bookie.name, "port": bookie.port} for bookie in self.bookies]
        cluster = self.uri if self.joined else None
        write_json(self.directory / MEMBERS_FILE, {"bookies": bookies, "cluster": cluster})


def _is_own(uri: str, directory: Path) -> bool:
    """Whether a URI names the metadata store that lies in the cluster's directory."""
    scheme, _, path = uri.partition(":")
    return scheme == "sqlite" and Path(path).resolve() == (directory / METADATA_FILE).resolve()


def is_a_bookies(folder: Path) -> bool:
    """Whether a directory is a bookie's: it has a bookie's cookie."""
    from quire.storage.directory.identity import COOKIE_FILE, decode_cookie

    try:
        return "bookieHost" in decode_cookie((folder / COOKIE_FILE).read_bytes())
    except (OSError, ValueError):
        return False


def _is_ours(name: str) -> bool:
    """Whether a name in a cluster's directory is one that `quire up` makes there."""
    return name == f"{RECOVERY}.log" or name.startswith(("bookie-", "bookies.", METADATA_FILE))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do it: the leftovers of a former connection do not count as "in use".
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
