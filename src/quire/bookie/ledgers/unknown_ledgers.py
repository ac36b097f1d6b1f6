"""The first requests for ledgers that a bookie does not know, and the first adds after a loss: the ledger's record decides.

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
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from quire.bookie.ledgers.record_reads import ReadOutcome, RecordReads
from quire.core.answers import Answer
from quire.core.bookie.ledger import NO_KEY, BookieLedgerMachine
from quire.core.bookie.rules import BookieRules, RecordedKey
from quire.core.errors import CorruptMetadataError, NoSuchLedgerError, StorageError
from quire.core.ledger.metadata import LedgerMetadata
from quire.wire.entry import master_key
from quire.wire.native import Request

log = logging.getLogger(__name__)

AnswerCallback: TypeAlias = Callable[[Answer], None]
"""Called with the response to a request."""

RECORD_WAITS_MAX: Final = 128
"""A client with so many requests that wait for records is not served meanwhile: the others' records come first."""
WAITING_MAX: Final = 1024
"""So many requests of one ledger wait; the next is refused."""
LEDGERS_MAX: Final = 4096
LACS_MAX: Final = 1024
"""So many LACs out of frames for many ledgers wait; more are dropped."""
REQUEST_BYTES: Final = 1024
"""What a request without a run keeps in memory, about."""


class WaitingClient:
    """A client whose requests may wait for the records of their ledgers; a connection is one.

    Attributes:
        record_waits: how many do.
    """

    record_waits = 0

    def release(self) -> None:
        """Fewer than `RECORD_WAITS_MAX` wait: go on."""


NO_CLIENT = WaitingClient()
"""Stands for no client: it is never slowed, however many of its requests wait."""


class LateRefusalError(StorageError):
    """A run that waited for a decision is not taken.

    Args:
        answer: the response to its sender.
        ledger_id: of the run.
    """

    def __init__(self, answer: Answer, ledger_id: int) -> None:
        super().__init__(f"a run of ledger {ledger_id} is refused: {answer.name}", ledger_id=ledger_id)
        self.answer = answer


Fetched: TypeAlias = RecordedKey | Answer | None
"""What the read of a record says: the key in it, or the response to all requests for a ledger that may not become known.
None: none was waited for."""
Retry: TypeAlias = Callable[[Fetched], object]
"""Serves a request that could not be decided before its ledger's record was read."""


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


class UnknownLedgers:
    """Judges the requests for ledgers that are not known here, and has them wait for the ledgers' records.

    Nothing is kept of such a ledger.

    Args:
        known: the machine of a ledger that is known here.
        flush_soon: called when a request that waited was decided.
        rules: the protocol's rules (`core/rules.py`).

    Attributes:
        first_key_counts: a ledger becomes known by the first key that comes, without a look at its record.
        store_is_trusted: whether what the metadata store says of records may settle a fence.
    """

    def __init__(
        self,
        known: Callable[[int], BookieLedgerMachine | None],
        flush_soon: Callable[[], None],
        rules: BookieRules,
    ) -> None:
        self._known = known
        self._flush_soon = flush_soon
        self._rules = rules
        self._reads: RecordReads | None = None
        self._bytes_max = 0
        self._waiting: dict[int, deque[_Waiting]] = {}
        self._bytes = 0
        self._lacs = 0
        self._away = False
        self.first_key_counts = True
        self.store_is_trusted: Callable[[], bool] = lambda: True

    def look_up(self, reads: RecordReads, *, bytes_max: int) -> None:
        """From now on records are read.

        Args:
            reads: reads them.
            bytes_max: of all that waits; runs count among what is on its way to the disk as well.
        """
        self._reads, self._bytes_max, self.first_key_counts = reads, bytes_max, False

    def knows(self, ledger_id: int) -> bool:
        """Whether a ledger's key is known here, or that it was deleted."""
        machine = self._known(ledger_id)
        return machine is not None and bool(machine.facts.key or machine.facts.deleted_until_ms)

    def judge(self, ledger_id: int, key: bytes, token: int, term: int, fetched: Fetched) -> Answer:
        """May a ledger become known by this key, if it is not known?

        A record in memory may be an older one. A record's key never changes, so it is enough to accept a ledger, and
        never to refuse one: its id may have been assigned again.

        Args:
            ledger_id: the ledger.
            key: the request's, as the token.
            token: the request's.
            term: the request's, of a stream.
            fetched: what the read of the record says that the request waited for, if it did.

        Returns:
            OK; UNAUTHORISED, WRONG_TOKEN, INVALID_TERM, BAD_REQUEST or DELETED; UNKNOWN: its record must be read first, or
            does not come.
        """
        if self.knows(ledger_id):
            return Answer.OK
        if not key:
            return Answer.UNAUTHORISED
        if self.first_key_counts or self._reads is None:
            return Answer.OK
        if isinstance(fetched, Answer):
            return fetched
        if fetched is not None:
            return self._rules.judge_unknown(fetched, key, token, term)
        record = self._reads.cached(ledger_id)
        accepted = (
            record is not None
            and self._rules.judge_unknown(recorded_key(record), key, token, term) is Answer.OK
        )
        return Answer.OK if accepted else Answer.UNKNOWN

    def refuse(
        self,
        answer: Answer,
        retry: Callable[[Request, AnswerCallback, WaitingClient, Fetched], None],
        request: Request,
        callback: AnswerCallback,
        client: WaitingClient,
        fetched: Fetched,
    ) -> None:
        """Refuse a request; one that `judge` could not decide waits for the record, and is served again."""
        later = partial(retry, request, callback, client)
        if answer is not Answer.UNKNOWN or not self.waits(request.ledger_id, later, client, fetched):
            callback(answer)

    def waits(self, ledger_id: int, retry: Retry, client: WaitingClient | None, fetched: Fetched) -> bool:
        """Have what `judge` could not decide wait for the record; False: it was read, or nothing more may wait."""
        return fetched is None and not self.first_key_counts and self.wait(ledger_id, retry, client)

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
            False: too much waits already, or records are not read; `decide` is never called.
        """
        waiting = self._waiting.get(ledger_id)
        full = len(self._waiting) >= LEDGERS_MAX if waiting is None else len(waiting) >= WAITING_MAX
        full = full or self._bytes + size > self._bytes_max or (client is None and self._lacs >= LACS_MAX)
        if self._reads is None or full:
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

    def without_deleted(
        self, ledger_id: int, callback: AnswerCallback, client: WaitingClient
    ) -> AnswerCallback:
        """For a fence in protocols that have no word for a deleted ledger: NO_LEDGER or UNKNOWN stand for it.

        Which of them, a read says that begins then: whether the id has no record.
        """

        def on_read(_: int, outcome: ReadOutcome) -> None:
            self._release(client)
            no_record = isinstance(outcome, NoSuchLedgerError) and self.store_is_trusted()
            callback(self._rules.fence_of_deleted(has_no_record=no_record))

        def answered(answer: Answer) -> None:
            if answer is not Answer.DELETED:
                callback(answer)
            elif self._reads is None:
                callback(Answer.UNKNOWN)
            else:
                client.record_waits += 1
                self._reads.read_anew(ledger_id, on_read)

        return answered

    @staticmethod
    def _release(client: WaitingClient) -> None:
        """One request of a client waits no more."""
        client.record_waits -= 1
        if client.record_waits == RECORD_WAITS_MAX - 1:
            asyncio.get_running_loop().call_soon(client.release)

    def _fetched(self, outcome: ReadOutcome) -> Fetched:
        if isinstance(outcome, LedgerMetadata):
            return recorded_key(outcome)
        if isinstance(outcome, CorruptMetadataError):
            return recorded_key(None)
        if isinstance(outcome, NoSuchLedgerError):
            return self._rules.without_record(trusted=self.store_is_trusted())
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
        self._bytes -= size
        if client is None:
            self._lacs -= 1
        else:
            self._release(client)
        decide(self._fetched(outcome))
        self._flush_soon()
