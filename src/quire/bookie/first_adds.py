"""The first adds to a ledger after a loss: they wait until its record has told whether a fence was lost.

A bookie that may have lost a fence can neither take nor refuse a normal add: to take it would let an old writer be
acknowledged behind a closed end, to answer FENCED would end a living writer. So the run waits, in bounded memory, for one
read of the record; then the ledger's machine decides, and a fence that came meanwhile wins.

Source: `docs/protocol/bookie.md`, "After a loss"; `docs/decisions/013-doubt-is-no-fence.md`.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from quire.bookie.ledgers import Ledgers
from quire.bookie.record_reads import RecordReads, Told
from quire.bookie.waiters import LateRefusalError, Waiter
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger_metadata import LedgerMetadata
from quire.core.rules import RULES, Rules
from quire.wire.native import Request
from quire.wire.run import RunView

log = logging.getLogger(__name__)

RUNS_MAX: Final = 1024
"""So many runs of one ledger wait; the next is refused, and all behind it."""
LEDGERS_MAX: Final = 4096


class _Kept(NamedTuple):
    request: Request
    run: RunView
    waiter: Waiter
    tag: object


class FirstAdds:
    """The adds of one bookie that wait for their ledger's record.

    Args:
        ledgers: decides, once the record was read.
        reads: reads records.
        bookie_id: whom a record must name.
        bytes_max: of all runs that wait; they count among what is on its way to the disk as well.
        rules: the judgements; production passes the one true set.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        reads: RecordReads,
        bookie_id: BookieId,
        *,
        bytes_max: int,
        rules: Rules = RULES,
    ) -> None:
        self._ledgers = ledgers
        self._reads = reads
        self._bookie_id = bookie_id
        self._bytes_max = bytes_max
        self._rules = rules
        self._kept: dict[int, list[_Kept]] = {}
        self._bytes = 0
        reads.listeners.append(self._heard)
        ledgers.keep = self.keep

    def keep(self, request: Request, run: RunView, waiter: Waiter, tag: object) -> Answer:
        """Keep a run until its ledger's record has been read; the runs of a ledger stay in order.

        Returns:
            OK: `waiter.stored(tag, …)` is called later, with `LateRefusalError` where it is refused. READ_ONLY: too many
            wait already.
        """
        kept = self._kept.get(request.ledger_id)
        ledgers_full = kept is None and len(self._kept) >= LEDGERS_MAX
        runs_full = kept is not None and len(kept) >= RUNS_MAX
        if ledgers_full or runs_full or self._bytes + len(request.body) > self._bytes_max:
            return Answer.READ_ONLY
        self._bytes += len(request.body)
        if kept is None:
            kept = self._kept[request.ledger_id] = []
            self._reads.read(request.ledger_id, self._decide)
        kept.append(_Kept(request, run, waiter, tag))
        return Answer.OK

    def _heard(self, ledger_id: int, told: Told) -> None:
        """A record was read, whoever asked: it may settle the fence."""
        if isinstance(told, LedgerMetadata):
            settles = (
                self._rules.record_settles_fence(told, self._bookie_id) and self._ledgers.store_is_trusted()
            )
            self._ledgers.record_read(ledger_id, settles=settles)

    def _decide(self, ledger_id: int, told: Told) -> None:
        """The record was read, or does not come: take or refuse what waits, in order."""
        if isinstance(told, Exception):
            log.info("refusing adds to ledger %d after a loss of state: %s", ledger_id, told)
        for request, run, waiter, tag in self._kept.pop(ledger_id, ()):
            self._bytes -= len(request.body)
            answer = self._ledgers.admit(request, run, waiter, tag)
            if answer is Answer.UNKNOWN:
                answer = Answer.READ_ONLY
            if answer is not Answer.OK:
                waiter.stored(tag, LateRefusalError(answer, ledger_id))
        self._ledgers.flush_soon()
