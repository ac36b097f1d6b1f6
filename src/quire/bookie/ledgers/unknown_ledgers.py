"""The first requests for ledgers that a bookie does not know: each is judged by the ledger's record.

A request that cannot be judged yet waits until the record was read (`record_waits.py`), and is retried then.

Source: `docs/protocol/bookie.md`, "Unknown ledgers".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine
from quire.core.bookie.rules import BookieRules, RecordedKey
from quire.core.errors import StorageError
from quire.storage.segments.segment import WriteCallback
from quire.wire.native import Request
from quire.wire.plain_adds import AddedRun, AddRequest

AnswerCallback: TypeAlias = Callable[[Answer], None]
"""Called with the response to a request."""

RECORD_WAITS_MAX: Final = 128
"""A client with so many requests that wait for records is not served meanwhile: the others' records come first."""


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


Retry: TypeAlias = Callable[[], object]
"""Serves a request that could not be decided before its ledger's record was read."""
Keep: TypeAlias = Callable[[AddRequest, AddedRun, WriteCallback, object], Answer]
OnDeleted: TypeAlias = Callable[[int, AnswerCallback, WaitingClient], None]
Wait: TypeAlias = Callable[[int, Retry, WaitingClient | None], bool]
"""Retries a request when a ledger's record was read; False: it will not."""


class UnknownLedgers:
    """Judges the requests for ledgers that are not known here. Nothing is kept of such a ledger.

    Args:
        known: the machine of a ledger that is known here.
        rules: the protocol's rules (`core/rules.py`).

    Attributes:
        wait: has a request wait for its ledger's record; None where records are not read: there the first key counts.
        keep: takes an add that nothing here decides, until a record does (`RecordWaits`); else it is refused.
        cached: the key of a record that is in memory, possibly an older one. A record's key never changes, so it is
            enough to accept a ledger, and never to refuse one: its id may have been assigned again. None: the record
            must be read.
        fetched: for the ledgers whose requests are decided in this moment: the key of the record that was read, or the
            response to all requests for a ledger that may not become known.
        on_deleted: finds the response to a fence of a deleted ledger in protocols that have no word for it.
    """

    __slots__ = ("_known", "_rules", "cached", "fetched", "keep", "on_deleted", "wait")

    def __init__(self, known: Callable[[int], BookieLedgerMachine | None], rules: BookieRules) -> None:
        self._known = known
        self._rules = rules
        self.wait: Wait | None = None
        self.keep: Keep = lambda *_: Answer.READ_ONLY
        self.on_deleted: OnDeleted = lambda _ledger_id, callback, _client: callback(Answer.UNKNOWN)
        self.cached: Callable[[int], RecordedKey | None] = lambda _: None
        self.fetched: dict[int, RecordedKey | Answer] = {}

    def knows(self, ledger_id: int) -> bool:
        """Whether a ledger's key is known here, or that it was deleted."""
        machine = self._known(ledger_id)
        return machine is not None and bool(machine.facts.key or machine.facts.deleted_until_ms)

    def judge(self, ledger_id: int, key: bytes, token: int, term: int = 0) -> Answer:
        """May a ledger become known by this key, if it is not known? `term`: the request's, of a stream.

        Returns:
            OK; UNAUTHORISED, WRONG_TOKEN, INVALID_TERM, BAD_REQUEST or DELETED; UNKNOWN: its record must be read first, or
            does not come.
        """
        if self.knows(ledger_id):
            return Answer.OK
        if not key:
            return Answer.UNAUTHORISED
        if self.wait is None:
            return Answer.OK
        fetched = self.fetched.get(ledger_id)
        if fetched is None:
            cached = self.cached(ledger_id)
            accepted = cached is not None and self._rules.judge_unknown(cached, key, token, term) is Answer.OK
            return Answer.OK if accepted else Answer.UNKNOWN
        return (
            fetched if isinstance(fetched, Answer) else self._rules.judge_unknown(fetched, key, token, term)
        )

    def waits(self, ledger_id: int, retry: Retry, client: WaitingClient | None) -> bool:
        """Have what `judge` could not decide wait for the record; False: it was read, or nothing more may wait."""
        return self.wait is not None and ledger_id not in self.fetched and self.wait(ledger_id, retry, client)

    def without_deleted(
        self, ledger_id: int, callback: AnswerCallback, client: WaitingClient
    ) -> AnswerCallback:
        """For a fence in protocols that have no word for a deleted ledger: NO_LEDGER or UNKNOWN stand for it."""

        def answered(answer: Answer) -> None:
            if answer is Answer.DELETED:
                self.on_deleted(ledger_id, callback, client)
            else:
                callback(answer)

        return answered

    def refuse(
        self,
        answer: Answer,
        retry: Callable[[Request, AnswerCallback, WaitingClient], None],
        request: Request,
        callback: AnswerCallback,
        client: WaitingClient,
    ) -> None:
        """Refuse a request; one that `judge` could not decide waits for the record, and is served again."""
        later = partial(retry, request, callback, client)
        if answer is not Answer.UNKNOWN or not self.waits(request.ledger_id, later, client):
            callback(answer)
