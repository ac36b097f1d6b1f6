"""Clients, bookies, the connections between them, and one store: the steps that worlds of ledgers and of streams share.

A world says who drives a client and a bookie, and what comes of a compare-and-swap. What a part does on an input is worked out
once and remembered.

| indexes of a state | part |
| --- | --- |
| 0 .. n-1 | bookies |
| n | the store: record, version |
| n+1 .. n+C | clients; those who repair come last |
| then C x n | connections, client by client |
| then C | what each client asked the store |
| then | what a world has besides: readers first |
| last | budgets |

Source: docs/decisions/006-explorer.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from quire.core.answers import Answer
from quire.core.ledger.notes import NO_NOTES
from quire.core.transcript import record_text
from quire_testing.explorer.bookies import Waiting
from quire_testing.explorer.clients import Outcome, bookie_name, bookie_number
from quire_testing.explorer.messages import Link, Reply, Request, reply_text, request_text
from quire_testing.explorer.tables import CAS_LOST, Ask, ClientMove, Label, Move, State, Table

Taken: TypeAlias = tuple[Label, int, list[Reply], list[tuple[int, Reply]]]
"""A request on a bookie: the step, the bookie after it, its responses to who asked, and those to others."""


class Places(NamedTuple):
    """Where the parts stand in a state: each the index of the first of its kind; the bookies begin at 0.

    `link`: messages between a client and its bookies. `ask`: requests of a client to the store, and their responses.
    """

    store: int
    client: int
    link: int
    ask: int
    reader: int


class ActorWorld:
    """What happens between clients, bookies and a store.

    Args:
        bookies: how many there are.
        names: of the clients.
        repairers: how many of these repair.
    """

    bookie_driver: Any
    bookies: Table[Any]
    stores: Table[Any]
    clients: Table[Any]
    budgets: Table[Any]
    forgets_idle = False
    """Whether what is on its way to a client without a machine is forgotten."""
    no_link = no_ask = 0
    """The number of a connection that carries nothing, and that of no question."""

    def __init__(self, bookies: int, names: Sequence[str], repairers: int) -> None:
        self.n, self.names, self.count = bookies, names, len(names)
        self.first_repairer = self.count - repairers
        self.pairs = list(product(range(self.count), range(bookies)))
        self.links: Table[Link] = Table()
        self.asks: Table[tuple[Ask, ...]] = Table()
        link = bookies + 1 + self.count
        ask = link + len(self.pairs)
        self.at = Places(bookies, bookies + 1, link, ask, ask + self.count)
        assert self.links.number(Link()) == self.no_link
        assert self.asks.number(()) == self.no_ask
        self._memo: dict[Any, Any] = {}

    def driver_of(self, client: int) -> Any:
        """What drives a client."""
        raise NotImplementedError

    def after_cas_of(self, state: State, client: int, ask: Ask) -> tuple[Any, str]:
        """The store after a client's compare-and-swap, and its response."""
        raise NotImplementedError

    def _judged(self, new: list[int], number: int) -> int:
        """A repairer that has just ended, judged by the bookies as they are then."""
        raise NotImplementedError

    def _not_awaited(self, bookie: int, client: int, request: Request) -> int:
        """A bookie once a client waits no longer for its response."""
        return bookie

    def spent(self, state: State, what: str) -> State:
        """A state with one fault of a kind less to come."""
        budget = self.budgets.parts[state[-1]]
        left = {what: getattr(budget, what) - 1}
        return (*state[:-1], self.budgets.number(budget._replace(**left)))

    def _with_bookie(self, state: State, bookie: int, after: Any) -> State:
        return (*state[:bookie], self.bookies.number(after), *state[bookie + 1 :])

    # --- a client's step on a state ------------------------------------------------------------------------------------

    def _client_moves(
        self, client: int, outcomes: Iterable[Outcome], command: str, other: str = "", kind: str = ""
    ) -> list[ClientMove]:
        name, kind = self.names[client], kind or command.split(maxsplit=1)[0]
        return [
            (
                Label(name, command, each.said, other or each.returned, kind),
                self.clients.number(each.client),
                each.sends,
                each.asks,
            )
            for each in outcomes
        ]

    def _after_each(self, state: Sequence[int], client: int, found: Iterable[ClientMove]) -> list[Move]:
        return [(move[0], self._client_after([*state], client, move)) for move in found]

    def _moves_of_writer(self, state: State, client: int) -> list[ClientMove]:
        """What a writer can do by itself."""
        key = ("writer", client, state[self.at.client + client])
        found: list[ClientMove] | None = self._memo.get(key)
        if found is None:
            moves = self.driver_of(client).moves(self.clients.parts[key[2]])
            found = self._memo[key] = [
                move for command, outcomes in moves for move in self._client_moves(client, outcomes, command)
            ]
        return found

    def _measure(self, state: State, client: int, moves: list[Move]) -> None:
        """The length of the last entry is read from a bookie that gives it (the record's ensemble of that entry)."""
        who = self.clients.parts[state[self.at.client + client]]
        entry, record = who.machine.lap, who.machine.record
        members = [self.bookies.parts[state[bookie_number(name)]] for name in record.ensemble_of(entry)]
        found = any(self.bookie_driver.gives(each, entry, record) for each in members)
        command = f"{'finds' if found else 'does not find'} the length of {entry}"
        outcomes = self.driver_of(client).length_answered(who, found=found)
        moves += self._after_each(state, client, self._client_moves(client, outcomes, command))

    def _client_after(self, new: list[int], client: int, move: ClientMove) -> State:
        """A client's step on a state: its own index, what it sends, what it asks; then what has no effect goes."""
        _, after, sends, asks = move
        at_client = self.at.client + client
        if client >= self.first_repairer and self.clients.parts[after].result:
            after = self._judged(new, after)
        changed = new[at_client] != after
        new[at_client] = after
        base = self.at.link + client * self.n
        links = self.links
        for bookie, request in sends:
            new[base + bookie] = links.number(links.parts[new[base + bookie]].sent(request))
        if asks:
            index = self.at.ask + client
            questions = self.asks.parts[new[index]]
            for kind, *rest in asks:
                record, version, *notes = rest or (None, 0)
                questions = (*questions, Ask(kind, record, version, notes=notes[0] if notes else NO_NOTES))
            new[index] = self.asks.number(questions)
        if changed:
            no_link = self.no_link
            for index in range(base, base + self.n):
                if new[index] != no_link:
                    self._tidy(new, client, index)
            if self.forgets_idle and self.clients.parts[after].machine is None:
                # A compare-and-swap on its way may still reach the store; nothing waits for its response.
                questions = self.asks.parts[new[self.at.ask + client]]
                kept = (ask for ask in questions if ask.kind == "swap" and not ask.answer)
                new[self.at.ask + client] = self.asks.number(tuple(ask._replace(waits=False) for ask in kept))
        return tuple(new)

    def _tidy(self, new: list[int], client: int, index: int) -> None:
        """Forget replies that can change nothing any more, and who waits for them."""
        key = ("tidy", client, new[self.at.client + client], new[index])
        after = self._memo.get(key)
        if after is None:
            after = self._memo[key] = self._tidy_link(*key[1:])
        new[index] = after

    def _tidy_link(self, client: int, client_at: int, link_at: int) -> int:
        who, link = self.clients.parts[client_at], self.links.parts[link_at]
        if who.machine is None and not self.forgets_idle:
            return link_at
        driver = self.driver_of(client)
        requests = [(request, waits and driver.waits_for(who, request)) for request, waits in link.requests]
        replies = [reply for reply in link.replies if driver.heeds(who, reply)]
        if len(replies) == len(link.replies) and requests == [*link.requests]:
            return link_at
        return self.links.number(Link(tuple(requests), tuple(replies), link.broken))

    # --- messages ------------------------------------------------------------------------------------------------------

    def _deliveries(
        self, state: State, index: int, client: int, bookie: int, moves: list[Move], *, at_once: bool = False
    ) -> None:
        """What the connection at an index of the state carries to its bookie."""
        key = ("deliver", client, bookie, state[bookie], state[index], at_once)
        delivered = self._memo.get(key)
        if delivered is None:
            delivered = self._memo[key] = list(self._deliver(*key[1:]))
        for label, after, link_after, others in delivered:
            new = list(state)
            new[bookie] = after
            new[index] = link_after
            self._push_replies(new, bookie, others)
            if link_after != self.no_link:
                self._tidy(new, client, index)
            moves.append((label, tuple(new)))

    def _deliver(
        self, client: int, bookie: int, bookie_at: int, link_at: int, at_once: bool
    ) -> Iterator[Any]:
        """The oldest request of a connection, or one of a broken one, reaches its bookie."""
        link, state = self.links.parts[link_at], self.bookies.parts[bookie_at]
        arrivals = []
        if link.requests:
            arrivals.append((link.requests[0], link._replace(requests=link.requests[1:])))
        if link.broken:
            arrivals.append(((link.broken[0], False), link._replace(broken=link.broken[1:])))
        for asked, rest in arrivals:
            label, after, own, others = self._taken(client, bookie, state, asked, at_once)
            yield label, after, self.links.number(rest._replace(replies=(*rest.replies, *own))), others

    def _taken(
        self, client: int, bookie: int, state: Any, asked: tuple[Request, bool], at_once: bool
    ) -> Taken:
        request, waits = asked
        after, replies, what = self.bookie_driver.deliver(state, client, request, waits=waits)
        if at_once:
            after, more = self._synced(after)
            replies = [*replies, *more]
        label = Label(
            bookie_name(bookie),
            f"takes {request_text(request)} from {self.names[client]}",
            (what, *self._said(replies)),
            self.names[client],
            request[0],
        )
        own = [reply for whom, reply in replies if whom == client]
        return label, self.bookies.number(after), own, [each for each in replies if each[0] != client]

    def _synced(self, state: Any) -> tuple[Any, list[tuple[int, Reply]]]:
        """Everything that waits for the disk is on it."""
        replies: list[tuple[int, Reply]] = []
        while state.journal:
            state, more = self.bookie_driver.sync(state)
            replies += more
        return state, replies

    def _said(self, replies: Iterable[tuple[int, Reply]]) -> tuple[str, ...]:
        return tuple(f"-> {self.names[client]} {reply_text(reply)}" for client, reply in replies)

    def _push_replies(self, new: list[int], bookie: int, replies: Iterable[tuple[int, Reply]]) -> None:
        for client, reply in replies:
            index = self.at.link + client * self.n + bookie
            new[index] = self.links.number(self.links.parts[new[index]].answered(reply))
            self._tidy(new, client, index)

    def _hearings(self, state: State, index: int, client: int, bookie: int, moves: list[Move]) -> None:
        """What the connection at an index of the state carries to its client."""
        key = ("hear", client, bookie, state[self.at.client + client], state[index])
        moved = self._memo.get(key)
        if moved is None:
            moved = self._memo[key] = self._hear(*key[1:])
        for client_move, link_after in moved:
            new = list(state)
            new[index] = link_after
            moves.append((client_move[0], self._client_after(new, client, client_move)))

    def _hear(self, client: int, bookie: int, client_at: int, link_at: int) -> list[tuple[ClientMove, int]]:
        """The oldest reply of a connection reaches its client."""
        link = self.links.parts[link_at]
        moved = self._on_response(client, bookie, client_at, link.replies[0]) if link.replies else []
        return [(move, self.links.number(link._replace(replies=link.replies[1:]))) for move in moved]

    def _on_response(self, client: int, bookie: int, client_at: int, reply: Reply) -> list[ClientMove]:
        """What a client does with a reply."""
        who, driver, name = self.clients.parts[client_at], self.driver_of(client), bookie_name(bookie)
        if not driver.heeds(who, reply):
            return []
        command, kind = f"hears {reply_text(reply)} from {name}", f"hears {reply[0][0]}"
        return self._client_moves(client, driver.answered(who, bookie, reply), command, name, kind)

    # --- what fails ----------------------------------------------------------------------------------------------------

    def outstanding(self, state: State, client: int, bookie: int) -> list[Request]:
        """The requests of a client that a bookie has not answered, or whose response is on its way."""
        link = self.links.parts[state[self.at.link + client * self.n + bookie]]
        return [
            *(request for request, waits in link.requests if waits),
            *(reply[0] for reply in link.replies),
        ]

    def give_up(self, state: State, client: int, bookie: int, request: Request, moves: list[Move]) -> None:
        """A client waits no longer for a response."""
        who, driver = self.clients.parts[state[self.at.client + client]], self.driver_of(client)
        if not driver.waits_for(who, request):
            return
        new, index = list(state), self.at.link + client * self.n + bookie
        new[index] = self.links.number(self.links.parts[state[index]].given_up(request))
        new[bookie] = self._not_awaited(state[bookie], client, request)
        command = f"gives up {request_text(request)} at {bookie_name(bookie)}"
        found = self._client_moves(client, driver.gave_up(who, bookie, request), command, kind="timeout")
        moves += self._after_each(new, client, found)

    def breaks(self, pairs: Iterable[tuple[int, int]], state: State, moves: list[Move]) -> None:
        """A connection of one of these pairs of client and bookie breaks: what was under way may still arrive, late."""
        for client, bookie in pairs:
            index = self.at.link + client * self.n + bookie
            link = self.links.parts[state[index]]
            if not link.requests:
                continue
            new = list(state)
            new[index] = self.links.number(link.cut())
            self._tidy(new, client, index)
            command = f"its connection to {bookie_name(bookie)} breaks"
            moves.append((Label(self.names[client], command, (), kind="break"), tuple(new)))

    def _stopped(self, state: State, bookie: int, after: Any, waiting: Iterable[Waiting | None]) -> list[int]:
        """A bookie stopped: what did not reach it never will, and who waits for it learns that."""
        new = list(self._with_bookie(state, bookie, after))
        for client in range(self.count):
            index = self.at.link + client * self.n + bookie
            link = self.links.parts[new[index]].died()
            for each in waiting:
                if each and each[0] == client and each[2]:
                    link = link.answered((each[1], Answer.UNREACHABLE, None))
            new[index] = self.links.number(link)
            self._tidy(new, client, index)
        return new

    def lost_swaps(self, state: State, moves: list[Move]) -> None:
        """The response to a compare-and-swap is lost, and it may not have reached the store yet."""
        for client in range(self.count):
            questions = self.asks.parts[state[self.at.ask + client]]
            for index, ask in enumerate(questions):
                if ask.kind != "swap" or not ask.waits:
                    continue
                kept = () if ask.answer else (ask._replace(waits=False),)
                rest = (*questions[:index], *kept, *questions[index + 1 :])
                found = self._on_cas(state, client, ask, "unknown", CAS_LOST, "", "lost swap")
                self._with_questions(state, client, rest, found, moves)

    # --- the store -----------------------------------------------------------------------------------------------------

    def _questions_of(self, state: State, client: int, moves: list[Move]) -> None:
        """What comes of a client's questions to the store."""
        questions = self.asks.parts[state[self.at.ask + client]]
        for index, ask in enumerate(questions):
            rest = (*questions[:index], *questions[index + 1 :])
            if ask.kind == "read":
                self._with_questions(state, client, rest, self._reads(state, client), moves)
            elif not ask.answer:
                self._cas(state, client, questions, index, moves)
            elif ask.waits:
                kind = f"hears {ask.answer}"
                found = self._on_cas(state, client, ask, ask.answer, f"{kind} v{ask.version}", "store", kind)
                self._with_questions(state, client, rest, found, moves)

    def _with_questions(
        self, state: State, client: int, rest: tuple[Ask, ...], found: list[ClientMove], moves: list[Move]
    ) -> None:
        new = list(state)
        new[self.at.ask + client] = self.asks.number(rest)
        moves += self._after_each(new, client, found)

    def _cas(
        self, state: State, client: int, questions: tuple[Ask, ...], index: int, moves: list[Move]
    ) -> None:
        """A compare-and-swap reaches the store."""
        ask = questions[index]
        assert ask.record is not None
        after, answer = self.after_cas_of(state, client, ask)
        done = (ask._replace(answer=answer, version=after.version),) if ask.waits else ()
        new = list(state)
        new[self.at.store] = self.stores.number(after)
        new[self.at.ask + client] = self.asks.number((*questions[:index], *done, *questions[index + 1 :]))
        command = f"takes v{ask.version}: {record_text(ask.record)} from {self.names[client]}"
        moves.append((Label("store", command, (answer,), self.names[client], f"swap {answer}"), tuple(new)))

    def _on_cas(
        self, state: State, client: int, ask: Ask, answer: str, command: str, other: str, kind: str
    ) -> list[ClientMove]:
        """What a client does with the response to its compare-and-swap, or without one."""
        key = ("cas", client, state[self.at.client + client], ask, answer)
        found: list[ClientMove] | None = self._memo.get(key)
        if found is None:
            who = self.clients.parts[key[2]]
            outcomes = self.driver_of(client).cas_answered(who, answer, ask.record, ask.version)
            found = self._memo[key] = self._client_moves(client, outcomes, command, other, kind)
        return found

    def _reads(self, state: State, client: int) -> list[ClientMove]:
        """What a client does with the record as the store has it; one that repairs gets the notes too."""
        key = ("reads", client, state[self.at.client + client], state[self.at.store])
        found: list[ClientMove] | None = self._memo.get(key)
        if found is None:
            who, store = self.clients.parts[key[2]], self.stores.parts[key[3]]
            notes = (store.notes,) if client >= self.first_repairer else ()
            outcomes = self.driver_of(client).read_answered(who, store.record, store.version, *notes)
            command = f"reads {record_text(store.record) if store.record else 'nothing'}"
            found = self._memo[key] = self._client_moves(client, outcomes, command, "store")
        return found
