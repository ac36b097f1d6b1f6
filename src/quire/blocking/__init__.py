"""The client without `await`: the same names, for scripts, notebooks and Spark workers.

    with quire.blocking.connect("sqlite:/data/quire/metadata.db") as client:
        with client.create_ledger(password=b"...") as ledger:
            entry_id = ledger.append(b"...")
        for entry in client.open_ledger(ledger.ledger_id, password=b"...").read(0, 99):
            ...

Each process has one background thread with one event loop, started at the first use and started anew in a child
after `fork`. Every class here holds the object of the same name from `quire` and hands each call over to that loop;
an iterator fetches ahead, so that the crossing costs little. Ctrl-C cancels what is being waited for.

A handle belongs to the process that opened it: a forked child connects again.
"""

from quire.blocking.clients import BlockingClient as Client
from quire.blocking.clients import connect
from quire.blocking.ledgers import BlockingLedgerReader as LedgerReader
from quire.blocking.ledgers import BlockingLedgerWriter as LedgerWriter
from quire.blocking.logs import BlockingLog as Log
from quire.blocking.logs import BlockingLogWriter as LogWriter
from quire.blocking.prefetch import Prefetch
from quire.blocking.unbounded import BlockingUnboundedLedger as UnboundedLedger

__all__ = [
    "Client",
    "LedgerReader",
    "LedgerWriter",
    "Log",
    "LogWriter",
    "Prefetch",
    "UnboundedLedger",
    "connect",
]
