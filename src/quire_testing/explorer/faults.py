"""What goes wrong in a ledger's world: disks, time-outs, crashes, broken connections, lost responses, rot, deletion.

Each kind has a budget, how often it may happen in one path; a step that uses it up is a step like any other. The fields of
a bookie that they change are those of `BookieState` (explorer/bookies.py).

Source: docs/protocol/bookie.md, "Limbo"; docs/decisions/006-explorer.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire_testing.explorer.clients import bookie_name
from quire_testing.explorer.messages import request_text
from quire_testing.explorer.parts import Budget, Store, WorldParts
from quire_testing.explorer.tables import Label, Move, State


class Faults:
    """The steps of disks and of everything that fails."""

    def __init__(self, world: WorldParts) -> None:
        self._world = world
        self._kinds = (
            ("timeouts", self._timeouts),
            ("crashes", self._crashes),
            ("breaks", partial(world.breaks, world.pairs)),
            ("lost_swaps", world.lost_swaps),
            ("damages", self._damages),
            ("deletions", self._deletion),
            ("transit_damages", self._transit_damages),
            ("losses", self._losses),
            ("returns", self._returns),
        )

    def syncs(self, state: State, moves: list[Move]) -> None:
        """Every disk may sync."""
        for bookie in range(self._world.n):
            self.sync_moves(state, bookie, moves)

    def sync_moves(self, state: State, bookie: int, moves: list[Move]) -> None:
        """One disk may sync."""
        world = self._world
        key = ("sync", bookie, state[bookie])
        found = world._memo.get(key)
        if found is None:
            found = world._memo[key] = self._sync(*key[1:])
        if found:
            label, after, replies = found
            new = list(state)
            new[bookie] = after
            world._push_replies(new, bookie, replies)
            moves.append((label, tuple(new)))

    def _sync(self, bookie: int, number: int) -> Any:
        world = self._world
        before = world.bookies.parts[number]
        if not before.journal:
            return ()
        after, replies = world.bookie_driver.sync(before)
        label = Label(bookie_name(bookie), "syncs", world._said(replies), kind="sync")
        return label, world.bookies.number(after), replies

    def moves_of(self, state: State, budget: Budget, moves: list[Move]) -> None:
        """Everything that may fail, as far as the budget goes."""
        budgets = self._world.budgets
        for kind, happens in self._kinds:
            left = getattr(budget, kind)
            if left:
                spent = budgets.number(budget._replace(**{kind: left - 1}))
                happens((*state[:-1], spent), moves)

    def _timeouts(self, state: State, moves: list[Move]) -> None:
        world = self._world
        for slot, name in world.writer_driver.losable(world.clients.parts[state[world.at.client]]):
            moves.extend(self.lost(state, slot, name))
        for client in range(1, world.count):
            who = world.clients.parts[state[world.at.client + client]]
            if who.machine is None or who.idle:
                continue
            for bookie in range(world.n):
                for request in world.outstanding(state, client, bookie):
                    world.give_up(state, client, bookie, request, moves)

    def lost(self, state: State, slot: int, name: BookieId) -> list[Move]:
        """The writer gives a bookie up."""
        world = self._world
        key = ("lost", state[world.at.client], slot)
        found = world._memo.get(key)
        if found is None:
            outcomes = world.writer_driver.lost(world.clients.parts[state[world.at.client]], slot, name)
            found = world._memo[key] = world._client_moves(0, outcomes, f"lost {name}", kind="timeout")
        return world._after_each(state, 0, found)

    def _crashes(self, state: State, moves: list[Move]) -> None:
        world = self._world
        for bookie in range(world.n):
            before = world.bookies.parts[state[bookie]]
            if before.lost or (before.facts is None and not before.journal and not before.waiting):
                continue
            new = world._stopped(state, bookie, world.bookie_driver.crashed(before), before.all_waiting)
            if world._syncs_at_once(state):
                self._settle_disks(new)
            moves.append(
                (Label(bookie_name(bookie), "crashes and starts again", (), kind="crash"), tuple(new))
            )

    def _losses(self, state: State, moves: list[Move]) -> None:
        """A bookie is lost for ever. What it held and its fence stay, for the invariants; nothing reads its other fields."""
        world = self._world
        for bookie in range(world.n):
            before = world.bookies.parts[state[bookie]]
            if not before.lost:
                after = before._replace(
                    journal=(),
                    waiting=(),
                    looking=False,
                    question="",
                    lost=True,
                    collecting=None,
                    pending_deletion=0,
                    put=0,
                )
                new = world._stopped(state, bookie, after, before.all_waiting)
                moves.append((Label(bookie_name(bookie), "is lost for ever", (), kind="loss"), tuple(new)))

    def _transit_damages(self, state: State, moves: list[Move]) -> None:
        """An add of the writer arrives damaged: its bookie refuses it."""
        world = self._world
        for bookie in range(world.n):
            index = world.at.link + bookie
            link = world.links.parts[state[index]]
            if not link.requests or link.requests[0][0][0] != "add":
                continue
            (request, waits), rest = link.requests[0], link.requests[1:]
            link = link._replace(requests=rest)
            new = list(state)
            reply = (request, Answer.DAMAGED_IN_TRANSIT, None)
            new[index] = world.links.number(link.answered(reply) if waits else link)
            world._tidy(new, 0, index)
            said = world._said([(0, reply)]) if waits else ()
            command = f"refuses {request_text(request)}, damaged on its way"
            label = Label(bookie_name(bookie), command, said, world.names[0], "transit damage")
            moves.append((label, tuple(new)))

    def _returns(self, state: State, moves: list[Move]) -> None:
        """A bookie that was lost is there again, with what it held."""
        world = self._world
        for number in range(world.n):
            before = world.bookies.parts[state[number]]
            if before.lost:
                label = Label(bookie_name(number), "is back with what it held", (), kind="return")
                moves.append((label, world._with_bookie(state, number, before._replace(lost=False))))

    def _settle_disks(self, new: list[int]) -> None:
        """The last crash has been: what waits for a disk is on it now."""
        world = self._world
        for bookie in range(world.n):
            after, replies = world._synced(world.bookies.parts[new[bookie]])
            new[bookie] = world.bookies.number(after)
            world._push_replies(new, bookie, replies)

    def _damages(self, state: State, moves: list[Move]) -> None:
        world = self._world
        for bookie in range(world.n):
            before = world.bookies.parts[state[bookie]]
            for entry in range(world.configuration.entries_written):
                if before.held >> entry & 1 and not before.damaged >> entry & 1 and not before.lost:
                    rotten = before._replace(damaged=before.damaged | 1 << entry)
                    label = Label(bookie_name(bookie), f"entry {entry} rots", (), kind="damage")
                    moves.append((label, world._with_bookie(state, bookie, rotten)))

    def _deletion(self, state: State, moves: list[Move]) -> None:
        """The owner deletes the ledger: the record goes, and every bookie gets it."""
        world = self._world
        store = world.stores.parts[state[world.at.store]]
        if store.record is None:
            return
        new = list(state)
        new[world.at.store] = world.stores.number(Store(None, store.version + 1, store.closes, store.fault))
        for bookie in range(world.n):
            before = world.bookies.parts[state[bookie]]
            if before.facts is not None and not before.lost:
                after, _, _ = world.bookie_driver.deliver(before, 0, ("delete",), waits=False)
                new[bookie] = world.bookies.number(after)
        if world._syncs_at_once(state):
            self._settle_disks(new)
        moves.append((Label("owner", "deletes the ledger", (), kind="delete"), tuple(new)))
