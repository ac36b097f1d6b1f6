"""The slips of the sources, one by one: what is written, and what Quire does instead.

S1 and S8 are in the documents; S2, S5 and S6 in the public classic specification, whose transcription keeps them and can
be told to mend them; S3 and S4 in the one of unbounded ledgers and guaranteed write quorums: their arithmetic is shown, and
both in a transcription that has them mended; S3 in that of guaranteed write quorums and in the writer's window too. S7 and S10 are what no specification looks at.

Source: docs/testing-coverage.md, "The slips of the sources".
"""

from __future__ import annotations

from itertools import combinations

import pytest

from quire.core.answers import Answer
from quire.core.ids import LedgerId
from quire.core.ledger.effects import SendRecoveryAdds, WaitForAnswers, WriteMetadata
from quire.core.ledger.metadata import DigestType, LedgerState, new_ledger
from quire.core.ledger.quorum import covers_exactly, write_set, write_set_masks
from quire.core.ledger.writer import RunWindow
from quire.core.recovery.machine import RecoveryMachine
from quire_testing.explorer.calibration import LOST, ClassicWorld
from quire_testing.explorer.calibration_quorum import GuaranteedWorld
from quire_testing.explorer.calibration_terms import TermsClient, TermsWorld
from quire_testing.explorer.check import check
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.continuous import CONTINUOUS
from quire_testing.explorer.explorer import explore
from quire_testing.explorer.invariants import Violation
from quire_testing.explorer.log_parts import LogConfiguration
from quire_testing.explorer.mutants import MUTANTS
from quire_testing.explorer.reach import recovery_is_done
from quire_testing.explorer.switches import RULES, SHIPPED, Switches
from quire_testing.explorer.symmetry import Symmetry
from quire_testing.explorer.world import LedgerWorld
from support.rounds import keep_figures

QUORUMS = [(E, Qw, Qa) for E in range(1, 7) for Qw in range(1, E + 1) for Qa in range(1, Qw + 1)]


@pytest.mark.parametrize("quorums", QUORUMS)
def test_s1_striping_ends_where_the_ensemble_is_the_write_quorum(quorums) -> None:
    """ "If Qw = Qa, then there is only one, as no striping occurs": it is E = Qw that decides, whatever Qa is."""
    E, Qw, _ = quorums
    sets = {frozenset(write_set(entry, E, Qw)) for entry in range(3 * E)}
    assert (len(sets) == 1) == (Qw == E)


# --- S2, S5, S6: the public classic specification ------------------------------------------------------------------


class ClassicWay:
    """A way through the classic specification: the first step of a kind that has the property asked for."""

    def __init__(self, **settings) -> None:
        self.world = ClassicWorld(**settings)
        self.state = self.world.initial()

    def goes(self, kind, wanted=lambda _: True):
        self.state = next(
            after for label, after in self.world.successors(self.state) if label == kind and wanted(after)
        )
        return self.state

    def can(self, kind, wanted=lambda _: True):
        return any(label == kind and wanted(after) for label, after in self.world.successors(self.state))


def lossless(after) -> bool:
    """Nothing was lost."""
    return LOST not in dict(after.messages).values()


def taken_over_behind_entry_1(**settings) -> ClassicWay:
    """The writer has two entries on both bookies, and knows that the first is confirmed; then a recoverer takes over."""
    way = ClassicWay(entries=2, ack_quorum=2, **settings)
    way.goes("create", lambda after: after.clients[0].status == "open")
    for entry in (1, 2):
        way.goes("send", lossless)
        for _ in range(2):
            way.goes("bookie add", lossless)
        for _ in range(2):
            way.goes("added")
        assert way.state.clients[0].lac == entry
    assert way.state.lacs == (1, 1), "the second entry carries that the first is confirmed"
    way.goes("start", lossless)
    for _ in range(2):
        way.goes("bookie fence", lossless)
    for _ in range(2):
        way.goes("fenced", lambda after: after.clients[1].fenced != way.state.clients[1].fenced)
    way.goes("read", lossless)
    for _ in range(2):
        way.goes("bookie read", lossless)
    return way


def writes_entry_2_back(way: ClassicWay) -> None:
    """Entry 2 was found; its copies are written back and both bookies say so."""
    assert way.state.clients[1].pending == (2,)
    way.goes("write back", lossless)
    for _ in range(2):
        way.goes("bookie add", lossless)
    for _ in range(2):
        way.goes("added", lambda after: after.clients[1] != way.state.clients[1])


def test_s2_a_recoverer_above_entry_1_never_completes_its_adds() -> None:
    """ "LAC is recomputed from entry 1 upwards; a recoverer that starts above entry 1 can never complete its adds"."""
    for mended in ((), ("S2",)):
        way = taken_over_behind_entry_1(mended=(*mended, "S5"))
        way.goes("answer", lambda after: after.clients[1].pending == (2,))
        writes_entry_2_back(way)
        assert way.state.clients[1].pending == (() if mended else (2,))


def test_s2_our_recoverer_does() -> None:
    """One that knows that entry 0 is confirmed writes entry 1 back and closes behind it.

    That it can from every state: `tests/check/test_exercised.py`.
    """
    world = LedgerWorld(Configuration(entries=2))
    done = recovery_is_done(world)

    def behind_entry_1(state):
        record = world.stores.parts[state[world.at.store]].record
        knew = max(world.bookies.parts[number].lac for number in state[: world.n]) >= 0
        return Violation("found", "") if done(state) and knew and record.last_entry == 1 else None

    assert explore(world, behind_entry_1, canonical=Symmetry(world)).violation


def fenced_recovery() -> RecoveryMachine:
    """A recovery on three bookies, write quorum 3 and ack quorum 2, that two have answered: about to read forward."""
    record = new_ledger(
        LedgerId(1),
        ("b1", "b2", "b3"),
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"",
    )
    machine = RecoveryMachine(record.in_recovery(), 1)
    machine.recover()
    for slot in (0, 1):
        machine.fence_answered(slot, Answer.OK, -1)
    machine.out.clear()
    return machine


def test_s5_a_read_is_judged_while_another_is_outstanding() -> None:
    """ "two equations for the message set are both required; … so early decisions are not explored"."""
    early = lambda after: after.clients[1].pending == (2,)  # noqa: E731 - the judgement, one answer heard
    assert not taken_over_behind_entry_1().can("answer", early)
    assert taken_over_behind_entry_1(mended=("S5",)).can("answer", early)
    ours = fenced_recovery()
    for slot in (0, 1):
        ours.read_answered(slot, Answer.NO_ENTRY, {}, -1, ())
    assert ours.out == [WaitForAnswers(("b3",))], "for a moment, and once"
    ours.out.clear()
    ours.waited()
    (write,) = ours.out
    assert isinstance(write, WriteMetadata)
    assert write.record.state is LedgerState.CLOSED, "the third read is outstanding"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_s5_mended_the_specification_has_473045_states() -> None:
    """ "285,773 states instead of 473,045 with the evident intention, 2/2/1; no violation in either"."""
    world = ClassicWorld(mended=("S5",))
    result = explore(world, world.violation)
    assert result.complete
    assert result.violation is None
    assert result.states == 473_045
    keep_figures(
        "classic_specification_mended",
        {"states": result.states, "transitions": result.transitions, "depth": result.depth + 1},
        seed=None,
    )


@pytest.mark.parametrize(("mended", "lac"), [((), 0), (("S6",), 1)])
def test_s6_a_bookies_lac_is_set_to_the_messages(mended, lac) -> None:
    """ "a bookie's LAC is set to the message's LAC, not to the maximum": a recovery add lowers what an add had told."""
    way = ClassicWay(entries=2, ack_quorum=2, mended=("S5", *mended))
    way.goes("create")
    way.goes("send", lossless)
    for kind in ("bookie add", "bookie add", "added", "added"):
        way.goes(kind, lossless)
    way.goes("send", lossless)
    way.goes("bookie add", lambda after: lossless(after) and after.lacs == (1, 0))
    way.goes("start", lambda after: lossless(after) and after.clients[1].status == "recovery")
    way.goes("bookie fence", lambda after: lossless(after) and after.fenced == 0b10)
    for kind in ("fenced", "read"):
        way.goes(kind, lossless)
    way.goes("bookie read", lambda after: lossless(after) and after.fenced == 0b10)
    way.goes("answer", lambda after: after.clients[1].pending == (1,))
    way.goes("write back", lossless)
    way.goes("bookie add", lambda after: after.lacs != (1, 0) or mended)
    assert way.state.lacs == (lac, 0)


def test_s6_ours_only_rises() -> None:
    """The rule, and every state of a world (I5 and I10 are among its invariants)."""
    for known, header in ((5, 3), (3, 5)):
        assert RULES.lac_after_add(known, header, recovery=False) == 5
        assert RULES.lac_after_add(known, header, recovery=True) == known
    done = check(Configuration(), invariants=["I5", "I10"])
    assert done.result.complete
    assert done.result.violation is None


# --- S3, S4: the specifications of guaranteed write quorums and unbounded ledgers ------------------------------------


def replicated_as_written(holders: dict[int, int], lafr: int, lac: int, write_quorum: int) -> int:
    """LAFR: the highest entry from LAC on that all of the write quorum hold, and LAC if there is none."""
    held = [entry for entry in holders if entry > lac and holders[entry] >= write_quorum]
    return max(held, default=lac) if lac >= lafr else lafr


def replicated_as_meant(holders: dict[int, int], lafr: int, write_quorum: int) -> int:
    """LAFR: as far as every entry from the former LAFR on is held by all of the write quorum."""
    while holders.get(lafr + 1, 0) >= write_quorum:
        lafr += 1
    return lafr


def test_s3_what_is_confirmed_is_taken_for_fully_replicated() -> None:
    """ "LAFR passes entries that are not at Qw, so entries leave the queue too early": Qw 2, Qa 1, one bookie has entry 1."""
    holders, lac = {1: 1}, 1
    assert replicated_as_written(holders, 0, lac, 2) == 1
    assert replicated_as_meant(holders, 0, 2) == 0
    assert replicated_as_meant({1: 2, 2: 1, 3: 2}, 0, 2) == 1, "not past an entry that one bookie lacks"


@pytest.mark.parametrize("slips", [("S3",), ()])
def test_s3_in_the_specification_of_guaranteed_write_quorums(slips) -> None:
    """With it a writer of two entries closes over one that a bookie lacks, in eleven states; without, nothing is found."""
    world = GuaranteedWorld(entries=2, slips=slips)
    result = explore(world, world.violation, states_max=15_000)
    found = result.violation
    assert (found and found.invariant) == ("G2" if slips else None)
    assert not slips or len(result.path) == 11


@pytest.mark.parametrize("slips", [("S3",), ()])
def test_s3_in_the_specification_of_unbounded_ledgers(slips) -> None:
    """The same in the specification that has it: two values, and a writer that closes over one that a bookie lacks."""
    world = TermsWorld(values=2, slips=slips)
    result = explore(world, world.violation, states_max=14_000)
    found = result.violation
    assert (found and found.invariant) == ("G2" if slips else None)
    assert not slips or len(result.path) == 11


@pytest.mark.parametrize(("slips", "opens"), [(("S4",), False), ((), True)])
def test_s4_in_the_specification_of_unbounded_ledgers(slips, opens) -> None:
    """With it a client that begins above entry 1 never sees its no-op on the write quorum, and never opens the ledger."""
    world = TermsWorld(slips=slips)
    fenced = TermsClient(
        2, "recovery", 2, lap=1, confirmed=(0, 0), fenced=3, recovery_lac=1, recovery_lafr=1, phase=1
    )
    state = world.initial()._replace(
        status="recovery",
        version=2,
        term=2,
        entries=(("v1", ""), ("v1", "")),
        terms=(2, 2),
        lacs=(1, 1),
        lafrs=(1, 1),
        clients=(TermsClient(None, "withdrawn"), fenced),
    )

    def opened(state) -> Violation | None:
        return Violation("S4", "it is open") if state.clients[1].status == "open" else None

    assert (explore(world, opened, begin=[(None, state)]).violation is not None) == opens


@pytest.mark.parametrize(("switches", "lafr"), [(SHIPPED, -1), (MUTANTS["D10"].switches, 0)])
def test_s3_the_writers_window_takes_it_as_meant(switches: Switches, lafr: int) -> None:
    """The same in the machine: entry 0 is confirmed by one of two bookies, and the rule as written counts it."""
    window = RunWindow(write_set_masks(2, 2), 1, 2, switches.rules)
    window.add(1, 10)
    window.acked(1, 0)
    with switches.applied():
        window.leave()
    assert (window.lac, window.lafr) == (0, lafr)


def test_s4_a_recoverer_that_begins_at_0_finds_nothing_above_its_first_entry() -> None:
    """ "during recovery the client's LAC/LAFR stay 0 while ids start above": what it adds is never seen to be there."""
    added_by_the_recoverer = {3: 2, 4: 2}
    assert replicated_as_meant(added_by_the_recoverer, 0, 2) == 0
    assert replicated_as_meant(added_by_the_recoverer, 2, 2) == 4


# --- S7 to S10 -----------------------------------------------------------------------------------------------------


def test_s7_what_timed_out_may_be_delivered_later() -> None:
    """ "time-out only for lost messages; 'timed out but delivered later' is not covered": here it is, whole worlds of it."""
    names = [configuration for configuration in CONTINUOUS if getattr(configuration, "timeouts", 0)]
    assert len(names) >= 10
    done = check(Configuration(ack_quorum=1, timeouts=1, reruns=1), count_kinds=True)
    assert done.result.complete
    assert done.result.violation is None
    assert done.result.kinds["writer timeout"]


@pytest.mark.parametrize("quorums", QUORUMS)
def test_s8_coverage_of_an_ensemble_is_weaker_with_striping(quorums) -> None:
    """The guide: "EC = (E - AQ) + 1". It is enough, and more than needed where entries are striped."""
    E, Qw, Qa = quorums
    needed = E + 1
    for count in range(E + 1):
        for slots in combinations(range(E), count):
            known = sum(1 << slot for slot in slots)
            exactly, by_count = covers_exactly(known, E, Qw, Qa), known.bit_count() >= E - Qa + 1
            assert exactly or not by_count
            needed = min(needed, count) if exactly else needed
    assert needed <= E - Qa + 1
    if Qw == E:
        assert needed == E - Qa + 1


def test_s8_there_are_ensembles_that_need_fewer() -> None:
    """E = 4, Qw = Qa = 2: every second bookie is in every write set, the guide asks for three."""
    assert covers_exactly(0b0101, 4, 2, 2)
    assert (0b0101).bit_count() < 4 - 2 + 1


def test_s9_one_copy_is_enough_and_the_others_need_not_answer() -> None:
    """The guide: "Committed = Ack Quorum positive responses". An entry that was not acknowledged may be kept, one that
    was may not be lost: one copy decides.
    """
    machine = fenced_recovery()
    machine.read_answered(2, Answer.OK, {0: 10}, 5, ())
    written = [effect for effect in machine.out if isinstance(effect, SendRecoveryAdds)]
    assert {add.bookie for add in written} == {"b1", "b2", "b3"}


def test_s10_what_no_specification_models_is_in_the_continuous_set() -> None:
    """ "E = Qw only; bookie crash without disk loss, durability of fences, the log's deferred close, CAS as request and
    answer, rereplication are not modelled": all but the last are, in worlds that are explored completely.
    """
    worlds = [each for each in CONTINUOUS if isinstance(each, Configuration)]
    logs = [each for each in CONTINUOUS if isinstance(each, LogConfiguration)]
    assert any(each.ensemble > each.write_quorum for each in worlds)
    assert any(each.crashes and each.journal for each in worlds)
    assert any(each.lost_swaps for each in worlds)
    assert any(each.lost_swaps for each in logs)
    assert any(each.handles > 1 and each.ledgers > 3 for each in logs)
