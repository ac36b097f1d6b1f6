"""Readers while the writer writes: the machines of `core` that find the newest LAC and read entries, with the least of a driver.

A reader asks and hears in one step. Nothing is lost by that: its questions change nothing at a bookie, what it asks for
next depends only on responses that it has, and a response that comes late is one that was asked for late. A LAC, from
whomever, may be believed; what a closed record says is final.

Source: `client/reading/reader.py`, whose handling of effects this repeats; Vanlightly's guide, "Reading from ledgers".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger import effects as e
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.quorum import write_set
from quire.core.ledger.reader import LacMachine, ReadMachine
from quire.core.transcript import effect_line, record_text
from quire_testing.explorer.bookies import BookieDriver, BookieState
from quire_testing.explorer.clients import Fault, bookie_number
from quire_testing.explorer.snapshot import clone, state_of
from quire_testing.explorer.switches import Rules


@dataclass(frozen=True, slots=True)
class ReaderState:
    """A reader between two steps. `machine` is never changed: a step works on a copy.

    Attributes:
        record: as it was last read, None before that.
        lac: the highest entry that it knows to be confirmed.
        next_entry: everything below was read.
        machine: what is under way, and `work` its state as a value.
        failed: the entry that could not be had, whether every bookie reported it absent, the bookies that were asked.
        deleted: the ledger was deleted.
    """

    record: LedgerMetadata | None = None
    lac: int = NO_ENTRY
    next_entry: int = 0
    machine: Any = None
    work: tuple[Any, ...] = ()
    failed: tuple[int, bool, tuple[BookieId, ...]] | None = None
    deleted: bool = False
    fault: Fault | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal keys mean equal behaviour."""
        kind = type(self.machine).__name__
        return (
            self.record,
            self.lac,
            self.next_entry,
            kind,
            self.work,
            self.failed,
            self.deleted,
            self.fault,
        )

    @property
    def closed(self) -> bool:
        """Whether it knows the ledger's end."""
        return self.record is not None and self.record.state is LedgerState.CLOSED

    @property
    def done(self) -> bool:
        """Whether it has read everything that there will ever be."""
        return self.deleted or (self.closed and self.machine is None and self.next_entry > self.lac)


ReaderMove = tuple[str, tuple[str, ...], str, ReaderState]
"""What it does, what was said, a kind, the reader afterwards."""


class ReaderDriver:
    """Gives a reader's machines their inputs."""

    def __init__(self, bookie_driver: BookieDriver, rules: Rules) -> None:
        self._bookies = bookie_driver
        self._rules = rules

    # --- the record --------------------------------------------------------------------------------------------------

    def reads_record(self, reader: ReaderState, record: LedgerMetadata | None) -> Iterator[ReaderMove]:
        """Read the record: to begin, to know more, or because an entry could not be had."""
        if reader.machine is not None or reader.done or (reader.closed and reader.failed is None):
            return
        text = f"reads {record_text(record) if record else 'that there is no record'}"
        if record is None:
            yield text, (), "record", replace(reader, deleted=True, failed=None)
            return
        after = replace(reader, record=record, failed=None)
        if record.state is LedgerState.CLOSED:
            if reader.lac > record.last_entry:
                fault = ("I11", f"a reader knew that {reader.lac} is confirmed, and it is behind the end")
                after = replace(after, fault=reader.fault or fault)
            after = replace(after, lac=int(record.last_entry))
        if reader.failed is not None:
            yield text, (), "record again", self._judged(after, reader.failed, record)
        elif record.state is LedgerState.CLOSED:
            yield text, (), "record", after
        else:
            machine = LacMachine(
                record.fragments[-1].ensemble, record.write_quorum, record.ack_quorum, self._rules
            )
            machine.read()
            yield text, self._said(machine), "record", self._with(after, machine)

    def _judged(
        self, after: ReaderState, failed: tuple[int, bool, tuple[BookieId, ...]], record: LedgerMetadata
    ) -> ReaderState:
        """Was it worth asking the bookies of this record, or does no bookie hold a confirmed entry?"""
        entry_id, conclusive, asked = failed
        if (
            after.fault is None
            and conclusive
            and entry_id <= after.lac
            and self._rules.failed_read_stands(asked, record.ensemble_of(entry_id))
        ):
            text = f"entry {entry_id} is confirmed, and its whole write set says that it does not exist"
            return replace(after, fault=("R", text))
        return after

    # --- the newest LAC ----------------------------------------------------------------------------------------------

    def hears_lac(self, reader: ReaderState, slot: int, bookie: BookieState | None) -> ReaderMove:
        """A bookie's response to a LAC read; None: its time is over."""
        machine = clone(reader.machine)
        machine.out = []
        name = machine._ensemble[slot]
        answer, lac = Answer.TIMED_OUT, NO_ENTRY
        if bookie is not None:
            _, (_, answer, lac) = self._bookies.look(bookie, (0, ("fence", slot), True), Answer.OK)[0]
        machine.answered(slot, answer, lac)
        said = self._said(machine)
        after = self._with(reader, machine)
        for effect in machine.out:
            if isinstance(effect, e.LacFound | e.LacUnavailable):
                found = effect.last_add_confirmed if isinstance(effect, e.LacFound) else effect.highest
                after = replace(reader, machine=None, work=(), lac=max(reader.lac, int(found)))
        text = f"hears lac {lac} from {name}" if bookie is not None else f"gives up the lac of {name}"
        return text, said, "lac", after

    def lac_slots(self, reader: ReaderState) -> list[int]:
        """The slots that have not answered a LAC read."""
        if not isinstance(reader.machine, LacMachine):
            return []
        machine = reader.machine
        return [slot for slot in range(len(machine._ensemble)) if not machine._answered >> slot & 1]

    def polls(self, reader: ReaderState, slot: int, bookie: BookieState) -> Iterator[ReaderMove]:
        """A long poll for the next entry: any bookie of its write set may tell a newer LAC."""
        request = ("read", slot, reader.next_entry, reader.next_entry, False)
        _, (_, answer, payload) = self._bookies.look(bookie, (0, request, True), Answer.OK)[0]
        if answer is not Answer.OK or bookie.lac < reader.next_entry:
            return
        assert reader.record is not None
        name = reader.record.ensemble_of(reader.next_entry)[slot]
        came = reader.next_entry in payload[0]
        after = replace(reader, lac=bookie.lac, next_entry=reader.next_entry + came)
        with_it = f", and entry {reader.next_entry}" if came else ""
        yield f"hears lac {bookie.lac}{with_it} from {name}", (), "poll", after

    def poll_slots(self, reader: ReaderState) -> list[int]:
        """The bookies that it may poll at the tail."""
        record = reader.record
        if record is None or reader.machine is not None or reader.failed or reader.closed:
            return []
        if reader.next_entry <= reader.lac:
            return []
        return list(write_set(reader.next_entry, record.ensemble_size, record.write_quorum))

    # --- entries -----------------------------------------------------------------------------------------------------

    def begins(self, reader: ReaderState) -> Iterator[ReaderMove]:
        """Begin to read what is known to be confirmed, as far as one fragment goes; any bookie may be asked first."""
        record = reader.record
        if record is None or reader.machine is not None or reader.failed or reader.next_entry > reader.lac:
            return
        first, last = reader.next_entry, reader.lac
        index = record.fragment_index(first)
        if index + 1 < len(record.fragments):
            last = min(last, record.fragments[index + 1].first_entry - 1)
        ensemble = record.fragments[index].ensemble
        for prefer in range(len(ensemble)):
            machine = ReadMachine(
                first, last, ensemble, record.write_quorum, prefer=prefer, rules=self._rules
            )
            machine.read(0)
            text = f"begins to read {first}..{last}, {ensemble[prefer]} first"
            yield text, self._said(machine), "begin", self._with(reader, machine)

    def read_slots(self, reader: ReaderState) -> list[int]:
        """The slots that were asked for entries and have not responded."""
        if not isinstance(reader.machine, ReadMachine):
            return []
        return [slot for slot, asked in enumerate(reader.machine._asked) if asked is not None]

    def hears_entries(self, reader: ReaderState, slot: int, bookie: BookieState | None) -> ReaderMove:
        """A bookie's response to a read; None: its time is over."""
        machine = clone(reader.machine)
        machine.out = []
        first, last, _ = machine._asked[slot]
        name = machine._ensemble[slot]
        answer, entries, through, unknown = Answer.TIMED_OUT, (), NO_ENTRY, ()
        if bookie is not None:
            request = ("read", slot, first, last, False)
            _, (_, answer, payload) = self._bookies.look(bookie, (0, request, True), Answer.OK)[0]
            entries, through, unknown = payload or ((), NO_ENTRY, ())
        machine.answered(slot, answer, entries, through, unknown, 0)
        said = self._said(machine)
        after = self._with(reader, machine)
        if bookie is not None and not reader.closed and bookie.lac > reader.lac:
            after = replace(after, lac=bookie.lac)
        for effect in machine.out:
            if isinstance(effect, e.ReadDone):
                after = replace(after, machine=None, work=(), next_entry=machine._last + 1)
            elif isinstance(effect, e.ReadFailed):
                asked = tuple(sorted(who for who, _ in effect.answers))
                failed = (int(effect.entry_id), effect.conclusive, asked)
                after = replace(after, machine=None, work=(), next_entry=int(effect.entry_id), failed=failed)
        held = " ".join(map(str, entries)) or "nothing"
        text = f"hears {held} of {first}..{last} from {name}"
        return text if bookie is not None else f"gives up {first}..{last} at {name}", said, "entries", after

    # --- pieces ------------------------------------------------------------------------------------------------------

    def bookie_of(self, reader: ReaderState, slot: int) -> int:
        """Which bookie a slot of the machine, or of the record's fragment at the tail, is."""
        if reader.machine is not None:
            return bookie_number(reader.machine._ensemble[slot])
        assert reader.record is not None
        return bookie_number(reader.record.ensemble_of(reader.next_entry)[slot])

    def _with(self, reader: ReaderState, machine: LacMachine | ReadMachine) -> ReaderState:
        machine.check()
        other = clone(machine)
        other.out = []
        if isinstance(other, ReadMachine):
            other._answers = dict(sorted(other._answers.items()))  # looked up by slot: its order is no state
        return replace(reader, machine=other, work=state_of(other))

    def _said(self, machine: LacMachine | ReadMachine) -> tuple[str, ...]:
        return tuple(effect_line(effect, machine._ensemble) for effect in machine.out)
