"""Fixes taken out of repair, in worlds with repairers.

Source: docs/protocol/repair.md; docs/counterexamples.md, "All of them".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from quire.core.bookie.rules import DropProof
from quire_testing.explorer.bookies import BookieDriver
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.mutant import Mutant, with_rules
from quire_testing.explorer.over_replication_steps import OverReplicationSteps
from quire_testing.explorer.patches import Patch
from quire_testing.explorer.switches import RULES, SHIPPED
from quire_testing.explorer.unfixed import ChoosesForTheOldRecord, PublishesIntoAnyFragment

CLOSED: Final = Configuration(3, 2, 2, 2, recoverers=0, losses=1, repairers=1, closed=True)

LOST_ITS_TAIL: Final = (
    "writer: has changed the ensemble: OPEN 0:[b0 b1] 1:[b0 b2]",
    "b0: takes add 1..1 lac=0 from writer",
    "b2: takes add 1..1 lac=0 from writer",
    "b0: syncs",
    "b2: syncs",
    "b2: syncs",
    "writer: hears OK to add 1..1 lac=0 from b0",
    "writer: hears OK to add 1..1 lac=0 from b2",
    "b0: crashes and starts again",
)
"""Entry 1 is acknowledged, in a fragment that is not decided, and one of its two bookies has lost it."""

REPAIR_MUTANTS: Final[tuple[Mutant[Configuration], ...]] = (
    with_rules(
        "X31",
        "a repair puts a bookie into the record before it holds everything",
        CLOSED,
        "RR2",
        may_publish=lambda *, missing: True,
    ),
    Mutant(
        "X32",
        "a repair touches the last fragment of an open ledger",
        replace(
            SHIPPED,
            rules=RULES.but(fragment_is_decided=lambda record, index: True),
            repair=PublishesIntoAnyFragment,
        ),
        Configuration(3, 2, 2, 2, recoverers=0, losses=1, repairers=1),
        "I2",
        ("fragment_is_decided",),
    ),
    with_rules(
        "X37",
        "a time-out counts as missing, and all that is missing is lost",
        replace(CLOSED, timeouts=1),
        "RR3",
        counts_as_missing=lambda answer: True,
        is_lost=lambda *, holders, silent: holders == 0,
    ),
    Mutant(
        "X38",
        "a repair keeps the targets that it chose before the record was read again",
        replace(SHIPPED, repair=ChoosesForTheOldRecord),
        Configuration(3, 2, 2, 2, entries=0, recoverers=0, losses=2, repairers=2, closed=True),
        "I6",
    ),
    with_rules(
        "repair-limbo-open",
        "a repair ends the limbo of a bookie that a fragment names whose end is not decided",
        Configuration(3, 2, 2, 2, entries=2, crashes=1, journal=False, named=True, repairers=1, changed=True),
        "I1",
        begin=LOST_ITS_TAIL,
        may_end_limbo=lambda filled, record, bookie: True,
    ),
)
"""In the order in which docs/counterexamples.md shows them."""

BACK: Final = Configuration(
    3, 2, 2, 2, recoverers=0, losses=1, returns=1, repairers=1, closed=True, collects=True
)

TWO_COPY: Final = (
    "writer: has closed, lacking: nothing",
    "b0: is lost for ever",
    "repairer 1: repairs, gone b0",
    "repairer 1: reads CLOSED at 0 length 1 0:[b0 b1]",
    "repairer 1: lists b1",
    "repairer 1: lists b2",
    "repairer 1: reads 0 for b2: 0",
    "repairer 2: repairs, gone b0",
    "repairer 2: reads CLOSED at 0 length 1 0:[b0 b1]",
    "repairer 2: lists b1",
    "repairer 2: lists b2",
    "repairer 2: reads 0 for b2: 0",
    "b2: takes copies of 0..0: 0 from repairer 1",
)
"""Two repairers are about to put the same bookie in the place of a lost one, and the copy of the first has arrived."""

OVER_REPLICATION_MUTANTS: Final[tuple[Mutant[Configuration], ...]] = (
    with_rules(
        "X42",
        "over-replicated entries are dropped without a bound: what was put since the first look goes too",
        replace(BACK, repairers=2),
        "RR2",
        Patch(BookieDriver._put, "pending_deletion=0", "pending_deletion=state.pending_deletion & ~bits"),
        Patch(OverReplicationSteps._collects, "written = bool(bookie.put)", "written = False"),
        begin=TWO_COPY,
    ),
    with_rules(
        "over-replicated-look-first",
        "the last look at the record is from before their deletion was pending",
        BACK,
        "RR2",
        Patch(
            OverReplicationSteps._collects,
            """, pending_deletion=at.entries)
            what = f"has a pending deletion of {entries_text(at.entries)}\"""",
            ")",
        ),
    ),
    with_rules(
        "over-replicated-loss",
        "what was accepted as lost is no bookie's, and goes as what stands above the end does",
        Configuration(
            3,
            2,
            2,
            2,
            recoverers=0,
            losses=1,
            returns=1,
            damages=1,
            repairers=1,
            closed=True,
            collects=True,
            accepts_loss=True,
        ),
        "RR4",
        drop_proof=lambda *, above_end, accepted_loss: (
            DropProof.RECORD if accepted_loss else RULES.drop_proof(above_end=above_end, accepted_loss=False)
        ),
    ),
)
"""Of a bookie that was lost, replaced, is back, and may be chosen again. No program plays them: they are the collector's."""
