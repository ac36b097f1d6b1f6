"""How a ledger's world begins: with the ledger, or with bookies that are away while the writer creates it.

Which slots are absent then is chosen as the programs place them, and the rule that ships says whether a ledger may
begin so. A bookie that is away takes part from the start, since it may be back at any time: it is sent nothing by the
writer until that has found it.

Source: docs/decisions/004-absent-slots.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core import quorum
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger_metadata import DigestType, LedgerMetadata, new_ledger
from quire.core.placement import Shape, slots_for_absent
from quire_testing.explorer.bookies import LEDGER
from quire_testing.explorer.clients import bookie_name, patience
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.parts import Move, State, Store, WorldParts

NOT_CREATED = Store(None, -1)
"""The store before the ledger is there."""


def shape_of(configuration: Configuration) -> Shape:
    """What the writer asks for."""
    c = configuration
    return Shape(c.ensemble, c.write_quorum, c.ack_quorum, c.min_present or c.ack_quorum)


def record_of(configuration: Configuration, ensemble: Sequence[BookieId] = ()) -> LedgerMetadata:
    """The ledger's record as created, by default on the first bookies."""
    return new_ledger(
        LedgerId(LEDGER),
        ensemble or [bookie_name(i) for i in range(configuration.ensemble)],
        write_quorum=configuration.write_quorum,
        ack_quorum=configuration.ack_quorum,
        digest_type=DigestType.CRC32C,
        password=b"",
    )


class Beginning(WorldParts):
    """The creation of the ledger, where it is a step."""

    def _creations(self, state: State) -> list[Move]:
        """Every way to create the ledger that the rule allows; nothing else happens before."""
        c, rules = self.configuration, self.switches.rules
        shape = shape_of(c)
        masks = quorum.write_set_masks(c.ensemble, c.write_quorum)
        moves: list[Move] = []
        for absent in slots_for_absent(c.ensemble, c.away):
            present = sum(1 << slot for slot in range(c.ensemble) if slot not in absent)
            if rules.may_create(present, masks, shape.ack_quorum, shape.min_present):
                moves += self._created_without(state, absent)
        return moves

    def _created_without(self, state: State, absent: tuple[int, ...]) -> list[Move]:
        record = record_of(self.configuration)
        machine = self.switches.writer(
            record, 0, rules=self.switches.rules, limits=patience(self.configuration)
        )
        new = list(state)
        new[self.at_store] = self.stores.number(self.created(record, absent))
        command = f"creates the ledger without {' '.join(bookie_name(slot) for slot in absent)}"
        client_moves = [
            self._client_move(0, outcome, command)
            for outcome in self.writer_driver.step(
                self.writer_driver.new(machine), lambda m: m.began_without(list(absent), 0)
            )
        ]
        return [(move[0], self._client_after([*new], 0, move)) for move in client_moves]

    def created(self, record: LedgerMetadata, absent: Sequence[int]) -> Store:
        """The store with the new ledger; C is judged here, by counting and not by the rule."""
        shape = shape_of(self.configuration)
        there = {*range(shape.ensemble_size)} - {*absent}
        thinnest = min(
            len(there.intersection(quorum.write_set(entry, shape.ensemble_size, shape.write_quorum)))
            for entry in range(shape.ensemble_size)
        )
        fault = None
        if len(there) < shape.min_present:
            fault = ("C", f"created with {len(there)} bookies there, and {shape.min_present} was the minimum")
        elif thinnest < shape.ack_quorum:
            fault = ("C", f"created with a write set of which {thinnest} are there, not {shape.ack_quorum}")
        return Store(record, 0, 0, fault)
