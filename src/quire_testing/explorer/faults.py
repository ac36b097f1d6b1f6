"""What goes wrong in a ledger's world: disks, time-outs, crashes, broken connections, lost responses, rot, deletion.

Each kind has a budget, how often it may happen in one path; a step that uses it up is a step like any other. The fields of
a bookie that they change are those of `BookieState` (explorer/bookies.py).

Source: docs/protocol/bookie.md, "Limbo"; docs/decisions/006-explorer.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire_testing.explorer.clients import bookie_name
from quire_testing.explorer.messages import Request, reply_text, request_text
from quire_testing.explorer.parts import CAS_LOST, Budget, Label, Move, State, Store, WorldParts


class Faults:
    """The steps of disks and of everything that fails."""

    def __init__(self, world: WorldParts) -> None:
        self._world = world
        self._kinds = (
            ("timeouts", self._timeouts),
            ("crashes", self._crashes),
            ("breaks", self._all_breaks),
            ("lost_swaps", self._lost_swaps),
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
        memo = world._memo("sync")
        number = state[bookie]
        found = memo.get((bookie, number))
        if found is None:
            found = memo[bookie, number] = self._sync(bookie, number)
        if found:
            label, after, replies = found
            new = list(state)
            new[bookie] = after
            for client, reply in replies:
                world._push_reply(new, client, bookie, reply)
            moves.append((label, tuple(new)))

    def _sync(self, bookie: int, number: int) -> Any:
        world = self._world
        before = world.bookies.parts[number]
        if not before.journal:
            return ()
        after, replies = world.bookie_driver.sync(before)
        said = tuple(f"-> {world.names[client]} {reply_text(reply)}" for client, reply in replies)
        return (
            Label(bookie_name(bookie), "syncs", said, kind="sync"),
            world.bookies.number(after),
            replies,
        )

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
        for slot, name in world.writer_driver.losable(world.clients.parts[state[world.at_client]]):
            moves.extend(self.lost(state, slot, name))
        for client in range(1, world.count):
            who = world.clients.parts[state[world.at_client + client]]
            if who.machine is None or who.idle:
                continue
            for bookie in range(world.n):
                for request in self.outstanding(state, client, bookie):
                    self.give_up(state, client, bookie, request, moves)

    def lost(self, state: State, slot: int, name: BookieId) -> list[Move]:
        """The writer gives a bookie up."""
        world = self._world
        memo = world._memo("lost")
        found = memo.get((state[world.at_client], slot))
        if found is None:
            outcomes = world.writer_driver.lost(world.clients.parts[state[world.at_client]], slot, name)
            found = [world._client_move(0, outcome, f"lost {name}", kind="timeout") for outcome in outcomes]
            memo[state[world.at_client], slot] = found
        return [(move[0], world._client_after(list(state), 0, move)) for move in found]

    def outstanding(self, state: State, client: int, bookie: int) -> list[Request]:
        """The requests of a client that a bookie has not answered."""
        world = self._world
        link = world.links.parts[state[world.at_link + client * world.n + bookie]]
        waiting = [request for request, waits in link.requests if waits]
        waiting += [reply[0] for reply in link.replies]
        waiting += [
            record[2][1]
            for record in world.bookies.parts[state[bookie]].journal
            if record[2] and record[2][0] == client and record[2][2]
        ]
        return waiting

    def give_up(self, state: State, client: int, bookie: int, request: Request, moves: list[Move]) -> None:
        """A client waits no longer for a response."""
        world = self._world
        who = world.clients.parts[state[world.at_client + client]]
        driver = world.driver_of(client)
        if not driver.waits_for(who, request):
            return
        new = list(state)
        index = world.at_link + client * world.n + bookie
        new[index] = world.links.number(world.links.parts[state[index]].given_up(request))
        before = world.bookies.parts[state[bookie]]
        journal = tuple(
            (
                kind,
                content,
                (*waiting[:2], False) if waiting and waiting[:2] == (client, request) else waiting,
            )
            for kind, content, waiting in before.journal
        )
        new[bookie] = world.bookies.number(before._replace(journal=journal))
        command = f"gives up {request_text(request)} at {bookie_name(bookie)}"
        for outcome in driver.gave_up(who, bookie, request):
            move = world._client_move(client, outcome, command, kind="timeout")
            moves.append((move[0], world._client_after([*new], client, move)))

    def _crashes(self, state: State, moves: list[Move]) -> None:
        world = self._world
        for bookie in range(world.n):
            before = world.bookies.parts[state[bookie]]
            if before.lost or (before.facts is None and not before.journal and not before.waiting):
                continue
            after = world.bookie_driver.crashed(before)
            new = world._stopped(state, bookie, before, after)
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
                new = world._stopped(state, bookie, before, after)
                moves.append((Label(bookie_name(bookie), "is lost for ever", (), kind="loss"), tuple(new)))

    def _transit_damages(self, state: State, moves: list[Move]) -> None:
        """An add of the writer arrives damaged: its bookie refuses it."""
        world = self._world
        for bookie in range(world.n):
            index = world.at_link + bookie
            link = world.links.parts[state[index]]
            if not link.requests or link.requests[0][0][0] != "add":
                continue
            (request, waits), rest = link.requests[0], link.requests[1:]
            link = link._replace(requests=rest)
            new = list(state)
            reply = (request, Answer.DAMAGED_IN_TRANSIT, None)
            new[index] = world.links.number(link.answered(reply) if waits else link)
            world._tidy(new, 0, index)
            said = (f"-> {world.names[0]} {reply_text(reply)}",) if waits else ()
            command = f"refuses {request_text(request)}, damaged on its way"
            label = Label(bookie_name(bookie), command, said, world.names[0], "transit damage")
            moves.append((label, tuple(new)))

    def _returns(self, state: State, moves: list[Move]) -> None:
        """A bookie that was lost is there again, with what it held."""
        world = self._world
        for number in range(world.n):
            before = world.bookies.parts[state[number]]
            if before.lost:
                new = list(state)
                new[number] = world.bookies.number(before._replace(lost=False))
                label = Label(bookie_name(number), "is back with what it held", (), kind="return")
                moves.append((label, tuple(new)))

    def _settle_disks(self, new: list[int]) -> None:
        """The last crash has been: what waits for a disk is on it now."""
        world = self._world
        for bookie in range(world.n):
            after, replies = world._synced(world.bookies.parts[new[bookie]])
            new[bookie] = world.bookies.number(after)
            for client, reply in replies:
                world._push_reply(new, client, bookie, reply)

    def _all_breaks(self, state: State, moves: list[Move]) -> None:
        self.breaks(state, moves, product(range(self._world.count), range(self._world.n)))

    def breaks(self, state: State, moves: list[Move], pairs: Iterable[tuple[int, int]]) -> None:
        """A connection of one of these pairs of client and bookie breaks."""
        world = self._world
        for client, bookie in pairs:
            index = world.at_link + client * world.n + bookie
            link = world.links.parts[state[index]]
            if not link.requests:
                continue
            new = list(state)
            new[index] = world.links.number(link.cut())
            world._tidy(new, client, index)
            command = f"its connection to {bookie_name(bookie)} breaks"
            moves.append((Label(world.names[client], command, (), kind="break"), tuple(new)))

    def _lost_swaps(self, state: State, moves: list[Move]) -> None:
        world = self._world
        for client in range(world.count):
            questions = world.asks.parts[state[world.at_ask + client]]
            for index, ask in enumerate(questions):
                if ask.kind != "swap" or not ask.waits:
                    continue
                kept = () if ask.answer else (ask._replace(waits=False),)
                rest = (*questions[:index], *kept, *questions[index + 1 :])
                driver = world.driver_of(client)
                who = world.clients.parts[state[world.at_client + client]]
                assert ask.record is not None
                outcomes = driver.cas_answered(who, "unknown", ask.record, ask.version)
                found = [
                    world._client_move(client, outcome, CAS_LOST, kind="lost swap") for outcome in outcomes
                ]
                world._with_questions(state, client, rest, found, moves)

    def _damages(self, state: State, moves: list[Move]) -> None:
        world = self._world
        for bookie in range(world.n):
            before = world.bookies.parts[state[bookie]]
            for entry in range(world.configuration.entries_written):
                if before.held >> entry & 1 and not before.damaged >> entry & 1 and not before.lost:
                    new = list(state)
                    new[bookie] = world.bookies.number(before._replace(damaged=before.damaged | 1 << entry))
                    label = Label(bookie_name(bookie), f"entry {entry} rots", (), kind="damage")
                    moves.append((label, tuple(new)))

    def _deletion(self, state: State, moves: list[Move]) -> None:
        """The owner deletes the ledger: the record goes, and every bookie gets it."""
        world = self._world
        store = world.stores.parts[state[world.at_store]]
        if store.record is None:
            return
        new = list(state)
        new[world.at_store] = world.stores.number(Store(None, store.version + 1, store.closes, store.fault))
        for bookie in range(world.n):
            before = world.bookies.parts[state[bookie]]
            if before.facts is not None and not before.lost:
                after, _, _ = world.bookie_driver.deliver(before, 0, ("delete",), waits=False)
                new[bookie] = world.bookies.number(after)
        if world._syncs_at_once(state):
            self._settle_disks(new)
        moves.append((Label("owner", "deletes the ledger", (), kind="delete"), tuple(new)))
