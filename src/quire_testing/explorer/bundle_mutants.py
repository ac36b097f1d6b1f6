"""The mutants of bundles: what the client or the bookie would do if it took a bundle for one add.

Source: docs/decisions/049-one-request-for-many-ledgers.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from quire.core.ids import BookieId
from quire.core.ledger.bundle_acks import BundleAcks, Delivery
from quire.core.ledger.writer import WriterMachine
from quire_testing.explorer.bundle_parts import BundleConfiguration
from quire_testing.explorer.ledger_mutants import TELLS_WHILE_CHANGING
from quire_testing.explorer.mutant import Mutant, with_rules
from quire_testing.explorer.switches import SHIPPED
from quire_testing.explorer.unfixed import UnorderedWriter


class CountsForTheSlots(WriterMachine):
    """What bookies of an ensemble acknowledged counts for the bookies at their slots now."""

    __slots__ = ()

    def adds_acked_together(self, slots: int, ensemble: tuple[BookieId, ...], run: int) -> None:
        """Whatever the run's ensemble was."""
        self._acked(slots, run)


class WaitsForTheQuorum(BundleAcks):
    """Nothing is delivered below the ack quorum, however many bookies a bundle went to."""

    __slots__ = ()

    def __init__(self, rows: int, bookies: int, ack_quorum: int) -> None:
        super().__init__(rows, bookies, ack_quorum)
        self._quorum = ack_quorum


class CountsForAllRows(BundleAcks):
    """An OK to some rows of a bundle counts for all of them."""

    __slots__ = ()

    def stored(self, bookie: int, first: int, rows: int) -> Sequence[Delivery]:
        """As if the bookie had stored everything."""
        return super().stored(bookie, 0, self._rows)


BUNDLE_MUTANTS: Final[tuple[Mutant[BundleConfiguration], ...]] = (
    Mutant(
        "bundle-judged-early",
        "a bundle's rows are judged when they are collected, not when they are stored",
        replace(SHIPPED, bundles="judged when collected"),
        BundleConfiguration(2, recoverers=1),
        "I9",
    ),
    Mutant(
        "bundle-answered-early",
        "a bundle is answered before its group is durable",
        replace(SHIPPED, bundles="answers early"),
        BundleConfiguration(2, 2, 2, 2, crashes=1),
        "I2",
    ),
    Mutant(
        "bundle-by-slot",
        "a bundle's acknowledgement counts for the bookie that is at the slot when it is delivered",
        replace(SHIPPED, writer=CountsForTheSlots),
        BundleConfiguration(4, 3, 3, 2, leaves=1),
        "I2",
    ),
    Mutant(
        "bundle-for-all-rows",
        "an OK to other runs of a bundle counts for a ledger that was refused alone",
        replace(SHIPPED, bundle=CountsForAllRows),
        BundleConfiguration(3, 3, 3, 2, fences=1),
        "I2",
    ),
    with_rules(
        "bundle-while-changing",
        "a bundle's acknowledgements confirm while an ensemble change is in flight",
        BundleConfiguration(4, 3, 3, 2, "XY-XY", timeouts=1),
        "I2",
        TELLS_WHILE_CHANGING,
    ),
    Mutant(
        "bundle-out-of-order",
        "the second bundle is answered first, and confirms",
        replace(SHIPPED, writer=UnorderedWriter),
        BundleConfiguration(3, 3, 3, 2, "XY-XY", transit_damages=1),
        "I2",
    ),
    Mutant(
        "bundle-overtaken",
        "a run that goes alone leaves before the open bundle with an earlier run of its ledger",
        replace(SHIPPED, bundles="overtakes"),
        BundleConfiguration(2, 2, 2, 2, "XYX"),
        "O",
    ),
    Mutant(
        "bundle-below-quorum",
        "a bundle that went to fewer bookies than the ack quorum waits for the quorum, and is forgotten before",
        replace(SHIPPED, bundle=WaitsForTheQuorum),
        BundleConfiguration(2, 2, 2, 2, "XY-XY", failures=1, waits=True),
        "F1",
        begin=(
            "client: appends XY",
            "b0: takes bundle 0",
            "client: gets OK to X and Y of bundle 0 from b0",
            "b1: takes bundle 0",
            "client: both lose b1",
            "X's writer: timer",
            "Y's writer: timer",
            "client: appends XY",
            "b0: takes bundle 1",
            "client: gets OK to X and Y of bundle 1 from b0",
            "client: gets OK to X's run 0 from b1",
            "X's writer: found b1 back",
            "client: gets OK to Y's run 0 from b1",
            "Y's writer: found b1 back",
        ),
    ),
)
