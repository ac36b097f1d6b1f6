"""Bookies have names, and names decide nothing: states that differ by names only are explored once.

With E = Qw every slot stores every entry, so bookies of the first ensemble may change names together with their slots;
spares may change names among themselves. With striping only spares may.

A renaming is a pair of permutations: of bookies and, by where the first ensemble had them, of slots. Each part of a
state is renamed once and remembered; of all renamings of a state the smallest stands for it. To try few of them, the
bookies are first put in order by what each looks like without names (its own state and its connections).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from itertools import permutations, product
from typing import Any, Final, TypeAlias, TypeVar

from quire.core.ids import BookieId
from quire.core.ledger.closing import Closing
from quire.core.ledger.ensemble_change import EnsembleChange
from quire.core.ledger.metadata import Fragment, LedgerMetadata
from quire.core.ledger.reader import LacMachine, ReadMachine
from quire.core.ledger.record_cas import RecordCas
from quire.core.ledger.replica import Replica, ReplicaList
from quire.core.ledger.writer import RunWindow, WriterMachine
from quire.core.ledger.writer_state import Hole
from quire.core.ledger.writer_waits import WriterWaits
from quire.core.recovery.log_end_search import FenceAnswers, LogEndSearch, Votes
from quire.core.recovery.machine import RecoveryMachine
from quire.core.recovery.write_back import WriteBack
from quire.core.repair.effects import CopyRange, EndLimbo, RepairReport, WriteRepaired
from quire.core.repair.missing_copies import MissingCopies
from quire.core.repair.plan import RepairPlan
from quire.core.repair.rereplication import RepairMachine
from quire_testing.explorer.bookies import BookieState
from quire_testing.explorer.clients import ClientState, bookie_name, bookie_number
from quire_testing.explorer.messages import Link, Request
from quire_testing.explorer.parts import Clearing, Store
from quire_testing.explorer.readers import ReaderState
from quire_testing.explorer.snapshot import NOT_STATE, clone, slots_of, state_of
from quire_testing.explorer.tables import Ask, State, Table
from quire_testing.explorer.world import LedgerWorld

M = TypeVar("M")
P = TypeVar("P", Store, Ask)
T = TypeVar("T")
Renaming: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""What each bookie becomes, and what each slot becomes."""

FIELDS: Final[dict[type, dict[str, str]]] = {
    WriterMachine: {
        "parts": "change closing cas waits window",
        "same": "limits out problem rules status",
    },
    RunWindow: {
        "masks_by_key": "_acked _resent",
        "same": (
            "_head ack_quorum confirmed_length final_quorum kept lac lafr lap length masks next_run paused rules runs"
        ),
    },
    EnsembleChange: {
        "by_slot": "absent",
        "bookie_by_slot": "delayed failing leaving",
        "slots": "live",
        "ensembles": "ensemble",
        "holes": "holes",
        "same": "busy ledger_id seeks_absent status",  # no bookie is too busy,
    },
    WriterWaits: {
        "same": "answering left_at_ms limits look_at_ms looking quorum_until_ms read_at_ms retry_ms timer_at_ms",
    },
    RecordCas: {
        "records": "proposed record",
        "same": "asked attempts unsettled version",
    },
    Closing: {"same": "guaranteed lac ledger_id length rules status term"},
    RecoveryMachine: {
        "parts": "back end",
        "records": "record",
        "same": "_gives_up _ignored_lacs _rules _version _window_bytes _window_entries out status",
    },
    LogEndSearch: {
        "parts": "fence votes",
        "ensembles": "ensemble",
        "records": "record",
        "same": (
            "_asked_again _masks _needed _waited final_quorum ignored_lacs lap length origins rules start status window_entries"
        ),
    },
    FenceAnswers: {
        "masks": "failed known",
        "by_slot": "lacs",
        "same": "lafr",
    },
    Votes: {
        "mask_lists": "negative positive unknown",
        "lists_by_slot": "asked conclusive",
        "same": "by_id first last lengths lowest origins",
    },
    WriteBack: {
        "parts": "change",
        "mask_lists": "_acked",
        "lists_by_slot": "_stripes",
        "names": "failed",
        "changes": "changes",
        "records": "record",
        "same": "_masks _quorum _start lac lengths rules",
    },
    LacMachine: {
        "masks": "_answered _known",
        "ensembles": "_ensemble",
        "records": "_record",
        "same": "_behind _highest _quorums _rules out status",
    },
    ReadMachine: {
        "masks": "_avoid _slow",
        "ensembles": "_ensemble",
        "masks_by_key": "_no _tried",
        "slot": "_prefer",
        "lists_by_slot": "_asked",
        "by_slot": "_answers",
        "same": "_first _last _masks _missing _rules _speculate_after_ms _write_quorum out status",
    },
}
"""Every field of the machines and of their parts, by what a renaming does to it; a test holds this against `__slots__`."""


BOOKIE: Final = re.compile(r"b\d+")
REPAIR_PARTS: Final = (
    RepairMachine,
    RepairPlan,
    RepairReport,
    MissingCopies,
    Replica,
    ReplicaList,
    CopyRange,
    WriteRepaired,
    EndLimbo,
)
"""What `renamed_within` looks into; a test walks both sides of renamings."""

PAIR = 2


def renamings(world: LedgerWorld) -> list[Renaming]:
    """Every renaming that leaves the beginning as it is.

    A reader asks one slot after another: in a world with a reader only the two slots of an ensemble of two are alike. A new
    ledger's absent slots are spread evenly over the write sets, so with several of them in an ensemble of four or more a
    renamed beginning may be one that no ledger has.
    """
    configuration = world.configuration
    size, n = configuration.ensemble, configuration.bookies
    if configuration.accepts_loss:
        return [(tuple(range(n)), tuple(range(size)))]  # an accepted loss in its record names bookies
    alike = size == configuration.write_quorum and (size == PAIR or not configuration.readers)
    alike = alike and (configuration.away <= 1 or size <= PAIR + 1)
    alike = (
        alike and configuration.losses <= 1
    )  # of two lost bookies the one at the lower slot gets the only target
    members = permutations(range(size)) if alike else [tuple(range(size))]
    spares = permutations(range(size, n))
    return [((*first, *rest), first) for first, rest in product(list(members), list(spares))]


class Symmetry:
    """Names a state's representative."""

    def __init__(self, world: LedgerWorld) -> None:
        self._world = world
        self._renamings = renamings(world)
        self._bookie = self._of(world.bookies, bookie_renamed)
        self._store = self._of(world.stores, within_record)
        self._client = self._of(world.clients, self._client_renamed)
        self._link = self._of(world.links, link_renamed)
        self._ask = self._of(world.asks, lambda asks, how: tuple(within_record(ask, how) for ask in asks))
        self._reader = self._of(world.readers, reader_renamed)
        self._clearing = self._of(world.clearings, clearing_renamed)
        self._inverse = [tuple(sorted(range(world.n), key=names.__getitem__)) for names, _ in self._renamings]
        self._by_order: dict[tuple[tuple[int, ...], ...], tuple[int, ...]] = {}
        # Where a state has each bookie and its connections.
        first, after = world.at.link, world.at.link + world.count * world.n
        self._links = [(bookie, range(first + bookie, after, world.n)) for bookie in range(world.n)]
        self._bookie_look: dict[int, int] = {}
        self._link_look: dict[int, int] = {}

    def __call__(self, state: State) -> State:
        """The state that stands for this one."""
        if len(self._renamings) == 1:
            return state
        bookie_look, link_look = self._bookie_look, self._link_look
        looks = []
        for bookie, links in self._links:
            number = state[bookie]
            look = bookie_look.get(number)
            if look is None:
                look = self._look(bookie_look, self._bookie, number)
            parts = [look]
            for index in links:
                number = state[index]
                look = link_look.get(number)
                if look is None:
                    look = self._look(link_look, self._link, number)
                parts.append(look)
            looks.append(tuple(parts))
        order = tuple(looks)
        candidates = self._by_order.get(order)
        if candidates is None:
            candidates = self._by_order[order] = self._candidates(order)
        if len(candidates) == 1:
            return self._renamed(state, candidates[0])
        return min(self._renamed(state, which) for which in candidates)

    def _candidates(self, looks: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        """The renamings that put the bookies in the order of their looks."""
        best: list[int] = []
        smallest = None
        for which, inverse in enumerate(self._inverse):
            renamed = tuple(looks[old] for old in inverse)
            if smallest is None or renamed < smallest:
                smallest, best = renamed, [which]
            elif renamed == smallest:
                best.append(which)
        return tuple(best)

    def _look(self, looks: dict[int, int], renumbered: Callable[[int, int], int], number: int) -> int:
        """A number for what a bookie or a connection looks like without names: the smallest of its renamings."""
        numbers = [renumbered(which, number) for which in range(len(self._renamings))]
        looks.update(dict.fromkeys(numbers, min(numbers)))
        return min(numbers)

    def _renamed(self, state: State, which: int) -> State:
        if which == 0:
            return state
        world = self._world
        n, inverse = world.n, self._inverse[which]
        new = [self._bookie(which, state[old]) for old in inverse]
        new.append(self._store(which, state[n]))
        new.extend(self._client(which, number) for number in state[n + 1 : world.at.link])
        for index in range(world.at.link, world.at.ask, n):
            new.extend(self._link(which, state[index + old]) for old in inverse)
        new.extend(self._ask(which, number) for number in state[world.at.ask : world.at.reader])
        new.extend(self._reader(which, number) for number in state[world.at.reader : world.at_clearing])
        new.extend(self._clearing(which, number) for number in state[world.at_clearing : -1])
        new.append(state[-1])
        return tuple(new)

    def _of(self, table: Table[T], renamed: Callable[[T, Renaming], T]) -> Callable[[int, int], int]:
        """What a renaming makes of the number of a part: each part is renamed once."""
        memos: list[dict[int, int]] = [{} for _ in self._renamings]

        def renumbered(which: int, number: int) -> int:
            after = memos[which].get(number)
            if after is None:
                part = renamed(table.parts[number], self._renamings[which])
                after = memos[which][number] = table.number(part)
            return after

        return renumbered

    def _client_renamed(self, client: ClientState, renaming: Renaming) -> ClientState:
        if client.machine is None or client.idle:
            return client
        if isinstance(client.machine, RepairMachine):
            return self._world.repair_driver.renamed(client, lambda part: renamed_within(part, renaming))
        if isinstance(client.machine, WriterMachine):
            writer = machine_renamed(client.machine, renaming)
            return self._world.writer_driver.client(writer, client.confirmed, client.left, client.fault)
        recovery = machine_renamed(client.machine, renaming)
        return self._world.recovery_driver.client(recovery, client.verdict, client.result, client.fault)


# --- what a renaming does to each kind of value ---------------------------------------------------------------------


def _mask(mask: int, slots: tuple[int, ...]) -> int:
    return sum(1 << new for old, new in enumerate(slots) if mask >> old & 1)


def _name(bookie: BookieId, names: tuple[int, ...]) -> BookieId:
    return bookie_name(names[bookie_number(bookie)])


def ensemble_renamed(ensemble: tuple[BookieId, ...], renaming: Renaming) -> tuple[BookieId, ...]:
    """An ensemble, its slots in their new places."""
    names, slots = renaming
    new = list(ensemble)
    for slot, bookie in enumerate(ensemble):
        new[slots[slot]] = _name(bookie, names)
    return tuple(new)


def record_renamed(record: Any, renaming: Renaming) -> Any:
    """A record; None stays None."""
    if record is None:
        return None
    assert isinstance(record, LedgerMetadata)
    fragments = tuple(
        Fragment(each.first_entry, ensemble_renamed(each.ensemble, renaming)) for each in record.fragments
    )
    return replace(record, fragments=fragments)


def within_record(part: P, renaming: Renaming) -> P:
    """The store, or a question to it."""
    return part._replace(record=record_renamed(part.record, renaming))


def clearing_renamed(clearing: Clearing, renaming: Renaming) -> Clearing:
    """How far a client is that copies what a bookie in limbo lacks, and ends its limbo."""
    if not clearing.step:
        return clearing
    bookie, filled = renaming[0][clearing.bookie], record_renamed(clearing.filled, renaming)
    return clearing._replace(bookie=bookie, filled=filled)


def request_renamed(request: Request, renaming: Renaming) -> Request:
    """A request; a "put" is a recovery add, a "copy" a repair's."""
    names, slots = renaming
    kind = request[0]
    if kind == "put":
        _, slot, bookie, *rest = request
        return (kind, slots[slot], names[bookie], *rest)
    if kind == "copy":
        _, bookie, first, last, bits, damaged, lac = request
        damaged = tuple(sorted((names[source], some) for source, some in damaged))
        return (kind, names[bookie], first, last, bits, damaged, lac)
    if kind in ("add", "fence", "read"):
        return (kind, slots[request[1]], *request[2:])
    return request


def renamed_within(value: Any, renaming: Renaming) -> Any:
    """A repair machine, or a part of one: bookies are names in it, and slots stand in records only."""
    if isinstance(value, LedgerMetadata):
        return record_renamed(value, renaming)
    if isinstance(value, str):
        names = renaming[0]
        return bookie_name(names[int(value[1:])]) if BOOKIE.fullmatch(value) else value
    if isinstance(value, dict):
        other = value.copy()
        other.clear()
        other.update(
            (renamed_within(key, renaming), renamed_within(each, renaming)) for key, each in value.items()
        )
        return other
    if isinstance(value, list | set | frozenset):
        return type(value)(renamed_within(each, renaming) for each in value)
    if isinstance(value, tuple):
        parts = [renamed_within(each, renaming) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    kind = type(value)
    if not isinstance(value, REPAIR_PARTS):
        return value
    other = object.__new__(kind)
    names_of = [field.name for field in fields(value)] if is_dataclass(value) else slots_of(kind)
    for name in names_of:
        part = getattr(value, name)
        object.__setattr__(other, name, part if name in NOT_STATE else renamed_within(part, renaming))
    return other


def link_renamed(link: Link, renaming: Renaming) -> Link:
    """A connection; whose it is, the caller says."""
    return Link(
        tuple((request_renamed(request, renaming), waits) for request, waits in link.requests),
        tuple((request_renamed(request, renaming), answer, body) for request, answer, body in link.replies),
        tuple(request_renamed(request, renaming) for request in link.broken),
    )


def bookie_renamed(bookie: BookieState, renaming: Renaming) -> BookieState:
    """A bookie; its names are those in the requests that wait for its disk, or for the store."""
    if bookie.waiting:
        waits = tuple(
            (who, request_renamed(what, renaming), whether) for who, what, whether in bookie.waiting
        )
        bookie = bookie._replace(waiting=waits)
    if not bookie.journal:
        return bookie
    journal = tuple(
        (
            kind,
            content,
            (waiting[0], request_renamed(waiting[1], renaming), waiting[2]) if waiting else waiting,
        )
        for kind, content, waiting in bookie.journal
    )
    return bookie._replace(journal=journal)


def _by_slot(old: list[Any], slots: tuple[int, ...]) -> list[Any]:
    new = list(old)
    for slot, value in enumerate(old):
        new[slots[slot]] = value
    return new


RENAMED: Final[dict[str, Callable[[Any, Renaming], Any]]] = {
    "masks": lambda old, how: _mask(old, how[1]),
    "masks_by_key": lambda old, how: {key: _mask(mask, how[1]) for key, mask in old.items()},
    "mask_lists": lambda old, how: [_mask(mask, how[1]) for mask in old],
    "lists_by_slot": lambda old, how: _by_slot(old, how[1]),
    "by_slot": lambda old, how: dict(sorted((how[1][slot], value) for slot, value in old.items())),
    "bookie_by_slot": lambda old, how: dict(
        sorted((how[1][slot], _name(bookie, how[0])) for slot, bookie in old.items())
    ),
    "slot": lambda old, how: how[1][old],
    "slots": lambda old, how: tuple(sorted(how[1][slot] for slot in old)),
    "ensembles": ensemble_renamed,
    "names": lambda old, how: tuple(sorted(_name(bookie, how[0]) for bookie in old)),
    "changes": lambda old, how: {first: ensemble_renamed(each, how) for first, each in old.items()},
    "records": record_renamed,
    "holes": lambda old, how: tuple(
        sorted(Hole(how[1][hole.slot], _name(hole.bookie, how[0]), hole.first, hole.last) for hole in old)
    ),
    "parts": lambda part, how: machine_renamed(part, how),  # noqa: PLW0108 - it stands below
}
"""What a renaming does to a field of each kind."""


_CHANGED: dict[type, tuple[tuple[str, Callable[[Any, Renaming], Any]], ...]] = {}


def _changed_fields(kind: type) -> tuple[tuple[str, Callable[[Any, Renaming], Any]], ...]:
    found = _CHANGED.get(kind)
    if found is None:
        table = next(FIELDS[base] for base in kind.__mro__ if base in FIELDS)
        found = _CHANGED[kind] = tuple(
            (name, RENAMED[how]) for how, names in table.items() if how != "same" for name in names.split()
        )
    return found


def machine_renamed(machine: M, renaming: Renaming) -> M:
    """A machine, or a part of one."""
    other = clone(machine)
    for name, renamed in _changed_fields(type(machine)):
        setattr(other, name, renamed(getattr(other, name), renaming))
    return other


def reader_renamed(reader: ReaderState, renaming: Renaming) -> ReaderState:
    """A reader; of a read only the slots of an ensemble of two are alike, see `renamings`."""
    machine: Any = None if reader.machine is None else machine_renamed(reader.machine, renaming)
    failed = reader.failed
    if failed is not None:
        failed = (*failed[:2], tuple(sorted(_name(bookie, renaming[0]) for bookie in failed[2])))
    return replace(
        reader,
        record=record_renamed(reader.record, renaming),
        machine=machine,
        work=state_of(machine) if machine is not None else (),
        failed=failed,
    )
