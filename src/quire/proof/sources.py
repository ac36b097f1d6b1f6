"""A ledger's world asked for the next steps of one source at a time, for walks that look at few of them.

A source is what can make a step of its own: one direction of one connection, a client, its questions to the store, a
disk, a reader. All of them together are `World.successors` without the faults, which are asked for by kind.

Source: checking reference 4.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from quire.proof.messages import Request
from quire.proof.parts import Budget, Move, State
from quire.proof.world import World

SourceName: TypeAlias = tuple[str, int, int]
"""Its kind and the numbers of who it is: a client and a bookie, or one of them."""

FAULTS: Final = tuple(Budget._fields[:-1])
"""The kinds of faults; reruns of a recovery are steps of its recoverer."""

Fault: TypeAlias = tuple[str, Callable[[], list[Move]]]
"""Whom it happens to, and the steps that it can be."""

NOTHING_ELSE: Final = Budget(*(0,) * len(Budget._fields))


class SourcesWorld(World):
    """The same world; its steps one source at a time."""

    def sources(self) -> list[SourceName]:
        """Everything that can make a step."""
        links = [(client, bookie) for client in range(self.count) for bookie in range(self.n)]
        return [
            *(("request", *link) for link in links),
            *(("reply", *link) for link in links),
            *(("client", client, 0) for client in range(self.count)),
            *(("store", client, 0) for client in range(self.count)),
            *(("disk", bookie, 0) for bookie in range(self.n)),
            *(("reader", which, 0) for which in range(len(self.reader_names))),
        ]

    def steps_of(self, state: State, source: SourceName) -> list[Move]:
        """The steps of one source."""
        kind, one, other = source
        moves: list[Move] = []
        if kind in ("request", "reply"):
            if state[self.at_link + one * self.n + other] == self.no_link:
                pass
            elif kind == "request":
                self._deliveries(state, one, other, self._syncs_at_once(state), moves)
            else:
                self._hearings(state, one, other, moves)
        elif kind == "client":
            if one == 0:
                self._writer_moves(state, moves)
            else:
                self._recoverer_moves(state, one, moves)
        elif kind == "store":
            if state[self.at_ask + one] != self.no_ask:
                self._questions_of(state, one, moves)
        elif kind == "disk":
            if not self._syncs_at_once(state):
                self._sync_moves(state, one, moves)
        else:
            self._moves_of_reader(state, one, self._without_timeouts(state), moves)
        return moves

    def faults_of(self, state: State, kind: str) -> list[Fault]:
        """Every way in which a fault of this kind can happen now; none when its budget is used up.

        A time-out is worked out only when it is taken: there are many, and each is a run of a machine.
        """
        budget = self.budgets.parts[state[-1]]
        left = getattr(budget, kind)
        if not left:
            return []
        spent = self.budgets.number(budget._replace(**{kind: left - 1}))
        if kind == "timeouts":
            return self._timeouts_of((*state[:-1], spent))
        moves: list[Move] = []
        self._faults(state, NOTHING_ELSE._replace(**{kind: left}), moves)
        return [(move[0].actor, [(move[0], (*move[1][:-1], spent))].copy) for move in moves]

    def _timeouts_of(self, state: State) -> list[Fault]:
        found: list[Fault] = []
        for slot, name in self.writer_driver.losable(self.clients.parts[state[self.at_client]]):
            found.append((self.names[0], partial(self._lost, state, slot, name)))
        for client in range(1, self.count):
            who = self.clients.parts[state[self.at_client + client]]
            if who.machine is None or who.idle:
                continue
            found += [
                (self.names[client], partial(self._given_up, state, client, bookie, request))
                for bookie in range(self.n)
                for request in self._outstanding(state, client, bookie)
                if self.recovery_driver.waits_for(who, request)
            ]
        return found

    def _given_up(self, state: State, client: int, bookie: int, request: Request) -> list[Move]:
        moves: list[Move] = []
        self._give_up(state, client, bookie, request, moves)
        return moves

    def _without_timeouts(self, state: State) -> Budget:
        return self.budgets.parts[state[-1]]._replace(timeouts=0)

    def is_over(self, state: State) -> bool:
        """Whether nothing that is still to come decides anything."""
        return self._over(state)

    def written(self, state: State) -> int:
        """How many entries the writer has begun to write; all of them once it has ended, when nobody can tell."""
        writer = self.clients.parts[state[self.at_client]]
        return self.configuration.entries_written if writer.idle else int(writer.machine.lap) + 1

    def began(self, state: State, client: int) -> bool:
        """Whether a recoverer has begun."""
        return self.clients.parts[state[self.at_client + client]].machine is not None
