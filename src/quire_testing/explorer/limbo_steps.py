"""The steps after a loss: a bookie looks for what it lost and asks for fences; a client fills it and ends its limbo.

A question to the store is three steps: asked (with the add that makes it), read at the store, received. Whatever else
happens may come between any two of them, and so with the four of limbo's end: looked, filled, read again, arrived.

Source: `bookie/ledgers/unknown_ledgers.py`, `bookie/server.py`, `client/repairing/copies.py`; `docs/protocol/bookie.md`, "Limbo".
"""

from __future__ import annotations

from quire.core.bookie.ledger import LedgerFacts
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.quorum import write_set
from quire.core.transcript import record_text
from quire_testing.explorer.bookies import BookieState
from quire_testing.explorer.clients import bookie_name
from quire_testing.explorer.parts import Clearing, WorldParts
from quire_testing.explorer.tables import Label, Move, State

CLEARER = "clearer"


class LimboSteps:
    """What bookies and clients do about what may be lost."""

    def __init__(self, world: WorldParts) -> None:
        self._world = world

    def moves_of(self, state: State, moves: list[Move]) -> None:
        """Every step after a loss."""
        world = self._world
        for bookie in range(world.n):
            self.moves_of_bookie(state, bookie, moves)
        if world.at_clearing != world.at_budget:
            self.clearing_moves(state, moves)

    def moves_of_bookie(self, state: State, bookie: int, moves: list[Move]) -> None:
        """What one bookie does about its own limbo."""
        before = self._world.bookies.parts[state[bookie]]
        if before.looking:
            moves.append(self._looks_for_lost(state, bookie, before))
        if before.question == "asked":
            moves.append(self._store_answers(state, bookie, before))
        elif before.question:
            moves.append(self._hears_answer(state, bookie, before))

    def _record(self, state: State) -> LedgerMetadata | None:
        world = self._world
        return world.stores.parts[state[world.at.store]].record

    def _looks_for_lost(self, state: State, bookie: int, before: BookieState) -> Move:
        after = self._world.bookie_driver.look_for_lost(before, self._record(state), bookie_name(bookie))
        said = "it may have lost entries" if after.in_limbo else "nothing names it"
        label = Label(bookie_name(bookie), "looks through the records", (said,), kind="scan")
        return label, self._world._with_bookie(state, bookie, after)

    def _store_answers(self, state: State, bookie: int, before: BookieState) -> Move:
        record = self._record(state)
        after = self._world.bookie_driver.store_answers(before, record, bookie_name(bookie))
        text = record_text(record) if record is not None else "nothing"
        command = f"reads {text} for {bookie_name(bookie)}"
        return Label("store", command, (), bookie_name(bookie), "ask"), self._world._with_bookie(
            state, bookie, after
        )

    def _hears_answer(self, state: State, bookie: int, before: BookieState) -> Move:
        world = self._world
        after, replies, said = world.bookie_driver.answered(before)
        after, more = world._settled(state, after)
        replies = [*replies, *more]
        said += world._said(replies)
        what = "settles the fence" if before.question == "settled" else "does not settle the fence"
        label = Label(bookie_name(bookie), f"hears that the record {what}", tuple(said), "store", "answer")
        new = list(self._world._with_bookie(state, bookie, after))
        world._push_replies(new, bookie, replies)
        return label, tuple(new)

    # --- the end of limbo --------------------------------------------------------------------------------------------

    def clearing_moves(self, state: State, moves: list[Move]) -> None:
        """The next step of the client that ends limbo."""
        world = self._world
        clearing = world.clearings.parts[state[world.at_clearing]]
        if not clearing.step:
            if clearing.left:
                self._begin_clearing(state, clearing, moves)
            return
        name = bookie_name(clearing.bookie)
        if clearing.step == "filling":
            self._fill(state, clearing, moves)
        elif clearing.step == "filled":
            record = self._record(state)
            rule, filled = world.switches.rules.may_end_limbo, clearing.filled
            ends = record is not None and filled is not None and rule(filled, record, name)
            after = clearing._replace(step="sent", filled=None) if ends else Clearing(clearing.left)
            text = record_text(record) if record is not None else "nothing"
            said = (f"ends the limbo {clearing.lsn} of {name}",) if ends else ("gives up",)
            label = Label(CLEARER, f"reads {text}", said, kind="reads again")
            moves.append((label, self._with_clearing(state, after)))
        else:
            before = world.bookies.parts[state[clearing.bookie]]
            after_bookie, answer = world.bookie_driver.clear_limbo(before, clearing.lsn)
            after_bookie, _ = world._settled(state, after_bookie)
            label = Label(name, f"takes clear limbo {clearing.lsn}", (answer.name,), CLEARER, "clear")
            new = self._world._with_bookie(state, clearing.bookie, after_bookie)
            moves.append((label, self._with_clearing(new, Clearing(clearing.left))))

    def _begin_clearing(self, state: State, clearing: Clearing, moves: list[Move]) -> None:
        world = self._world
        for bookie in range(world.n):
            facts = world.bookies.parts[state[bookie]].facts
            limbo = LedgerFacts(*facts).limbo if facts else None
            if limbo is not None:
                label = Label(
                    CLEARER, f"sees the limbo {limbo.lsn} of {bookie_name(bookie)}", (), kind="sees"
                )
                after = Clearing(clearing.left - 1, "filling", bookie, limbo.lsn)
                moves.append((label, self._with_clearing(state, after)))

    def _fill(self, state: State, clearing: Clearing, moves: list[Move]) -> None:
        """It copies what is decided and what the bookie lacks of its entries; where no copy is left, it gives up."""
        world = self._world
        record, bookie = self._record(state), clearing.bookie
        lacks = None if record is None else self._lacking(state, record, bookie)
        if record is None or lacks is None:
            label = Label(CLEARER, f"cannot fill {bookie_name(bookie)}", (), kind="fill")
            moves.append((label, self._with_clearing(state, Clearing(clearing.left))))
            return
        new = state
        if lacks:
            before = world.bookies.parts[state[bookie]]
            new = self._world._with_bookie(state, bookie, world.bookie_driver.fill(before, lacks))
        entries = " ".join(str(entry) for entry in range(lacks.bit_length()) if lacks >> entry & 1)
        label = Label(CLEARER, f"fills {bookie_name(bookie)} with {entries or 'nothing'}", (), kind="fill")
        moves.append((label, self._with_clearing(new, clearing._replace(step="filled", filled=record))))

    def _lacking(self, state: State, record: LedgerMetadata, bookie: int) -> int | None:
        """The decided entries that a bookie should hold and does not; None if one of them is nowhere."""
        world = self._world
        lacks, name = 0, bookie_name(bookie)
        readable = [
            0 if part.lost else part.held & ~part.damaged
            for part in (world.bookies.parts[number] for number in state[: world.n])
        ]
        for index in range(len(record.fragments)):
            last = record.last_entry_of_fragment(index)
            fragment = record.fragments[index]
            if last is None or name not in fragment.ensemble:
                continue
            for entry in range(fragment.first_entry, last + 1):
                slots = write_set(entry, record.ensemble_size, record.write_quorum)
                members = [fragment.ensemble[slot] for slot in slots]
                if name not in members or readable[bookie] >> entry & 1:
                    continue
                if not any(readable[int(each[1:])] >> entry & 1 for each in members):
                    return None
                lacks |= 1 << entry
        return lacks

    def _with_clearing(self, state: State, after: Clearing) -> State:
        world = self._world
        new = list(state)
        new[world.at_clearing] = world.clearings.number(after)
        return tuple(new)
