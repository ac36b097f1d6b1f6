"""What the explorer has been through: an exploration that never comes to a rule, a message or a transition proves nothing of it.

Each is listed from the code that ships, or declared here, and fails when no world of the set comes to it; what cannot be
come to stands here with its reason. And from every state a recovery can still be done without a further fault.

Source: docs/testing-figures.md, "What the explorer has seen"; docs/counterexamples.md, "What must hold".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest

from quire.core.answers import Answer
from quire.core.ledger import effects
from quire.core.ledger.metadata import LedgerState
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import WRITER_TABLE, Status
from quire.core.log import effects as log_effects
from quire.core.log import trimming as log_trimming
from quire.core.log.effects import EndReason
from quire.core.log.machine import LOG, LogMachine, LogStatus
from quire.core.log.trimming import TRIM, TrimMachine, TrimStatus
from quire.core.recovery.machine import RECOVERY_TABLE, RecoveryMachine, RecoveryStatus
from quire.core.repair import effects as repair_effects
from quire.core.repair.effects import REPAIR_TABLE, RepairEffect, RepairStatus
from quire.core.repair.rereplication import RepairMachine
from quire_testing.explorer.check import form_of, setting_of
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.directory_world import DirectoryConfiguration
from quire_testing.explorer.explorer import explore
from quire_testing.explorer.invariants import InvariantWatch
from quire_testing.explorer.log_parts import LogConfiguration
from quire_testing.explorer.log_world import LogWorld
from quire_testing.explorer.parts import repaired_only
from quire_testing.explorer.reach import log_is_settled, recovery_is_done, stranded
from quire_testing.explorer.switches import RULES, SHIPPED
from quire_testing.explorer.symmetry import Symmetry
from quire_testing.explorer.world import LedgerWorld
from quire_testing.replay.recording import LOG_INPUTS, RECOVERY_INPUTS, TRIM_INPUTS
from support.exercised_worlds import BUNDLES, COLLECTORS, LOGS, WORLDS

KINDS = {
    "writer creates", "writer append", "writer close", "writer timeout", "writer timer", "writer waits", "writer found", "writer hears add",
    "writer hears written", "writer hears conflict", "writer reads", "writer lost swap", "writer break",
    "recoverer starts", "recoverer hears fence", "recoverer hears read", "recoverer hears put",
    "recoverer hears written", "recoverer hears conflict", "recoverer reads", "recoverer timeout", "recoverer finds",
    "store swap written", "store swap conflict", "store swap missing", "owner delete",
    "b0 add", "b0 put", "b0 fence", "b0 read", "b0 lac", "b0 sync", "b0 crash", "b0 damage", "b0 transit damage",
    "b0 scan", "store ask", "b0 answer", "clearer sees", "clearer fill", "clearer reads again", "b0 clear",
    "truncation truncate", "truncation reads", "truncation hears", "truncation deletes",
    "handle open", "handle append", "handle roll", "handle close", "handle closes", "handle retries", "handle delete",
    "reader record", "reader record again", "reader lac", "reader poll", "reader begin", "reader entries", "ledger stored", "ledger refused", "sink stage", "writer closed",
    "writer changed", "repairer repair", "repairer reads", "repairer list", "repairer copy", "repairer gone",
    "repairer clear", "repairer hears copy", "repairer hears written", "repairer hears conflict", "repairer lost swap",
    "repairer timeout", "b0 copy", "b0 loss", "b2 return",
    "b2 collect",
    "client append", "client hears rows", "client hears refusal", "client hears alone",
    "bookie drop by tombstone", "bookie drop by chain", "bookie drop by tombstone by hand", "bookie may not drop",
    "bookie written since", "bookie stopped", "bookie due", "bookie begin, accepted", "bookie begin, store is back", "bookie begin, full",
    "bookie crash", "bookie lost swap", "bookie pass lost", "bookie expire", "store lost answer",
    "store late", "store backup", "store restore", "java delete", "client delete", "person hand", "person accept",
}  # fmt: skip
"""Steps: every message's arrival at a bookie and at a client, every fault, everything a client does by itself."""

RECORDS = {"M2, ensemble changed", "M2, fragment appended", "M3", "M4", "M5", "M5, ensemble changed", "M6"}
"""Swaps of a record by their numbers in the reference; M1 is where a world begins, M7 the step `owner delete`. M8
belongs to an operator's tool."""

ANSWERS = {
    *(
        ("add", answer)
        for answer in (Answer.OK, Answer.FENCED, Answer.DELETED, Answer.UNREACHABLE, Answer.READ_ONLY)
    ),
    *(
        (kind, answer)
        for kind in ("fence", "read", "put")
        for answer in (Answer.OK, Answer.DELETED, Answer.UNREACHABLE)
    ),
}
"""What clients are told; that an entry is missing, or unknown, is a part of the answer to a read."""

REGISTRATIONS = (
    "bookies of these worlds are not registered: tests/unit/core/test_bookie_left.py, and"
    " tests/properties/test_writer_properties.py with the rule taken out"
)
GOES_AWAY = "a client that gives up is one whose steps are never taken"
NOT_BY_WRITERS = {
    **{("abandon", status): GOES_AWAY for status in ("writing", "changing", "closing")},
    **{
        (name, status): REGISTRATIONS
        for name in ("bookie_left", "left_bookies_asked")
        for status in ("writing", "changing")
    },
}
NOT_GIVEN = {
    "length_unavailable": "with fewer than Qa copies lost somebody has the last entry",
    "create_failed": "a world whose ledgers have run out leaves its handle waiting (tests/golden/test_log_golden.py)",
    "abandon": GOES_AWAY,
    "bookie_left": REGISTRATIONS,
    "left_bookies_asked": REGISTRATIONS,
    **dict.fromkeys(
        ("page_read", "page_deleted"), "a list of so few ledgers has no pages (tests/properties)"
    ),
    "log_deleted": "nobody deletes the log (tests/unit/log)",
}
NOT_COME_TO = {Status: {"abandoned"}}
NOT_MOVED = {
    "WriterMachine": {
        *(("metadata_unknown", status, "ended") for status in ("changing", "closing")),
        *((name, "writing", "changing") for name in ("append", "assign_ids")),
        ("adds_acked_together", "writing", "closing"),
    },
    "RecoveryMachine": {
        *(("fence_answered", "reading", status) for status in ("closing", "ended", "measuring")),
        *(("adds_answered", "reading", status) for status in ("ended", "measuring")),
        *(("replacements_found", "reading", status) for status in ("closing", "measuring")),
        ("waited", "reading", "ended"),
    },
    "RepairMachine": {
        ("listed", "listing", "clearing"),
        ("listed", "verifying", "listing"),
        ("record_read", "reading", "storing"),
        *(("stored", "storing", status) for status in ("reading", "copying", "clearing", "ended")),
        ("unknown", "storing", "ended"),
        *(("bookies_changed", status, status) for status in ("idle", "clearing")),
    },
    "LogMachine": {
        *(
            ("created", status, status)
            for status in ("idle", "reading", "fencing", "storing", "backing_off", "closing", "ended")
        ),
        ("head_read", "reading", "ended"),
        ("head_read", "reading", "storing"),
        ("head_read", "storing", "ended"),
        ("head_written", "closing", "closing"),
        ("ledger_failed", "closing", "ended"),
        ("recovery_failed", "fencing", "ended"),
    },
    "TrimMachine": {
        ("head_read", "reading", "clearing"),
        *(("head_written", status, "clearing") for status in ("storing", "clearing")),
        ("head_written", "clearing", "deleting"),
    },
}
"""Moves of the tables that these worlds do not come to: a ledger that comes when nothing awaits it, a log that is deleted, a
list that is corrupt, several intents at once, a bundle with a guaranteed write quorum, a ledger that is lost while it is closed (tests/unit/core/test_legality.py);
a store that never answers, and of recovery what a response leads to after the end was denied once or while an add is
under way (tests/golden/recovery, tests/unit/core); a bookie in limbo that lacks nothing, a target that refuses, notes of
holes, an empty fragment, a record that changes again and again (tests/unit/core/test_rereplication.py)."""
NOT_SAID = {
    effects: {"AskLeftBookies"},
    log_trimming: {"TrimReadPage", "TrimDeletePage", "TrimDeleteLog"},
}
"""The same, by what a machine comes to and says."""


class Seen:
    """What explorations came to."""

    def __init__(self):
        self.rules, self.kinds = Counter(), Counter()
        self.inputs, self.statuses, self.said, self.answers, self.records, self.ends, self.moves = (
            set() for _ in range(7)
        )

    def machine(self, kind, inputs):
        """The machine that ships, which notes what it is told, in which status, and what it says."""

        def noted(name):
            plain = getattr(kind, name)

            def told(machine, *args, **kwargs):
                before, count = machine.status, len(machine.out)
                try:
                    return plain(machine, *args, **kwargs)
                finally:
                    self.inputs.add((kind, name, before))
                    self.moves.add((kind, name, before, machine.status))
                    self.statuses |= {before, machine.status}
                    self.said |= {type(effect) for effect in machine.out[count:]}
                    self.ends |= {
                        effect.reason
                        for effect in machine.out[count:]
                        if isinstance(effect, log_effects.LeadershipEnded)
                    }

            return told

        return type(kind.__name__, (kind,), {"__slots__": (), **{name: noted(name) for name in inputs}})

    def rule(self, name):
        """A rule that ships, counted."""
        rule = getattr(RULES, name)

        def call(*args, **kwargs):
            self.rules[name] += 1
            return rule(*args, **kwargs)

        return call


def transition(old, new):
    """A compare-and-swap that was taken, by its number in the reference."""
    if old.fragments != new.fragments and repaired_only(old, new):
        return "M6"
    changed = "" if old.fragments == new.fragments else ", ensemble changed"
    appended = ", fragment appended" if len(new.fragments) > len(old.fragments) else changed
    return {
        (LedgerState.OPEN, LedgerState.OPEN): f"M2{appended}",
        (LedgerState.OPEN, LedgerState.CLOSED): "M3",
        (LedgerState.OPEN, LedgerState.IN_RECOVERY): "M4",
        (LedgerState.IN_RECOVERY, LedgerState.CLOSED): f"M5{appended}",
    }[old.state, new.state]


OF_TERMS = (
    "term_answer", "next_term", "is_own_take_over", "may_use_lac", "counts_as_positive", "votes_fall",
    "truncation_is_done", "truncate_takes", "copy_drops_others",
)  # fmt: skip
NOT_BY_THE_EXPLORER = {
    "judge_unknown": "its bookies begin with the key of their one ledger; see tests/unit/bookie/test_unknown_ledgers.py",
    "without_record": "its one ledger has a record from the beginning; the same",
    **dict.fromkeys(
        ("unlisted_is_garbage", "staged_is_garbage", "watermark_counts"),
        "no world has a clock: tests/unit/core/test_log_garbage.py",
    ),
    **dict.fromkeys(
        ("is_gone", "seconds_to_add", "copy_is_due", "may_recover_open", "mark_may_end"),
        "audits have a cluster of their own: tests/unit/core/test_audit.py",
    ),
    **dict.fromkeys(
        OF_TERMS,
        "ledgers have no terms: tests/check/test_streams.py",
    ),
    "fence_of_deleted": "its bookies are asked in our words: tests/unit/bookie/test_fences_of_deleted_ledgers.py",
}


def explored():
    seen = Seen()
    switches = replace(
        SHIPPED,
        rules=RULES.but(**{name: seen.rule(name) for name in RULES.rooms()}),
        writer=seen.machine(WriterMachine, WRITER_TABLE.rows),
        recovery=seen.machine(RecoveryMachine, RECOVERY_INPUTS),
        repair=seen.machine(RepairMachine, REPAIR_TABLE.rows),
        log=seen.machine(LogMachine, LOG_INPUTS),
        trim=seen.machine(TrimMachine, TRIM_INPUTS),
    )

    class WatchedWorld(LedgerWorld):
        def after_cas(self, store, ask, *, by_writer):
            after, answer = super().after_cas(store, ask, by_writer=by_writer)
            if answer == "written":
                seen.records.add(transition(store.record, ask.record))
            return after, answer

    for configuration in WORLDS:
        world = WatchedWorld(configuration, switches)
        watch = InvariantWatch(world)
        result = explore(world, watch, watch.deadlock, canonical=Symmetry(world), count_kinds=True)
        assert result.complete
        seen.kinds += result.kinds
        seen.answers |= {
            (request[0], answer) for link in world.links.parts for request, answer, _ in link.replies
        }
    for configuration in (*LOGS, *COLLECTORS, *BUNDLES, DirectoryConfiguration(entries=1, starts=2)):
        setting = setting_of(configuration, switches, None)
        world, form = setting.world, form_of(setting.world)
        result = explore(world, setting.violation_in, setting.deadlock_in, canonical=form, count_kinds=True)
        assert result.complete
        seen.kinds += result.kinds
    return seen


pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
"""The first test waits for all of these worlds, more than a minute: they are for `make full`."""


@pytest.fixture(scope="module")
def seen():
    return explored()


def test_every_rule_is_asked(seen):
    assert {name for name in RULES.rooms() if not seen.rules[name]} == NOT_BY_THE_EXPLORER.keys()


def test_every_message_fault_and_step_occurs(seen):
    assert sorted(KINDS - seen.kinds.keys()) == [], sorted(seen.kinds)


def test_every_kind_of_answer_is_heard(seen):
    assert sorted(ANSWERS - seen.answers) == [], sorted(seen.answers)


def test_every_transition_of_a_record_occurs(seen):
    assert sorted(RECORDS - seen.records) == [], sorted(seen.records)


def test_a_writer_acts_on_every_input_in_every_status_that_allows_it(seen):
    acts = {(name, status) for name, row in WRITER_TABLE.rows.items() for status in row}
    found = {(name, status) for kind, name, status in seen.inputs if kind is WriterMachine}
    assert {(name, status.value) for name, status in acts - found} == NOT_BY_WRITERS.keys()


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        (RecoveryMachine, RECOVERY_INPUTS),
        (RepairMachine, REPAIR_TABLE.rows),
        (LogMachine, LOG_INPUTS),
        (TrimMachine, TRIM_INPUTS),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_every_input_of_a_machine_is_given(seen, kind, inputs):
    given = {name for which, name, _ in seen.inputs if which is kind}
    assert set(inputs) - given == {name for name in NOT_GIVEN if name in inputs}


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (WriterMachine, WRITER_TABLE),
        (RecoveryMachine, RECOVERY_TABLE),
        (RepairMachine, REPAIR_TABLE),
        (LogMachine, LOG),
        (TrimMachine, TRIM),
    ],
)
def test_a_machine_moves_as_its_table_says(seen, kind, table):
    acts = {(name, status) for name, row in table.rows.items() for status in row}
    found = {
        (name, old.value, new.value)
        for which, name, old, new in seen.moves
        if which is kind and (old is not new or (name, old) in acts)
    }
    listed = {
        (name, old.value, new.value)
        for name, row in table.rows.items()
        if name not in {*NOT_GIVEN, "head_seen"}
        for old, after in row.items()
        for new in after
    }
    stays = {move for move in found if move[1] == move[2]}  # a response to what was not asked for
    assert found - listed <= stays
    assert listed - found == NOT_MOVED[kind.__name__]


@pytest.mark.parametrize(
    "enum", [Status, RecoveryStatus, RepairStatus, LogStatus, TrimStatus], ids=lambda each: each.__name__
)
def test_every_status_is_come_to(seen, enum):
    missing = {status.value for status in enum if status not in seen.statuses}
    assert missing == NOT_COME_TO.get(enum, set())


@pytest.mark.parametrize(
    ("module", "union"),
    [
        (effects, effects.WriterEffect),
        (effects, effects.RecoveryEffect),
        (repair_effects, RepairEffect),
        (log_effects, log_effects.Effect),
        (log_trimming, log_trimming.TrimEffect),
    ],
    ids=["writer", "recovery", "repair", "log", "truncation"],
)
def test_every_effect_is_asked_for(seen, module, union):
    missing = {each.__name__ for each in set(get_args(union)) - seen.said}
    assert missing == NOT_SAID.get(module, set()) & {each.__name__ for each in get_args(union)}


def test_a_leader_ends_in_every_way_that_these_worlds_have(seen):
    """Not: a deleted or corrupt log, a ledger that cannot be made, a client that goes away."""
    ways = {EndReason.CLOSED, EndReason.NOT_LEADER, EndReason.LEDGER_FAILED}
    assert ways <= seen.ends <= {*ways, EndReason.RECOVERY_FAILED}


# --- it can always still end well --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(2, 2, 2, 2),
        Configuration(2, 2, 2, 1, timeouts=1, reruns=1),
        Configuration(2, 2, 2, 2, crashes=1, reruns=1),
        Configuration(2, 2, 2, 2, breaks=1, reruns=1),
        Configuration(2, 2, 2, 2, lost_swaps=1, closes=True, reruns=1),
        Configuration(2, 2, 2, 2, crashes=1, journal=False, reruns=1),
        Configuration(2, 2, 2, 2, crashes=1, journal=False, reruns=1, named=True),
        Configuration(2, 2, 2, 2, entries=2),
        Configuration(2, 2, 2, 2, timeouts=1, reruns=1, waits=True),
    ],
    ids=lambda each: each.name,
)
def test_a_recovery_can_always_still_be_done(configuration):
    world = LedgerWorld(configuration)
    assert stranded(world, recovery_is_done(world), Symmetry(world)) == []


def all_is_told(world):
    """Whether the writer's callers have been told of all their entries."""
    last = world.configuration.entries_written - 1
    return lambda state: next(world.clients_of(state)).confirmed == last


def below_its_quorum(world, state):
    machine = next(world.clients_of(state)).machine
    return machine.status is Status.WRITING and machine.below_quorum


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(2, 2, 2, 2, entries=2, timeouts=2, recoverers=0, drops=True, waits=True),
        Configuration(3, 3, 3, 2, timeouts=3, recoverers=0, waits=True),
        Configuration(3, 2, 2, 2, timeouts=2, lost_swaps=1, recoverers=0, absent=True, waits=True),
    ],
    ids=lambda each: each.name,
)
def test_a_writer_that_waits_for_its_quorum_can_still_confirm_everything(configuration):
    world = LedgerWorld(configuration)
    symmetry = Symmetry(world)
    waiting = [state for state in visited(world, symmetry) if below_its_quorum(world, state)]
    assert len(waiting) > 100
    assert not {*waiting} & {*stranded(world, all_is_told(world), symmetry)}


def visited(world, canonical):
    """Every state of a world."""
    seen = level = {canonical(world.initial())}
    while level:
        level = {canonical(after) for state in level for _, after in world.successors(state)} - seen
        seen = seen | level
    return seen


def test_a_recovery_whose_adds_are_refused_is_stranded():
    rules = RULES.but(add_allowed=lambda *, fenced, recovery: not fenced)
    world = LedgerWorld(Configuration(2, 2, 2, 2), replace(SHIPPED, rules=rules))
    assert stranded(world, recovery_is_done(world), Symmetry(world))


@pytest.mark.parametrize(
    "configuration",
    [
        LogConfiguration(1, 3, 1, lost_swaps=1, closes=True, stages=1),
        LogConfiguration(1, 4, 2, lost_swaps=1),
        LogConfiguration(2, 2, 1, trims=1),
    ],
    ids=lambda each: each.name,
)
def test_every_leader_of_a_log_can_still_lead_or_end(configuration):
    world = LogWorld(configuration)
    assert stranded(world, log_is_settled(world)) == []


class NeverReadsAgain(LogMachine):
    """After a compare-and-swap that it lost it waits."""

    __slots__ = ()

    def head_conflicted(self):
        """Nothing."""


def test_a_leader_that_does_not_read_the_list_again_is_stranded():
    world = LogWorld(LogConfiguration(1, 2, 0, lost_swaps=1), replace(SHIPPED, log=NeverReadsAgain))
    assert stranded(world, log_is_settled(world))
