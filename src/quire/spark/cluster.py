"""The cluster as planner and tasks reach it: one blocking client for each process and cluster, made when needed.

Spark forks its Python workers and uses each for many tasks, so the client is cached under the process's id and never
travels with a pickled reader. A worker outlives a cluster that is removed and made anew in the same place: a client of the
old one is replaced.

Source: docs/spark.md, "Options": cluster.
"""

from __future__ import annotations

import difflib
import logging
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import quire
from quire.blocking import loop
from quire.client.access import LedgerAccess
from quire.client.reading.lost_entries import LostEntries, lost_entries
from quire.client.reading.reader import LedgerReader
from quire.core.ledger.metadata import LedgerMetadata

if TYPE_CHECKING:
    from quire.log.client import QuireClient
    from quire.wire.entries import Entries

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("quire.spark")

_clients: dict[tuple[int, str], QuireClient] = {}
"""Clients of this process by (process id, cluster); they live as long as it does, or as their cluster."""

_connecting = threading.Lock()
"""Held while a client is made: threads of a driver that begin together share it."""


async def _connect(uri: str) -> QuireClient:
    return await quire.connect(uri)


def client_of(uri: str) -> QuireClient:
    """This process's client of a cluster."""
    key = (os.getpid(), uri)
    found = _clients.get(key)
    if found is not None and found.store.is_current:
        return found
    with _connecting:
        found = _clients.get(key)
        if found is None or not found.store.is_current:
            before, found = found, loop.current().run(_connect, uri)
            _clients[key] = found
            if before is not None:
                loop.current().run(before.close)
    return found


def _after_fork() -> None:
    """In a forked child the lock may be held for ever by a thread that does not exist here."""
    global _connecting
    _connecting = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def call(
    uri: str,
    function: Callable[Concatenate[QuireClient, P], Awaitable[T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run a coroutine function with the cluster's client and wait for it."""
    return loop.current().run(function, client_of(uri), *args, **kwargs)


def entry_bytes_max(uri: str) -> int:
    """The largest entry that can be appended."""
    return client_of(uri).config.payload_bytes_max


def runs_of(
    uri: str, record: LedgerMetadata, first: int, last: int, *, replica: int = 0
) -> Iterator[Entries]:
    """A ledger's entries, in order, some consecutive ones at a time.

    The reader keeps the next ranges under way on its own thread, within its own bound, while these are decoded.

    Args:
        uri: the cluster.
        record: the ledger's metadata.
        first: the first entry; `last` is the last one, which is confirmed.
        replica: which of an entry's bookies to ask first, so that tasks spread over them.
    """
    return iterate(uri, lambda client: reader_of(client, record, last, replica).read_runs(first, last))


def iterate(uri: str, function: Callable[[QuireClient], AsyncGenerator[T, None]]) -> Iterator[T]:
    """What an async generator of the cluster's client yields; it goes on only while it is asked for more."""
    background = loop.current()
    source = function(client_of(uri))
    try:
        # Nothing that is asked for here is None, so that can stand for the end.
        while (item := background.run(anext, source, None)) is not None:
            yield item
    finally:
        background.run(source.aclose)


def reader_of(client: QuireClient, record: LedgerMetadata, last_entry: int, replica: int = 0) -> LedgerReader:
    """A reader of a ledger whose record is known already: nothing is asked of the metadata store.

    Args:
        client: the cluster.
        record: the ledger's metadata.
        last_entry: an entry that is known to be confirmed; beyond it nothing is read.
        replica: which of an entry's bookies to ask first.
    """
    access = LedgerAccess.of(record)
    return LedgerReader(record, 0, access, client.context, turn=replica, lac=last_entry)


async def lost_of(client: QuireClient, record: LedgerMetadata, first: int, last: int) -> LostEntries:
    """Which entries of a ledger, from one that could not be read on, are proven lost; `last` is confirmed.

    Raises:
        NoSuchLedgerError: the ledger itself is lost: it has no record.
    """
    return await lost_entries(
        client.records.ledgers,
        client.bookies,
        record.ledger_id,
        first,
        last,
        token=record.token,
        timeout_ms=client.config.read_timeout_ms,
    )


async def length_at(reader: LedgerReader, entry_id: int) -> int:
    """Payload bytes of a ledger up to and including an entry."""
    async for entry in reader.read(entry_id, entry_id):
        return entry.length
    return 0


async def nearest(client: QuireClient, name: str) -> str:
    """Which log may have been meant, as a sentence after the one that says there is no such log; "" when none is like it."""
    near = difflib.get_close_matches(name, await client.logs(), n=1, cutoff=0.5)
    return f" Nearest: '{near[0]}'." if near else ""


def warn(text: str) -> None:
    """Log what is skipped; Spark shows it where its worker logging is on, and on the worker's stderr."""
    log.warning("quire: %s", text)


def warn_of_times(logs: Sequence[str], count: int, first_offset: int | None) -> None:
    """Log how many records of a task have a time that reads as null, and the offset of the first; nothing for none."""
    if count:
        warn(
            f"{', '.join(logs)}: {count:,} records, the first at offset {first_offset}, have a time outside the years 1 "
            "to 9999; it is read as null."
        )
