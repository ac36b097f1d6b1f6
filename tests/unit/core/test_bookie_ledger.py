"""What one ledger's machine on a bookie admits, and what must be durable first."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine, Fence, Journaled, LedgerFacts
from quire.core.bookie.limbo import Limbo
from quire.core.bookie.rules import RULES, BookieRules

KEY, OTHER_KEY = b"k" * 20, b"o" * 20
WHO: dict[str, Any] = {"key": KEY, "token": 7, "digest_type": 3}


def machine() -> BookieLedgerMachine:
    return BookieLedgerMachine(LedgerFacts(1), known=False)


def test_the_first_add_fixes_key_token_and_digest() -> None:
    ledger = machine()
    first = ledger.add(**WHO, lac=-1, recovery=False)
    assert (first.record, first.answer, first.persisted) == (Journaled.RUN, Answer.OK, True)
    assert first.facts is not None
    assert (first.facts.key, first.facts.token, first.facts.digest_type) == (KEY, 7, 3)
    assert ledger.add(**WHO | {"key": OTHER_KEY}, lac=5, recovery=False).answer is Answer.UNAUTHORISED
    assert ledger.add(**WHO | {"token": 8}, lac=5, recovery=False).answer is Answer.WRONG_TOKEN
    refused = ledger.add(**WHO | {"digest_type": 1}, lac=5, recovery=False)
    assert refused == (None, Journaled.NOTHING, Answer.BAD_REQUEST, False)
    assert ledger.facts.lac == -1
    assert ledger.add(**WHO, lac=0, recovery=False) == (None, Journaled.RUN, Answer.OK, True)


def test_facts_that_the_journal_did_not_take_come_again_with_the_next_run() -> None:
    ledger = machine()
    facts = ledger.add(**WHO, lac=-1, recovery=False).facts
    assert facts is not None
    ledger.not_saved(facts)
    assert not ledger.is_as_stored(ledger.facts)
    assert ledger.add(**WHO, lac=-1, recovery=False).facts == facts
    assert ledger.is_as_stored(ledger.facts)


def test_the_lafr_rises_with_a_writers_adds_and_is_saved_with_the_next_facts() -> None:
    ledger = machine()
    for lafr, recovery, known in ((-1, False, -1), (4, False, 4), (2, False, 4), (9, True, 4)):
        assert ledger.add(**WHO, lac=5, recovery=recovery, lafr=lafr).answer is Answer.OK
        assert ledger.facts.lafr == known
    assert ledger.set_fence(**WHO).facts.lafr == 4


def test_a_fenced_ledger_takes_recovery_adds_only() -> None:
    ledger = machine()
    fence = ledger.set_fence(**WHO)
    assert (fence.record, fence.answer, fence.persisted) == (Journaled.NOTHING, Answer.OK, True)
    assert fence.facts is not None
    assert fence.facts.fenced
    assert ledger.fence is Fence.PENDING
    assert ledger.add(**WHO, lac=3, recovery=False).answer is Answer.FENCED
    assert ledger.add(**WHO, lac=3, recovery=True).answer is Answer.OK
    assert ledger.facts.lac == -1, "a recovery add does not raise the LAC"
    ledger.saved(fence.facts)
    assert ledger.fence is Fence.DURABLE
    assert ledger.set_fence(**WHO) == (None, Journaled.NOTHING, Answer.OK, False), "it is durable already"


def test_facts_without_the_fence_make_it_not_durable() -> None:
    """What was put before the fence may be durable before it: a response that relies on it goes on waiting."""
    ledger = machine()
    ledger.add(**WHO, lac=-1, recovery=False)
    before = ledger.save().facts
    fence = ledger.set_fence(**WHO)
    assert before is not None
    assert fence.facts is not None
    ledger.saved(before)
    assert ledger.fence is Fence.PENDING
    assert ledger.set_fence(**WHO).persisted
    ledger.saved(fence.facts)
    assert ledger.fence is Fence.DURABLE


def test_a_fence_needs_the_key_and_creates_the_ledger() -> None:
    ledger = machine()
    assert ledger.set_fence(key=b"", token=0, digest_type=0).answer is Answer.UNAUTHORISED
    assert ledger.set_fence(**WHO).answer is Answer.OK
    assert ledger.add(**WHO | {"key": OTHER_KEY}, lac=0, recovery=True).answer is Answer.UNAUTHORISED


def test_a_deleted_ledger_does_not_come_back() -> None:
    ledger = BookieLedgerMachine(LedgerFacts(1, key=KEY, deleted_until_ms=99), known=True)
    assert ledger.add(**WHO, lac=0, recovery=False).answer is Answer.DELETED
    assert ledger.add(**WHO, lac=0, recovery=True).answer is Answer.DELETED
    assert ledger.set_fence(**WHO).answer is Answer.DELETED


def test_limbo_is_no_fence_and_no_licence() -> None:
    ledger = machine()
    assert ledger.add(**WHO, lac=-1, recovery=False).answer is Answer.OK
    ledger.enter_limbo(5)
    assert (ledger.facts.fenced, ledger.fence_known) == (False, False)
    before = ledger.facts.copy()
    assert ledger.add(**WHO, lac=3, recovery=False).answer is Answer.UNKNOWN, "neither taken nor refused"
    assert ledger.facts == before
    assert ledger.add(**WHO | {"key": OTHER_KEY}, lac=3, recovery=False).answer is Answer.UNAUTHORISED
    assert ledger.add(**WHO, lac=3, recovery=True).answer is Answer.OK
    ledger.record_read()
    assert ledger.add(**WHO, lac=3, recovery=False).answer is Answer.OK
    assert ledger.facts.in_limbo, "entries may be lost all the same"


def test_a_fence_after_the_record_was_asked_for_wins() -> None:
    ledger = machine()
    ledger.enter_limbo(5)
    assert ledger.set_fence(**WHO).answer is Answer.OK
    ledger.record_read()
    assert ledger.add(**WHO, lac=3, recovery=False).answer is Answer.FENCED


def test_a_loss_without_a_name_concerns_every_ledger_until_it_is_asked_about() -> None:
    facts = LedgerFacts(1, key=KEY)
    assert (
        BookieLedgerMachine(facts, known=True, lost=True).add(**WHO, lac=0, recovery=False).answer
        is Answer.UNKNOWN
    )
    asked = BookieLedgerMachine(facts, known=True, lost=True, asked=True)
    assert asked.add(**WHO, lac=0, recovery=False).answer is Answer.OK


def test_leaving_limbo_sets_a_fence_that_is_unknown() -> None:
    ledger = BookieLedgerMachine(LedgerFacts(1, key=KEY, limbo=Limbo(5)), known=True)
    assert ledger.clear_limbo(5, key=KEY).answer is Answer.OK
    facts = ledger.facts
    assert (facts.fenced, facts.limbo, ledger.fence) == (True, None, Fence.PENDING)
    known = BookieLedgerMachine(LedgerFacts(1, key=KEY, limbo=Limbo(5)), known=True)
    known.record_read()
    assert known.clear_limbo(5, key=KEY).answer is Answer.OK
    assert not known.facts.fenced


def test_clearing_limbo_keeps_the_fence() -> None:
    ledger = BookieLedgerMachine(LedgerFacts(1, key=KEY, fenced=True, limbo=Limbo(5)), known=True)
    ready = ledger.clear_limbo(5, key=KEY)
    assert (ready.answer, ready.persisted) == (Answer.OK, True)
    assert ledger.facts.fenced
    assert not ledger.facts.in_limbo


def test_only_the_limbo_that_is_named_ends() -> None:
    ledger = BookieLedgerMachine(LedgerFacts(1, key=KEY, fenced=True, limbo=Limbo(9)), known=True)
    assert ledger.clear_limbo(5, key=KEY).answer is Answer.BAD_REQUEST, "since then there was another loss"
    assert ledger.facts.in_limbo
    assert ledger.is_as_stored(ledger.facts)
    assert ledger.clear_limbo(9, key=KEY).answer is Answer.OK
    assert ledger.clear_limbo(5, key=KEY).answer is Answer.OK, "there is nothing to end"


def test_reads_need_no_key_but_a_wrong_one_is_seen() -> None:
    ledger = BookieLedgerMachine(LedgerFacts(1, key=KEY, token=7), known=True)
    assert ledger.may_read(b"", 0) is Answer.OK
    assert ledger.may_read(KEY, 7) is Answer.OK
    assert ledger.may_read(OTHER_KEY, 0) is Answer.UNAUTHORISED
    assert ledger.may_read(b"", 8) is Answer.WRONG_TOKEN


@given(st.lists(st.integers(-1, 50), max_size=20))
def test_the_lac_only_rises(lacs: list[int]) -> None:
    ledger = machine()
    highest = -1
    for lac in lacs:
        ledger.explicit_lac(b"body", lac, **WHO)
        highest = max(highest, lac)
        assert ledger.facts.lac == highest


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes in whatever order: fences stay, the LAC never falls, keys never change."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = machine()
        self.was_fenced = False
        self.highest_lac = -1
        self.key = b""

    @rule(key=st.sampled_from([KEY, OTHER_KEY]), lac=st.integers(-1, 9), recovery=st.booleans())
    def add(self, key: bytes, lac: int, recovery: bool) -> None:
        unknown = not self.ledger.fence_known
        answer = self.ledger.add(key=key, token=7, digest_type=3, lac=lac, recovery=recovery).answer
        if (self.was_fenced or (unknown and self.ledger.facts.in_limbo)) and not recovery:
            assert answer is not Answer.OK
        if answer is Answer.OK and not self.key:
            self.key = key

    @rule(key=st.sampled_from([KEY, OTHER_KEY, b""]))
    def fence(self, key: bytes) -> None:
        if self.ledger.set_fence(key=key, token=7, digest_type=3).answer is Answer.OK:
            self.was_fenced = True
            self.key = self.key or key

    @rule(lac=st.integers(-1, 9))
    def explicit(self, lac: int) -> None:
        if self.ledger.explicit_lac(b"x", lac, key=KEY, token=7, digest_type=3).answer is Answer.OK:
            self.key = self.key or KEY

    @rule(lsn=st.integers(1, 3))
    def loses(self, lsn: int) -> None:
        self.ledger.enter_limbo(lsn)

    @rule()
    def hears_that_no_fence_was_lost(self) -> None:
        self.ledger.record_read()

    @rule(lsn=st.integers(1, 3))
    def leaves_limbo(self, lsn: int) -> None:
        known = self.ledger.fence_known
        if self.ledger.facts.in_limbo and self.ledger.clear_limbo(lsn, key=KEY).answer is Answer.OK:
            self.was_fenced = self.was_fenced or not known

    @rule()
    def journaled(self) -> None:
        facts = self.ledger.save().facts
        assert facts is not None
        self.ledger.saved(facts)

    @rule()
    def restarted_with_what_was_journaled(self) -> None:
        if self.ledger.is_as_stored(facts := self.ledger.facts.copy()):
            self.ledger = BookieLedgerMachine(facts, known=True)

    @invariant()
    def holds(self) -> None:
        self.ledger.check()
        assert self.ledger.facts.fenced == self.was_fenced
        assert self.ledger.facts.lac >= self.highest_lac
        assert self.ledger.facts.key == self.key
        self.highest_lac = self.ledger.facts.lac


TestAnyOrder = AnyOrder.TestCase


KEYS = st.sampled_from([b"", KEY, OTHER_KEY])
SMALL = st.integers(0, 2)
LACS = st.integers(-1, 9)


@given(
    LACS,
    st.builds(
        LedgerFacts, st.just(1), KEYS, SMALL, SMALL, st.booleans(), st.sampled_from([None, Limbo(5)]), SMALL, LACS,
        st.sampled_from([b"", b"lac"]), SMALL, SMALL, SMALL, LACS,
    ),
    st.fixed_dictionaries({"known": st.booleans(), "lost": st.booleans(), "asked": st.booleans()}),
    st.sampled_from([RULES, RULES, RULES.but(add_allowed=lambda **_: True)]),
    st.booleans(),
    KEYS, SMALL, SMALL,
)  # fmt: skip
def test_an_ordinary_add_is_what_add_makes_of_it(
    lac: int,
    facts: LedgerFacts,
    how: dict[str, bool],
    rules: BookieRules,
    same: bool,
    key: bytes,
    token: int,
    digest_type: int,
) -> None:
    """Where it is out of the ordinary nothing has changed."""
    if same:
        key, token, digest_type = facts.key, facts.token, facts.digest_type
    one, other = (BookieLedgerMachine(facts.copy(), **how, rules=rules) for _ in range(2))
    if one.add_ordinary(key, token, digest_type, lac):
        who: dict[str, Any] = {"key": key, "token": token, "digest_type": digest_type}
        assert other.add(**who, lac=lac, recovery=False) == (None, Journaled.RUN, Answer.OK, True)
    for field in BookieLedgerMachine.__slots__:
        assert getattr(one, field) == getattr(other, field)


def test_an_add_of_a_known_ledger_is_ordinary_until_anything_happens_to_it() -> None:
    ledger = machine()
    assert not ledger.add_ordinary(**WHO, lac=-1), "its facts are to be saved"
    facts = ledger.add(**WHO, lac=-1, recovery=False).facts
    assert facts is not None
    assert ledger.add_ordinary(**WHO, lac=3)
    assert ledger.facts.lac == 3
    ledger.not_saved(facts)
    assert not ledger.add_ordinary(**WHO, lac=4)
    ledger.set_fence(**WHO)
    assert not ledger.add_ordinary(**WHO, lac=4)
    assert ledger.facts.lac == 3
