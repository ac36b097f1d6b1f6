"""Incidents of recovery: ledgers closed too early, or never."""

from __future__ import annotations

import pytest

from quire.core.errors import QuireError
from quire.core.ledger.effects import RecoveryClosed
from quire_testing.explorer.switches import RULES
from support.museum import RedError, explored, incident, require
from support.stage import Stage


def replaced(fault: bool, **rules):
    """The shipped rules, or with these replaced."""
    return RULES.but(**rules) if fault else RULES


@incident(
    mutant="D1",
    ref="issues/2614",
    title="Fencing the LAC reads only lets a late add through",
    happened=(
        "3/3/2. A recoverer fences two of three bookies, which is enough to go on; the request to the third is lost. Its "
        "recovery read of entry 0 then finds nothing there. After that the old writer's add reaches the bookie that was "
        'never fenced, which makes two copies: the writer acknowledges it, and the recoverer, with two answers "No such '
        'entry", closes the ledger without it. Found with TLA+; recovery reads fence since 4.14.'
    ),
    ours='The thread\'s diagram, message by message. A bookie that says "not here" to a recovery read has fenced first.',
    switch="recovery reads do not fence",
    violates="I1",
)
def test_2614_a_read_that_does_not_fence(fault: bool) -> None:
    stage = Stage(["b1", "b2", "b3"], (3, 3, 2))
    stage.append()
    stage.arrives("b1")
    recovery = stage.recover()
    recovery.fence_lost("b3")
    recovery.fences("b1")
    recovery.fences("b2")
    recovery.reads("b2")
    recovery.reads("b3")
    stage.arrives("b3")
    if recovery.result is None:
        recovery.reads("b1")
        recovery.finish()
    assert isinstance(recovery.result, RecoveryClosed)
    stage.check_end()
    stage.check_copies()


@incident(
    ref="issues/2615",
    title="A recovery that starts before the last ensemble can never end",
    happened=(
        "Ensembles 0:{b1,b2} and 1000:{b2,b3}; entry 2000 fails on both and the writer adds 2000:{b4,b5}, whose bookies "
        "know no LAC. The recoverer hears -1, reads from entry 0 and writes it back to b4 and b5; b5 fails, and it wants "
        "to record an ensemble that starts at 0, before existing ones. That is refused, on every attempt, for as long as "
        "the cause lasts. Fixed in 4.14."
    ),
    ours="The thread's ensembles, scaled down: recovery starts at the last fragment's first entry or above.",
    switch="recovery starts at the LAC that was heard",
    violates="I6",
)
def test_2615_an_ensemble_before_existing_ones(fault: bool) -> None:
    rules = replaced(fault, recovery_start=lambda highest_lac, last_fragment_first: highest_lac)
    stage = Stage(["b1", "b2", "b3", "b4", "b5", "b6"], (2, 2, 2), rules=rules)
    stage.start_later([(0, ["b1", "b2"]), (3, ["b2", "b3"]), (6, ["b4", "b5"])], confirmed=5)
    stage.bookies["b4"].held.add(6)
    recovery = stage.recover()
    recovery.fences("b4")
    recovery.fences("b5")
    try:
        recovery.finish(refusing=["b5"], spares=["b6"])
        stage.record.checked()
    except (QuireError, AssertionError) as error:
        raise RedError("I6", f"{type(error).__name__}: {error}") from error
    stage.check_end()
    assert [fragment.first_entry for fragment in stage.record.fragments] == [0, 3, 6]
    assert stage.record.last_fragment.ensemble == ("b4", "b6")
    assert stage.record.last_entry == 6


@incident(
    ref="issues/1067",
    title="One hanging bookie keeps a ledger from being recovered",
    happened=(
        'A recovery read counted as "no such entry" only when every bookie had answered. One that hangs makes each '
        "attempt time out, although Qw - Qa + 1 answers had settled that the entry cannot have been acknowledged."
    ),
    ours="3/3/2 with one bookie that never answers: two conclusive negatives close the ledger.",
    switch="a negative verdict needs an answer from the whole write set",
    violates="F1",
)
def test_1067_one_hanging_bookie(fault: bool) -> None:
    rules = replaced(fault, negative_votes_needed=lambda write_quorum, ack_quorum: write_quorum)
    stage = Stage(["b1", "b2", "b3"], (3, 3, 2), rules=rules)
    for _ in range(2):
        stage.append()
        for bookie in ("b1", "b2", "b3"):
            stage.arrives(bookie)
    recovery = stage.recover()
    recovery.fences("b2")
    recovery.fences("b3")
    recovery.finish(deaf=["b1"])
    require(isinstance(recovery.result, RecoveryClosed), "F1", str(recovery.result))
    stage.check_end()
    assert stage.record.last_entry == 1


@incident(
    mutant="X4",
    ref="issues/4226",
    title="An entry that was never acknowledged is in the ledger afterwards",
    happened=(
        "An add fails at the writer, and after a recovery the entry can be read. It is no defect: one copy is enough to "
        'keep an entry, because a recoverer cannot tell "acknowledged, and the other copy is on the bookie that does '
        'not answer" from "never acknowledged". A failed add is *unknown*, not *refused*.'
    ),
    ours=(
        "Entry 0 is acknowledged and no header says so yet, entry 1 has one copy; both are in the closed ledger. What "
        "must never happen is the opposite mistake."
    ),
    switch="the ledger is closed at the LAC that was received",
    violates="I1",
)
def test_4226_one_copy_is_kept(fault: bool) -> None:
    stage = Stage(["b1", "b2", "b3"], (3, 3, 2))
    stage.append()
    stage.append()
    stage.arrives("b1", 0)
    stage.arrives("b2", 0)
    stage.arrives("b1", 1)
    assert stage.told == [0]
    stage.recover().finish()
    stage.check_end()
    stage.check_copies()
    assert stage.record.last_entry == 1


@incident(
    ref="pull/2706",
    title="No journal: a bookie that lost entries says that they never were",
    happened=(
        "The proposal to run without a journal (BP-46) lists what a crash does then: a bookie that had acknowledged an "
        'entry comes back without it and answers "No such entry"; with a second such answer a recoverer closes the '
        "ledger before the entry."
    ),
    ours="The explorer, bookies that lose everything in a crash: they ask before they take an add, and deny nothing (limbo).",
    switch="after an unclean start a bookie serves as if nothing had happened",
    violates="I1",
)
def test_2706_lost_without_limbo(fault: bool) -> None:
    explored("D3", fault=fault)


@incident(
    ref="pull/2706",
    title="No journal: limbo alone is not enough",
    happened=(
        "The same proposal: a bookie that lost its state also lost its fences. Even if it no longer denies entries, it "
        "takes adds of an old writer after a recoverer has fenced it, and completes a quorum that nobody recovers."
    ),
    ours="The same worlds with a recovery that runs twice.",
    switch="limbo, and adds are taken without asking for a lost fence",
    violates="I1",
)
def test_2706_limbo_without_a_fence(fault: bool) -> None:
    explored("D4", fault=fault)


@incident(
    ref="pull/2706",
    title="No journal: a fence alone is not enough",
    happened="The same proposal: fenced, but still denying entries that it may have lost.",
    ours="The same worlds.",
    switch="lost fences are asked for, lost entries are denied",
    violates="I1",
)
def test_2706_a_fence_without_limbo(fault: bool) -> None:
    explored("D5", fault=fault)


@incident(
    ref="pull/205",
    title="A fence must be in the journal before the answer",
    happened=(
        "Fencing depended on index files instead of the journal: it failed where it need not, and could be answered "
        'before it was on disk. The change made success mean "persisted in the journal"; the answer "no such entry" '
        "to a fencing read still leaves without waiting in BookKeeper today."
    ),
    ours="The explorer, journal syncs as steps of their own and one crash: no answer to a fencing request leaves before.",
    switch="a negative answer to a fencing read does not wait for its fence",
    violates="I1",
)
def test_205_a_fence_that_is_not_durable(fault: bool) -> None:
    explored("D7", fault=fault)


@incident(
    ref="pull/4163",
    title="Copies of a fenced ledger cannot be restored",
    happened=(
        "A change of the request flags dropped the recovery flag from the adds of re-replication. A fenced ledger takes "
        "recovery adds only, so its missing copies stayed missing, and every attempt failed the same way."
    ),
    ours="The explorer: adds with the recovery flag pass the fence; without that no recovery reaches its end.",
    switch="a fenced bookie refuses recovery adds",
    violates="F1",
)
def test_4163_recovery_adds_pass_the_fence(fault: bool) -> None:
    explored("X18", fault=fault)


@incident(
    ref="https://issues.apache.org/jira/browse/BOOKKEEPER-584",
    title="Ledger metadata overwritten",
    happened="A client wrote a ledger's record without comparing versions and put an old state over a newer one: entries lost.",
    ours="The explorer, a writer that closes beside a recoverer: each change of a record is a compare-and-swap.",
    switch="the writer's close is written whatever the version",
    violates="I4",
)
def test_584_metadata_overwritten(fault: bool) -> None:
    explored("X16", fault=fault)


@incident(
    ref="pravega/pravega/issues/1900",
    title="Old ledgers opened without recovery",
    happened=(
        "After a failover the reader opened the ledgers of the log without recovery. A ledger that is neither fenced nor "
        "closed may have acknowledged entries that such a reader does not see, and its old writer may still add some."
    ),
    ours="The explorer of the log of ledgers: whoever opens a log recovers the last two ledgers and all that are listed open.",
    switch="an opener fences nothing",
    violates="L3",
)
def test_1900_opened_without_recovery(fault: bool) -> None:
    explored("X20-fence", fault=fault)


def test_a_recovery_without_any_fault_is_what_the_diagrams_show() -> None:
    """The stage itself: a plain recovery of a plain ledger."""
    stage = Stage(["b1", "b2", "b3"], (3, 3, 2))
    with pytest.raises(StopIteration):
        stage.arrives("b1")
    for _ in range(3):
        stage.append()
    stage.rest_arrives()
    stage.recover().finish()
    stage.check_end()
    assert stage.record.last_entry == 2
