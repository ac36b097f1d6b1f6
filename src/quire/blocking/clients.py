"""A cluster without `await`."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import quire
from quire.blocking.handles import BlockingHandle, awaited, handed_out, iterated
from quire.blocking.ledgers import BlockingLedgerReader, BlockingLedgerWriter
from quire.blocking.logs import BlockingLog
from quire.blocking.loop import Background, current
from quire.blocking.sessions import Session
from quire.blocking.unbounded import BlockingUnboundedLedger
from quire.client.config import ClientConfig
from quire.core.ledger.terms import StreamMode
from quire.log.client import QuireClient
from quire.log.config import LogConfig
from quire.log.electing import Elector


class BlockingClient(BlockingHandle[QuireClient]):
    """One cluster, as seen from here. Made by `connect`; leaving its `with` block closes it.

    One that is not closed is closed when it and all of its handles are dropped, with a ResourceWarning, and at the end
    of the process.
    """

    def __init__(self, inner: QuireClient, background: Background) -> None:
        self._session = Session(inner, background)
        super().__init__(inner, self._session)

    create_ledger = handed_out(QuireClient.create_ledger, BlockingLedgerWriter)
    open_ledger = handed_out(QuireClient.open_ledger, BlockingLedgerReader)
    recover_ledger = awaited(QuireClient.recover_ledger)
    delete_ledger = awaited(QuireClient.delete_ledger)
    verify_ledger = awaited(QuireClient.verify_ledger)
    ledger_metadata = awaited(QuireClient.ledger_metadata)
    ledgers = iterated(QuireClient.ledgers)
    available_bookies = awaited(QuireClient.available_bookies)
    logs = awaited(QuireClient.logs)
    delete_log = awaited(QuireClient.delete_log)
    unbounded_ledgers = iterated(QuireClient.unbounded_ledgers)

    def unbounded_ledger(
        self, name: str, password: bytes = b"", *, mode: str | StreamMode | None = None
    ) -> BlockingUnboundedLedger:
        """An unbounded ledger, or stream, by name; nothing is asked of the cluster yet. `mode`: as of the other client's.

        Raises:
            MisuseError: the name cannot be one, or there is no such mode.
        """
        inner = self._inner.unbounded_ledger(name, password, mode=mode)
        return BlockingUnboundedLedger(inner, self._background)

    def close(self) -> None:
        """End all connections; writers that are open confirm what was appended first, as `Client.close` says.

        Threads that wait for this client, or for the next item of an iterator of it, get an error.
        """
        self._background.run(self._session.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def log(
        self,
        name: str,
        password: bytes = b"",
        config: LogConfig | None = None,
        *,
        elector: Elector | None = None,
    ) -> BlockingLog:
        """A log by name; nothing is asked of the cluster yet. An `elector` is asked on the client's own event loop.

        Raises:
            MisuseError: the name cannot be one.
        """
        return BlockingLog(self._inner.log(name, password, config, elector=elector), self._background)


def connect(
    uri: str | None = None, config: ClientConfig | None = None, *, frame_bytes_max: int | None = None
) -> BlockingClient:
    """Connect to a cluster: `with quire.blocking.connect(uri) as client`, or close the client yourself.

    Args:
        uri: the cluster, as in `sqlite:/data/quire/metadata.db`; by default the environment's `QUIRE_CLUSTER`.
        config: the client's settings.
        frame_bytes_max: the longest frame, as `ClientConfig.frame_bytes_max`; bookies should have the same.

    Raises:
        MisuseError: `frame_bytes_max` cannot be.
        NoClusterError: no cluster is named, or its metadata cannot be reached or read.
    """
    background = current()

    async def made() -> QuireClient:
        return await quire.connect(uri, config, frame_bytes_max=frame_bytes_max)

    return BlockingClient(background.run(made), background)
