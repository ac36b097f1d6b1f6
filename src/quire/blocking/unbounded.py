"""Unbounded ledgers without `await`."""

from __future__ import annotations

from quire.blocking.handles import BlockingHandle, awaited, handed_out, iterated
from quire.blocking.ledgers import BlockingLedgerReader, BlockingLedgerWriter
from quire.client.streams.unbounded import UnboundedLedger as AsyncUnboundedLedger


class BlockingUnboundedLedger(BlockingHandle[AsyncUnboundedLedger]):
    """One unbounded ledger of a cluster. Nothing is asked of the cluster before a method is called.

    An election is asked on the client's own event loop.
    """

    create = awaited(AsyncUnboundedLedger.create)
    show = awaited(AsyncUnboundedLedger.show)
    waits_for = awaited(AsyncUnboundedLedger.waits_for)
    open_writer = handed_out(AsyncUnboundedLedger.open_writer, BlockingLedgerWriter)
    open_reader = handed_out(AsyncUnboundedLedger.open_reader, BlockingLedgerReader)
    read = iterated(AsyncUnboundedLedger.read)
    tail = iterated(AsyncUnboundedLedger.tail)
    resolve = awaited(AsyncUnboundedLedger.resolve)
    verify = awaited(AsyncUnboundedLedger.verify)
    close = awaited(AsyncUnboundedLedger.close)
    delete = awaited(AsyncUnboundedLedger.delete)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self._inner.name
