"""The callers that wait: until something is on the disk, until a LAC rises, until a ledger's record was read.

Only the writer knows when its last entry is confirmed, and only it can report that. A bookie therefore marks its
responses to adds of a followed ledger, and the writer sends it the LAC as soon as no later header will. A ledger stays
followed for a moment after a poll was answered, because its reader is about to poll again.

Source: Vanlightly's guide, "Reading from ledgers"; `docs/formats/native-protocol.md`, "Answers"; `docs/protocol/bookie.md`,
"Unknown ledgers".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine, LedgerFacts
from quire.core.bookie.rules import BookieRules, RecordedKey
from quire.core.errors import StorageError
from quire.storage.segments.segment import Sink
from quire.wire.native import Request
from quire.wire.plain_adds import AddedRun, AddRequest

RECORD_WAITS_MAX: Final = 128
"""A client with so many requests that wait for records is not served meanwhile: the others' records come first."""


class Asker:
    """A client whose requests may wait for the records of their ledgers.

    Attributes:
        record_waits: how many do.
    """

    record_waits = 0

    def release(self) -> None:
        """Fewer than `RECORD_WAITS_MAX` wait: go on."""


class LateRefusalError(StorageError):
    """A run that waited for a decision is not taken.

    Args:
        answer: the response to its sender.
        ledger_id: of the run.
    """

    def __init__(self, answer: Answer, ledger_id: int) -> None:
        super().__init__(f"a run of ledger {ledger_id} is refused: {answer.name}", ledger_id=ledger_id)
        self.answer = answer


class _NoSink:
    def stored(self, tag: Any, error: StorageError | None) -> None:
        """Without a waiter: a response that depends on it has a tag of its own."""


class _FactsOf:
    """Tells a ledger's machine what became of facts that no response waits for."""

    def stored(self, tag: Any, error: StorageError | None) -> None:
        machine: BookieLedgerMachine
        facts: LedgerFacts
        machine, facts = tag
        if error is None:
            machine.saved(facts)
        else:
            machine.not_saved(facts)


class _WhenDurable:
    """Runs the tag, a callback, with the error."""

    def stored(self, tag: Any, error: StorageError | None) -> None:
        assert callable(tag)
        tag(error)


NO_SINK = _NoSink()
NO_ASKER = Asker()
"""Stands for no client: it is never slowed, however many of its requests wait."""
FACTS_OF = _FactsOf()
WHEN_DURABLE = _WhenDurable()


def settle(done: asyncio.Future[None], outcome: object) -> None:
    """End a wait, with the error if the outcome is one."""
    if done.done():
        return
    if isinstance(outcome, BaseException):
        done.set_exception(outcome)
    else:
        done.set_result(None)


SWEEPS = 2
"""A ledger is dropped at the so many-th call of `sweep` after its last poll."""
FOLLOWED_MAX = 65_536


@dataclass(slots=True, eq=False)
class Poll:
    """One reader that waits for the LAC of one ledger."""

    ledger_id: int
    previous_lac: int
    wake: Callable[[], None]
    timer: asyncio.TimerHandle = field(init=False)


class Followers:
    """The polls of one bookie.

    Attributes:
        polls: the polls of each ledger with one.
        followed: the followed ledgers, each with the calls of `sweep` that it has left. Looked at for every add.
    """

    def __init__(self) -> None:
        self.followed: dict[int, int] = {}
        self.polls: dict[int, list[Poll]] = {}

    def saw(self, ledger_id: int) -> None:
        """A reader polls this ledger. It is a hint: where too many are followed, the newest are not."""
        if len(self.followed) < FOLLOWED_MAX or ledger_id in self.followed:
            self.followed[ledger_id] = SWEEPS

    def wait(self, ledger_id: int, previous_lac: int, seconds: float, wake: Callable[[], None]) -> Poll:
        """Call `wake` once: when the LAC has passed `previous_lac`, or the time is over."""
        poll = Poll(ledger_id, previous_lac, wake)
        poll.timer = asyncio.get_running_loop().call_later(seconds, self._time_over, poll)
        self.polls.setdefault(ledger_id, []).append(poll)
        return poll

    def forget(self, poll: Poll) -> None:
        """The waiting client has disconnected."""
        poll.timer.cancel()
        polls = self.polls.get(poll.ledger_id, [])
        if poll in polls:
            self._take(polls, poll)

    @property
    def waited(self) -> Container[int]:
        """The ledgers with a waiting reader, as they are at each look."""
        return self.polls

    def waits(self, ledger_id: int) -> bool:
        """Whether a reader waits for this ledger."""
        return ledger_id in self.polls

    def tell(self, ledger_id: int, lac: int) -> None:
        """Wake those who wait for a LAC below this one."""
        polls = self.polls.pop(ledger_id, None)
        if polls is None:
            return
        still = [poll for poll in polls if poll.previous_lac >= lac]
        if still:
            self.polls[ledger_id] = still
        for poll in polls:
            if poll.previous_lac < lac:
                poll.timer.cancel()
                poll.wake()

    def sweep(self) -> None:
        """Drop ledgers without a recent poll. Called once a second."""
        self.followed = {
            ledger_id: SWEEPS if ledger_id in self.polls else left - 1
            for ledger_id, left in self.followed.items()
            if left > 1 or ledger_id in self.polls
        }

    def _time_over(self, poll: Poll) -> None:
        self._take(self.polls[poll.ledger_id], poll)
        poll.wake()

    def _take(self, polls: list[Poll], poll: Poll) -> None:
        polls.remove(poll)
        if not polls:
            del self.polls[poll.ledger_id]


Then: TypeAlias = Callable[[Answer], None]
Again: TypeAlias = Callable[[], object]
Keep: TypeAlias = Callable[[AddRequest, AddedRun, Sink, object], Answer]
OnDeleted: TypeAlias = Callable[[int, Then, Asker], None]
Wait: TypeAlias = Callable[[int, Again, Asker | None], bool]
"""Calls back when a ledger's record was read; False: it will not."""


class UnknownLedgers:
    """Judges the requests for ledgers that are not known here. Nothing is kept of such a ledger.

    Args:
        known: the machine of a ledger that is known here.
        rules: the judgements.

    Attributes:
        wait: has a request wait for its ledger's record; None where records are not read: there the first key counts.
        keep: takes an add that nothing here decides, until a record does (`RecordWaits`); else it is refused.
        seen: what is known of a ledger at once, possibly from an older record. A record's key never changes, so it is
            enough to accept a ledger, and never to refuse one: its id may have come again. None: the record must be
            read.
        on_deleted: calls back with what is said of a deleted ledger that was to be fenced, where there is no word for that.
        fetched: for the ledgers whose requests are decided in this moment: what a ledger may become known by, or why it
            may not.
    """

    __slots__ = ("_known", "_rules", "fetched", "keep", "on_deleted", "seen", "wait")

    def __init__(self, known: Callable[[int], BookieLedgerMachine | None], rules: BookieRules) -> None:
        self._known = known
        self._rules = rules
        self.wait: Wait | None = None
        self.keep: Keep = lambda *_: Answer.READ_ONLY
        self.on_deleted: OnDeleted = lambda _ledger_id, then, _asker: then(Answer.UNKNOWN)
        self.seen: Callable[[int], RecordedKey | None] = lambda _: None
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
            seen = self.seen(ledger_id)
            accepted = seen is not None and self._rules.judge_unknown(seen, key, token, term) is Answer.OK
            return Answer.OK if accepted else Answer.UNKNOWN
        return (
            fetched if isinstance(fetched, Answer) else self._rules.judge_unknown(fetched, key, token, term)
        )

    def waits(self, ledger_id: int, again: Again, asker: Asker | None) -> bool:
        """Have what `judge` could not decide wait for the record; False: it was read, or nothing more may wait."""
        return self.wait is not None and ledger_id not in self.fetched and self.wait(ledger_id, again, asker)

    def without_deleted(self, ledger_id: int, then: Then, asker: Asker) -> Then:
        """For a fence in protocols that have no word for a deleted ledger: NO_LEDGER or UNKNOWN stand for it."""

        def answered(answer: Answer) -> None:
            if answer is Answer.DELETED:
                self.on_deleted(ledger_id, then, asker)
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
