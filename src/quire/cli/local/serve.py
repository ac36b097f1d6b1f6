"""One bookie in this process, from start to clean stop.

`quire up` starts a process of this module for each bookie instead of `quire bookie`: without the command-line
library such a process is a third smaller. Both run `serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import logging
import os
import signal
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quire.bookie.config import GARBAGE_SECONDS, TOMBSTONE_SECONDS, BookieConfig
from quire.bookie.server import BookieServer
from quire.cli.console.failures import PortInUseError, report
from quire.core.errors import MisuseError, NoClusterError
from quire.env.cyclic_garbage import ShortCollections
from quire.env.private import check_owner
from quire.env.real import disk_bytes, raise_descriptors_max, require_linux
from quire.metadata.connect import open_store
from quire.net.security.settings import BookieSecurity
from quire.storage.config import SEGMENT_BYTES, StorageConfig, fitting_segment_bytes
from quire.storage.directory.identity import instance_of
from quire.storage.directory.owned_directory import close_directory
from quire.wire.addresses import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from quire.client.member_lists import MemberLister
    from quire.core.ids import BookieId
    from quire.core.ledger.metadata import LedgerMetadata
    from quire.core.ledger.replica import Replica
    from quire.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class Ready:
    """What is known of a bookie once it serves."""

    id: str
    address: str
    pid: int
    directory: str


async def serve(
    config: BookieConfig,
    cluster: str,
    *,
    create: bool,
    until_eof: bool,
    on_ready: Callable[[Ready], None],
    security: Path | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or (with `until_eof`) the end of standard input; then stop cleanly.

    Args:
        config: what kind of bookie, and where.
        cluster: the cluster's URI.
        create: make the metadata store if it does not exist yet.
        until_eof: the end of standard input (the parent's death) is a wish to stop.
        on_ready: is called once the bookie serves.
        security: the file that says what is asked of clients; SIGHUP reads again what it names.

    Raises:
        MisuseError: that file, or one that it names, is not what it should be; or this is not Linux.
        PortInUseError: another program has the port.
        WrongDirectoryError: another user made the directory where everybody may make one.
        IdentityReplacedError: another process has the bookie's identity.
    """
    require_linux()
    raise_descriptors_max()
    stop = asyncio.Event()
    ShortCollections().start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_eof:
        stop_at_end_of_input(loop, stop)
    asked = BookieSecurity() if security is None else BookieSecurity.load(security)
    check_owner(config.directory)
    store = await _open_store(cluster, config.directory, create=create)
    try:
        server = BookieServer(replace(config, security=asked), store)
        if server.keys is not None:
            loop.add_signal_handler(signal.SIGHUP, server.keys.reload)
        try:
            await server.start()
        except MisuseError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
                raise
            raise PortInUseError(port_in_use(config.host, config.port), port=config.port) from cause
        lists = _MemberLists(store)
        server.collector.over_replicated.lists = lists
        try:
            server.lease.ended = stop.set
            close_directory(config.directory)  # not before it is certain whose it is
            host_now, port_now = server.address
            on_ready(
                Ready(
                    str(server.bookie_id), address_of(host_now, port_now), os.getpid(), str(config.directory)
                )
            )
            await stop.wait()
        finally:
            await server.stop(clean=True)
            await lists.close()
        if server.lease.error is not None:
            raise server.lease.error
    finally:
        await store.close()


async def _open_store(cluster: str, directory: Path, *, create: bool) -> MetadataStore:
    """Open the cluster's metadata store; none is made for a directory that has data of a cluster already.

    Raises:
        NoClusterError: it is missing, or cannot be reached.
    """
    instance = instance_of(directory)
    try:
        return await open_store(cluster, create=create and not instance)
    except NoClusterError as error:
        if not create or not instance:
            raise
        msg = (
            f"{directory} holds data of cluster {instance}, so no new cluster is made for it: if the metadata store was lost, "
            f"restore it from a backup ({error.message.partition(';')[0]})"
        )
        raise NoClusterError(msg, path=str(directory)) from error


class _MemberLists:
    """Asks other bookies what they hold; the parts of a client are loaded when that is wanted first, which is seldom."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lister: MemberLister | None = None

    async def __call__(
        self, record: LedgerMetadata, members: Sequence[BookieId]
    ) -> Mapping[BookieId, Replica]:
        if self._lister is None:
            from quire.client.member_lists import MemberLister

            self._lister = MemberLister(self._store)
        return await self._lister(record, members)

    async def close(self) -> None:
        if self._lister is not None:
            await self._lister.close()


def storage_for(
    directory: Path, segment_bytes: int | None, frame_bytes_max: int | None = None
) -> StorageConfig:
    """The disk's settings: segments of the size that is asked for, or of one that suits the disk.

    Args:
        directory: the bookie's.
        segment_bytes: what was asked for; None: what suits the disk.
        frame_bytes_max: the longest frame that was asked for.

    Raises:
        MisuseError: that is no size of a segment.
    """
    if segment_bytes is not None:
        return StorageConfig(segment_bytes=segment_bytes)
    disk = disk_bytes(directory)
    fitting = fitting_segment_bytes(disk, frame_bytes_max)
    if fitting < SEGMENT_BYTES:
        text = (
            "the disk of %s has only %d bytes: segments of %d bytes are used, and a longer entry is refused "
            "(--segment-bytes sets another size)"
        )
        logging.getLogger(__name__).info(text, directory, disk, fitting)
    return StorageConfig(segment_bytes=fitting)


def port_in_use(host: str, port: int) -> str:
    """The sentence for a port that is taken."""
    return (
        f"Port {port} on {host} is in use by another program; choose another with --listen {address_of(host, 0)[:-1]}PORT "
        f"(`quire up`: --port PORT), or port 0 for any free one."
    )


def stop_at_end_of_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Set an event when standard input ends: a pipe from the parent ends when that dies, however it dies."""
    loop.add_reader(sys.stdin.fileno(), _read_until_eof, loop, stop)


def _read_until_eof(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    with contextlib.suppress(BlockingIOError):
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop.set()


def run_loop(work: Callable[[], object]) -> None:
    """Run one coroutine function on uvloop where it is installed."""
    factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work())  # type: ignore[arg-type]


def set_up_logging() -> None:
    """Log to stderr, a line each, with the time.

    Raises:
        MisuseError: QUIRE_LOG_LEVEL is no level.
    """
    level, levels = os.environ.get("QUIRE_LOG_LEVEL", "INFO").upper(), logging.getLevelNamesMapping()
    if level not in levels:
        raise MisuseError(f"QUIRE_LOG_LEVEL is {level!r}: use one of {', '.join(levels)}.")
    logging.basicConfig(
        level=level,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The process that `quire up` starts for each bookie: first line on stdout is JSON, ready or an error."""
    parser = argparse.ArgumentParser(prog="quire.cli.local.serve")
    parser.add_argument("--dir", dest="directory", type=Path, required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--name", required=True)
    parser.add_argument("--security", type=Path)
    parser.add_argument("--frame-bytes-max", type=int)
    parser.add_argument("--segment-bytes", type=int)
    every = os.environ.get("QUIRE_COLLECT_EVERY", GARBAGE_SECONDS)
    parser.add_argument("--collect-every", dest="garbage_seconds", type=float, default=every)
    refuse = os.environ.get("QUIRE_TOMBSTONES_FOR", TOMBSTONE_SECONDS)
    parser.add_argument("--tombstones-for", dest="tombstone_seconds", type=float, default=refuse)
    options = vars(parser.parse_args(arguments))
    cluster, security, segment_bytes = map(options.pop, ("cluster", "security", "segment_bytes"))

    def ready(facts: Ready) -> None:
        sys.stdout.write(json.dumps(asdict(facts)) + "\n")
        sys.stdout.flush()

    try:
        set_up_logging()
        storage = storage_for(options["directory"], segment_bytes, options["frame_bytes_max"])
        config = BookieConfig(**options, storage=storage)
        run_loop(
            lambda: serve(config, cluster, create=True, until_eof=True, on_ready=ready, security=security)
        )
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the top of the process: all is reported
        return report(error, as_json=True, stream=sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
