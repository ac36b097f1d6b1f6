"""What one stream's machine on a bookie admits by the term of a request, and what must be durable first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine, Fence, Journaled, LedgerFacts
from quire.core.bookie.limbo import Limbo
from quire.core.bookie.limbo_decisions import LimboDecisions
from quire.core.bookie.rules import RULES, TERM_JUMP_MAX, BookieRules, RecordedKey
from quire_testing.explorer.mutants import MUTANTS

KEY = b"k" * 20
WHO: dict[str, Any] = {"key": KEY, "token": 7, "digest_type": 3}


def stream(term: int, *, rules: BookieRules = RULES, **facts: Any) -> BookieLedgerMachine:
    """A stream that is known here, in a term."""
    known = LedgerFacts(1, key=KEY, token=7, digest_type=3, term=term, **facts)
    return BookieLedgerMachine(known, known=True, rules=rules)


def add(machine: BookieLedgerMachine, term: int, lac: int = -1, *, recovery: bool = False) -> Answer:
    return machine.add(**WHO, lac=lac, recovery=recovery, term=term).answer


# --- which terms -----------------------------------------------------------------------------------------------------


def test_a_request_of_a_lower_term_is_refused_and_changes_nothing() -> None:
    machine = stream(3, lac=4, lac_term=3)
    before = machine.facts.copy()
    for answer in (
        add(machine, 2, 9),
        add(machine, 2, 9, recovery=True),
        add(machine, 0, 9),
        machine.raise_term(**WHO, term=2).answer,
        machine.set_fence(**WHO).answer,
        machine.explicit_lac(b"body", 9, **WHO, term=2).answer,
        machine.truncate(**WHO, term=2).answer,
    ):
        assert answer is Answer.INVALID_TERM
    assert not machine.explicit_lac_without_body(9, KEY, 7, 3, 2)
    assert machine.facts == before
    assert machine.is_as_stored(before)


def test_a_truncation_is_durable_before_its_response_and_takes_the_term() -> None:
    machine = stream(3)
    ready = machine.truncate(**WHO, term=4)
    assert (ready.record, ready.answer, ready.persisted) == (Journaled.TRUNCATION, Answer.OK, True)
    assert ready.facts is not None
    assert ready.facts.term == 4
    machine.saved(ready.facts)
    assert machine.truncate(**WHO, term=4).facts is None, "the journal has them"


def test_a_truncation_is_refused_of_a_ledger_without_terms_without_a_key_and_in_limbo() -> None:
    ledger = BookieLedgerMachine(LedgerFacts(1, key=KEY, token=7, digest_type=3), known=True)
    assert ledger.truncate(**WHO, term=0).answer is Answer.BAD_REQUEST
    assert ledger.truncate(**WHO, term=1).answer is Answer.BAD_REQUEST
    assert stream(3).truncate(**{**WHO, "key": b""}, term=3).answer is Answer.UNAUTHORISED
    assert stream(3, limbo=Limbo(5)).truncate(**WHO, term=3).answer is Answer.UNKNOWN


def test_a_higher_term_is_durable_before_any_response() -> None:
    machine = stream(3)
    ready = machine.raise_term(**WHO, term=4)
    assert (ready.record, ready.answer, ready.persisted) == (Journaled.NOTHING, Answer.OK, True)
    assert ready.facts is not None
    assert (ready.facts.term, ready.facts.fenced) == (4, False), "a fence would stay for ever"
    assert machine.raise_term(**WHO, term=4).persisted, "it is still on its way"
    assert add(machine, 3) is Answer.INVALID_TERM
    machine.saved(ready.facts)
    assert machine.raise_term(**WHO, term=4) == (None, Journaled.NOTHING, Answer.OK, False)


def test_facts_of_an_earlier_term_make_the_later_one_not_durable() -> None:
    machine = stream(3)
    before, later = machine.save().facts, machine.raise_term(**WHO, term=4).facts
    assert before is not None
    assert later is not None
    machine.saved(before)
    assert machine.fence is Fence.PENDING
    machine.saved(later)
    assert machine.fence is Fence.DURABLE


def test_the_term_of_an_add_is_journaled_before_its_run() -> None:
    machine = stream(3)
    ready = machine.add(**WHO, lac=-1, recovery=False, term=5)
    assert ready.facts is not None
    assert (ready.facts.term, ready.record, ready.persisted) == (5, Journaled.RUN, True)
    assert machine.raise_term(**WHO, term=5).persisted, "that facts are on their way is not enough"


def test_a_writer_of_the_same_term_goes_on_after_its_fence() -> None:
    machine = stream(1)
    assert machine.raise_term(**WHO, term=2).answer is Answer.OK
    assert add(machine, 2) is Answer.OK
    assert add(machine, 2, recovery=True) is Answer.OK


def test_an_ordinary_ledger_takes_no_term_and_a_stream_no_request_without() -> None:
    ledger = BookieLedgerMachine(LedgerFacts(1, key=KEY, token=7, digest_type=3), known=True)
    assert add(ledger, 1) is Answer.BAD_REQUEST
    assert ledger.raise_term(**WHO, term=1).answer is Answer.BAD_REQUEST
    assert ledger.facts == LedgerFacts(1, key=KEY, token=7, digest_type=3)
    assert add(stream(1), 0) is Answer.INVALID_TERM


@pytest.mark.parametrize(("jump", "answer"), [(TERM_JUMP_MAX, Answer.OK), (1 << 40, Answer.BAD_REQUEST)])
def test_a_term_does_not_jump(jump: int, answer: Answer) -> None:
    machine = stream(3)
    assert add(machine, 3 + jump) is answer
    assert machine.facts.term == (3 + jump if answer is Answer.OK else 3)


@pytest.mark.parametrize(
    ("record", "term", "answer"),
    [
        (0, 0, Answer.OK),
        (0, 1, Answer.BAD_REQUEST),
        (3, 0, Answer.INVALID_TERM),
        (3, 2, Answer.INVALID_TERM),
        (3, 3, Answer.OK),
        (3, 4, Answer.OK),
        (3, 3 + (1 << 40), Answer.BAD_REQUEST),
        (None, 0, Answer.OK),
        (None, 3, Answer.UNKNOWN),
    ],
)
def test_the_first_request_is_compared_with_the_term_of_the_record(
    record: int | None, term: int, answer: Answer
) -> None:
    assert RULES.judge_unknown(RecordedKey(KEY, 7, record), KEY, 7, term) is answer


# --- LACs ------------------------------------------------------------------------------------------------------------


def test_a_lac_has_the_term_of_the_writer_that_told_it() -> None:
    machine = stream(3)
    assert add(machine, 3, 5) is Answer.OK
    assert (machine.facts.lac, machine.facts.lac_term) == (5, 3)
    assert add(machine, 4, 5) is Answer.OK
    assert (machine.facts.lac, machine.facts.lac_term) == (5, 3), "the new writer says no more than that"
    assert add(machine, 4, 9, recovery=True) is Answer.OK
    assert (machine.facts.lac, machine.facts.lac_term) == (5, 3), "a recovery add leaves it alone"
    assert machine.explicit_lac_without_body(6, KEY, 7, 3, 4)
    assert (machine.facts.lac, machine.facts.lac_term) == (6, 4)
    assert machine.explicit_lac(b"body", 8, **WHO, term=4).persisted, "the term is not durable yet"
    assert (machine.facts.lac, machine.facts.lac_term) == (8, 4)


def test_a_later_terms_lower_lac_holds_where_an_operator_had_the_higher_one_ignored() -> None:
    machine = stream(4, lac=6, lac_term=3, explicit_lac=b"says 6")
    stored = machine.facts.copy()
    assert add(machine, 4, 2, recovery=True) is Answer.OK
    assert (machine.facts.lac, machine.facts.lac_term) == (6, 3), "a recovery add leaves it alone"
    assert add(machine, 4, 2) is Answer.OK
    assert (machine.facts.lac, machine.facts.lac_term, machine.facts.explicit_lac) == (2, 4, b"")
    assert not machine.is_as_stored(stored), "only here is it known"
    saved = machine.save().facts
    assert saved is not None
    assert (saved.lac, saved.lac_term) == (6, 3), (
        "a start would raise it from entries, whose terms are not known then"
    )
    assert add(machine, 4, 1) is Answer.OK
    assert (machine.facts.lac, machine.facts.lac_term) == (2, 4), "it does not fall in a term"
    assert machine.explicit_lac_without_body(7, KEY, 7, 3, 4)
    saved = machine.save().facts
    assert saved == machine.facts
    assert (saved.lac, saved.lac_term) == (7, 4)


def test_an_explicit_lac_of_a_later_term_holds_too() -> None:
    machine = stream(3, lac=6, lac_term=3, explicit_lac=b"says 6")
    assert not machine.explicit_lac_without_body(2, KEY, 7, 3, 4)
    ready = machine.explicit_lac(b"says 2", 2, **WHO, term=4)
    assert (machine.facts.lac, machine.facts.lac_term, machine.facts.explicit_lac) == (2, 4, b"says 2")
    assert ready.facts is not None
    assert (ready.facts.term, ready.facts.lac, ready.facts.lac_term) == (4, 6, 3)


def test_a_lac_of_which_no_term_is_known_does_not_fall() -> None:
    machine = stream(4, lac=6)
    assert add(machine, 4, 2) is Answer.OK
    assert machine.explicit_lac(b"body", 3, **WHO, term=4).answer is Answer.OK
    assert (machine.facts.lac, machine.facts.lac_term) == (6, 0)


def test_an_explicit_lac_raises_the_term_durably() -> None:
    machine = stream(3)
    ready = machine.explicit_lac(b"body", 2, **WHO, term=4)
    assert ready.facts is not None
    assert (ready.facts.term, ready.facts.lac, ready.facts.lac_term, ready.persisted) == (4, 2, 4, True)
    machine.saved(ready.facts)
    assert machine.explicit_lac(b"body", 3, **WHO, term=4) == (None, Journaled.NOTHING, Answer.OK, False)


def test_a_read_of_a_streams_entries_names_their_term() -> None:
    machine = stream(3)
    assert machine.may_read(b"", 0, term=0) is Answer.BAD_REQUEST
    assert machine.may_read(b"", 0, term=1) is Answer.OK, "whatever the bookie's own is"
    assert machine.may_read(b"", 0) is Answer.OK


# --- limbo ----------------------------------------------------------------------------------------------------------


def in_limbo(term: int = 1, *, rules: BookieRules = RULES) -> BookieLedgerMachine:
    return stream(term, limbo=Limbo(5), rules=rules)


def test_in_limbo_nothing_of_a_stream_is_accepted_before_its_record_was_read() -> None:
    machine = in_limbo()
    before = machine.facts.copy()
    for answer in (
        add(machine, 1),
        add(machine, 1, recovery=True),
        machine.raise_term(**WHO, term=1).answer,
        machine.explicit_lac(b"body", 2, **WHO, term=1).answer,
        machine.clear_limbo(5, key=KEY).answer,
    ):
        assert answer is Answer.UNKNOWN
    assert not machine.explicit_lac_without_body(2, KEY, 7, 3, 1)
    assert machine.facts == before
    machine.record_read(3)
    assert add(machine, 2) is Answer.INVALID_TERM, "a take-over that it forgot"
    assert add(machine, 3) is Answer.OK
    assert machine.conclusive_through(0, 9) == -1, "entries may be lost all the same"


def test_a_term_out_of_the_record_is_durable_before_it_counts() -> None:
    machine = in_limbo()
    machine.record_read(3)
    ready = machine.raise_term(**WHO, term=3)
    assert ready.facts is not None
    assert (ready.facts.term, ready.persisted) == (3, True)


def test_leaving_limbo_fences_no_stream() -> None:
    machine = in_limbo()
    machine.record_read(3)
    assert machine.clear_limbo(5, key=KEY).answer is Answer.OK
    assert (machine.facts.fenced, machine.facts.limbo, machine.facts.term) == (False, None, 3)


def test_a_loss_without_a_name_hides_the_term_of_every_stream() -> None:
    after = LimboDecisions(5, nameless=True)
    machine = after.machine(1, stream(2).facts, searching=False)
    assert add(machine, 2, recovery=True) is Answer.UNKNOWN
    after.settled(1, machine, 2)
    assert add(machine, 2) is Answer.OK
    again = after.machine(1, machine.facts, searching=False)
    assert add(again, 2) is Answer.OK, "it was asked about since the loss"


# --- what each judgement is for --------------------------------------------------------------------------------------


def test_without_its_judgement_an_old_writer_goes_on() -> None:
    """X23: two writers, two values of an entry."""
    machine = stream(3, rules=RULES.but(term_answer=lambda *_, **__: Answer.OK))
    assert add(machine, 2) is Answer.OK


def test_without_its_judgement_a_fencing_read_leaves_the_term() -> None:
    """X24: a negative response, and then the old writer's entry."""
    machine = stream(2)
    with MUTANTS["X24"].switches.applied():
        assert machine.raise_term(**WHO, term=3).answer is Answer.OK
    assert add(machine, 2) is Answer.OK


def test_without_its_judgement_a_bookie_in_limbo_trusts_its_own_term() -> None:
    """X48: it forgot the take-over that another bookie has heard of."""
    with MUTANTS["X48"].switches.applied():
        assert add(in_limbo(), 1) is Answer.OK


# --- any order -------------------------------------------------------------------------------------------------------

TERMS = st.integers(0, 6)


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes in whatever order: the term never falls, nothing of a lower one is taken, no fence is set."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = stream(1)
        self.disk = self.ledger.facts.copy()
        self.announced = 1
        self.term = 1
        self.answered = 1

    def took(self, answer: Answer, term: int) -> None:
        if answer is Answer.OK:
            assert term >= self.term
            assert self.ledger.fence_known
            self.term = term
        elif answer is Answer.INVALID_TERM:
            assert term < self.ledger.facts.term

    @rule(term=TERMS, lac=st.integers(-1, 9), recovery=st.booleans())
    def add(self, term: int, lac: int, recovery: bool) -> None:
        if term <= self.announced:
            self.took(add(self.ledger, term, lac, recovery=recovery), term)

    @rule()
    def announces(self) -> None:
        """A take-over begins: its term is in the record before any bookie hears of it."""
        self.announced = min(self.announced + 1, 6)

    @rule(term=TERMS)
    def fence(self, term: int) -> None:
        if not 0 < term <= self.announced:
            return
        ready = self.ledger.raise_term(**WHO, term=term)
        self.took(ready.answer, term)
        if ready.answer is Answer.OK and not ready.persisted:
            assert self.disk.term == term, "a response that does not wait relies on the disk"
            self.answered = max(self.answered, term)

    @rule(term=TERMS, lac=st.integers(-1, 9))
    def explicit(self, term: int, lac: int) -> None:
        if term <= self.announced:
            self.took(self.ledger.explicit_lac(b"x", lac, **WHO, term=term).answer, term)

    @rule()
    def journaled(self) -> None:
        facts = self.ledger.save().facts
        assert facts is not None
        self.disk = facts.copy()
        self.ledger.saved(facts)

    @rule()
    def restarted_with_what_was_journaled(self) -> None:
        self.ledger = BookieLedgerMachine(self.disk.copy(), known=True)
        self.term = self.ledger.facts.term

    @rule(lsn=st.integers(1, 3), back=st.booleans())
    def loses(self, lsn: int, back: bool) -> None:
        """Its newest facts may be among what is lost."""
        self.ledger = BookieLedgerMachine(
            LedgerFacts(1, key=KEY, token=7, digest_type=3, term=1) if back else self.disk.copy(), known=True
        )
        self.ledger.enter_limbo(lsn)
        self.disk = self.ledger.facts.copy()
        self.term = self.ledger.facts.term
        self.answered = 1

    @precondition(lambda self: not self.ledger.fence_known)
    @rule()
    def hears_the_record(self) -> None:
        self.ledger.record_read(self.announced)
        self.term = self.ledger.facts.term
        assert self.term == self.announced

    @rule(lsn=st.integers(1, 3))
    def leaves_limbo(self, lsn: int) -> None:
        if self.ledger.facts.in_limbo and self.ledger.clear_limbo(lsn, key=KEY).answer is Answer.OK:
            assert self.ledger.fence_known

    @invariant()
    def holds(self) -> None:
        self.ledger.check()
        assert not self.ledger.facts.fenced
        assert self.term <= self.ledger.facts.term <= self.announced
        assert self.answered <= self.ledger.facts.term


TestAnyOrder = AnyOrder.TestCase
