"""How a ledger becomes known to a bookie: by the key in its record, which is read at the first word about it.

Source: `docs/protocol/bookie.md`, "The first word".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from quire.bookie.ledgers.waiters import Asker, Waiter
from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine
from quire.core.bookie.rules import BookieRules, Introduction
from quire.wire.native import Request
from quire.wire.plain_adds import AddedRun, AddRequest

Then: TypeAlias = Callable[[Answer], None]
Again: TypeAlias = Callable[[], object]
Keep: TypeAlias = Callable[[AddRequest, AddedRun, Waiter, object], Answer]
Gone: TypeAlias = Callable[[int, Then, Asker], None]
Wait: TypeAlias = Callable[[int, Again, Asker | None], bool]
"""Calls back when a ledger's record was read; False: it will not."""


class Introductions:
    """Who may be the first to speak of a ledger. Nothing is kept of one that is not known.

    Args:
        known: the machine of a ledger that is known here.
        rules: the judgements.

    Attributes:
        wait: has a request wait for its ledger's record; None where records are not read: there the first key counts.
        keep: takes an add that nothing here decides, until a record does (`FirstWords`); else it is refused.
        seen: what is known of a ledger at once, possibly from an older record. A record's key never changes, so it is
            enough to accept a ledger, and never to refuse one: its id may have come again. None: the record must be
            read.
        gone: calls back with what is said of a deleted ledger that was to be fenced, where there is no word for that.
        heard: for the ledgers whose requests are decided in this moment: what a ledger may become known by, or why it
            may not.
    """

    __slots__ = ("_known", "_rules", "gone", "heard", "keep", "seen", "wait")

    def __init__(self, known: Callable[[int], BookieLedgerMachine | None], rules: BookieRules) -> None:
        self._known = known
        self._rules = rules
        self.wait: Wait | None = None
        self.keep: Keep = lambda *_: Answer.READ_ONLY
        self.gone: Gone = lambda _ledger_id, then, _asker: then(Answer.UNKNOWN)
        self.seen: Callable[[int], Introduction | None] = lambda _: None
        self.heard: dict[int, Introduction | Answer] = {}

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
        heard = self.heard.get(ledger_id)
        if heard is None:
            seen = self.seen(ledger_id)
            accepted = seen is not None and self._rules.first_word(seen, key, token, term) is Answer.OK
            return Answer.OK if accepted else Answer.UNKNOWN
        return heard if isinstance(heard, Answer) else self._rules.first_word(heard, key, token, term)

    def waits(self, ledger_id: int, again: Again, asker: Asker | None) -> bool:
        """Have what `judge` could not decide wait for the record; False: it was read, or nothing more may wait."""
        return self.wait is not None and ledger_id not in self.heard and self.wait(ledger_id, again, asker)

    def without_deleted(self, ledger_id: int, then: Then, asker: Asker) -> Then:
        """For a fence in protocols that have no word for a deleted ledger: NO_LEDGER or UNKNOWN stand for it."""

        def answered(answer: Answer) -> None:
            if answer is Answer.DELETED:
                self.gone(ledger_id, then, asker)
            else:
                then(answer)

        return answered

    def refuse(
        self,
        answer: Answer,
        again: Callable[[Request, Then, Asker], None],
        request: Request,
        then: Then,
        asker: Asker,
    ) -> None:
        """Refuse a request; one that `judge` could not decide waits for the record, and is served again."""
        later = partial(again, request, then, asker)
        if answer is not Answer.UNKNOWN or not self.waits(request.ledger_id, later, asker):
            then(answer)
