"""How a ledger's world begins: with the ledger, or with bookies that are away while the writer creates it.

Which slots are absent then is chosen as the programs place them, and the rule that ships says whether a ledger may
begin so. A bookie that is away takes part from the start, since it may be back at any time: it is sent nothing by the
writer until that has found it.

Source: docs/decisions/004-absent-slots.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

from quire.core.answers import Answer
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger import quorum
from quire.core.ledger.guarantee import GUARANTEED
from quire.core.ledger.metadata import DigestType, LedgerMetadata, new_ledger
from quire.core.ledger.placement import Shape, slots_for_absent
from quire.core.transcript import record_text
from quire_testing.explorer.bookies import LEDGER
from quire_testing.explorer.clients import ClientState, bookie_name, patience
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.messages import Request
from quire_testing.explorer.parts import Store, WorldParts
from quire_testing.explorer.tables import Label, Move, State

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
        custom=dict([GUARANTEED]) if configuration.guarantee else None,
    )


def lacking_copies(configuration: Configuration) -> Iterator[tuple[frozenset[int], ...]]:
    """For each entry the slots of its write set that lack it, in every way in which Qa of them have each."""
    c = configuration
    ways = []
    for entry in range(c.entries):
        slots = quorum.write_set(entry, c.ensemble, c.write_quorum)
        spare = range(c.write_quorum - c.ack_quorum + 1)
        ways.append([frozenset(some) for size in spare for some in combinations(slots, size)])
    return product(*ways)


class Beginning:
    """The creation of the ledger, where it is a step."""

    def __init__(self, world: WorldParts) -> None:
        self._world = world

    def creations(self, state: State) -> list[Move]:
        """Every way to create the ledger that the rule allows; nothing else happens before."""
        world = self._world
        c, rules = world.configuration, world.switches.rules
        if c.closed:
            return [self._closed_without(state, lacking) for lacking in lacking_copies(c)]
        if c.changed:
            return [self._changed(state)]
        shape = shape_of(c)
        masks = quorum.write_set_masks(c.ensemble, c.write_quorum)
        moves: list[Move] = []
        for absent in slots_for_absent(c.ensemble, c.away):
            present = sum(1 << slot for slot in range(c.ensemble) if slot not in absent)
            if rules.may_create(present, masks, shape.ack_quorum, shape.min_present):
                moves += self._created_without(state, absent)
        return moves

    def _created_without(self, state: State, absent: tuple[int, ...]) -> list[Move]:
        world = self._world
        record = record_of(world.configuration)
        machine = world.switches.writer(
            record, 0, rules=world.switches.rules, limits=patience(world.configuration)
        )
        new = list(state)
        new[world.at.store] = world.stores.number(self.created(record, absent))
        command = f"creates the ledger without {' '.join(bookie_name(slot) for slot in absent)}"
        outcomes = world.writer_driver.step(
            world.writer_driver.new(machine), lambda m: m.began_without(list(absent), 0)
        )
        return world._after_each(new, 0, world._client_moves(0, outcomes, command))

    def _closed_without(self, state: State, lacking: tuple[frozenset[int], ...]) -> Move:
        """The writer has closed, and some slots lack some entries.

        Args:
            lacking: for each entry, the slots that do not have it.
        """
        world = self._world
        c = world.configuration
        writer, requests = self._appended(self._created_writer(), c.entries)
        (asked,) = world.writer_driver.step(writer, lambda m: m.close())
        (closed,) = world.writer_driver.step(asked.client, lambda m: m.metadata_written(1))
        (_, record, _), *_ = asked.asks
        holes = [
            f"{entry} at {bookie_name(slot)}" for entry, slots in enumerate(lacking) for slot in sorted(slots)
        ]
        new = self._held(state, [(slot, each) for slot, each in requests if slot not in lacking[each[3]]])
        new[world.at.store] = world.stores.number(Store(record, 1, 1))
        new[world.at.client] = world.clients.number(closed.client)
        return Label("writer", f"has closed, lacking: {', '.join(holes) or 'nothing'}", kind="closed"), tuple(
            new
        )

    def _changed(self, state: State) -> Move:
        """Entry 0 is everywhere; entry 1 is on its way, to a next fragment without the first ensemble's last bookie."""
        world = self._world
        c = world.configuration
        writer, requests = self._appended(self._created_writer(), 1)
        slot = c.ensemble - 1
        sent = world.writer_driver.step(writer, lambda m: m.append(c.run, c.run))[0]
        lost = world.writer_driver.lost(sent.client, slot, bookie_name(slot))[0]
        changed = world.writer_driver.step(lost.client, lambda m: m.metadata_written(1))[0]
        (_, record, _), *_ = lost.asks
        new = self._held(state, requests)
        new[world.at.store] = world.stores.number(Store(record, 1))
        steps = [replace(outcome, asks=()) for outcome in (sent, lost, changed)]
        for move in world._client_moves(0, steps, "changes"):
            new = [*world._client_after(new, 0, move)]
        if c.gone:
            left = world.bookies.parts[new[slot]]
            new = world._stopped((*new,), slot, left._replace(lost=True), left.all_waiting)
        return Label("writer", f"has changed the ensemble: {record_text(record)}", kind="changed"), tuple(new)

    def _created_writer(self) -> ClientState:
        world = self._world
        rules, limits = world.switches.rules, patience(world.configuration)
        return world.writer_driver.new(
            world.switches.writer(record_of(world.configuration), 0, rules=rules, limits=limits)
        )

    def _appended(self, writer: ClientState, entries: int) -> tuple[ClientState, list[tuple[int, Request]]]:
        """A writer whose entries are acknowledged by all slots; and (slot, request) of each add."""
        world = self._world
        c, requests = world.configuration, []
        for _ in range(entries):
            (sent,) = world.writer_driver.step(writer, lambda m: m.append(c.run, c.run))
            writer = sent.client
            for bookie, request in sent.sends:
                requests.append((bookie, request))
                reply = (request, Answer.OK, None)
                (acked,) = world.writer_driver.answered(writer, bookie, reply)
                writer = acked.client
        return writer, requests

    def _held(self, state: State, requests: Sequence[tuple[int, Request]]) -> list[int]:
        """The state once these requests of the writer are on their bookies' disks."""
        world = self._world
        new = list(state)
        for bookie, request in requests:
            after, _, _ = world.bookie_driver.deliver(
                world.bookies.parts[new[bookie]], 0, request, waits=False
            )
            new[bookie] = world.bookies.number(world._synced(after)[0])
        return new

    def created(self, record: LedgerMetadata, absent: Sequence[int]) -> Store:
        """The store with the new ledger; invariant C is judged here, by counting and not by the rule."""
        shape = shape_of(self._world.configuration)
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
