"""One bookie's half of the world: the ledger's machine of `core`, what memory holds, what the disk holds.

Requests are inputs of the machine, and what it says of each (`BookieReady`) is carried out as it says: records into the
journal, responses to clients, now or when the journal holds what they wait for. A sync makes the oldest waiting record
durable and lets its response leave. A crash keeps the disk only. Entries are bits.

Source: BookKeeper protocol, "Closing a ledger as a reader"; docs/protocol/bookie.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from quire.core.answers import NEGATIVES, Answer
from quire.core.bookie.ledger import (
    BookieLedgerMachine,
    BookieReady,
    Fence,
    Journaled,
    LedgerFacts,
)
from quire.core.bookie.limbo_decisions import LimboDecisions, once_read
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.quorum import stripes_of_slot
from quire.core.ledger.replica import ReplicaList
from quire.core.ledger.stripes import HeldInterval
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.messages import Reply, Request, entries_text, lacs_of
from quire_testing.explorer.snapshot import frozen
from quire_testing.explorer.switches import Rules

KEY = b"k" * 20
LEDGER = 1

Waiting = tuple[int, Request, bool]
"""Who asked (a client's number), what, and whether it still waits."""


class Disk(NamedTuple):
    """What survives a crash."""

    held: int = 0
    lac: int = NO_ENTRY
    facts: tuple[Any, ...] | None = None


class Collecting(NamedTuple):
    """Where a bookie's collector is with the ledger.

    Attributes:
        step: "looked", "pending", "listed" or "asked".
        version: of the record at the first look.
        entries: those of the ranges that it showed, held or not.
        unlisted: those of them that need lists, and have none.
        again: the version that the last look showed, once it was asked for.
    """

    step: str
    version: int
    entries: int
    unlisted: int = 0
    again: int = -1


class BookieState(NamedTuple):
    """One bookie. Entries are bits.

    Attributes:
        facts: what the ledger's machine knows, None before it knows the ledger.
        fence, unsaved: the machine's other two fields.
        held: entries that a read finds.
        damaged: entries that are held and unreadable.
        journal: records that are not durable yet: (kind, content, who waits).
        answered_fence: a fencing request was answered: no normal add may be stored again.
        fault: what this bookie did against an invariant.
        losses: how often it lost what it held; the newest one's number is the LSN of a limbo.
        unnamed: a loss had no name: the fence of any ledger may be among what is lost.
        looking: it has not looked through the records yet for what it may have lost.
        asked: the record was read since the last loss, and settled the fence.
        question: to the store, whether this one does: "" none, "asked", or its response on the way, "settled" or
            "open".
        waiting: normal adds that wait for that answer.
        held_before: entries that it held before a loss (where limbo is cleared).
        lost: for good, with what it held, which stays here for the judges.
        collecting: where its collector is, if it collects.
        pending_deletion: entries of which nothing is said until the collector has ended.
        put: entries that were put since its collector's first look.
    """

    facts: tuple[Any, ...] | None = None
    fence: str = Fence.NONE.name
    unsaved: bool = False
    held: int = 0
    damaged: int = 0
    journal: tuple[tuple[Any, ...], ...] = ()
    disk: Disk = Disk()
    answered_fence: bool = False
    fault: tuple[str, str] | None = None
    losses: int = 0
    unnamed: bool = False
    looking: bool = False
    asked: bool = False
    question: str = ""
    waiting: tuple[Waiting, ...] = ()
    held_before: int = 0
    lost: bool = False
    collecting: Collecting | None = None
    pending_deletion: int = 0
    put: int = 0

    @property
    def all_waiting(self) -> list[Waiting | None]:
        """Who waits here: for the disk, or for the record."""
        return [*(record[2] for record in self.journal), *self.waiting]

    @property
    def lac(self) -> int:
        """The highest LAC it would tell."""
        return LedgerFacts(*self.facts).lac if self.facts else NO_ENTRY

    @property
    def fence_is_durable(self) -> bool:
        """Whether a crash would leave the fence."""
        return bool(self.disk.facts and LedgerFacts(*self.disk.facts).fenced)

    @property
    def is_fenced(self) -> bool:
        """Whether it refuses normal adds now."""
        return bool(self.facts and LedgerFacts(*self.facts).fenced)

    @property
    def in_limbo(self) -> bool:
        """Whether it gives no negatives."""
        return self.looking if self.facts is None else LedgerFacts(*self.facts).in_limbo

    @property
    def takes_no_adds(self) -> bool:
        """Whether it is fenced, or would ask the record first."""
        return self.is_fenced or (not self.asked and (self.unnamed or self.in_limbo))


class BookieDriver:
    """Hands requests on a `BookieState` to the ledger's machine, and carries out what it says.

    Args:
        configuration: the world's size.
        rules: the protocol's rules (`core/rules.py`).
        kind: the machine.
    """

    def __init__(
        self,
        configuration: Configuration,
        rules: Rules,
        kind: type[BookieLedgerMachine] = BookieLedgerMachine,
    ) -> None:
        self.configuration = configuration
        self.rules = rules
        self.kind = kind

    # --- requests ------------------------------------------------------------------------------------------------

    def deliver(
        self, state: BookieState, client: int, request: Request, *, waits: bool
    ) -> tuple[BookieState, list[tuple[int, Reply]], str]:
        """Take one request.

        Returns:
            The bookie after it, replies that may leave at once with their receivers, and a description of the step.
        """
        waiting = (client, request, waits)
        if state.lost:
            return state, reply_to(waiting, Answer.UNREACHABLE), "is gone"
        machine = self.machine(state)
        match request[0]:
            case "add" | "put" | "copy":
                return self._add(state, waiting)
            case "lac":
                ready = machine.explicit_lac(b"", request[1], key=KEY, token=0, digest_type=0)
                after, _ = self._carried_out(state, machine, ready, None)
                return after, [], f"knows lac {after.lac}"
            case "delete":
                after, _ = self._carried_out(state, machine, machine.delete(1), None)
                return after, [], "drops the ledger, keeps its tombstone"
            case "read" if not request[4]:
                return state, self.look(state, waiting, Answer.OK), "looks"
        ready = machine.set_fence(key=KEY, token=0, digest_type=0)
        after, replies = self._carried_out(state, machine, ready, waiting)
        if ready.answer is not Answer.OK:
            return state, replies, f"refuses: {ready.answer.name}"
        if ready.facts is None:
            return after, replies, "is fenced, looks"
        return after, replies, "fences, waits for its disk" if ready.persisted else "fences, answers at once"

    def _add(self, state: BookieState, waiting: Waiting) -> tuple[BookieState, list[tuple[int, Reply]], str]:
        lac, lafr = lacs_of(waiting[1][-1])
        machine = self.machine(state)
        recovery = waiting[1][0] != "add"
        ready = machine.add(key=KEY, token=0, digest_type=0, lac=lac, recovery=recovery, lafr=lafr)
        if ready.answer is Answer.UNKNOWN:
            asks = "" if state.question else ", asks the store"
            after = state._replace(question=state.question or "asked", waiting=(*state.waiting, waiting))
            return after, [], f"keeps it{asks}"
        if ready.record is not Journaled.RUN:
            return state, reply_to(waiting, ready.answer), f"refuses: {ready.answer.name}"
        after, replies = self._carried_out(state, machine, ready, waiting)
        return after, replies, f"stores {entries_text(self.bits_of(waiting[1]))}"

    def _carried_out(
        self, state: BookieState, machine: BookieLedgerMachine, ready: BookieReady, waiting: Waiting | None
    ) -> tuple[BookieState, list[tuple[int, Reply]]]:
        """Do what a machine says, in its order; the response leaves now, or with the last record."""
        records: list[tuple[Any, ...]] = []
        if ready.facts is not None:
            records.append(("facts", frozen(ready.facts)))
        after = self._with(state, machine)
        if ready.record is Journaled.RUN:
            assert waiting is not None
            after = self._stored(state, after, waiting[1])
            recovery = waiting[1][0] != "add"
            lac = NO_ENTRY if recovery else lacs_of(waiting[1][-1])[0]
            lac = self.rules.lac_after_add(NO_ENTRY, lac, recovery=recovery)
            records.append(("run", (self.bits_of(waiting[1]), lac)))
        elif ready.record is Journaled.TOMBSTONE:
            after = after._replace(held=0, damaged=0)
            records.append(("tombstone", after.facts))
        last = waiting if ready.persisted else None
        journal = [
            (*record, last if number == len(records) else None) for number, record in enumerate(records, 1)
        ]
        after = after._replace(journal=(*state.journal, *journal))
        if waiting is None or ready.persisted:
            return after, []
        return self.answer(after, waiting, ready.answer, fences=ready.facts is not None)

    def _stored(self, before: BookieState, after: BookieState, request: Request) -> BookieState:
        """Entries are there to be read; what must never be stored, and a LAC that falls, is a fault."""
        bits = self.bits_of(request)
        after = self._put(after._replace(held=after.held | bits, damaged=after.damaged & ~bits), bits)
        known = LedgerFacts(*before.facts) if before.facts else LedgerFacts(LEDGER)
        fenced = known.fenced or (before.answered_fence and not self.configuration.journal)
        if (request[0] == "add" and fenced) or known.deleted_until_ms:
            after = after._replace(
                fault=("I9", "a bookie stored a normal add after it was fenced or deleted")
            )
        return after if after.lac >= before.lac else after._replace(fault=("I5", "a bookie's LAC fell"))

    def _put(self, state: BookieState, bits: int) -> BookieState:
        """What is put is not over-replicated, and ends the pending deletion."""
        if state.collecting is None:
            return state
        return state._replace(put=state.put | bits, pending_deletion=0)

    def answer(
        self, state: BookieState, waiting: Waiting, answer: Answer, *, fences: bool
    ) -> tuple[BookieState, list[tuple[int, Reply]]]:
        """A response leaves, with what is here now.

        Args:
            fences: it says that the ledger is fenced now.
        """
        if waiting[1][0] in ("add", "put", "copy"):
            return state, reply_to(waiting, answer)
        if fences:
            state = state._replace(answered_fence=state.answered_fence or waiting[2])
        return state, self.look(state, waiting, answer)

    def look(self, state: BookieState, waiting: Waiting, answer: Answer) -> list[tuple[int, Reply]]:
        """The response to a read, or to a fence, from what is here now."""
        request = waiting[1]
        of_lac = request[0] == "fence"
        if answer is not Answer.OK:
            return reply_to(waiting, answer)
        if state.facts is None:
            answer = self._limbo_decisions(state).of_unknown(searching=state.looking)
        else:
            machine = self.machine(state)
            answer = machine.may_read(KEY, 0)
        if answer is not Answer.OK:
            conclusive = ((), request[3], ()) if answer is Answer.NO_LEDGER and not of_lac else None
            return reply_to(waiting, answer, NO_ENTRY if of_lac else conclusive)
        if of_lac:
            lac, lafr = machine.facts.lac, machine.facts.lafr
            return reply_to(waiting, Answer.OK, (lac, lafr) if self.configuration.guarantee else lac)
        _, _, first, last, _ = request
        here = [entry for entry in range(first, last + 1) if state.held >> entry & 1]
        readable = tuple(entry for entry in here if not (state.damaged | state.pending_deletion) >> entry & 1)
        unsaid = state.pending_deletion | (state.damaged if machine.tells_damage() else 0)
        unknown = tuple((entry, entry) for entry in here if entry not in readable and unsaid >> entry & 1)
        return reply_to(waiting, Answer.OK, (readable, machine.conclusive_through(first, last), unknown))

    # --- the disk --------------------------------------------------------------------------------------------------

    def sync(self, state: BookieState) -> tuple[BookieState, list[tuple[int, Reply]]]:
        """The oldest waiting record becomes durable; its response leaves."""
        (kind, content, waiting), journal = state.journal[0], state.journal[1:]
        disk = state.disk
        if not self.configuration.journal:
            pass
        elif kind == "run":
            disk = disk._replace(held=disk.held | content[0], lac=max(disk.lac, content[1]))
        elif kind == "drop":
            disk = disk._replace(held=disk.held & ~content)
        elif kind == "tombstone":
            disk = Disk(0, NO_ENTRY, content)
        else:
            disk = disk._replace(facts=content)
        after = state._replace(journal=journal, disk=disk)
        if kind == "facts":
            machine = self.machine(after)
            machine.saved(LedgerFacts(*content))
            after = self._with(after, machine)
        return (after, []) if waiting is None else self.answer(after, waiting, Answer.OK, fences=True)

    def crashed(self, state: BookieState) -> BookieState:
        """The bookie stops, and starts again with what its disk holds."""
        disk = state.disk
        facts = LedgerFacts(*disk.facts) if disk.facts else None
        if facts is None and disk.held:
            facts = LedgerFacts(LEDGER, KEY)
        if facts is not None:
            facts = replace(facts, lac=max(facts.lac, disk.lac))
        after = BookieState(
            frozen(facts) if facts else None,
            Fence.DURABLE.name if facts and facts.fenced else Fence.NONE.name,
            held=disk.held,
            damaged=state.damaged & disk.held,
            disk=disk,
            answered_fence=state.answered_fence,
            fault=state.fault,
        )
        if not self.configuration.journal:
            ends = self.configuration.clears or self.configuration.repairers
            held_before = state.held_before | state.held if ends else 0
            return self._start_after_loss(after._replace(losses=state.losses + 1, held_before=held_before))
        if state.answered_fence and not after.is_fenced:
            after = after._replace(fault=("I9", "a bookie that answered a fencing request lost its fence"))
        return after

    def _start_after_loss(self, state: BookieState) -> BookieState:
        """It starts with an empty disk; where losses have names, a torn group says whose records they were."""
        if not self.configuration.named:
            return state._replace(unnamed=True, looking=True)
        return (
            self._enter_limbo(state) if self.rules.start_enters_limbo(named=True, nameless=False) else state
        )

    # --- limbo ----------------------------------------------------------------------------------------------------------

    def _enter_limbo(self, state: BookieState) -> BookieState:
        """It has put the ledger in limbo, and has written that down."""
        machine = self.machine(state)
        facts = machine.enter_limbo(state.losses).facts
        return self._with(state, machine)._replace(disk=state.disk._replace(facts=frozen(facts)))

    def look_for_lost(self, state: BookieState, record: LedgerMetadata | None, name: BookieId) -> BookieState:
        """It has looked through the records: what may be lost is in limbo."""
        if (
            record is not None
            and state.facts is None
            and self._limbo_decisions(state).enters_limbo(record, name)
        ):
            machine = self.machine(state)
            machine.enter_limbo(state.losses)
            state = self._with(state, machine)
        return state._replace(looking=False)

    def store_answers(self, state: BookieState, record: LedgerMetadata | None, name: BookieId) -> BookieState:
        """The store reads the record for the bookie's question; the response is on its way."""
        settles = record is not None and self._limbo_decisions(state).settles(record, name)
        return state._replace(question="settled" if settles else "open")

    def answered(self, state: BookieState) -> tuple[BookieState, list[tuple[int, Reply]], list[str]]:
        """The store's response reaches the bookie: what waited is taken or refused, in order."""
        waited, decisions = state.waiting, self._limbo_decisions(state)
        if state.question == "settled":
            decisions.settled(LEDGER, None if state.facts is None else self.machine(state))
        state = state._replace(asked=decisions.has_settled(LEDGER), question="", waiting=())
        replies: list[tuple[int, Reply]] = []
        said: list[str] = []
        for waiting in waited:
            state, more, what = self._add(state, waiting)
            if state.waiting:
                answer = once_read(Answer.UNKNOWN)
                state = state._replace(question="", waiting=())
                more, what = reply_to(waiting, answer), f"refuses: {answer.name}"
            replies += more
            said.append(what)
        return state, replies, said

    def listed(self, state: BookieState) -> ReplicaList:
        """What it says that it holds. What has rotted is listed: nothing has read it yet."""
        if state.lost:
            return ReplicaList(Answer.UNREACHABLE)
        if state.facts is None:
            return ReplicaList(self._limbo_decisions(state).of_unknown(searching=state.looking))
        machine = self.machine(state)
        answer = machine.may_read(KEY, 0)
        if answer is not Answer.OK and answer not in NEGATIVES:
            return ReplicaList(answer)
        if state.pending_deletion:
            return ReplicaList(Answer.UNKNOWN)
        size = self.configuration.ensemble
        striped = self.configuration.write_quorum < size
        held = tuple(
            HeldInterval(entry, entry, size, 1 << entry % size)
            if striped
            else HeldInterval(entry, entry, 1, 1)
            for entry in range(state.held.bit_length())
            if state.held >> entry & 1
        )
        limbo = machine.facts.limbo
        return ReplicaList(Answer.OK, held, machine.facts.in_limbo, limbo.lsn if limbo else 0)

    def gives(self, state: BookieState, entry: int, record: LedgerMetadata) -> bool:
        """Whether a read of an entry finds it."""
        return bool(not state.lost and (state.held & ~state.damaged) >> entry & 1)

    def readable(self, state: BookieState, first: int, last: int) -> int | None:
        """What it gives of first..last to who copies, as bits; None: it gives nothing, and says nothing of what it has."""
        if state.lost or state.pending_deletion:
            return None
        ((_, (_, answer, payload)),) = self.look(state, (0, ("read", 0, first, last, False), True), Answer.OK)
        if answer is Answer.OK:
            return sum(1 << int(entry) for entry in payload[0])
        return 0 if answer in NEGATIVES else None

    def clear_limbo(self, state: BookieState, lsn: int) -> tuple[BookieState, Answer]:
        """A client ends the limbo that it saw before it filled the bookie."""
        if state.lost or state.facts is None:
            return state, Answer.UNREACHABLE if state.lost else Answer.NO_LEDGER
        machine = self.machine(state)
        ready = machine.clear_limbo(lsn, key=KEY)
        return self._carried_out(state, machine, ready, None)[0], ready.answer

    def fill(self, state: BookieState, entries: int) -> BookieState:
        """A client puts back what the bookie lacks, and waits until that is durable."""
        machine = self.machine(state)
        ready = machine.add(key=KEY, token=0, digest_type=0, lac=NO_ENTRY, recovery=True)
        assert ready.record is Journaled.RUN, ready.answer
        after = self._with(state, machine)
        return self._put(after._replace(held=after.held | entries, damaged=after.damaged & ~entries), entries)

    # --- pieces ----------------------------------------------------------------------------------------------------

    def machine(self, state: BookieState) -> BookieLedgerMachine:
        """The machine of `core` in this state."""
        facts = LedgerFacts(*state.facts) if state.facts else None
        machine = self._limbo_decisions(state).machine(LEDGER, facts, searching=state.looking, kind=self.kind)
        if facts is not None:
            machine.fence, machine._unsaved = Fence[state.fence], state.unsaved
        return machine

    def _limbo_decisions(self, state: BookieState) -> LimboDecisions:
        settled = (LEDGER,) if state.asked else ()
        return LimboDecisions(state.losses, nameless=state.unnamed, settled=settled, rules=self.rules)

    def _with(self, state: BookieState, machine: BookieLedgerMachine) -> BookieState:
        machine.check()
        return state._replace(facts=frozen(machine.facts), fence=machine.fence.name, unsaved=machine._unsaved)

    def bits_of(self, request: Request) -> int:
        """The entries of a request that this bookie stores."""
        size, write_quorum = self.configuration.ensemble, self.configuration.write_quorum
        if request[0] == "add":
            _, slot, _, first, last, _ = request
            period, stripes = size, stripes_of_slot(slot, size, write_quorum)
        elif request[0] == "copy":
            return int(request[4])
        else:
            _, _, _, first, last, period, stripes, _ = request
        return sum(1 << entry for entry in range(first, last + 1) if stripes >> entry % period & 1)


def reply_to(waiting: Waiting, answer: Answer, payload: Any = None) -> list[tuple[int, Reply]]:
    """The response, if a client still waits for it."""
    client, request, waits = waiting
    return [(client, (request, answer, payload))] if waits else []
