"""The parts of the world of bundles: its size, and each of its ledgers, a ledger's world of its own.

What concerns one ledger alone (its recoverer, its record, its ensemble change) are the steps of its own world. What one
frame, one bookie and one client do for both ledgers at once is put together in `bundle_world.py` from what is here.

Source: `core/ledger/bundle_acks.py`; docs/formats/native-protocol.md, "Bundles".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine, BookieReady, Journaled, LedgerFacts
from quire.core.errors import MisuseError
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import Status
from quire_testing.explorer.bookies import KEY, LEDGER, BookieDriver, BookieState, Disk, Waiting
from quire_testing.explorer.clients import ENDING, NOW_MS, WRITER_DONE, bookie_name, bookie_number
from quire_testing.explorer.configuration import Configuration, budgets_text
from quire_testing.explorer.invariants import InvariantWatch, Violation
from quire_testing.explorer.messages import Link, Reply
from quire_testing.explorer.snapshot import frozen
from quire_testing.explorer.switches import Switches
from quire_testing.explorer.symmetry import Symmetry
from quire_testing.explorer.tables import Label, Move, State, Table
from quire_testing.explorer.world import LedgerWorld

LEDGERS: Final = "XY"
"""Their names: what happens to one of them alone happens to X."""
TOGETHER: Final = frozenset({"append", "add", "hears add", "transit damage", "sync", "crash"})
"""Kinds of steps of a ledger's world that are put together for both."""


@dataclass(frozen=True, slots=True)
class BundleConfiguration:
    """The size of a world of two ledgers with the same bookies and quorums.

    Attributes:
        bookies: how many there are; those beyond `ensemble` are spares.
        ensemble: E, like `write_quorum` Qw and `ack_quorum` Qa.
        turns: what the client appends in each turn of its loop: "XY-X" is a run of each in a bundle, then one of X alone;
            "XYX" one of each in a bundle, and in the same turn one more of X, which is too long for it.
        recoverers: clients that recover X.
        timeouts: how often X gives a bookie up.
        crashes: bookies that stop and start again with what their disk holds.
        lost_swaps: compare-and-swaps of X whose response never reaches the client.
        transit_damages: rows of X that arrive damaged.
        failures: how often both give a bookie up.
        leaves: how often a bookie leaves, of which only X takes note: it stays in use until another has its slot.
        fences: how often X is fenced at one bookie, by a recoverer that does no more.
        closes: whether X may be closed.
        drops: whether a frame that has not reached a bookie when a writer drops that bookie is dropped for both.
        waits: whether a writer that cannot reach its ack quorum waits for bookies.
    """

    bookies: int = 3
    ensemble: int = 2
    write_quorum: int = 2
    ack_quorum: int = 1
    turns: str = "XY"
    recoverers: int = 0
    timeouts: int = 0
    crashes: int = 0
    lost_swaps: int = 0
    transit_damages: int = 0
    failures: int = 0
    leaves: int = 0
    fences: int = 0
    closes: bool = False
    drops: bool = False
    waits: bool = False

    @property
    def name(self) -> str:
        """What is explored, in a line."""
        size = f"{self.bookies} bookies {self.ensemble}/{self.write_quorum}/{self.ack_quorum}"
        said = ("bookies", "ensemble", "write_quorum", "ack_quorum", "turns")
        return f"bundles {size} turns={self.turns}{budgets_text(self, *said)}"

    def of(self, ledger: str) -> Configuration:
        """The world of one ledger."""
        runs = self.turns.count(ledger)
        sizes = (self.bookies, self.ensemble, self.write_quorum, self.ack_quorum, runs, max(1, runs))
        if ledger != LEDGERS[0]:
            faults: dict[str, Any] = {"crashes": self.crashes, "drops": self.drops, "waits": self.waits}
            return Configuration(*sizes, recoverers=0, **faults)
        return Configuration(
            *sizes,
            recoverers=self.recoverers,
            timeouts=self.timeouts,
            crashes=self.crashes,
            lost_swaps=self.lost_swaps,
            transit_damages=self.transit_damages,
            closes=self.closes,
            drops=self.drops,
            waits=self.waits,
        )


def turns_of(text: str) -> str:
    """Turns as they are named, checked.

    Raises:
        MisuseError: they are none.
    """
    if not re.fullmatch(r"(XYX?|X|Y)(-(XYX?|X|Y))*", text):
        msg = f"turns {text!r}: each is X, Y, XY or XYX, with a hyphen between two, for example XY-X"
        raise MisuseError(msg)
    return text


class SentBundle(NamedTuple):
    """One bundle.

    Attributes:
        turn: in which it left.
        runs: of each ledger.
        bookies: where it was sent to.
        untaken: the bookies that have not taken it, as bits.
        ensembles: of each ledger, that its run was sent to.
        acks: who has acknowledged it, as a number; -1: it is dissolved (each of its runs counts its own responses from
            then on), or no response can come any more.
        judged: bookies that have judged it and not stored it, as bits: none in what ships.
    """

    turn: int
    runs: tuple[int, int]
    bookies: tuple[int, ...]
    untaken: int
    ensembles: tuple[tuple[int, ...], tuple[int, ...]]
    acks: int
    judged: int = 0

    def gone_to(self, bookie: int) -> SentBundle:
        """The same, of which this bookie takes nothing more: it has taken it, or never will."""
        others = ~(1 << bookie)
        return self._replace(untaken=self.untaken & others, judged=self.judged & others)


class BundleState(NamedTuple):
    """All that can differ: of each ledger the state of its world, as a number.

    Attributes:
        ledgers: X and Y.
        bundles: the bundles that are not over, oldest first.
        turn: the next one.
        failures: how often both may still give a bookie up.
        leaves: how often a bookie may still leave X.
        fences: how often X may still be fenced at one bookie.
        fault: what the client did against the order.
    """

    ledgers: tuple[int, int]
    bundles: tuple[SentBundle, ...]
    turn: int
    failures: int
    leaves: int
    fences: int
    fault: str = ""


class RowBookies(BookieDriver):
    """Bookies that take an add with as little as a bundle's row takes."""

    early = False
    """A mutant: the response leaves before what it stored is durable."""

    def _admitted(self, machine: BookieLedgerMachine, lac: int) -> bool:
        return machine.add_ordinary(KEY, 0, 0, lac)

    def _add(self, state: BookieState, waiting: Waiting) -> tuple[BookieState, list[tuple[int, Reply]], str]:
        machine = self.machine(state)
        if waiting[1][0] == "add" and self._admitted(machine, waiting[1][-1]):
            return self.stored(state, machine, waiting)
        return super()._add(state, waiting)

    def stored(
        self, state: BookieState, machine: BookieLedgerMachine, waiting: Waiting
    ) -> tuple[BookieState, list[tuple[int, Reply]], str]:
        """A row that was admitted is stored; its response leaves once it is durable."""
        ready = BookieReady(None, Journaled.RUN, Answer.OK, persisted=not self.early)
        after, replies = self._carried_out(state, machine, ready, waiting)
        return after, replies, f"stores {waiting[1][3]}"


Half = list[tuple[Label, int]]
"""Steps of one ledger: what is done, and its world after it."""


class OneLedger:
    """The world of one of the ledgers, its states by numbers, and the steps that both worlds take together.

    Args:
        name: the ledger's.
        configuration: of all.
        switches: what runs.
        invariants: what must hold in it.
    """

    def __init__(
        self, name: str, configuration: BundleConfiguration, switches: Switches, invariants: Sequence[str]
    ) -> None:
        self.name = name
        self.world = LedgerWorld(configuration.of(name), switches)
        bookies = RowBookies(self.world.configuration, switches.rules, switches.bookie)
        bookies.early = switches.bundles == "answers early"
        self.world.bookie_driver = bookies
        self._rows = bookies
        self.watch = InvariantWatch(self.world, invariants)
        self.symmetry = Symmetry(self.world)
        self.states: Table[State] = Table()
        self.violations: dict[int, Violation | None] = {}
        self._memos: dict[Any, Any] = {}

    def initial(self) -> int:
        """The ledger is there, and each bookie knows it."""
        world, facts = self.world, frozen(LedgerFacts(LEDGER, KEY))
        bookie = world.bookies.number(BookieState(facts, disk=Disk(facts=facts)))
        return self.states.number((*[bookie] * world.n, *world.initial()[world.n :]))

    def remembered(self, what: Callable[..., Any], *args: Any) -> Any:
        """What a question comes to, worked out once."""
        key = (what, *args)
        found = self._memos.get(key)
        if found is None:
            found = self._memos[key] = what(*args)
        return found

    # --- questions -------------------------------------------------------------------------------------------------

    def writer(self, at: int) -> WriterMachine:
        """The writer's machine."""
        state = self.states.parts[at]
        return self.world.clients.parts[state[self.world.at.client]].machine  # type: ignore[no-any-return]

    def alone(self, at: int) -> Any:
        """What changes when something happens to the ledger alone: who is at its slots, and that it ends."""
        machine = self.writer(at)
        return machine.ensemble, machine.change.live, machine.status in ENDING

    def waits_for(self, at: int, run: int) -> bool:
        """Whether an acknowledgement of a run can still change anything."""
        machine = self.writer(at)
        return machine.status not in WRITER_DONE and run in machine.window.runs

    def head(self, at: int, bookie: int) -> int | None:
        """The run that is the next to reach a bookie."""
        requests = self._link(at, bookie).requests
        return requests[0][0][2] if requests else None

    def responses(self, at: int, bookie: int) -> list[tuple[int, Answer]]:
        """Of each run that a bookie has answered, the oldest response on its way."""
        found: dict[int, Answer] = {}
        for (_, _, run, *_), answer, _ in self._link(at, bookie).replies:
            found.setdefault(run, answer)
        return list(found.items())

    def forms(self, at: int) -> list[int]:
        """Its state by each renaming."""
        state, symmetry = self.states.parts[at], self.symmetry
        return [
            self.states.number(symmetry._renamed(state, which)) for which in range(len(symmetry._renamings))
        ]

    def _link(self, at: int, bookie: int) -> Link:
        return self.world.links.parts[self.states.parts[at][self.world.at.link + bookie]]

    # --- steps -----------------------------------------------------------------------------------------------------

    def own(self, at: int) -> Half:
        """Every step of this ledger alone."""
        return self._numbered(
            (_of_ledger(self.name, label), after)
            for label, after in self.world.successors(self.states.parts[at])
            if label.kind not in TOGETHER
        )

    def appends(self, at: int) -> Half:
        """The caller appends, if there is a writer that takes it."""
        moves: list[Move] = []
        self.world._writer_moves(self.states.parts[at], moves)
        return self._numbered(move for move in moves if move[0].kind == "append")

    def sent(self, before: int, after: int) -> tuple[int, ...]:
        """The bookies that were sent something between two states."""
        return tuple(
            bookie
            for bookie in range(self.world.n)
            if len(self._link(after, bookie).requests) > len(self._link(before, bookie).requests)
        )

    def overtaken(self, at: int) -> int:
        """The last request to each bookie leaves before the one before it."""
        new = list(self.states.parts[at])
        for index in range(self.world.at.link, self.world.at.link + self.world.n):
            link = self.world.links.parts[new[index]]
            reordered = link.requests[:-2] + link.requests[:-3:-1]
            new[index] = self.world.links.number(link._replace(requests=reordered))
        return self.states.number(tuple(new))

    def is_ordered(self, before: int, after: int) -> bool:
        """Whether what was sent between two states was sent in its order."""
        for bookie in range(self.world.n):
            sent = self._link(after, bookie).requests[len(self._link(before, bookie).requests) :]
            runs = [request[2] for request, _ in sent]
            if runs != sorted(runs):
                return False
        return True

    def taken(self, at: int, bookie: int) -> Half:
        """The next run reaches a bookie, which takes or refuses it."""
        moves: list[Move] = []
        state = self.states.parts[at]
        world = self.world
        world._deliveries(
            state, world.at.link + bookie, 0, bookie, moves, at_once=world._syncs_at_once(state)
        )
        return self._numbered(moves)

    def admits(self, at: int, bookie: int) -> bool:
        """Whether a bookie would take an ordinary row now."""
        rows = self._rows
        return rows._admitted(rows.machine(self.world.bookies.parts[self.states.parts[at][bookie]]), -1)

    def stored(self, at: int, bookie: int) -> Half:
        """The next run is stored at a bookie that admitted it before, whatever has come since."""
        world, new = self.world, list(self.states.parts[at])
        link = self._link(at, bookie)
        request, waits = link.requests[0]
        before = world.bookies.parts[new[bookie]]
        after, replies, _ = self._rows.stored(before, self._rows.machine(before), (0, request, waits))
        if world._syncs_at_once(self.states.parts[at]):
            after, replies = world._synced(after)
        new[bookie] = world.bookies.number(after)
        new[world.at.link + bookie] = world.links.number(link._replace(requests=link.requests[1:]))
        world._push_replies(new, bookie, replies)
        return self._numbered([(Label(bookie_name(bookie), "stores", kind="add"), tuple(new))])

    def awaits(self, at: int, bookie: int, run: int) -> bool:
        """Whether a run is on its way to a bookie."""
        return any(request[2] == run for request, _ in self._link(at, bookie).requests)

    def given_up(self, at: int, bookie: int, run: int) -> int:
        """A run's frame is dropped before it reached a bookie, which the writer learns as a timeout."""
        link, new = self._link(at, bookie), list(self.states.parts[at])
        for request, waits in link.requests:
            if request[2] == run and waits:
                link = link.answered((request, Answer.TIMED_OUT, None))
        kept = tuple(each for each in link.requests if each[0][2] != run)
        new[self.world.at.link + bookie] = self.world.links.number(link._replace(requests=kept))
        self.world._tidy(new, 0, self.world.at.link + bookie)
        return self.states.number(tuple(new))

    def damaged(self, at: int, bookie: int) -> Half:
        """The next run reaches a bookie damaged, if one may."""
        return self._fault("transit_damages", self.world.faults._transit_damages, at, bookie)

    def crashed(self, at: int, bookie: int) -> Half:
        """A bookie crashes, if one may."""
        return self._fault("crashes", self.world.faults._crashes, at, bookie)

    def _fault(self, kind: str, happens: Callable[[State, list[Move]], None], at: int, bookie: int) -> Half:
        state, moves = self.states.parts[at], list[Move]()
        if getattr(self.world.budgets.parts[state[-1]], kind):
            happens(self.world.spent(state, kind), moves)
        return self._numbered(move for move in moves if move[0].actor == bookie_name(bookie))

    def synced(self, at: int, bookie: int) -> Half:
        """The oldest record that waits for a bookie's disk is on it."""
        moves: list[Move] = []
        state = self.states.parts[at]
        if not self.world._syncs_at_once(state):
            self.world.faults.sync_moves(state, bookie, moves)
        return self._numbered(moves)

    def lost(self, at: int, bookie: int) -> Half:
        """The writer gives a bookie up, if it waits for it."""
        state, moves = self.states.parts[at], list[Move]()
        client = self.world.clients.parts[state[self.world.at.client]]
        for slot, name in self.world.writer_driver.losable(client):
            if bookie_number(name) == bookie:
                moves += self.world.faults.lost(state, slot, name)
        return self._numbered(moves)

    def fenced(self, at: int, bookie: int) -> Half:
        """A recoverer that is not seen any more fences the ledger at a bookie."""
        world, new = self.world, list(self.states.parts[at])
        before = world.bookies.parts[new[bookie]]
        if before.is_fenced:
            return []
        after, _, what = self._rows.deliver(before, 0, ("fence", 0), waits=False)
        after, _ = world._settled(self.states.parts[at], after)
        new[bookie] = world.bookies.number(after)
        return self._numbered(
            [(Label(bookie_name(bookie), "takes a fence of X", (what,), kind="fence"), tuple(new))]
        )

    def left(self, at: int, bookie: int) -> Half:
        """The writer learns that a bookie has left, and that a spare could take its slot."""
        world, state, machine = self.world, self.states.parts[at], self.writer(at)
        name, client = bookie_name(bookie), world.clients.parts[state[world.at.client]]
        left = [(slot, name) for slot in machine.change.live if machine.ensemble[slot] == name]
        if machine.status is not Status.WRITING or not left:
            return []
        outcomes = world.writer_driver.step(client, lambda m: m.left_bookies_asked(left, NOW_MS, spare=True))
        found = world._client_moves(0, outcomes, f"learns that {name} leaves", kind="leaves")
        moves = world._after_each(state, 0, found)
        return self._numbered((_of_ledger(self.name, label), after) for label, after in moves)

    def ensemble(self, at: int) -> tuple[int, ...]:
        """The bookies that its runs are sent to."""
        return tuple(map(bookie_number, self.writer(at).ensemble))

    def hears(self, at: int, bookie: int, run: int) -> Half:
        """A bookie's oldest response to a run reaches the writer, whatever was sent before it."""
        world, state, link = self.world, self.states.parts[at], self._link(at, bookie)
        index = next(index for index, reply in enumerate(link.replies) if reply[0][2] == run)
        moved = world._on_response(0, bookie, state[world.at.client], link.replies[index])
        link = link._replace(replies=link.replies[:index] + link.replies[index + 1 :])
        new = list(state)
        new[world.at.link + bookie] = world.links.number(link)
        moves = world._after_each(new, 0, moved)
        return self._numbered(moves or [(Label("client", ""), tuple(new))])

    def confirm(self, at: int, bookies: Sequence[int], ensemble: Sequence[int], run: int) -> Half:
        """That some bookies of the ensemble that a run was sent to acknowledged it reaches the writer, in one step."""
        world, state = self.world, self.states.parts[at]
        new = self._without_responses(at, bookies, run)
        if not self.waits_for(at, run):
            return self._numbered([(Label("client", ""), tuple(new))])
        slots = sum(1 << ensemble.index(bookie) for bookie in bookies)
        names = tuple(map(bookie_name, ensemble))
        client = world.clients.parts[state[world.at.client]]
        outcomes = world.writer_driver.step(client, lambda m: m.adds_acked_together(slots, names, run))
        found = world._client_moves(0, outcomes, "gets acknowledgements")
        return self._numbered(world._after_each(new, 0, found))

    def forgotten(self, at: int, bookies: Sequence[int], run: int) -> int:
        """What some bookies acknowledged of a run is forgotten, and the run still waits."""
        if not self.waits_for(at, run):
            return at
        return self.states.number(tuple(self._without_responses(at, bookies, run)))

    def _without_responses(self, at: int, bookies: Sequence[int], run: int) -> list[int]:
        world, new = self.world, list(self.states.parts[at])
        for bookie in bookies:
            link = self._link(at, bookie)
            replies = [each for each in link.replies if each[0][2] != run or each[1] is not Answer.OK]
            new[world.at.link + bookie] = world.links.number(link._replace(replies=tuple(replies)))
        return new

    def _numbered(self, moves: Iterable[Move]) -> Half:
        return [(label, self.states.number(self._without_twins(after))) for label, after in moves]

    def _without_twins(self, state: State) -> State:
        """Of equal responses to one run the writer gets one, since they come in any order: it might be sent a run for ever."""
        world = self.world
        for index in range(world.at.link, world.at.link + world.n):
            link = world.links.parts[state[index]]
            if len(link.replies) > 1 and len(kept := tuple(dict.fromkeys(link.replies))) < len(link.replies):
                number = world.links.number(link._replace(replies=kept))
                state = (*state[:index], number, *state[index + 1 :])
        return state


def _of_ledger(name: str, label: Label) -> Label:
    return label if label.actor[0] == "b" else label._replace(actor=f"{name}'s {label.actor}")
