"""What a bookie knows and decides about one ledger: which runs it takes, its LAC, and what is conclusive.

A bookie knows fences, terms, keys and LACs. It knows nothing of fragments, nor of open and closed. The entries
themselves and the disk are `storage`'s; this machine says what is journaled for a request, in which order, and whether
the response waits until that is durable. What it says is one `BookieReady` for each request.

A ledger has a fence, which is set once. A stream has a term instead, which rises with each take-over, and its requests
name their sender's: a lower one is refused.

Source: BookKeeper protocol, "Closing a ledger as a reader"; Vanlightly's guide, "Recovery Phase 1"; Vanlightly's unbounded
ledgers, "Protocol changes for unbounded ledgers".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from quire.core.answers import Answer
from quire.core.bookie.limbo import Limbo
from quire.core.bookie.rules import RULES, BookieRules
from quire.core.ids import NO_ENTRY
from quire.core.ledger.metadata import DigestType

NO_KEY = b""
_NEEDS_A_BODY = int(DigestType.HMAC)
"""With this digest an explicit LAC counts only with a body, which proves it."""


@dataclass(slots=True)
class LedgerFacts:
    """Everything that a bookie durably knows of a ledger besides its entries.

    `key` is 20 bytes once known. `token`: of the ledger's creation, so that an id that was used again is noticed.
    `fenced` and `term` only rise. `limbo`: what it may have lost, None if nothing; while there is some, the ledger is
    in limbo and gets no negatives, and a fence that is not set may be among what was lost. `term_lsn`: what was put up
    to this LSN was here before the term was taken. `lac_term`: of the writer that sent the LAC. `lafr`: the last entry
    known to be on its full write quorum. `explicit_lac`: the newest body of an explicit LAC. `deleted_until_ms` (wall
    clock): 0 = alive, else how long the tombstone refuses adds.
    """

    ledger_id: int
    key: bytes = NO_KEY
    token: int = 0
    digest_type: int = 0
    fenced: bool = False
    limbo: Limbo | None = None
    term: int = 0
    lac: int = NO_ENTRY
    explicit_lac: bytes = b""
    deleted_until_ms: int = 0
    term_lsn: int = 0
    lac_term: int = 0
    lafr: int = NO_ENTRY

    @property
    def in_limbo(self) -> bool:
        """Whether it may have lost entries, so that "not here" is no response."""
        return self.limbo is not None

    def copy(self) -> LedgerFacts:
        """The same facts, to be changed apart; `dataclasses.replace` takes several times as long."""
        return LedgerFacts(
            self.ledger_id,
            self.key,
            self.token,
            self.digest_type,
            self.fenced,
            self.limbo,
            self.term,
            self.lac,
            self.explicit_lac,
            self.deleted_until_ms,
            self.term_lsn,
            self.lac_term,
            self.lafr,
        )


class Fence(Enum):
    """Where a ledger's fence stands on this bookie, or a stream's term: that is PENDING or DURABLE, never NONE."""

    NONE = "none"
    PENDING = "pending"
    DURABLE = "durable"


class Journaled(Enum):
    """What a request adds to the journal besides facts: nothing, the run that came with it, or another of these.

    A truncation: what earlier terms left from an id on is dead. A tombstone is the ledger's.
    """

    NOTHING = "nothing"
    RUN = "run"
    TRUNCATION = "truncation"
    TOMBSTONE = "tombstone"


class BookieReady(NamedTuple):
    """What is to be done for one request: all of it in the same loop turn, in the order of the fields.

    Attributes:
        facts: journal these first; later call `saved` or `not_saved` with them. None: the journal has the newest ones.
        record: journal this next.
        answer: the response.
        persisted: the response leaves when all that is journaled above is durable, and it is an error where that fails;
            else it leaves at once.

    Source: docs/protocol/bookie.md, "One `BookieReady` for each request".
    """

    facts: LedgerFacts | None
    record: Journaled
    answer: Answer
    persisted: bool


_AT_ONCE: Final = {answer: BookieReady(None, Journaled.NOTHING, answer, persisted=False) for answer in Answer}
_STORED: Final = BookieReady(None, Journaled.RUN, Answer.OK, persisted=True)
"""Made once: a run of a ledger with nothing new makes no object. It is acknowledged once it is durable, to survive every crash."""


class BookieLedgerMachine:
    """One ledger on one bookie. Inputs are methods; those that a request comes with return a `BookieReady`.

    The driver carries out a `BookieReady` in the same loop turn, with no `await` between: so an add admitted before a fence is
    visible to it, and a later one is refused.

    Args:
        facts: what is known of the ledger.
        known: the facts are on the disk; else they are new.
        lost: this bookie once lost records that it cannot name: the fence of any ledger may be among them.
        asked: the ledger's record was read since the last loss, and settled the fence.
        rules: the protocol's rules (`core/rules.py`).

    Attributes:
        facts: what must survive a restart.
        fence: NONE, PENDING (set, not yet durable) or DURABLE.
        fence_known: `fence` is the whole truth. After a loss it is not, until `record_read` or a fence: normal adds are
            neither taken nor refused so long, and nothing of a stream is. Memory only: a restart asks again.
    """

    __slots__ = ("_lost", "_overruled", "_rules", "_unsaved", "facts", "fence", "fence_known")

    def __init__(
        self,
        facts: LedgerFacts,
        *,
        known: bool,
        lost: bool = False,
        asked: bool = False,
        rules: BookieRules = RULES,
    ) -> None:
        self.facts, self._unsaved = facts, not known
        self.fence = Fence.DURABLE if facts.fenced or facts.term else Fence.NONE
        self.fence_known = asked or not (lost or facts.in_limbo)
        self._lost, self._rules = lost, rules
        self._overruled = int(NO_ENTRY), 0

    def add(
        self,
        *,
        key: bytes,
        token: int,
        digest_type: int,
        lac: int,
        recovery: bool,
        term: int = 0,
        lafr: int = NO_ENTRY,
    ) -> BookieReady:
        """May entries enter? On OK they are stored, and the known LAC and LAFR have been raised.

        Args:
            lac: the LAC in the adds' header; `lafr`: the LAFR in the request's. A recovery's raise neither.
            recovery: the add comes from a recoverer and passes the fence.
            term: the sender's; 0 for a ledger.

        Returns:
            OK, FENCED, UNAUTHORISED, WRONG_TOKEN, INVALID_TERM, BAD_REQUEST or DELETED; UNKNOWN: the fence, or the term,
            may be lost, so read the record, call `record_read`, and call again. On anything but OK nothing changed.

        Source: BookKeeper protocol, "Writing to the ledger"; Vanlightly's guide, "Avoiding Split Brain".
        """
        rules, facts = self._rules, self.facts
        # What it says of the ledger is what is known, as with nearly every add: nothing to refuse, nothing to learn.
        known = (
            facts.key == key
            and facts.token == token
            and facts.digest_type == digest_type
            and facts.term == term
            and not facts.deleted_until_ms
        )
        if not known and (answer := self._admit(key, token, digest_type, term)) is not Answer.OK:
            return _AT_ONCE[answer]
        if not rules.add_allowed(fenced=facts.fenced, recovery=recovery):
            return _AT_ONCE[Answer.FENCED]
        if not self.fence_known and (
            self._term_is_unknown() if term else not recovery and self._fence_is_unknown()
        ):
            return _AT_ONCE[Answer.UNKNOWN]
        if not known:
            self._learn(key, token, digest_type, term)
        before, facts.lac = facts.lac, rules.lac_after_add(facts.lac, lac, recovery=recovery)
        if term and facts.lac != before:
            facts.lac_term = term
        elif term and lac < before and not recovery:
            self._overrule(lac, term)
        if lafr > facts.lafr and not recovery:
            facts.lafr = lafr
        return _STORED._replace(facts=self._to_save()) if self._unsaved else _STORED

    def add_ordinary(self, key: bytes, token: int, digest_type: int, lac: int) -> bool:
        """Take a writer's add if nothing about it is out of the ordinary, without a term, as nearly all of a bundle's are.

        Returns:
            True: what `add` does has been done: its response is OK once the run is durable, and nothing is to be saved.
            False when `add` must judge: the ledger has something to learn, to refuse, to save or to ask. Nothing changed.
        """
        facts = self.facts
        if (
            facts.key != key
            or facts.token != token
            or facts.digest_type != digest_type
            or facts.fenced
            or facts.term
            or facts.deleted_until_ms
            or not self.fence_known
            or self._unsaved
            or self._rules.altered
        ):
            return False
        if lac > facts.lac:  # noqa: PLR1730 - half the time of a call, which each run of a bundle would pay
            facts.lac = lac
        return True

    def set_fence(self, *, key: bytes, token: int, digest_type: int) -> BookieReady:
        """Fence the ledger: adds are refused from here on, and the response waits until the fence is durable.

        Returns:
            OK (what the request asks for is looked up when the response leaves), UNAUTHORISED, WRONG_TOKEN, INVALID_TERM
            (it is a stream) or DELETED.

        Source: BookKeeper protocol: "the fenced state of the ledger is persisted to disk".
        """
        answer = self._admit(key, token, digest_type, 0) if key else Answer.UNAUTHORISED
        if answer is not Answer.OK:
            return _AT_ONCE[answer]
        self._learn(key, token, digest_type, 0)
        if not self.facts.fenced:
            self.facts.fenced, self.fence = True, Fence.PENDING
        return self._once_durable()

    def raise_term(self, *, key: bytes, token: int, digest_type: int, term: int) -> BookieReady:
        """Take a stream's term, before a fencing read: lower ones are refused from here on. The response waits until it is durable.

        Returns:
            As `set_fence`; UNKNOWN as `add`.

        Source: Vanlightly's unbounded ledgers, "Protocol changes for unbounded ledgers".
        """
        answer = self._admit(key, token, digest_type, term) if key else Answer.UNAUTHORISED
        if answer is Answer.OK and self._term_is_unknown():
            answer = Answer.UNKNOWN
        if answer is not Answer.OK:
            return _AT_ONCE[answer]
        self._learn(key, token, digest_type, term)
        return self._once_durable()

    def truncate(self, *, key: bytes, token: int, digest_type: int, term: int) -> BookieReady:
        """Entries of earlier terms are to go, from an id on: a take-over's end, where terms only fence.

        Which of them go says the rule `truncate_takes`. Where a no-op comes with it, that is an `add` in the same turn.

        Returns:
            As `raise_term`; BAD_REQUEST without a term. The response waits until the truncation is durable.

        Source: Vanlightly's unbounded ledgers: "When a bookie receives an entry with the truncate flag, it deletes all entries
        with a higher entry id"; docs/protocol/streams.md.
        """
        answer = self._admit(key, token, digest_type, term) if key else Answer.UNAUTHORISED
        if answer is Answer.OK and not term:
            answer = Answer.BAD_REQUEST
        if answer is Answer.OK and self._term_is_unknown():
            answer = Answer.UNKNOWN
        if answer is not Answer.OK:
            return _AT_ONCE[answer]
        self._learn(key, token, digest_type, term)
        facts = self._to_save() if self._unsaved else None
        return BookieReady(facts, Journaled.TRUNCATION, Answer.OK, persisted=True)

    def _once_durable(self) -> BookieReady:
        """OK, when the fence or the term is durable."""
        if self.fence is Fence.DURABLE and not self._unsaved:
            return _AT_ONCE[Answer.OK]
        # Every answer to a fencing request waits for its fence to be durable, a negative as well.
        return BookieReady(self._to_save(), Journaled.NOTHING, Answer.OK, persisted=True)

    def saved(self, facts: LedgerFacts) -> None:
        """The journal holds these facts, and their fence or term: answers that waited for it may leave."""
        held = facts.term == self.facts.term if self.facts.term else facts.fenced
        if held and self.fence is Fence.PENDING:
            self.fence = Fence.DURABLE

    def not_saved(self, facts: LedgerFacts) -> None:  # noqa: ARG002 - whichever they are, the newest go next
        """The journal did not take these facts: the ledger's next request brings them again."""
        self._unsaved = True

    def save(self) -> BookieReady:
        """All that is known goes to the journal, a LAC that came by itself as well; the response waits for that."""
        return BookieReady(self._to_save(), Journaled.NOTHING, Answer.OK, persisted=True)

    def is_as_stored(self, stored: LedgerFacts | None) -> bool:
        """Whether a machine made anew from these facts would be this one: nothing is on its way to the disk."""
        return not self._unsaved and self.fence is not Fence.PENDING and stored == self.facts

    def explicit_lac(
        self, body: bytes, lac: int, *, key: bytes, token: int, digest_type: int, term: int = 0
    ) -> BookieReady:
        """A writer says how far it is confirmed; the known LAC only rises, and the newest body is kept.

        The response leaves at once: the LAC is journaled with what comes next, or by `save`. A stream's term that rises
        is journaled with it, and the response waits for that.

        Source: Vanlightly's guide, "Last Add Confirmed (LAC)".
        """
        answer, facts = self._admit(key, token, digest_type, term), self.facts
        if answer is Answer.OK and term and self._term_is_unknown():
            answer = Answer.UNKNOWN
        if answer is Answer.OK:
            self._learn(key, token, digest_type, term)
            self._overrule(lac, term)
            if lac > facts.lac or (lac == facts.lac and not facts.explicit_lac):
                lac_term = term if lac > facts.lac else facts.lac_term
                facts.lac, facts.lac_term, facts.explicit_lac = lac, lac_term, body
            if term and self.fence is Fence.PENDING:
                return self.save()
        return _AT_ONCE[answer]

    def explicit_lac_without_body(
        self, lac: int, key: bytes, token: int, digest_type: int, term: int = 0
    ) -> bool:
        """A writer says how far it is confirmed, without a body; a body with a lower LAC is not kept.

        Returns:
            False when `explicit_lac` must judge: the ledger is deleted, or has something to learn, to refuse, or
            nothing new.
        """
        facts = self.facts
        if (
            lac <= facts.lac
            or facts.key != key
            or facts.token != token
            or facts.digest_type != digest_type
            or digest_type == _NEEDS_A_BODY
            or facts.term != term
            or (term and not self.fence_known)
            or facts.deleted_until_ms
        ):
            return False
        facts.lac, facts.lac_term, facts.explicit_lac = lac, term, b""
        return True

    def may_read(self, key: bytes, token: int, *, term: int | None = None) -> Answer:
        """May this reader get entries? Reads need no key, but a key or token that is sent must fit.

        Args:
            key, token: the reader's, where it has them.
            term: the origin term of the entries that are meant; None where no entries are.

        Returns:
            OK, UNAUTHORISED, WRONG_TOKEN; NO_LEDGER for a deleted one; BAD_REQUEST where the term of a stream's entries is
            not named: an id alone does not say which entry is meant.
        """
        if term == 0 and self.facts.term:
            return Answer.BAD_REQUEST
        if token and self.facts.token and token != self.facts.token:
            return Answer.WRONG_TOKEN
        if key and self.facts.key and key != self.facts.key:
            return Answer.UNAUTHORISED
        return Answer.NO_LEDGER if self.facts.deleted_until_ms else Answer.OK

    def conclusive_through(self, first: int, through: int, *, failing: bool = False) -> int:
        """Through which id of a read from `first` on "no such entry" is a response: before `first` if entries may be lost.

        Args:
            through: how far the disk was looked through.
            failing: the disk fails.
        """
        limbo = self.facts.in_limbo or failing
        return (
            first - 1
            if self._rules.negative_answer(limbo=limbo, damaged=False) is Answer.UNKNOWN
            else through
        )

    def tells_damage(self) -> bool:
        """Whether entries that are here and unreadable are reported as unknown."""
        return self._rules.negative_answer(limbo=False, damaged=True) is Answer.UNKNOWN

    def record_read(self, term: int = 0) -> None:
        """The ledger's record was read after the loss, and shows that no fence was lost.

        A recoverer announces itself in the record before it fences. So where the record is still OPEN no recoverer had
        fenced before the loss, and later fences come to this machine. The limbo of entries stays.

        Args:
            term: a stream's in its record. No bookie was sent a higher one before, so none that was lost was higher.

        Source: BookKeeper protocol, "Closing a ledger as a reader"; `docs/decisions/013-doubt-is-no-fence.md`.
        """
        self._raise_to(term)
        self.fence_known = True

    def enter_limbo(self, lsn: int = 0, *, key: bytes = NO_KEY, token: int = 0, term: int = 0) -> BookieReady:
        """Entries and fences of this ledger may be lost here: what is absent, or not fenced, is unknown.

        Args:
            lsn: of the record of the loss; the request that ends this limbo names it.
            key, token, term: what the ledger's record says, for a ledger that is not known.

        Source: Vanlightly's guide, "Recovery Phase 2": a negative must mean that the entry never was, nor ever will
        be, here.
        """
        facts = self.facts
        facts.key, facts.token = facts.key or key, facts.token or token
        self._raise_to(term)
        if facts.limbo is None or facts.limbo.lsn != lsn:
            facts.limbo = Limbo(lsn)
            self.fence_known = False
        return self.save()

    def clear_limbo(self, lsn: int, *, key: bytes) -> BookieReady:
        """Every entry that this bookie should hold has been restored: the limbo ends.

        A fence that is still unknown is set in the same facts, and so in the same record of the journal: nothing would
        tell of it any more.

        Args:
            lsn: of the limbo that ends.
            key: the ledger's.

        Returns:
            OK, UNAUTHORISED, or BAD_REQUEST when the ledger is in limbo since another loss than the one named; UNKNOWN: a
            stream's term may be lost, so read its record, call `record_read`, and call again.
        """
        facts = self.facts
        if not key or (facts.key and facts.key != key):
            return _AT_ONCE[Answer.UNAUTHORISED]
        if facts.limbo is not None:
            if not self._rules.ends_limbo(facts.limbo.lsn, lsn):
                return _AT_ONCE[Answer.BAD_REQUEST]
            if facts.term and self._term_is_unknown():
                return _AT_ONCE[Answer.UNKNOWN]
            facts.limbo, self._unsaved = None, True
            if (
                not self.fence_known and not facts.fenced
            ):  # it may have been lost: set in the same record of the journal
                facts.fenced, self.fence = True, Fence.PENDING
        return self.save() if self._unsaved else _AT_ONCE[Answer.OK]

    def delete(self, until_ms: int) -> BookieReady:
        """The ledger was deleted: its entries go, and adds are refused until the wall clock passes `until_ms`."""
        self.facts.deleted_until_ms, self._unsaved = until_ms, False
        return BookieReady(None, Journaled.TOMBSTONE, Answer.OK, persisted=True)

    def not_deleted(self) -> None:
        """The journal did not take the tombstone: the ledger is as it was."""
        self.facts.deleted_until_ms = 0

    def check(self) -> None:
        """Assert what must always hold: a fence that was set stays, and a stream has none."""
        assert (self.fence is not Fence.NONE) == (self.facts.fenced or self.facts.term > 0)
        assert not (self.facts.fenced and self.facts.term)
        assert self.facts.lac >= NO_ENTRY
        assert len(self.facts.key) in {0, 20}

    def _admit(self, key: bytes, token: int, digest_type: int, term: int) -> Answer:
        facts = self.facts
        if facts.deleted_until_ms:  # so a late add cannot bring a deleted ledger back
            return Answer.DELETED
        if facts.key and key != facts.key:
            return Answer.UNAUTHORISED
        if token and facts.token and token != facts.token:
            return Answer.WRONG_TOKEN
        if digest_type and facts.digest_type and digest_type != facts.digest_type:
            return Answer.BAD_REQUEST
        if not (term or facts.term):
            return Answer.OK
        return self._rules.term_answer(facts.term, term, named=bool(facts.key))

    def _fence_is_unknown(self) -> bool:
        """Whether a fence may be among what was lost, so that a normal add waits for the record."""
        facts = self.facts
        return self._rules.first_add_reads_record(
            in_limbo=facts.in_limbo, lost=self._lost, known=bool(facts.key)
        )

    def _term_is_unknown(self) -> bool:
        """Whether a higher term may be among what was lost, so that a stream's request waits for the record."""
        return not self.fence_known and self._fence_is_unknown()

    def _raise_to(self, term: int) -> None:
        if term > self.facts.term:
            self.facts.term, self.fence, self._unsaved = term, Fence.PENDING, True

    def _learn(self, key: bytes, token: int, digest_type: int, term: int) -> None:
        facts = self.facts
        self._raise_to(term)
        fresh = (facts.key or key, facts.token or token, facts.digest_type or digest_type)
        if fresh != (facts.key, facts.token, facts.digest_type):
            facts.key, facts.token, facts.digest_type = fresh
            self._unsaved = True

    def _overrule(self, lac: int, term: int) -> None:
        """A later term's lower LAC holds, since an operator had the higher one ignored; not in the journal: entries say LACs too."""
        facts = self.facts
        if 0 < facts.lac_term < term and lac < facts.lac:
            self._overruled = max(self._overruled, (facts.lac, facts.lac_term))
            facts.lac, facts.lac_term, facts.explicit_lac = lac, term, b""

    def _to_save(self) -> LedgerFacts:
        self._unsaved, facts = False, self.facts.copy()
        if facts.lac < self._overruled[0]:
            facts.lac, facts.lac_term = self._overruled
        return facts
