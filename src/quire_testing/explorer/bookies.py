"""One bookie's half of the world: the ledger's machine of `core`, what memory holds, what the disk holds.

The steps are those of `bookie/ledgers.py`, with bits for entries. What was admitted waits in the journal, in order; a
sync makes the oldest waiting record durable and lets its response leave. A crash keeps the disk only.

Source: BookKeeper protocol, "Closing a ledger as a reader"; docs/protocol/bookie.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from quire.core.answers import Answer
from quire.core.bookie_ledger import BookieLedgerMachine, Fence, LedgerFacts
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger_metadata import LedgerMetadata
from quire.core.quorum import residues_of_slot
from quire.core.rules import Rules
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.messages import Reply, Request
from quire_testing.explorer.snapshot import frozen

KEY = b"k" * 20
LEDGER = 1

Waiting = tuple[int, Request, bool]
"""Who asked (a client's number), what, and whether it still waits."""


class Disk(NamedTuple):
    """What survives a crash."""

    held: int = 0
    lac: int = NO_ENTRY
    facts: tuple[Any, ...] | None = None


class BookieState(NamedTuple):
    """One bookie. Entries are bits.

    Attributes:
        facts: what the ledger's machine knows, None before it has heard of the ledger.
        fence, dirty: its other two fields.
        held: entries that a read finds.
        damaged: entries that are held and unreadable.
        journal: records that are not durable yet: (kind, content, who waits).
        half: a request that has been looked at and not carried out (only with a fix taken out).
        answered_fence: a fencing request was answered: no normal add may be stored again.
        fault: what this bookie did against an invariant.
        losses: how often it lost what it held; the newest one's number is the LSN of a doubt.
        unnamed: a loss had no name: the fence of any ledger may be among what is gone.
        looking: it has not looked through the records yet for what it may have lost.
        asked: the record was read since the last loss, and settled the fence.
        question: to the store, whether this one does: "" none, "asked", or its response on the way, "settled" or
            "open".
        waiting: normal adds that wait for that answer.
        owed: entries that it held before a loss (where doubts are cleared).
    """

    facts: tuple[Any, ...] | None = None
    fence: str = Fence.NONE.name
    dirty: bool = False
    held: int = 0
    damaged: int = 0
    journal: tuple[tuple[Any, ...], ...] = ()
    disk: Disk = Disk()
    half: tuple[Any, ...] | None = None
    answered_fence: bool = False
    fault: tuple[str, str] | None = None
    losses: int = 0
    unnamed: bool = False
    looking: bool = False
    asked: bool = False
    question: str = ""
    waiting: tuple[Waiting, ...] = ()
    owed: int = 0

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
    def in_doubt(self) -> bool:
        """Whether it gives no negatives."""
        return self.looking if self.facts is None else LedgerFacts(*self.facts).limbo

    @property
    def takes_no_adds(self) -> bool:
        """Whether it is fenced, or would ask the record first."""
        return self.is_fenced or (not self.asked and (self.unnamed or self.in_doubt))


class BookieDriver:
    """Carries out requests on a `BookieState`; a mutant overrides one method."""

    steps_apart = False
    """Whether what waits in the journal is a step of its own even when no crash can come between."""

    def __init__(self, configuration: Configuration, rules: Rules) -> None:
        self.configuration = configuration
        self.rules = rules

    # --- requests ------------------------------------------------------------------------------------------------

    def deliver(
        self, state: BookieState, client: int, request: Request, *, waits: bool
    ) -> tuple[BookieState, list[tuple[int, Reply]], str]:
        """Take one request.

        Returns:
            The bookie after it, replies that may leave at once with their receivers, and a description of the step.
        """
        waiting = (client, request, waits)
        kind = request[0]
        if kind in ("add", "put"):
            return self._add(state, waiting)
        if kind == "lac":
            machine = self.machine(state)
            machine.explicit_lac(b"", request[1], key=KEY, token=0, digest_type=0)
            return self._with(state, machine), [], f"knows lac {machine.facts.lac}"
        if kind == "delete":
            machine = self.machine(state)
            machine.facts.deleted_until_ms = 1
            state = self._with(state, machine)._replace(held=0, damaged=0, dirty=False)
            record = ("tombstone", state.facts, None)
            return (
                state._replace(journal=(*state.journal, record)),
                [],
                "drops the ledger, keeps its tombstone",
            )
        if kind == "fence" or request[4]:
            return self._fence(state, waiting)
        return state, self.look(state, waiting, Answer.OK), "looks"

    def _add(self, state: BookieState, waiting: Waiting) -> tuple[BookieState, list[tuple[int, Reply]], str]:
        _, request, _ = waiting
        machine = self.machine(state)
        recovery = request[0] == "put"
        was_fenced = machine.facts.fenced or (state.answered_fence and not self.configuration.journal)
        was_deleted = machine.facts.deleted_until_ms
        answer = machine.add(key=KEY, token=0, digest_type=0, lac=request[-1], recovery=recovery)
        if answer is Answer.UNKNOWN:
            asks = "" if state.question else ", asks the store"
            after = state._replace(question=state.question or "asked", waiting=(*state.waiting, waiting))
            return after, [], f"keeps it{asks}"
        if answer is not Answer.OK:
            return state, reply_to(waiting, answer), f"refuses: {answer.name}"
        return self._store(state, machine, waiting, refuse=(not recovery and was_fenced) or bool(was_deleted))

    def _store(
        self, state: BookieState, machine: BookieLedgerMachine, waiting: Waiting, *, refuse: bool
    ) -> tuple[BookieState, list[tuple[int, Reply]], str]:
        bits = self.bits_of(waiting[1])
        journal = list(state.journal)
        if machine.dirty:
            journal.append(("facts", frozen(machine.snapshot()), None))
        recovery = waiting[1][0] == "put"
        lac = NO_ENTRY if recovery else waiting[1][-1]
        journal.append(("run", (bits, self.rules.lac_after_add(NO_ENTRY, lac, recovery=recovery)), waiting))
        fault = (
            ("I9", "a bookie stored a normal add after it was fenced or deleted") if refuse else state.fault
        )
        after = self._with(state, machine)._replace(
            held=state.held | bits, damaged=state.damaged & ~bits, journal=tuple(journal), fault=fault
        )
        if machine.facts.lac < state.lac:
            after = after._replace(fault=("I5", "a bookie's LAC fell"))
        return after, [], f"stores {_entries(bits)}"

    def _fence(
        self, state: BookieState, waiting: Waiting
    ) -> tuple[BookieState, list[tuple[int, Reply]], str]:
        machine = self.machine(state)
        answer = machine.set_fence(key=KEY, token=0, digest_type=0)
        if answer is not Answer.OK:
            return state, self.look(state, waiting, answer), f"refuses: {answer.name}"
        if not machine.dirty and machine.fence is Fence.DURABLE:
            after = self._with(state, machine)
            return after, self.look(after, waiting, Answer.OK), "is fenced, looks"
        waits = self.rules.answer_waits_for_durable_fence()
        record = ("facts", frozen(machine.snapshot()), waiting if waits else None)
        after = self._with(state, machine)._replace(journal=(*state.journal, record))
        if waits:
            return after, [], "fences, waits for its disk"
        return (
            after._replace(answered_fence=waiting[2]),
            self.look(after, waiting, Answer.OK),
            "fences, answers at once",
        )

    def look(self, state: BookieState, waiting: Waiting, answer: Answer) -> list[tuple[int, Reply]]:
        """The response to a read, or to a fence, from what is here now."""
        request = waiting[1]
        if answer is not Answer.OK:
            return reply_to(waiting, answer)
        if state.facts is None and state.looking:
            return reply_to(waiting, Answer.UNKNOWN, NO_ENTRY if request[0] == "fence" else None)
        if state.facts is None:
            return reply_to(
                waiting, Answer.NO_LEDGER, NO_ENTRY if request[0] == "fence" else ((), request[3], ())
            )
        facts = LedgerFacts(*state.facts)
        if facts.deleted_until_ms:
            payload = NO_ENTRY if request[0] == "fence" else ((), request[3], ())
            return reply_to(waiting, Answer.NO_LEDGER, payload)
        if request[0] == "fence":
            return reply_to(waiting, Answer.OK, facts.lac)
        _, _, first, last, _ = request
        readable, unknown, through = [], [], last
        for entry in range(first, last + 1):
            if state.damaged >> entry & 1:
                if self.rules.negative_answer(limbo=False, damaged=True) is Answer.UNKNOWN:
                    unknown.append((entry, entry))
            elif state.held >> entry & 1:
                readable.append(entry)
        if facts.limbo and self.rules.negative_answer(limbo=True, damaged=False) is Answer.UNKNOWN:
            through = first - 1
        return reply_to(waiting, Answer.OK, (tuple(readable), through, tuple(unknown)))

    # --- the disk --------------------------------------------------------------------------------------------------

    def sync(self, state: BookieState) -> tuple[BookieState, list[tuple[int, Reply]]]:
        """The oldest waiting record becomes durable; its response leaves."""
        (kind, content, waiting), journal = state.journal[0], state.journal[1:]
        disk = state.disk
        replies: list[tuple[int, Reply]] = []
        if not self.configuration.journal:
            after = state._replace(journal=journal)
        elif kind == "run":
            after = state._replace(
                journal=journal,
                disk=disk._replace(held=disk.held | content[0], lac=max(disk.lac, content[1])),
            )
        elif kind == "tombstone":
            after = state._replace(journal=journal, disk=Disk(0, NO_ENTRY, content))
        else:
            after = state._replace(journal=journal, disk=disk._replace(facts=content))
        if kind == "tombstone":
            return after, replies
        if kind == "facts" and waiting is None:
            return self._fence_settled(after), replies
        if kind == "facts":
            machine = self.machine(after)
            machine.fence_durable()
            after = self._with(after, machine)._replace(answered_fence=after.answered_fence or waiting[2])
            return after, self.look(after, waiting, Answer.OK)
        return after, reply_to(waiting, Answer.OK)

    def _fence_settled(self, state: BookieState) -> BookieState:
        if state.fence != Fence.PENDING.name or any(record[0] == "facts" for record in state.journal):
            return state
        machine = self.machine(state)
        machine.fence_durable()
        return self._with(state, machine)

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
            owed = state.owed | state.held if self.configuration.clears else 0
            return self.after_loss(after._replace(losses=state.losses + 1, owed=owed))
        if state.answered_fence and not (after.facts and LedgerFacts(*after.facts).fenced):
            after = after._replace(fault=("I9", "a bookie that answered a fencing request lost its fence"))
        return after

    # --- after a loss ------------------------------------------------------------------------------------------------

    def after_loss(self, state: BookieState) -> BookieState:
        """What a bookie without its records knows when it starts: whose they were, or that there were some.

        Source: `storage/start.py`.
        """
        if not self.configuration.named:
            return state._replace(unnamed=True, looking=True)
        machine = self.machine(state)
        machine.enter_limbo(state.losses)
        facts = frozen(machine.snapshot())
        return self._with(state, machine)._replace(disk=state.disk._replace(facts=facts))

    def look_for_lost(self, state: BookieState, *, listed: bool, closed: bool) -> BookieState:
        """It has looked through the records: what names it, it may have lost. Closed ledgers as well.

        Args:
            listed: the record names this bookie in a fragment.
            closed: the record says CLOSED (a mutant looks at it).

        Source: docs/protocol/bookie.md, "After a loss"; `bookie/server.py`.
        """
        state = state._replace(looking=False)
        if not listed or state.facts is not None:
            return state
        machine = self.machine(state)
        machine.enter_limbo(state.losses)
        machine.record_read(settles=state.asked)
        machine.snapshot()
        return self._with(state, machine)

    def store_answers(self, state: BookieState, record: LedgerMetadata | None, name: BookieId) -> BookieState:
        """The store reads the record for the bookie's question; the response is on its way."""
        settles = record is not None and self.rules.record_settles_fence(record, name)
        return state._replace(question="settled" if settles else "open")

    def answered(self, state: BookieState) -> tuple[BookieState, list[tuple[int, Reply]], list[str]]:
        """The store's response reaches the bookie: what waited is taken or refused, in order.

        Source: `bookie/first_words.py`.
        """
        waited = state.waiting
        state = state._replace(asked=state.asked or state.question == "settled", question="", waiting=())
        replies: list[tuple[int, Reply]] = []
        said: list[str] = []
        for waiting in waited:
            state, more, what = self._add(state, waiting)
            if state.waiting:  # it is still unknown
                state = state._replace(question="", waiting=())
                more, what = reply_to(waiting, Answer.READ_ONLY), f"refuses: {Answer.READ_ONLY.name}"
            replies += more
            said.append(what)
        return state, replies, said

    def clear_limbo(self, state: BookieState, lsn: int) -> tuple[BookieState, Answer]:
        """A client ends the doubt that it saw before it filled the bookie."""
        if state.facts is None:
            return state, Answer.NO_LEDGER
        machine = self.machine(state)
        answer = machine.clear_limbo(lsn)
        if answer is not Answer.OK or not machine.dirty:
            return state, answer
        record = ("facts", frozen(machine.snapshot()), None)
        return self._with(state, machine)._replace(journal=(*state.journal, record)), answer

    def fill(self, state: BookieState, entries: int) -> BookieState:
        """A client puts back what the bookie lacks, and waits until that is durable."""
        machine = self.machine(state)
        answer = machine.add(key=KEY, token=0, digest_type=0, lac=NO_ENTRY, recovery=True)
        assert answer is Answer.OK, answer
        after = self._with(state, machine)
        return after._replace(held=after.held | entries, damaged=after.damaged & ~entries)

    # --- pieces ----------------------------------------------------------------------------------------------------

    def machine(self, state: BookieState) -> BookieLedgerMachine:
        """The machine of `core` in this state."""
        facts = LedgerFacts(*state.facts) if state.facts else LedgerFacts(LEDGER)
        known = state.facts is not None
        machine = BookieLedgerMachine(
            facts, known=known, lost=state.unnamed, asked=state.asked, rules=self.rules
        )
        if known:
            machine.fence = Fence[state.fence]
            machine.dirty = state.dirty
        elif state.looking:
            machine.enter_limbo(state.losses)
            machine.record_read(settles=state.asked)
        return machine

    def _with(self, state: BookieState, machine: BookieLedgerMachine) -> BookieState:
        machine.check()
        return state._replace(facts=frozen(machine.facts), fence=machine.fence.name, dirty=machine.dirty)

    def bits_of(self, request: Request) -> int:
        """The entries of a request that this bookie stores."""
        size, write_quorum = self.configuration.ensemble, self.configuration.write_quorum
        if request[0] == "add":
            _, slot, _, first, last, _ = request
            period, residues = size, residues_of_slot(slot, size, write_quorum)
        else:
            _, _, _, first, last, period, residues, _ = request
        return sum(1 << entry for entry in range(first, last + 1) if residues >> entry % period & 1)


def reply_to(waiting: Waiting, answer: Answer, payload: Any = None) -> list[tuple[int, Reply]]:
    """The response, if a client still waits for it."""
    client, request, waits = waiting
    return [(client, (request, answer, payload))] if waits else []


def _entries(bits: int) -> str:
    return " ".join(str(entry) for entry in range(bits.bit_length()) if bits >> entry & 1) or "nothing"
