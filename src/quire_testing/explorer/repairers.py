"""A repairer as a client: the repair machine of `core` with the least of a driver around it.

What a bookie lists, and what is read of it for a copy, is looked at where it is: a question and its response as two
steps would change nothing at a bookie. Copies travel as requests like those of other clients, and the record is read and
written in two steps.

Source: `core/repair/rereplication.py`; docs/protocol/repair.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import NO_NOTES, EntryRange, LedgerNotes
from quire.core.ledger.replica import Replica, ReplicaList
from quire.core.ledger.stripes import bookie_stripes
from quire.core.repair.effects import (
    CopyRange,
    Loss,
    ReadRecord,
    RepairEnded,
    RepairLimits,
    RepairOutcome,
    RepairStatus,
    WriteRepaired,
)
from quire.core.repair.plan import RepairPlan
from quire.core.repair.rereplication import RepairMachine
from quire_testing.explorer.clients import (
    ClientDriver,
    ClientState,
    Fault,
    Outcome,
    Running,
    bookie_name,
    bookie_number,
    with_fault,
)
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.messages import Reply, Request
from quire_testing.explorer.snapshot import frozen, slots_of

LIMITS: Final = RepairLimits(piece_entries=1, pieces_max=16, rounds_max=4)
"""Nothing waits for its turn, so that the order of pieces is no state."""

LISTS: Final = (RepairStatus.LISTING, RepairStatus.VERIFYING)

SEEN: Final = {
    RepairMachine: "_candidates _damaged _failed _lost_bookies _plan _rounds report status",
    RepairPlan: "awaited filled is_fresh is_stale lists notes queue record targets under_way version written",
}
"""The fields that `seen` looks at. Of what a repair reports only that is state which a later input reads."""
NOT_SEEN: Final = {
    RepairMachine: "_accepted _found _limits _read_only rules _sources out",
    RepairPlan: "rules",
}
"""Those that are the same for every repair, and what is found anew from the lists; a test holds both against the fields."""


class RepairDriver(ClientDriver):
    """A repairer's side."""

    def __init__(self, configuration: Configuration, rules: Any, kind: type[RepairMachine]) -> None:
        super().__init__(configuration)
        self._rules = rules
        self._kind = kind
        self._in_order = configuration.bookies > configuration.ensemble + 1
        self._accepted = Loss(1, "operator") if configuration.accepts_loss else None

    def new(self, fault: Fault | None = None) -> ClientState:
        """A repairer that repairs nothing now; what it did in an earlier repair is no state of the next."""
        return idle(fault)

    def start(
        self, client: ClientState, lost: Sequence[BookieId], candidates: Sequence[BookieId]
    ) -> list[Outcome]:
        """Begin with what an operator says of bookies."""
        machine = self._kind(lost, candidates, accepted=self._accepted, limits=LIMITS, rules=self._rules)
        return self.step(ClientState((), machine, fault=client.fault), lambda m: m.start())

    def ensemble_of(self, machine: Any) -> Sequence[BookieId]:
        """No effect names a slot."""
        return ()

    def carry_out(self, running: Any, effect: Any) -> None:
        """Do what one effect asks; what bookies are asked for is done in steps of its own."""
        if isinstance(effect, ReadRecord):
            running.asks.append(("read",))
        elif isinstance(effect, WriteRepaired):
            running.asks.append(("swap", effect.record, effect.version, effect.notes))
        elif isinstance(effect, RepairEnded):
            running.result = effect.outcome.name

    def _outcome(self, client: ClientState, running: Running) -> Outcome:
        machine: RepairMachine = running.machine
        fault = running.fault or client.fault
        if machine.status is RepairStatus.ENDED:
            lost, record = bits_of(machine.report.lost), machine._plan and machine.plan.record
            key = ("repairer", "ended", running.result, lost, record, fault)
            after = ClientState(key, machine, result=running.result, fault=fault)
        else:
            under_way = machine._plan.under_way if machine._plan is not None else ()
            after = self.client(machine, [piece for piece in client.sent if piece in under_way], fault)
        return Outcome(after, tuple(running.sends), tuple(running.asks), tuple(running.said))

    def client(self, machine: RepairMachine, sent: Iterable[CopyRange], fault: Fault | None) -> ClientState:
        """The repairer with this machine.

        Args:
            sent: the pieces that were read from their sources already, and are on their way.
        """
        some = frozenset(sent)
        key = ("repairer", seen(machine, in_order=self._in_order), _pieces(some), fault)
        return ClientState(key, machine, sent=some, fault=fault)

    # --- what it asks bookies ----------------------------------------------------------------------------------------

    def listed(self, client: ClientState, bookie: BookieId, listed: ReplicaList) -> list[Outcome]:
        """What a bookie holds."""
        return self.step(client, lambda m: m.listed(bookie, listed))

    def unread(self, client: ClientState) -> list[CopyRange]:
        """The pieces that were not read from their sources yet."""
        machine: RepairMachine = client.machine
        if machine.status is not RepairStatus.COPYING:
            return []
        left = machine.plan.under_way - client.sent
        return sorted(left, key=lambda piece: (piece.bookie, piece.entries, sorted(piece.sources)))

    def read(
        self, client: ClientState, piece: CopyRange, readable: int, rotten: Mapping[int, int]
    ) -> list[Outcome]:
        """The sources of a piece gave what they could: that is sent.

        Args:
            readable: entries of the piece, as bits, that some source could give.
            rotten: by source, those that it listed and could not give.
        """
        if not readable:
            return self._copied(client, piece, Answer.OK, 0, rotten)
        some = tuple(sorted((bookie, bits) for bookie, bits in rotten.items() if bits))
        bookie = bookie_number(piece.bookie)
        request = ("copy", bookie, piece.entries.first, piece.entries.last, readable, some, NO_ENTRY)
        after = self.client(client.machine, {*client.sent, piece}, client.fault)
        return [Outcome(after, ((bookie, request),), (), ())]

    def _copied(
        self, client: ClientState, piece: CopyRange, answer: Answer, count: int, rotten: Mapping[int, int]
    ) -> list[Outcome]:
        damaged = {
            bookie_name(bookie): [EntryRange(entry, entry) for entry in _entries(bits)]
            for bookie, bits in rotten.items()
            if bits
        }
        return self.step(client, lambda m: m.copied(piece, answer, damaged, count))

    def limbo_cleared(self, client: ClientState, bookie: BookieId, answer: Answer) -> list[Outcome]:
        """Whether a bookie ended its limbo."""
        return self.step(client, lambda m: m.limbo_cleared(bookie, answer))

    def bookies_changed(
        self, client: ClientState, lost: Sequence[BookieId], candidates: Sequence[BookieId]
    ) -> list[Outcome]:
        """It learns which bookies are lost."""
        return self.step(client, lambda m: m.bookies_changed(lost, candidates))

    # --- responses -----------------------------------------------------------------------------------------------

    def answered(self, client: ClientState, bookie: int, reply: Reply) -> list[Outcome]:
        """A bookie stored copies, or did not."""
        request, answer, _ = reply
        rotten = dict(request[5])
        return self._copied(client, self._piece(client, request), answer, request[4].bit_count(), rotten)

    def gave_up(self, client: ClientState, bookie: int, request: Request) -> list[Outcome]:
        """The time of a request is over."""
        return self.answered(client, bookie, (request, Answer.TIMED_OUT, None))

    def heeds(self, client: ClientState, reply: Reply) -> bool:
        """Whether a response can still change anything."""
        return self.waits_for(client, reply[0])

    def waits_for(self, client: ClientState, request: Request) -> bool:
        """Whether the response to a request can still change anything."""
        return any(_is_of(piece, request) for piece in client.sent)

    def _piece(self, client: ClientState, request: Request) -> CopyRange:
        return next(piece for piece in client.sent if _is_of(piece, request))

    def cas_answered(
        self,
        client: ClientState,
        answer: str,
        record: LedgerMetadata,
        version: int,
    ) -> list[Outcome]:
        """The store's response to a compare-and-swap."""
        if answer == "written":
            return self.step(client, lambda m: m.stored(version))
        if answer == "unknown":
            return self.step(client, lambda m: m.unknown())
        return self.step(client, lambda m: m.conflicted())

    def read_answered(
        self,
        client: ClientState,
        record: LedgerMetadata | None,
        version: int,
        notes: LedgerNotes = NO_NOTES,
    ) -> list[Outcome]:
        """The record as the store has it, and its notes."""
        return self.step(client, lambda m: m.record_read(record, version, notes))

    # --- names ---------------------------------------------------------------------------------------------------

    def renamed(self, client: ClientState, rename: Callable[[Any], Any]) -> ClientState:
        """The same with other names of bookies."""
        return self.client(rename(client.machine), rename(client.sent), client.fault)


def idle(fault: Fault | None) -> ClientState:
    """A repairer between two repairs."""
    return ClientState(("repairer", fault), None, fault=fault)


def _is_of(piece: CopyRange, request: Request) -> bool:
    _, bookie, first, last, *_ = request
    span = piece.entries
    return bookie_name(bookie) == piece.bookie and (span.first, span.last) == (first, last)


_SHIPPED: Final = slots_of(RepairMachine)


def seen(machine: RepairMachine, *, in_order: bool) -> tuple[Any, ...]:
    """A machine's state as one value: equal states behave alike, up to the order in which equals are asked.

    Args:
        in_order: whether it matters which candidate is the best: a fragment may have several.
    """
    plan = machine._plan
    waits = machine.status in (RepairStatus.READING, RepairStatus.CLEARING) and plan is not None
    report = machine.report
    candidates = machine._candidates
    return (
        *(frozen(getattr(machine, name)) for name in slots_of(type(machine)) if name not in _SHIPPED),
        machine.status.name,
        machine._rounds,
        tuple(sorted(machine._lost_bookies)),
        candidates if in_order else tuple(sorted(candidates)),
        tuple(sorted(machine._failed)),
        tuple(sorted((bookie, tuple(sorted(some))) for bookie, some in machine._damaged.items() if some)),
        (report.lost, report.unanswered, report.gone_only, tuple(sorted(report.cleared))) if waits else (),
        tuple(sorted(report.read_only.items())),
        None if plan is None else _plan_seen(plan),
    )


def _plan_seen(plan: RepairPlan) -> tuple[Any, ...]:
    written = plan.written
    return (
        plan.record,
        plan.notes,
        plan.version,
        tuple(sorted((index, *sorted(some.items())) for index, some in plan.targets.items() if some)),
        tuple(sorted((bookie, _replica_seen(held)) for bookie, held in plan.lists.items())),
        tuple(sorted(plan.awaited)),
        tuple(sorted(plan.filled)),
        _pieces(plan.queue),
        _pieces(plan.under_way),
        plan.is_fresh,
        plan.is_stale,
        None if written is None else (written.record, written.version),
    )


def _replica_seen(replica: Replica) -> tuple[Any, ...]:
    listed = replica.response
    return listed.answer.name, tuple(sorted(listed.held)), listed.limbo, listed.limbo_lsn


def _pieces(pieces: Iterable[CopyRange]) -> tuple[Any, ...]:
    return tuple(sorted((piece.bookie, piece.entries, *sorted(piece.sources)) for piece in pieces))


def _entries(bits: int) -> list[int]:
    return [entry for entry in range(bits.bit_length()) if bits >> entry & 1]


def bits_of(ranges: Iterable[EntryRange]) -> int:
    """Entries as bits."""
    return sum(
        1 << entry
        for entry in {e for some in ranges for e in range(some.first, some.last + 1) if some.holds(e)}
    )


def judged(client: ClientState, held: Sequence[int], readable: Sequence[int], *, sound: bool) -> ClientState:
    """A repairer that has just ended; what it says is held against the disks.

    Args:
        held: entries by bookie, as bits, those of lost bookies included.
        readable: the same without what has rotted.
        sound: nothing but losses can go wrong, so that what was listed is still there.
    """
    machine: RepairMachine = client.machine
    after = idle(client.fault)
    lost = bits_of(machine.report.lost)
    if any(lost & there for there in readable):
        return with_fault(after, ("RR3", "an entry is called lost that a disk holds"))
    if client.result != RepairOutcome.WHOLE.name or not sound or machine._plan is None:
        return after
    lacking = any(wanted & ~held[bookie] for bookie, wanted in entries_of_decided(machine.plan.record))
    return (
        with_fault(after, ("F5", "a repair says that everything is whole, and it is not"))
        if lacking
        else after
    )


def entries_of_decided(record: LedgerMetadata) -> list[tuple[int, int]]:
    """(bookie, entries as bits) of each slot of each fragment that is decided."""
    return [
        (bookie_number(part.bookie), sum(1 << entry for entry in part.ids()))
        for part in bookie_stripes(record)
    ]
