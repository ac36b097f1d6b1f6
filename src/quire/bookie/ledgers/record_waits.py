"""Requests that wait until their ledger's record was read: the first about an unknown ledger, first adds after a loss.

The first request would give a ledger its key and its fence, also one that is not created yet. So the bookie reads the
record at the first request for a ledger, and compares the key. What comes meanwhile waits, in bounded memory, for the
same read; then it is decided in its order. That there is no record is never cached: the id may be assigned later.

After a loss a bookie can neither take nor refuse a normal add: to take it would let an old writer be acknowledged
after a closed end, a response FENCED would end a running writer. The run waits for the same read, and a fence that
came meanwhile wins.

Source: `docs/protocol/bookie.md`, "Unknown ledgers", "Limbo"; `docs/decisions/013-doubt-is-no-fence.md`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import Final, NamedTuple

from quire.bookie.ledgers.ledgers import Ledgers
from quire.bookie.ledgers.record_reads import ReadOutcome, RecordReads
from quire.bookie.ledgers.unknown_ledgers import (
    NO_CLIENT,
    RECORD_WAITS_MAX,
    AnswerCallback,
    LateRefusalError,
    Retry,
    WaitingClient,
)
from quire.core.answers import Answer
from quire.core.bookie.ledger import NO_KEY
from quire.core.bookie.limbo_decisions import once_read
from quire.core.bookie.rules import RULES, BookieRules, RecordedKey
from quire.core.errors import CorruptMetadataError, NoSuchLedgerError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.storage.segments.segment import WriteCallback
from quire.wire.entry import master_key
from quire.wire.plain_adds import AddedRun, AddRequest

log = logging.getLogger(__name__)

WAITING_MAX: Final = 1024
"""So many requests of one ledger wait; the next is refused."""
LEDGERS_MAX: Final = 4096
LACS_MAX: Final = 1024
"""So many LACs out of frames for many ledgers wait; more are dropped."""
REQUEST_BYTES: Final = 1024
"""What a request without a run keeps in memory, about."""


class _Waiting(NamedTuple):
    decide: Retry
    size: int
    client: WaitingClient | None


def recorded_key(record: LedgerMetadata | None) -> RecordedKey:
    """What a record says of its ledger's key; None: it cannot be read, as little as the password of format 1."""
    if record is None:
        return RecordedKey(NO_KEY, 0, None)
    key = master_key(record.password) if record.has_password else NO_KEY
    return RecordedKey(key, record.token, record.term)


class RecordWaits:
    """The requests of one bookie that wait for their ledger's record.

    Args:
        ledgers: decides, once the record was read.
        reads: reads records.
        bookie_id: the bookie that a record must name to settle a fence.
        bytes_max: of all that waits; runs count among what is on its way to the disk as well.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        reads: RecordReads,
        bookie_id: BookieId,
        *,
        bytes_max: int,
        rules: BookieRules = RULES,
    ) -> None:
        self._ledgers = ledgers
        self._reads = reads
        self._bookie_id = bookie_id
        self._bytes_max = bytes_max
        self._rules = rules
        self._waiting: dict[int, deque[_Waiting]] = {}
        self._bytes = 0
        self._lacs = 0
        self._away = False
        reads.listeners.append(self._on_record)
        ledgers.unknown_ledgers.keep = self.keep
        ledgers.unknown_ledgers.wait = self.wait
        ledgers.unknown_ledgers.on_deleted = self.on_deleted
        ledgers.unknown_ledgers.cached = self._cached

    def wait(
        self, ledger_id: int, decide: Retry, client: WaitingClient | None, size: int = REQUEST_BYTES
    ) -> bool:
        """Call `decide` in a later turn, when the ledger's record was read, or does not come; in order for one ledger.

        Args:
            ledger_id: whose record.
            decide: what is to be done then.
            client: whose request it is; None: a LAC that no client waits for.
            size: bytes that it keeps in memory.

        Returns:
            False: too much waits already, and `decide` is never called.
        """
        waiting = self._waiting.get(ledger_id)
        full = len(self._waiting) >= LEDGERS_MAX if waiting is None else len(waiting) >= WAITING_MAX
        if full or self._bytes + size > self._bytes_max or (client is None and self._lacs >= LACS_MAX):
            return False
        self._bytes += size
        if client is None:
            self._lacs += 1
        else:
            client.record_waits += 1
        if waiting is None:
            waiting = self._waiting[ledger_id] = deque()
        waiting.append(_Waiting(decide, size, client))
        self._reads.read(ledger_id, self._decide)
        return True

    def keep(self, request: AddRequest, run: AddedRun, callback: WriteCallback, tag: object) -> Answer:
        """Keep a run until its ledger's record was read.

        Returns:
            OK: `callback.stored(tag, …)` is called later, with `LateRefusalError` where it is refused. READ_ONLY: too much
            waits already.
        """
        client = callback if isinstance(callback, WaitingClient) else NO_CLIENT
        decide = partial(self._add, request, run, callback, tag)
        kept = self.wait(request.ledger_id, decide, client, len(request.body))
        return Answer.OK if kept else Answer.READ_ONLY

    def on_deleted(self, ledger_id: int, callback: AnswerCallback, client: WaitingClient) -> None:
        """A fence was refused since the ledger was deleted: read whether the id has no record, and call `callback`."""

        def on_read(_: int, outcome: ReadOutcome) -> None:
            self._release(client)
            no_record = isinstance(outcome, NoSuchLedgerError) and self._ledgers.store_is_trusted()
            callback(self._rules.fence_of_deleted(has_no_record=no_record))

        client.record_waits += 1
        self._reads.read_anew(ledger_id, on_read)

    @staticmethod
    def _release(client: WaitingClient) -> None:
        """One request of a client waits no more."""
        client.record_waits -= 1
        if client.record_waits == RECORD_WAITS_MAX - 1:
            asyncio.get_running_loop().call_soon(client.release)

    def _add(self, request: AddRequest, run: AddedRun, callback: WriteCallback, tag: object) -> None:
        """Take or refuse a run that waited."""
        answer = once_read(self._ledgers.admit(request, run, callback, tag))
        if answer is not Answer.OK:
            callback.stored(tag, LateRefusalError(answer, request.ledger_id))

    def _on_record(self, ledger_id: int, outcome: ReadOutcome) -> None:
        """A record was read, for this request or another: it may settle the fence."""
        if isinstance(outcome, LedgerMetadata):
            self._ledgers.record_read(ledger_id, outcome, self._bookie_id)

    def _cached(self, ledger_id: int) -> RecordedKey | None:
        record = self._reads.cached(ledger_id)
        return recorded_key(record) if record is not None else None

    def _recorded_key(self, outcome: ReadOutcome) -> RecordedKey | Answer:
        """What a ledger may become known by here, or why it may not."""
        if isinstance(outcome, LedgerMetadata):
            return recorded_key(outcome)
        if isinstance(outcome, CorruptMetadataError):
            return recorded_key(None)
        if isinstance(outcome, NoSuchLedgerError):
            return self._rules.without_record(trusted=self._ledgers.store_is_trusted())
        return Answer.UNKNOWN

    def _decide(self, ledger_id: int, outcome: ReadOutcome) -> None:
        """The record was read, or does not come: decide what has waited longest; each is decided with that outcome."""
        waiting = self._waiting[ledger_id]
        decide, size, client = waiting.popleft()
        if not waiting:
            del self._waiting[ledger_id]
        away = isinstance(outcome, Exception) and not isinstance(
            outcome, NoSuchLedgerError | CorruptMetadataError
        )
        if away and not self._away:
            log.warning("requests for ledgers that are not known here are refused for now: %s", outcome)
        self._away = away
        unknown_ledgers = self._ledgers.unknown_ledgers
        self._bytes -= size
        if client is None:
            self._lacs -= 1
        else:
            self._release(client)
        unknown_ledgers.fetched[ledger_id] = self._recorded_key(outcome)
        try:
            decide()
        finally:
            del unknown_ledgers.fetched[ledger_id]
        self._ledgers.flush_soon()
