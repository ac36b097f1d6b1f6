"""All ledgers of one bookie: each request is decided by the ledger's machine and handed to storage in one go.

Between the decision and the hand-over there is no `await`, so an add admitted before a fence is visible to it and a
later one is refused: no lock. Nothing here uses a socket; the caller passes the callback that sends the response.

Source: BookKeeper protocol, "Writing to the ledger", "Closing a ledger as a reader".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Final, TypeAlias

from crc32c import crc32c

from quire.bookie.ledgers.explicit_lacs import ExplicitLacs
from quire.bookie.ledgers.followers import Followers, Poll
from quire.bookie.ledgers.lac_bodies import is_lac_body
from quire.bookie.ledgers.record_reads import ReadOutcome
from quire.bookie.ledgers.unknown_ledgers import (
    NO_CLIENT,
    AnswerCallback,
    Fetched,
    LateRefusalError,
    UnknownLedgers,
    WaitingClient,
)
from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine, BookieReady, LedgerFacts
from quire.core.bookie.limbo_decisions import LimboDecisions, once_read
from quire.core.bookie.rules import RULES, BookieRules
from quire.core.errors import StorageError
from quire.core.ids import ID_MAX, NO_ENTRY, BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.stripes import HeldInterval
from quire.storage.holding import RangeHeld
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.segments.segment import CALL_TAG, NO_CALLBACK, DurableCallback, WriteCallback
from quire.wire.bundles import Row
from quire.wire.entry import Buffer, explicit_lac_of
from quire.wire.native import NO_KEY, Flag, Request
from quire.wire.native_bodies import WHOLE_LIST
from quire.wire.native_requests import plain_run
from quire.wire.plain_adds import AddedRun, AddRequest, OrdinaryRun
from quire.wire.run import RunLocation, RunView

EVERY_LAC = 1 << 63
"""Above each LAC: all waiting polls look again."""
MACHINES_KEPT = 16_384
"""So many machines are kept, and those that storage knows less than; each takes some 410 bytes."""
MACHINES_AT_ONCE = 64
"""Above that, for so many that came twice as many are looked at: no add waits for a look at all of them."""
RowsTag: TypeAlias = Callable[[Sequence[int], Sequence[OrdinaryRun]], object]
OtherRow: TypeAlias = tuple[int, Row, bytes]
"""A row of a bundle with its index and the body of its run."""
SHORT_BODIES: Final = 1024
"""Where the runs of a bundle take less than this on average, its frame is copied whole before they are cut out of it."""
_NO_MACHINES: Final[dict[int, BookieLedgerMachine]] = {}
LACS_UNSAVED_MAX = 1024
"""So many explicit LACs wait for the next group of something else, not more: each group stays small."""


@dataclass(slots=True)
class Found:
    """The result of a read; the response may leave now."""

    answer: Answer
    runs: list[Buffer]
    conclusive_through: int
    unknown: list[tuple[int, int]]
    lac: int
    locations: Sequence[RunLocation] = ()
    damaged: Sequence[tuple[int, int]] = ()
    lac_term: int = 0


def found_of(held: RangeHeld, machine: BookieLedgerMachine, first: int, *, failing: bool) -> Found:
    """The result of a read from an id on.

    Args:
        held: what the disk has of it.
        machine: the ledger's.
        first: the first id that was asked for.
        failing: the disk fails.
    """
    conclusive = machine.conclusive_through(first, held.conclusive_through, failing=failing)
    tells = bool(held.unknown) and machine.tells_damage()
    facts = machine.facts
    return Found(
        Answer.OK,
        list(held.runs),
        conclusive,
        list(held.unknown) if tells else [],
        facts.lac,
        held.locations,
        held.damaged if tells else (),
        facts.lac_term,
    )


def ledger_info(machine: BookieLedgerMachine, last_entry: int, *, damaged: bool) -> dict[str, Any]:
    """What INFO reports of a ledger.

    Args:
        machine: the ledger's.
        last_entry: the highest entry that is here, -1 if none is.
        damaged: some entry that is here is known to be damaged.

    The keys that begin with `doubt` are about its limbo: since which LSN, and which entries; programs read these names.
    """
    facts = machine.facts
    limbo = facts.limbo
    return {
        "ledger_id": facts.ledger_id,
        "fenced": facts.fenced,
        "fence_known": facts.fenced or machine.fence_known,
        "limbo": facts.in_limbo,
        "doubt_lsn": None if limbo is None else limbo.lsn,
        "doubt_below": None if limbo is None or limbo.covers_all else limbo.below,
        "doubt_ranges": [] if limbo is None else [list(pair) for pair in limbo.ranges],
        "term": facts.term,
        "lac": facts.lac,
        "last_entry": last_entry,
        "damaged": damaged,
        "deleted": bool(facts.deleted_until_ms),
    }


def page_of(held: Iterable[HeldInterval], intervals_max: int) -> tuple[list[HeldInterval], int]:
    """The first of some intervals, and the first id of the next ones, or `WHOLE_LIST`.

    A page does not end between intervals with equal first ids: the next one would not get beyond them.
    """
    page: list[HeldInterval] = []
    for interval in held:
        if len(page) >= intervals_max and interval.first > page[-1].first:
            return page, interval.first
        page.append(interval)
    return page, WHOLE_LIST


class Ledgers:
    """The ledgers of one bookie.

    Args:
        storage: the bookie's disk.
        written: called at the end of each turn in which something was put; what was written at once in it can be
            answered now, not a turn later.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.

    Attributes:
        followers: who waits for a LAC.
        explicit_lacs: takes the LACs of many ledgers, each as `explicit_lac` does one.
        flushing: a flush is under way, and `written` will be called after it.
        unknown_ledgers: decides on requests for ledgers that are not known here.
    """

    machine: ClassVar = BookieLedgerMachine
    """Decides for one ledger."""

    def __init__(
        self, storage: LedgerStorage, written: Callable[[], None], rules: BookieRules = RULES
    ) -> None:
        self._storage = storage
        self._written = written
        self._machines: dict[int, BookieLedgerMachine] = {}
        self._machines_max = MACHINES_KEPT
        self.followers = Followers()
        self._risen: dict[int, None] = {}
        self._unsaved_lacs: dict[int, BookieLedgerMachine] = {}
        self._evidence: dict[int, int] = {}
        self._flush_scheduled = False
        self.flushing = False
        self.read_only = False
        self.unknown_ledgers = UnknownLedgers(self._known, self.flush_soon, rules)
        self.explicit_lacs = ExplicitLacs(
            self._machines, self.followers, self._explicit_lac, self._is_unsaved, self.unknown_ledgers
        )
        self.limbo = LimboDecisions(
            storage.started_lsn, nameless=storage.states.unnamed_limbo.lost_at != 0, rules=rules
        )
        self.adds = 0
        self.entries_added = 0
        self.bytes_added = 0

    # --- adds ----------------------------------------------------------------------------------------------------

    def add(self, request: AddRequest, run: AddedRun, callback: WriteCallback, tag: object) -> Answer:
        """Admit a run and hand it to storage. When it has no more of them, the caller calls `flush` or `flush_soon`.

        Returns:
            OK when it was handed over, or waits for the metadata store: the response comes with `callback.stored(
            tag, …)`. Any other response is final.
        """
        answer = self._admit(request, run, callback, tag, None)
        if answer is not Answer.UNKNOWN:
            return answer
        # It may have been fenced here before, or is not known: whether the writer may go on, the record must say.
        decide = partial(self._add_late, request, run, callback, tag)
        client = callback if isinstance(callback, WaitingClient) else NO_CLIENT
        kept = self.unknown_ledgers.wait(request.ledger_id, decide, client, len(request.body))
        return Answer.OK if kept else Answer.READ_ONLY

    def _add_late(
        self, request: AddRequest, run: AddedRun, callback: WriteCallback, tag: object, fetched: Fetched
    ) -> None:
        """Take or refuse a run that waited."""
        answer = once_read(self._admit(request, run, callback, tag, fetched))
        if answer is not Answer.OK:
            callback.stored(tag, LateRefusalError(answer, request.ledger_id))

    def _admit(
        self, request: AddRequest, run: AddedRun, callback: WriteCallback, tag: object, fetched: Fetched
    ) -> Answer:
        """As `add`, and UNKNOWN where the record must be read first: the run is neither taken nor refused."""
        recovery = bool(request.flags & Flag.RECOVERY)
        # Low-priority work stops before the space that fences and recovery need.
        low_priority, storage = bool(request.flags & Flag.LOW_PRIORITY), self._storage
        if self.read_only or not storage.writable:
            if storage.failure is not None:
                return Answer.ERROR
            if low_priority or not recovery:
                return Answer.READ_ONLY
        machine = self._machines.get(request.ledger_id)
        if machine is None or not machine.facts.key:
            if (answer := self._judge(request, fetched)) is not Answer.OK:
                return answer
            machine = self._machine(request.ledger_id)
        lac_before = machine.facts.lac
        facts, _, answer, persisted = machine.add(
            key=request.key,
            token=request.token,
            digest_type=request.digest_type,
            lac=request.lac,
            recovery=recovery,
            term=request.term,
            lafr=request.lafr,
        )
        if answer is not Answer.OK:
            learned = machine.facts.key or storage.facts(request.ledger_id) is not None
            if answer is Answer.UNKNOWN and not learned:
                del self._machines[request.ledger_id]
            return answer
        if facts is not None:
            self._put_facts(machine, facts)
        taken = storage.put_run(
            run,
            request.body_crc,
            lac=request.lac,
            token=request.token,
            recovery=recovery,
            callback=callback if persisted else NO_CALLBACK,
            tag=tag,
            low_priority=low_priority,
        )
        if not persisted:
            callback.stored(tag, None)
        if machine.facts.lac > lac_before and request.ledger_id in self.followers.polls:
            self._risen[request.ledger_id] = None
        if not taken:
            return Answer.OK
        if not recovery:
            self._evidence[request.ledger_id] = run.last
        self.adds += 1
        self.entries_added += run.count
        self.bytes_added += len(run.body)
        if not recovery and request.lac >= lac_before:  # the run's headers say as much
            self._unsaved_lacs.pop(request.ledger_id, None)
            self.explicit_lacs.pop(request.ledger_id, None)
        return Answer.OK

    def add_bundle(
        self, frame: Buffer, rows: Sequence[Row], at: int, callback: WriteCallback, tag: RowsTag
    ) -> list[OtherRow]:
        """Admit the ordinary runs of a bundle in one step, so that a fence sees all of them or comes before all.

        Args:
            frame: the bundle.
            rows: of it, no ledger twice.
            at: where its first body begins.
            callback: is called with the tags.
            tag: makes the tag of some runs that become durable together, of their rows' indices and themselves.

        Returns:
            The other rows: `add` is to decide on each of them.
        """
        usable = not self.read_only and self._storage.writable
        machine_of = self._machines.get if usable else _NO_MACHINES.get
        runs: list[OrdinaryRun] = []
        indices: list[int] = []
        others: list[OtherRow] = []
        unsaved, newer, carried = self._unsaved_lacs, self.explicit_lacs, []
        if len(frame) < SHORT_BODIES * len(rows):
            frame = bytes(frame)  # a slice of it takes less than a view of a view, and a copy of that
        for index, row in enumerate(rows):
            ledger_id, token, key, lac, size, body_crc = row
            body = bytes(frame[at : at + size])  # of `bytes` the slice itself
            at += size
            if (
                (machine := machine_of(ledger_id)) is not None
                and crc32c(body) == body_crc
                and (run := plain_run(body, ledger_id)) is not None
                and not run[0]
                and not run[5]
                and NO_ENTRY <= lac < run[3]
                and key != NO_KEY
                and machine.add_ordinary(key, token, run[1], lac)
            ):
                _, digest_type, first, last, count, _ = run
                runs.append((ledger_id, token, lac, body, body_crc, digest_type, first, last, count))
                indices.append(index)
                if (ledger_id in newer or ledger_id in unsaved) and lac == machine.facts.lac:
                    carried.append(ledger_id)  # the run's headers say as much
            else:
                others.append((index, row, body))
        if runs:
            self._put_runs(runs, indices, callback, tag, carried)
        return others

    def _put_runs(
        self,
        runs: list[OrdinaryRun],
        indices: Sequence[int],
        callback: WriteCallback,
        tag: RowsTag,
        carried: Iterable[int],
    ) -> None:
        """Hand admitted runs to storage, and note of them what `_admit` notes of one; some carry explicit LACs."""

        def tag_of(at: int, count: int) -> object:
            return tag(indices[at : at + count], runs[at : at + count])

        refused = self._storage.put_runs(runs, callback, tag_of)
        if refused:
            lost = {runs[at][0] for at in refused}
            runs = [run for run in runs if run[0] not in lost]
            carried = [ledger_id for ledger_id in carried if ledger_id not in lost]
        self._evidence.update([(run[0], run[7]) for run in runs])
        if polls := self.followers.polls:
            self._risen |= {run[0]: None for run in runs if run[0] in polls}
        for ledger_id in carried:
            self._unsaved_lacs.pop(ledger_id, None)
            self.explicit_lacs.pop(ledger_id, None)
        self.adds += len(runs)
        self.entries_added += sum([run[8] for run in runs])
        self.bytes_added += sum([len(run[3]) for run in runs])

    def _judge(self, request: AddRequest, fetched: Fetched) -> Answer:
        ledger_id, key, token, term = request.ledger_id, request.key, request.token, request.term
        return self.unknown_ledgers.judge(ledger_id, key, token, term, fetched)

    def record_read(self, bookie_id: BookieId, ledger_id: int, outcome: ReadOutcome) -> None:
        """A record was read: it may show that no fence was lost, or which term, unless the store is treated as one that went back."""
        if not isinstance(outcome, LedgerMetadata) or not self.limbo.settles(outcome, bookie_id):
            return
        if self.unknown_ledgers.store_is_trusted():
            # A stream's term is known only to a machine.
            machine = self._known(ledger_id) if outcome.term else self._machines.get(ledger_id)
            self.limbo.settled(ledger_id, machine, outcome.term)

    def explicit_lac(self, request: Request, fetched: Fetched = None) -> Answer:
        """Take a writer's explicit LAC: known at once, written with the next group (safety never rests on it)."""
        body = bytes(request.body)
        return self._explicit_lac(
            request.ledger_id, body, request.key, request.token, request.digest_type, request.term, fetched
        )

    def _explicit_lac(
        self,
        ledger_id: int,
        body: bytes,
        key: bytes,
        token: int,
        digest_type: int,
        term: int,
        fetched: Fetched,
    ) -> Answer:
        if not is_lac_body(body, ledger_id):
            return Answer.BAD_REQUEST
        if not key:
            return Answer.UNAUTHORISED
        first = self.unknown_ledgers.judge(ledger_id, key, token, term, fetched)
        if first is not Answer.OK:
            return first
        machine = self._machine(ledger_id)
        before = machine.facts.lac
        facts, _, answer, _ = machine.explicit_lac(
            body, explicit_lac_of(body), key=key, token=token, digest_type=digest_type, term=term
        )
        if facts is not None:
            self._put_facts(machine, facts)
            self.flush_soon()
        if answer is Answer.OK and machine.facts.lac > before:
            self._unsaved_lacs[ledger_id] = machine
            self.followers.tell(ledger_id, machine.facts.lac)
            if len(self._unsaved_lacs) == LACS_UNSAVED_MAX:
                self.flush_soon()
        return answer

    def _is_unsaved(self, ledger_id: int) -> bool:
        """Whether a LAC was just taken, which waits for no group then."""
        return self._unsaved_lacs.pop(ledger_id, None) is not None

    def set_explicit_lac(
        self, request: Request, callback: AnswerCallback, client: WaitingClient, fetched: Fetched = None
    ) -> None:
        """Take a writer's explicit LAC as `explicit_lac` does, and call `callback` once it is durable, as Java answers."""
        if request.key and (self.read_only or not self._storage.writable):
            callback(Answer.READ_ONLY)
            return
        answer = self.explicit_lac(request, fetched)
        if answer is not Answer.OK:
            self.unknown_ledgers.refuse(answer, self.set_explicit_lac, request, callback, client, fetched)
            return
        self._unsaved_lacs.pop(request.ledger_id, None)
        self._save(self._machine(request.ledger_id), callback)

    def force(self, ledger_id: int, callback: AnswerCallback) -> None:
        """Call `callback` when all that was put of a ledger, and so its newest state, is durable; at once for an unknown ledger."""
        machine = self._known(ledger_id)
        if machine is not None and self._storage.failure is None:
            self._save(machine, callback)
        else:
            callback(Answer.OK if self._storage.failure is None else Answer.ERROR)

    # --- fences and reads -----------------------------------------------------------------------------------------

    def fence(
        self,
        request: Request,
        callback: AnswerCallback,
        client: WaitingClient = NO_CLIENT,
        fetched: Fetched = None,
    ) -> None:
        """Fence, and call `callback` with the response once the fence is durable (at once if it was, or on a refusal).

        Of a stream it is the request's term that the bookie takes. UNKNOWN: the record must be read first, and does not
        come. A negative would count as a fence.
        """
        answer = self._judge(request, fetched)
        if answer is not Answer.OK:
            self.unknown_ledgers.refuse(answer, self.fence, request, callback, client, fetched)
            return
        machine = self._machine(request.ledger_id)
        self._complete(machine)
        who: Any = {"key": request.key, "token": request.token, "digest_type": request.digest_type}
        ready = machine.raise_term(**who, term=request.term) if request.term else machine.set_fence(**who)
        if ready.answer is Answer.UNKNOWN:
            self.unknown_ledgers.refuse(ready.answer, self.fence, request, callback, client, fetched)
            return
        if ready.facts is None:
            callback(ready.answer)
            return
        if self._storage.failure is not None:
            machine.not_saved(ready.facts)
            callback(Answer.ERROR)
            return

        def answered(answer: Answer) -> None:
            if not request.term and request.ledger_id in self.followers.polls:
                self.followers.tell(request.ledger_id, EVERY_LAC)  # its writer sends no LAC any more
            callback(answer)

        self._carry_out(machine, ready, answered)

    def truncate(
        self,
        what: tuple[int, int, int],
        request: Request,
        callback: AnswerCallback,
        client: WaitingClient = NO_CLIENT,
        fetched: Fetched = None,
    ) -> None:
        """Let die what other terms left of a stream, and call `callback` once that is durable, or with a refusal.

        The request's term is taken first, as by a fence. `what`: first and last id, and the origin term that stays, see
        `EntryDropper.truncate`.
        """
        retry = partial(self.truncate, what)
        answer = self._judge(request, fetched)
        if answer is Answer.OK:
            machine = self._machine(request.ledger_id)
            self._complete(machine)
            who: Any = {"key": request.key, "token": request.token, "digest_type": request.digest_type}
            facts, _, answer, _ = machine.truncate(**who, term=request.term)
        if answer is not Answer.OK:
            self.unknown_ledgers.refuse(answer, retry, request, callback, client, fetched)
            return
        if self._storage.failure is not None:
            if facts is not None:
                machine.not_saved(facts)
            callback(Answer.ERROR)
            return
        if facts is not None:
            self._put_facts(machine, facts)

        def durable(error: StorageError | None) -> None:
            callback(Answer.OK if error is None else Answer.ERROR)

        self._evidence.pop(request.ledger_id, None)
        first, last, kept = what
        self._storage.drops.truncate(
            request.ledger_id, first, request.term, CALL_TAG, durable, last=last, kept=kept
        )
        self.flush_soon()

    def read(
        self,
        request: Request,
        first: int,
        last: int,
        bytes_max: int,
        *,
        origin_term: int = 0,
        located: bool = False,
    ) -> Found:
        """What this bookie has of first..last, and what is conclusive; a requested fence has been set before.

        Of a stream only entries of the origin term are meant: another one's is not here. With `located`, the client can
        read long runs where they lie.
        """
        ledger_id = request.ledger_id
        machine = self._known(ledger_id)
        if machine is None:
            answer = self._of_unknown(ledger_id)
            return Found(answer, [], NO_ENTRY if answer is Answer.UNKNOWN else last, [], NO_ENTRY)
        answer = machine.may_read(request.key, request.token, term=origin_term)
        if answer is Answer.NO_LEDGER:
            return Found(answer, [], last, [], machine.facts.lac)
        if answer is not Answer.OK:
            return Found(answer, [], NO_ENTRY, [], NO_ENTRY)
        low_priority = bool(request.flags & Flag.LOW_PRIORITY)
        held = self._storage.read(
            ledger_id,
            first,
            last,
            bytes_max,
            origin_term=origin_term,
            located=located,
            low_priority=low_priority,
        )
        return found_of(held, machine, first, failing=self._storage.failure is not None)

    def last_confirmed(self, request: Request) -> tuple[Answer, int, bytes, Buffer]:
        """(response, LAC, explicit LAC body, an entry whose header shows a LAC) of a ledger."""
        ledger_id = request.ledger_id
        machine = self._known(ledger_id)
        if machine is None:
            return self._of_unknown(ledger_id), NO_ENTRY, b"", b""
        facts = machine.facts
        answer = machine.may_read(request.key, request.token)
        if answer is not Answer.OK:
            return answer, NO_ENTRY, b"", b""
        self._complete(machine)
        last = self._storage.last_entry(ledger_id)
        entry_id = min(self._evidence.get(ledger_id, last), last)  # a later one may have been truncated
        evidence: Buffer = b""  # an entry that a writer sent, not a recoverer
        # A stream's last entry may be of the term that the bookie has taken since, or of the one before.
        for term in {facts.term, facts.lac_term} if entry_id != NO_ENTRY else ():
            if not evidence and not self._storage.is_recovered(ledger_id, entry_id, term):
                for body in self._storage.read(ledger_id, entry_id, entry_id, 1, origin_term=term).runs:
                    if (run := RunView.parse(body)).holds(entry_id):
                        evidence = run.entry(run.position(entry_id))
        return Answer.OK, facts.lac, facts.explicit_lac, evidence

    def confirmed_in(self, ledger_id: int) -> tuple[int, int]:
        """(the term of the writer that sent the LAC, the LAFR) of a ledger that is known here."""
        machine = self._known(ledger_id)
        return (0, NO_ENTRY) if machine is None else (machine.facts.lac_term, machine.facts.lafr)

    def term(self, ledger_id: int) -> int:
        """The term that a ledger has here; 0 for one that is not known."""
        machine = self._machines.get(ledger_id)
        facts = self._storage.facts(ledger_id) if machine is None else machine.facts
        return 0 if facts is None else facts.term

    def poll(
        self, ledger_id: int, previous_lac: int, wait_seconds: float, wake: Callable[[], None]
    ) -> Poll | None:
        """Call `wake` once: at once if the LAC is beyond `previous_lac`, else when it is or the time is over.

        A ledger of which nothing is here is waited for only by who knows of no entry: others may have them all.

        Returns:
            What waits now, to be dropped with its reader; None if `wake` has been called.
        """
        self.followers.polled(ledger_id)
        machine = self._known(ledger_id)
        if machine is None:
            waits = previous_lac == NO_ENTRY
        else:
            waits = machine.facts.lac <= previous_lac and not machine.facts.deleted_until_ms
        if waits:
            return self.followers.wait(ledger_id, previous_lac, wait_seconds, wake)
        wake()
        return None

    def lac(self, ledger_id: int) -> int | None:
        """How far a ledger is known to be confirmed; None when nothing is known of it."""
        machine = self._known(ledger_id)
        return None if machine is None else machine.facts.lac

    def last_entry(self, ledger_id: int) -> int:
        """The highest entry that is here, -1 if none is."""
        return self._storage.last_entry(ledger_id)

    def good(self, ledger_id: int) -> list[HeldInterval]:
        """The intervals of entries that this bookie holds and that are not known to be damaged."""
        return list(self._storage.good_from(ledger_id, 0))

    def is_pending_deletion(self, ledger_id: int) -> bool:
        """Whether some copies of a ledger here may be dropped soon, so that no list says what is here."""
        return self._storage.drops.is_pending_deletion(ledger_id)

    def may_have_lost(self, ledger_id: int) -> bool:
        """Whether entries of a ledger that is known may be lost here, so that "not here" is no response."""
        machine = self._known(ledger_id)
        failing = self._storage.failure is not None
        return machine is not None and machine.conclusive_through(0, 0, failing=failing) < 0

    def held_page(self, ledger_id: int, first: int, intervals_max: int) -> tuple[list[HeldInterval], int]:
        """Some of the intervals from an id on, and the first id of the next ones, or `WHOLE_LIST`."""
        return page_of(self._storage.good_from(ledger_id, first), intervals_max)

    # --- the rest ------------------------------------------------------------------------------------------------

    def info(self, ledger_id: int) -> dict[str, Any] | None:
        """What this bookie knows of one ledger, or None."""
        machine = self._known(ledger_id)
        if machine is None:
            return None
        damaged = self._storage.damages.of_ledger(ledger_id)
        return ledger_info(machine, self._storage.last_entry(ledger_id), damaged=bool(damaged))

    def clear_limbo(
        self, request: Request, lsn: int, callback: AnswerCallback, fetched: Fetched = None
    ) -> None:
        """End the limbo of a ledger whose entries have been restored; `callback` is called once that is durable.

        Args:
            request: names ledger and key.
            lsn: of the limbo that this ends.
            callback: BAD_REQUEST when the ledger is in limbo since another loss; it stays so.
        """
        machine = self._known(request.ledger_id)
        if machine is None:
            callback(Answer.NO_LEDGER)
            return
        self._complete(machine)
        ready = machine.clear_limbo(lsn, key=request.key)
        if ready.answer is Answer.UNKNOWN:
            retry = partial(self.clear_limbo, request, lsn, callback)
            if self.unknown_ledgers.waits(request.ledger_id, retry, NO_CLIENT, fetched):
                return
        self._carry_out(machine, ready, callback)

    def put_in_limbo(self, facts: LedgerFacts, callback: DurableCallback) -> None:
        """Put a ledger in limbo that this bookie may have lost entries of; a fence may be lost too."""
        machine = self._machine(facts.ledger_id)
        self._complete(machine)
        ready = machine.enter_limbo(
            self._storage.started_lsn, key=facts.key, token=facts.token, term=facts.term
        )
        self._journal(machine, ready, callback)

    def delete(
        self, ledger_id: int, until_ms: int, callback: Callable[..., None] = lambda _error: None
    ) -> None:
        """Drop a ledger's entries, and refuse adds to it until the wall clock passes `until_ms`.

        `callback` is called once that is durable, or with the error: then the ledger is as it was.
        """
        machine = self._machine(ledger_id)
        self._evidence.pop(ledger_id, None)
        self._unsaved_lacs.pop(ledger_id, None)
        self.explicit_lacs.pop(ledger_id, None)
        self._journal(machine, machine.delete(until_ms), callback)
        self.followers.tell(ledger_id, EVERY_LAC)

    def drop(
        self,
        ledger_id: int,
        first: int,
        last: int,
        through_lsn: int,
        callback: DurableCallback,
    ) -> None:
        """Drop first..last of a ledger, as far as it was put up to an LSN; fence and key stay.

        With all of it limbo ends: the record does not name this bookie, so that no client asks it what it had.

        Args:
            ledger_id: the ledger.
            first: of the entries.
            last: the last of them; 0..`ID_MAX` are all.
            through_lsn: what was put later stays.
            callback: is called once that is durable, or with the error.
        """
        machine = self._known(ledger_id)
        if machine is not None and machine.facts.limbo is not None and (first, last) == (0, ID_MAX):
            self._carry_out(
                machine,
                machine.clear_limbo(machine.facts.limbo.lsn, key=machine.facts.key),
                lambda _answer: None,
            )
        self._evidence.pop(ledger_id, None)
        self._storage.drops.drop(ledger_id, first, last, through_lsn, CALL_TAG, callback)
        self.flush_soon()

    def forget(self, ledger_ids: Iterable[int]) -> None:
        """Drop deleted ledgers whose tombstones storage has shrunk."""
        for ledger_id in ledger_ids:
            if (machine := self._machines.get(ledger_id)) is not None and machine.facts.deleted_until_ms:
                del self._machines[ledger_id]

    def save_lacs(self) -> None:
        """Journal the explicit LACs that only memory holds and that are to wait no longer."""
        unsaved, self._unsaved_lacs = self._unsaved_lacs, {}
        for machine in unsaved.values():
            facts = machine.save().facts
            assert facts is not None
            self._put_facts(machine, facts)
        if len(unsaved) >= LACS_UNSAVED_MAX:
            self._forget_machines(2 * len(unsaved))

    def settle_lacs(self, *, every: bool = False) -> None:
        """LACs that came in frames some seconds ago go with the next group; all of them before a clean stop."""
        for machine in self.explicit_lacs.all() if every else self.explicit_lacs.settled():
            self._unsaved_lacs[machine.facts.ledger_id] = machine
        if len(self._unsaved_lacs) >= LACS_UNSAVED_MAX:
            self.flush_soon()

    # --- pieces --------------------------------------------------------------------------------------------------

    def _of_unknown(self, ledger_id: int) -> Answer:
        searching, failing = self._storage.states.in_limbo(ledger_id), self._storage.failure is not None
        return self.limbo.of_unknown(searching=searching, failing=failing)

    def _complete(self, machine: BookieLedgerMachine) -> None:
        """Before a ledger's explicit LAC is read or journaled: it may have come without a body."""
        if machine.facts.ledger_id in self.explicit_lacs:
            self.explicit_lacs.complete(machine)

    def _known(self, ledger_id: int) -> BookieLedgerMachine | None:
        machine = self._machines.get(ledger_id)
        if machine is None:
            facts = self._storage.facts(ledger_id)
            if facts is None:
                return None
            machine = self._made(ledger_id, facts)
        return machine

    def _made(self, ledger_id: int, facts: LedgerFacts | None) -> BookieLedgerMachine:
        if len(self._machines) >= self._machines_max:
            self._forget_machines(2 * MACHINES_AT_ONCE)
        # What was lost with a damaged record may have been an unknown ledger's entries, and its fence.
        searching = facts is None and self._storage.states.in_limbo(ledger_id)
        machine = self.limbo.machine(ledger_id, facts, searching=searching, kind=self.machine)
        self._machines[ledger_id] = machine
        return machine

    def _forget_machines(self, looks: int) -> None:
        """Look at so many of the longest kept machines, and let go of those that can be made again from what storage knows.

        The others are the newest then: most of many ledgers are idle.
        """
        storage, evidence, machines = self._storage, self._evidence, self._machines
        for ledger_id in list(islice(machines, looks)):
            if len(machines) <= MACHINES_KEPT - MACHINES_AT_ONCE:
                break
            machine = machines.pop(ledger_id)
            if ledger_id in self.explicit_lacs or not machine.is_as_stored(storage.facts(ledger_id)):
                machines[ledger_id] = machine
            elif evidence.get(ledger_id) == storage.last_entry(ledger_id):
                del evidence[ledger_id]
        self._machines_max = max(MACHINES_KEPT, len(machines) + MACHINES_AT_ONCE)

    def _machine(self, ledger_id: int) -> BookieLedgerMachine:
        machine = self._known(ledger_id)
        return self._made(ledger_id, None) if machine is None else machine

    def _save(self, machine: BookieLedgerMachine, callback: AnswerCallback) -> None:
        """Journal all that is known of a ledger, with the body of a LAC that came without one."""
        self._complete(machine)
        self._carry_out(machine, machine.save(), callback)

    def _carry_out(self, machine: BookieLedgerMachine, ready: BookieReady, callback: AnswerCallback) -> None:
        """Journal what a ledger's machine says, and give the response when it says."""
        if ready.persisted:
            self._journal(
                machine, ready, lambda error: callback(ready.answer if error is None else Answer.ERROR)
            )
            return
        if ready.facts is not None:
            self._journal(machine, ready, lambda _: None)
        callback(ready.answer)

    def _journal(
        self,
        machine: BookieLedgerMachine,
        ready: BookieReady,
        callback: DurableCallback,
    ) -> None:
        """Journal facts or a tombstone; once that is durable, or failed, the machine gets the outcome, and `callback` is called."""
        if ready.facts is not None:
            self._put_facts(machine, ready.facts, callback)
        else:

            def deleted(error: StorageError | None) -> None:
                if error is not None:
                    machine.not_deleted()
                callback(error)

            known = machine.facts
            self._storage.delete(known.ledger_id, known.deleted_until_ms, CALL_TAG, deleted)
        self.flush_soon()

    def _put_facts(
        self, machine: BookieLedgerMachine, facts: LedgerFacts, callback: DurableCallback | None = None
    ) -> None:
        """Journal facts; once they are durable, or failed, the machine gets the outcome, and `callback` is called.

        With a term that is higher than the stored one they say what was put before it was taken.
        """
        stored = self._storage.facts(facts.ledger_id) if facts.term else None
        if facts.term != (0 if stored is None else stored.term):
            facts.term_lsn = machine.facts.term_lsn = self._storage.journal.last_lsn

        def durable(error: StorageError | None) -> None:
            if error is None:
                machine.saved(facts)
            else:
                machine.not_saved(facts)
            if callback is not None:
                callback(error)

        self._storage.put_facts(facts, CALL_TAG, durable)

    def flush_soon(self) -> None:
        """Flush at the end of this loop turn, together with what others put in it."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Runs that were put start towards the disk, and waiting polls for a LAC are served."""
        self._flush_scheduled = False
        if self._unsaved_lacs and self._storage.failure is None:
            self.save_lacs()
        self.flushing = True
        try:
            self._storage.flush()
        finally:
            self.flushing = False
            self._written()
        if self._risen:
            risen, self._risen = self._risen, {}
            for ledger_id in risen:
                self.followers.tell(ledger_id, self._machine(ledger_id).facts.lac)
            self._written()
