"""What goes wrong in a ledger's world: disks, time-outs, crashes, broken connections, lost responses, rot, deletion.

Each kind has a budget; a step that uses it up is a step like any other.

Source: docs/protocol/bookie.md, "After a loss"; docs/decisions/006-explorer.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire_testing.explorer.clients import bookie_name
from quire_testing.explorer.messages import Request, reply_text, request_text
from quire_testing.explorer.parts import Budget, Label, Move, State, Store, WorldParts


class Faults(WorldParts):
    """The steps of disks and of everything that fails."""

    def _syncs(self, state: State, moves: list[Move]) -> None:
        for bookie in range(self.n):
            self._sync_moves(state, bookie, moves)

    def _sync_moves(self, state: State, bookie: int, moves: list[Move]) -> None:
        memo = self._memo("sync")
        number = state[bookie]
        found = memo.get((bookie, number))
        if found is None:
            found = memo[bookie, number] = self._sync(bookie, number)
        if found:
            label, after, replies = found
            new = list(state)
            new[bookie] = after
            for client, reply in replies:
                self._push_reply(new, client, bookie, reply)
            moves.append((label, tuple(new)))

    def _sync(self, bookie: int, number: int) -> Any:
        before = self.bookies.parts[number]
        if not before.journal:
            return ()
        after, replies = self.bookie_driver.sync(before)
        said = tuple(f"-> {self.names[client]} {reply_text(reply)}" for client, reply in replies)
        return Label(bookie_name(bookie), "syncs", said, kind="sync"), self.bookies.number(after), replies

    def _faults(self, state: State, budget: Budget, moves: list[Move]) -> None:
        if budget.timeouts:
            spent = self.budgets.number(budget._replace(timeouts=budget.timeouts - 1))
            self._timeouts((*state[:-1], spent), moves)
        if budget.crashes:
            spent = self.budgets.number(budget._replace(crashes=budget.crashes - 1))
            self._crashes((*state[:-1], spent), moves)
        if budget.breaks:
            spent = self.budgets.number(budget._replace(breaks=budget.breaks - 1))
            self._breaks((*state[:-1], spent), moves, product(range(self.count), range(self.n)))
        if budget.lost_swaps:
            spent = self.budgets.number(budget._replace(lost_swaps=budget.lost_swaps - 1))
            self._lost_swaps((*state[:-1], spent), moves)
        if budget.damages:
            spent = self.budgets.number(budget._replace(damages=budget.damages - 1))
            self._damages((*state[:-1], spent), moves)
        if budget.deletions:
            spent = self.budgets.number(budget._replace(deletions=budget.deletions - 1))
            self._deletion((*state[:-1], spent), moves)
        if budget.transit_damages:
            spent = self.budgets.number(budget._replace(transit_damages=budget.transit_damages - 1))
            self._transit_damages((*state[:-1], spent), moves)
        if budget.losses:
            spent = self.budgets.number(budget._replace(losses=budget.losses - 1))
            self._losses((*state[:-1], spent), moves)
        if budget.returns:
            spent = self.budgets.number(budget._replace(returns=budget.returns - 1))
            self._returns((*state[:-1], spent), moves)

    def _timeouts(self, state: State, moves: list[Move]) -> None:
        for slot, name in self.writer_driver.losable(self.clients.parts[state[self.at_client]]):
            moves.extend(self._lost(state, slot, name))
        for client in range(1, self.count):
            who = self.clients.parts[state[self.at_client + client]]
            if who.machine is None or who.idle:
                continue
            for bookie in range(self.n):
                for request in self._outstanding(state, client, bookie):
                    self._give_up(state, client, bookie, request, moves)

    def _lost(self, state: State, slot: int, name: BookieId) -> list[Move]:
        """The writer gives a bookie up."""
        memo = self._memo("lost")
        found = memo.get((state[self.at_client], slot))
        if found is None:
            outcomes = self.writer_driver.lost(self.clients.parts[state[self.at_client]], slot, name)
            found = [self._client_move(0, outcome, f"lost {name}", kind="timeout") for outcome in outcomes]
            memo[state[self.at_client], slot] = found
        return [(move[0], self._client_after(list(state), 0, move)) for move in found]

    def _outstanding(self, state: State, client: int, bookie: int) -> list[Request]:
        link = self.links.parts[state[self.at_link + client * self.n + bookie]]
        waiting = [request for request, waits in link.requests if waits]
        waiting += [reply[0] for reply in link.replies]
        waiting += [
            record[2][1]
            for record in self.bookies.parts[state[bookie]].journal
            if record[2] and record[2][0] == client and record[2][2]
        ]
        return waiting

    def _give_up(self, state: State, client: int, bookie: int, request: Request, moves: list[Move]) -> None:
        who = self.clients.parts[state[self.at_client + client]]
        driver = self.driver_of(client)
        if not driver.waits_for(who, request):
            return
        new = list(state)
        place = self.at_link + client * self.n + bookie
        new[place] = self.links.number(self.links.parts[state[place]].given_up(request))
        before = self.bookies.parts[state[bookie]]
        journal = tuple(
            (
                kind,
                content,
                (*waiting[:2], False) if waiting and waiting[:2] == (client, request) else waiting,
            )
            for kind, content, waiting in before.journal
        )
        new[bookie] = self.bookies.number(before._replace(journal=journal))
        command = f"gives up {request_text(request)} at {bookie_name(bookie)}"
        for outcome in driver.gave_up(who, bookie, request):
            move = self._client_move(client, outcome, command, kind="timeout")
            moves.append((move[0], self._client_after([*new], client, move)))

    def _crashes(self, state: State, moves: list[Move]) -> None:
        for bookie in range(self.n):
            before = self.bookies.parts[state[bookie]]
            if before.gone or (before.facts is None and not before.journal and not before.waiting):
                continue
            after = self.bookie_driver.crashed(before)
            new = self._stopped(state, bookie, before, after)
            if self._syncs_at_once(state):
                self._settle_disks(new)
            moves.append(
                (Label(bookie_name(bookie), "crashes and starts again", (), kind="crash"), tuple(new))
            )

    def _losses(self, state: State, moves: list[Move]) -> None:
        """A bookie goes for ever. What it holds and its fence stay as they are: of those who judge, none reads it."""
        for bookie in range(self.n):
            before = self.bookies.parts[state[bookie]]
            if not before.gone:
                after = before._replace(
                    journal=(),
                    waiting=(),
                    looking=False,
                    question="",
                    gone=True,
                    collecting=None,
                    condemned=0,
                    put=0,
                )
                new = self._stopped(state, bookie, before, after)
                moves.append((Label(bookie_name(bookie), "is lost for ever", (), kind="loss"), tuple(new)))

    def _transit_damages(self, state: State, moves: list[Move]) -> None:
        """An add of the writer arrives damaged: its bookie refuses it."""
        for bookie in range(self.n):
            place = self.at_link + bookie
            link = self.links.parts[state[place]]
            if not link.requests or link.requests[0][0][0] != "add":
                continue
            (request, waits), rest = link.requests[0], link.requests[1:]
            link = link._replace(requests=rest)
            new = list(state)
            reply = (request, Answer.DAMAGED_IN_TRANSIT, None)
            new[place] = self.links.number(link.answered(reply) if waits else link)
            self._tidy(new, 0, place)
            said = (f"-> {self.names[0]} {reply_text(reply)}",) if waits else ()
            command = f"refuses {request_text(request)}, damaged on its way"
            label = Label(bookie_name(bookie), command, said, self.names[0], "transit damage")
            moves.append((label, tuple(new)))

    def _returns(self, state: State, moves: list[Move]) -> None:
        """A bookie that was gone is there again, with what it held."""
        for number in range(self.n):
            before = self.bookies.parts[state[number]]
            if before.gone:
                new = list(state)
                new[number] = self.bookies.number(before._replace(gone=False))
                label = Label(bookie_name(number), "is back with what it held", (), kind="return")
                moves.append((label, tuple(new)))

    def _settle_disks(self, new: list[int]) -> None:
        """The last crash has been: what waits for a disk is on it now."""
        for bookie in range(self.n):
            after, replies = self._synced(self.bookies.parts[new[bookie]])
            new[bookie] = self.bookies.number(after)
            for client, reply in replies:
                self._push_reply(new, client, bookie, reply)

    def _breaks(self, state: State, moves: list[Move], pairs: Iterable[tuple[int, int]]) -> None:
        for client, bookie in pairs:
            place = self.at_link + client * self.n + bookie
            link = self.links.parts[state[place]]
            if not link.requests:
                continue
            new = list(state)
            new[place] = self.links.number(link.cut())
            self._tidy(new, client, place)
            command = f"its connection to {bookie_name(bookie)} breaks"
            moves.append((Label(self.names[client], command, (), kind="break"), tuple(new)))

    def _lost_swaps(self, state: State, moves: list[Move]) -> None:
        for client in range(self.count):
            questions = self.asks.parts[state[self.at_ask + client]]
            for index, ask in enumerate(questions):
                if ask.kind != "swap" or not ask.waits:
                    continue
                kept = () if ask.answer else (ask._replace(waits=False),)
                rest = (*questions[:index], *kept, *questions[index + 1 :])
                driver = self.driver_of(client)
                who = self.clients.parts[state[self.at_client + client]]
                assert ask.record is not None
                outcomes = driver.swap_answered(who, "unknown", ask.record, ask.version)
                found = [
                    self._client_move(client, outcome, "hears nothing of its swap", kind="lost swap")
                    for outcome in outcomes
                ]
                self._with_questions(state, client, rest, found, moves)

    def _damages(self, state: State, moves: list[Move]) -> None:
        for bookie in range(self.n):
            before = self.bookies.parts[state[bookie]]
            for entry in range(self.configuration.entries_written):
                if before.held >> entry & 1 and not before.damaged >> entry & 1 and not before.gone:
                    new = list(state)
                    new[bookie] = self.bookies.number(before._replace(damaged=before.damaged | 1 << entry))
                    label = Label(bookie_name(bookie), f"entry {entry} rots", (), kind="damage")
                    moves.append((label, tuple(new)))

    def _deletion(self, state: State, moves: list[Move]) -> None:
        """The owner deletes the ledger: the record goes, and every bookie gets it."""
        store = self.stores.parts[state[self.at_store]]
        if store.record is None:
            return
        new = list(state)
        new[self.at_store] = self.stores.number(Store(None, store.version + 1, store.closes, store.fault))
        for bookie in range(self.n):
            before = self.bookies.parts[state[bookie]]
            if before.facts is not None and not before.gone:
                after, _, _ = self.bookie_driver.deliver(before, 0, ("delete",), waits=False)
                new[bookie] = self.bookies.number(after)
        if self._syncs_at_once(state):
            self._settle_disks(new)
        moves.append((Label("owner", "deletes the ledger", (), kind="delete"), tuple(new)))
