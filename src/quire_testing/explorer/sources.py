"""A ledger's world asked for the next steps of one source at a time, for walks that look at few of them.

A source is what can make a step of its own: one direction of one connection, a client, its questions to the store, a
disk, a reader. All of them together are `LedgerWorld.successors` without the faults, which are asked for by kind.

Source: docs/simulation.md, "Walks of the machines".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.messages import Link, Request
from quire_testing.explorer.parts import Budget
from quire_testing.explorer.repairing import Choice
from quire_testing.explorer.switches import SHIPPED, Switches
from quire_testing.explorer.tables import ClientMove, Move, State
from quire_testing.explorer.world import LedgerWorld

Source: TypeAlias = tuple[str, int, int, int, int]
"""Its kind and the numbers of who it is (a client and a bookie, or one of them); then the index in a state that tells
by one of its numbers that there is nothing to do, and that number (-1: no number tells)."""

FAULTS: Final = tuple(Budget._fields[:-1])
"""The kinds of faults; reruns of a recovery are steps of its recoverer."""

Fault: TypeAlias = tuple[str, Callable[[], list[Move]]]
"""The actor that it happens to, and the steps that it can be."""

NOTHING_ELSE: Final = Budget(*(0,) * len(Budget._fields))


def _only(work: Choice) -> list[Move]:
    return [work()]


class SourcesWorld(LedgerWorld):
    """The same world; its steps one source at a time."""

    def __init__(self, configuration: Configuration, switches: Switches = SHIPPED) -> None:
        super().__init__(configuration, switches)
        self._took: dict[Any, Any] = {}
        self._answers: dict[Any, list[ClientMove]] = {}

    def sources(self) -> list[Source]:
        """Everything that can make a step."""
        nothing = self.no_link
        return [
            *(("request", *link, self.at.link + index, nothing) for index, link in enumerate(self.pairs)),
            *(("reply", *link, self.at.link + index, nothing) for index, link in enumerate(self.pairs)),
            *(
                ("late", *link, self.at.link + index, nothing)
                for index, link in enumerate(self.pairs)
                if self.configuration.breaks
            ),
            *(("client", client, 0, 0, -1) for client in range(self.count)),
            *(("store", client, 0, self.at.ask + client, self.no_ask) for client in range(self.count)),
            *(("disk", bookie, 0, 0, -1) for bookie in range(self.n)),
            *(("limbo", bookie, 0, 0, -1) for bookie in range(self.n) if not self.configuration.journal),
            *(("clearer", 0, 0, 0, -1) for _ in range(bool(self.configuration.clears))),
            *(("reader", which, 0, 0, -1) for which in range(len(self.reader_names))),
        ]

    def steps_of(self, state: State, source: Source) -> list[Move]:
        """The steps of one source."""
        kind, one, other, index, nothing = source
        moves: list[Move] = []
        if state[index] == nothing:
            return moves
        if kind == "request":
            link = self.links.parts[state[index]]
            if link.requests:
                rest = link._replace(requests=link.requests[1:])
                self._arrives(state, one, other, (rest, *link.requests[0]), moves)
        elif kind == "late":
            link = self.links.parts[state[index]]
            if link.broken:
                rest = link._replace(broken=link.broken[1:])
                self._arrives(state, one, other, (rest, link.broken[0], False), moves)
        elif kind == "reply":
            link = self.links.parts[state[index]]
            if link.replies:
                self._comes_back(state, one, other, link, moves)
        elif kind == "client":
            if one == 0:
                self._writer_moves(state, moves)
            elif one < self.first_repairer:
                self._recoverer_moves(state, one, moves)
            else:
                self.repairs.moves_of(state, one, moves)
        elif kind == "store":
            self._questions_of(state, one, moves)
        elif kind == "disk":
            if self.bookies.parts[state[one]].journal and not self.syncs_at_once(state):
                self.faults.sync_moves(state, one, moves)
        elif kind == "limbo":
            self.limbo_steps.moves_of_bookie(state, one, moves)
        elif kind == "clearer":
            self.limbo_steps.clearing_moves(state, moves)
        else:
            self.reading.moves_of_reader(state, one, NOTHING_ELSE, moves)  # time-outs are faults here
        return moves

    def syncs_at_once(self, state: State) -> bool:
        """Whether no disk has a step of its own."""
        return self._syncs_at_once(state)

    def _tidy(self, new: list[int], client: int, index: int) -> None:
        """As in the search, but not remembered: what a link and a client are seldom comes again in a walk."""
        new[index] = self._tidy_link(client, new[self.at.client + client], new[index])

    def _arrives(
        self,
        state: State,
        client: int,
        bookie: int,
        carried: tuple[Link, Request, bool],
        moves: list[Move],
    ) -> None:
        """A request reaches its bookie. What that does to the bookie is remembered, whatever else the link carries."""
        link, request, waits = carried
        key = (client, bookie, state[bookie], request, waits, self.syncs_at_once(state))
        taken = self._took.get(key)
        if taken is None:
            at_once = key[-1]
            before = self.bookies.parts[state[bookie]]
            taken = self._took[key] = self._taken(client, bookie, before, (request, waits), at_once)
        label, after, own, others = taken
        new = list(state)
        new[bookie] = after
        index = self.at.link + client * self.n + bookie
        new[index] = self.links.number(link._replace(replies=(*link.replies, *own)))
        self._push_replies(new, bookie, others)
        if own and new[index] != self.no_link:
            self._tidy(new, client, index)
        moves.append((label, tuple(new)))

    def _comes_back(self, state: State, client: int, bookie: int, link: Link, moves: list[Move]) -> None:
        """A reply reaches its client. What that does to the client is remembered, whatever else the link carries."""
        reply = link.replies[0]
        key = (client, bookie, state[self.at.client + client], reply)
        moved = self._answers.get(key)
        if moved is None:
            moved = self._answers[key] = self._on_response(*key)
        if moved:
            rest = self.links.number(link._replace(replies=link.replies[1:]))
            new = list(state)
            new[self.at.link + client * self.n + bookie] = rest
            moves += self._after_each(new, client, moved)

    def faults_of(self, state: State, kind: str, victim: int = -1, aim: str = "") -> list[Fault]:
        """Every way in which a fault of this kind can happen now; none when its budget is used up.

        Args:
            state: now.
            kind: of `FAULTS`.
            victim: time-outs and breaks happen to this client only; -1 for any.
            aim: time-outs happen to such a request of a recoverer only, breaks where one is under way.

        A time-out is worked out only when it is taken: there are many, and each is a run of a machine.
        """
        budget = self.budgets.parts[state[-1]]
        left = getattr(budget, kind)
        if not left:
            return []
        spent = self.spent(state, kind)
        if kind == "timeouts":
            return self._timeouts_of(spent, victim, aim)
        moves: list[Move] = []
        if kind == "breaks":
            self.breaks(self._breakable(state, victim, aim), state, moves)
        else:
            self.faults.moves_of(state, NOTHING_ELSE._replace(**{kind: left}), moves)
        return [(move[0].actor, [(move[0], (*move[1][:-1], spent[-1]))].copy) for move in moves]

    def _breakable(self, state: State, victim: int, aim: str) -> list[tuple[int, int]]:
        clients = range(self.count) if victim < 0 else (victim,)
        return [
            (client, bookie)
            for client in clients
            for bookie in range(self.n)
            if not aim or self._carries(state[self.at.link + client * self.n + bookie], aim)
        ]

    def _carries(self, link: int, aim: str) -> bool:
        return any(request[0] == aim for request, _ in self.links.parts[link].requests)

    def _timeouts_of(self, state: State, victim: int, aim: str) -> list[Fault]:
        found: list[Fault] = []
        if victim <= 0 and not aim:
            for slot, name in self.writer_driver.losable(self.clients.parts[state[self.at.client]]):
                found.append((self.names[0], partial(self.faults.lost, state, slot, name)))
        for client in range(1, self.count) if victim < 0 else range(max(1, victim), victim + 1):
            who = self.clients.parts[state[self.at.client + client]]
            if who.machine is None or who.idle:
                continue
            found += [
                (self.names[client], partial(self._given_up, state, client, bookie, request))
                for bookie in range(self.n)
                for request in self.outstanding(state, client, bookie)
                if (not aim or request[0] == aim) and self.driver_of(client).waits_for(who, request)
            ]
            if client >= self.first_repairer:
                found += [
                    (self.names[client], partial(_only, work))
                    for work in self.repairs.silences(state, client)
                ]
        return found

    def _given_up(self, state: State, client: int, bookie: int, request: Request) -> list[Move]:
        moves: list[Move] = []
        self.give_up(state, client, bookie, request, moves)
        return moves

    def is_over(self, state: State) -> bool:
        """Whether nothing that is still to come decides anything."""
        return self._over(state)

    def written(self, state: State) -> int:
        """How many entries the writer has begun to write; all of them once it has ended, when that is unknown."""
        writer = self.clients.parts[state[self.at.client]]
        return self.configuration.entries_written if writer.idle else int(writer.machine.lap) + 1

    def began(self, state: State, client: int) -> bool:
        """Whether a recoverer has begun."""
        return self.clients.parts[state[self.at.client + client]].machine is not None

    def phase(self, state: State, client: int) -> Any:
        """What a recoverer is about: its machine's status, None before it has begun."""
        machine = self.clients.parts[state[self.at.client + client]].machine
        return None if machine is None else machine.status
