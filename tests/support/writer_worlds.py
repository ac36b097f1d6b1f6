"""One writer among bookies that lose, delay and refuse, a store whose answers get lost, and perhaps a recoverer.

Who plays it picks, step by step, one of the things that could happen next; after each step what must hold is asserted.
"""

from __future__ import annotations

from collections import deque

from quire.core.answers import Answer
from quire.core.errors import NotWritingError
from quire.core.ledger import effects as e
from quire.core.ledger.guarantee import GUARANTEED
from quire.core.ledger.metadata import DigestType, LedgerState, new_ledger
from quire.core.ledger.placement import slots_for_absent
from quire.core.ledger.quorum import stripes_of_slot, write_set, write_set_masks
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import Status, WriterLimits
from quire_testing.explorer.switches import Rules

TRIPLES = [
    (size, write, ack) for size in range(1, 8) for write in range(1, size + 1) for ack in range(1, write + 1)
]
WAITS = (0, 50, 10_000)
"""Milliseconds below the ack quorum."""
FAILURES = [Answer.TIMED_OUT, Answer.UNREACHABLE, Answer.READ_ONLY, Answer.DAMAGED_IN_TRANSIT, Answer.ERROR]


class World:
    """One writer, its bookies, its store and perhaps a recoverer."""

    def __init__(
        self,
        triple: tuple[int, int, int],
        rules: Rules,
        *,
        spares: int,
        recoverer: bool,
        wait_ms: int = 0,
        guarantee: bool = False,
    ) -> None:
        self.E, self.Qw, self.Qa = triple
        names = [f"b{number}" for number in range(1, self.E + spares + 1)]
        record = new_ledger(
            1,
            names[: self.E],
            write_quorum=self.Qw,
            ack_quorum=self.Qa,
            digest_type=DigestType.CRC32C,
            password=b"",
            custom=dict([GUARANTEED]) if guarantee else None,
        )
        self.machine = WriterMachine(record, 1, rules=rules, limits=WriterLimits(10, 100, 6, wait_ms))
        self.names = names
        self.stored: dict[str, set[int]] = {name: set() for name in names}
        self.fenced: set[str] = set()
        self.adds: dict[str, deque] = {name: deque() for name in names}
        self.answers: list = []
        self.record, self.version = record, 1
        self.request: e.WriteMetadata | e.RereadMetadata | None = None
        self.ghosts: list[e.WriteMetadata] = []
        self.choice: e.ChooseReplacements | None = None
        self.look: e.LookForBookies | None = None
        self.left: e.AskLeftBookies | None = None
        self.now_ms = 0
        self.timer: int | None = None
        self.confirmed = -1
        self.failed_from: int | None = None
        self.recovery = "none" if recoverer else "never"
        self.writes = 0

    def begin_without(self, away: int) -> None:
        """So many bookies were away when the ledger was created, if it may be created so."""
        self.before = self.machine.ensemble
        if not 0 < away <= self.E:
            return
        absent = slots_for_absent(self.E, away)[0]
        present = sum(1 << slot for slot in range(self.E) if slot not in absent)
        masks = write_set_masks(self.E, self.Qw)
        if self.machine.rules.may_create(present, masks, self.Qa, self.Qa):
            self.step(lambda: self.machine.began_without(absent, self.now_ms))

    # --- what could happen next --------------------------------------------------------------------------------------

    def enabled(self) -> list:
        machine = self.machine
        actions: list = []
        if machine.status in (Status.WRITING, Status.CHANGING):
            actions += [lambda: machine.append(1, 10), lambda: machine.append(self.E + 1, 30)]
            slot = machine.lap % self.E
            actions += [lambda: machine.bookie_lost(slot, machine.ensemble[slot])]
            actions += [lambda: machine.bookie_left(slot, machine.ensemble[slot], self.now_ms, 20)]
        for name in self.names:
            if self.adds[name]:
                actions += [lambda n=name: self.deliver(n)] * 3
                if len(self.adds[name]) > 2:
                    actions.append(lambda n=name: self.lose(n))
        for index in range(min(3, len(self.answers))):
            actions += [lambda i=index: self.answer(i)] * 3
        if self.request is not None:
            actions += [self.serve, self.serve, self.serve_unknown, self.serve_ghost]
        if self.ghosts:
            actions.append(self.ghost_lands)
        if self.choice is not None:
            actions += [lambda: self.choose(all_of_them=True), lambda: self.choose(all_of_them=False)]
        if self.look is not None:
            actions += [self.find, lambda: self.find(everyone=False)]
        if self.left is not None:
            actions += [self.ask, lambda: self.ask(everyone=False)]
        if self.timer is not None:
            actions += [self.fire, lambda: self.fire(late_ms=70)]
        if self.recovery == "none":
            actions.append(self.announce)
        elif self.recovery == "announced":
            actions.append(self.recover)
        return actions

    def deliver(self, name: str) -> None:
        slot, run, ids = self.adds[name].popleft()
        if name in self.fenced:
            self.answers.append((slot, name, run, Answer.FENCED))
            return
        self.stored[name] |= ids
        self.answers.append((slot, name, run, Answer.OK))

    def lose(self, name: str) -> None:
        """The add or its answer is lost; the bookie may have stored it."""
        slot, run, ids = self.adds[name].popleft()
        if (run + slot) % 2 and name not in self.fenced:
            self.stored[name] |= ids
        self.answers.append((slot, name, run, FAILURES[(run + slot) % len(FAILURES)]))

    def answer(self, index: int) -> None:
        slot, name, run, answer = self.answers.pop(index)
        if answer is Answer.OK:
            self.machine.adds_acked(slot, name, run)
        else:
            self.machine.add_failed(slot, name, run, answer)

    def serve(self) -> None:
        request, self.request = self.request, None
        if isinstance(request, e.RereadMetadata):
            self.machine.metadata_read(self.record, self.version)
        elif self.cas(request):
            self.machine.metadata_written(self.version)
        else:
            self.machine.metadata_conflicted()

    def serve_unknown(self) -> None:
        """It happens, and the answer is lost."""
        request, self.request = self.request, None
        if isinstance(request, e.WriteMetadata):
            self.cas(request)
        self.machine.metadata_unknown(self.now_ms)

    def serve_ghost(self) -> None:
        """It is lost, or stuck on its way."""
        request, self.request = self.request, None
        if isinstance(request, e.WriteMetadata):
            self.ghosts.append(request)
        self.machine.metadata_unknown(self.now_ms)

    def ghost_lands(self) -> None:
        self.cas(self.ghosts.pop(0))

    def cas(self, request: e.WriteMetadata) -> bool:
        if request.version != self.version:
            return False
        self.set_record(request.record)
        return True

    def set_record(self, record) -> None:
        before = self.record
        if before.state is LedgerState.CLOSED:
            assert record.state is LedgerState.CLOSED, "I4: a closed ledger stays closed"
            assert record.last_entry == before.last_entry, "I4: a closed end never moves"
        self.record = record.checked()
        self.version += 1

    def choose(self, *, all_of_them: bool) -> None:
        choice, self.choice = self.choice, None
        free = [name for name in self.names if name not in choice.ensemble and name not in choice.failed]
        free = [name for name in free if name not in self.machine.ensemble]
        slots = choice.slots if all_of_them else choice.slots[:-1]
        self.machine.replacements_chosen(dict(zip(slots, free, strict=False)), self.now_ms)

    def find(self, *, everyone: bool = True) -> None:
        look, self.look = self.look, None
        spare = len(self.names) > self.E and self.now_ms % 20 == 0
        returned = list(look.slots) if everyone else list(look.slots[1:])
        self.machine.bookies_found(returned, self.now_ms, spare=spare)

    def ask(self, *, everyone: bool = True) -> None:
        """Some of the bookies left; whether another could take a slot is a guess that may be wrong by now."""
        left, self.left = self.left, None
        leaving = list(enumerate(left.ensemble))[: None if everyone else 1]
        answered = list(enumerate(left.ensemble))[len(leaving) :]
        self.machine.left_bookies_asked(leaving, self.now_ms, spare=self.now_ms % 3 != 0, answered=answered)

    def fire(self, late_ms: int = 0) -> None:
        self.now_ms, self.timer = max(self.now_ms, self.timer) + late_ms, None
        self.machine.timer_fired(self.now_ms)

    def announce(self) -> None:
        if self.record.state is LedgerState.OPEN:
            self.set_record(self.record.in_recovery())
            self.recovery = "announced"
        else:
            self.recovery = "never"

    def recover(self) -> None:
        """Fence the last ensemble, read forward, write back, close: in one step, the writer cannot see more of it."""
        self.recovery = "never"
        record = self.record
        if record.state is not LedgerState.IN_RECOVERY:
            return
        ensemble = record.last_fragment.ensemble
        self.fenced |= set(ensemble)
        last = record.last_fragment.first_entry - 1
        while True:
            slots = write_set(last + 1, self.E, self.Qw)
            if not any(last + 1 in self.stored[ensemble[slot]] for slot in slots):
                break
            last += 1
            for slot in slots:
                self.stored[ensemble[slot]].add(last)
        self.set_record(record.closed(last, 0))

    # --- what the writer says ----------------------------------------------------------------------------------------

    def step(self, action) -> None:
        try:
            action()
        except NotWritingError:
            assert self.machine.status not in (Status.WRITING, Status.CHANGING)
        out, self.machine.out = self.machine.out, []
        ensemble = self.before
        for effect in out:
            if isinstance(effect, e.EnsembleChanged):
                ensemble = effect.ensemble
            self.perform(effect, ensemble)
        self.before = self.machine.ensemble
        self.machine.check()
        self.check()

    def perform(self, effect, ensemble) -> None:
        match effect:
            case e.SendRun(run, first, last, lac, slots):
                assert lac <= self.confirmed, "a header never carries more than callers have heard"
                for slot in slots:
                    stripes = stripes_of_slot(slot, self.E, self.Qw)
                    ids = {entry for entry in range(first, last + 1) if stripes >> entry % self.E & 1}
                    assert ids
                    self.adds[ensemble[slot]].append((slot, run, ids))
            case e.DropUnsent(_, bookie):
                while len(self.adds[bookie]) > 1:
                    self.adds[bookie].pop()
            case e.Confirmed(first, last):
                assert first == self.confirmed + 1, "I5: in order, without a gap, once"
                assert last >= first
                self.confirmed = last
            case e.Failed(first, last, _):
                assert first == self.confirmed + 1
                assert last == self.machine.lap
            case e.WriteMetadata() | e.RereadMetadata():
                assert self.request is None, "one request at a time"
                self.request = effect
            case e.ChooseReplacements():
                self.choice = effect
            case e.LookForBookies():
                self.look = effect
            case e.AskLeftBookies():
                self.left = effect
            case e.SetTimer(at_ms):
                self.timer = at_ms
            case e.Closed(record):
                assert record.last_entry == self.machine.lac

    def check(self) -> None:
        assert self.confirmed == self.machine.lac
        if self.record.state is LedgerState.CLOSED:
            assert self.record.last_entry >= self.confirmed, "I1: nothing acknowledged is lost"
        if self.machine.status is Status.CLOSED:
            assert self.record.state is LedgerState.CLOSED
        if self.machine.below_quorum:
            assert self.machine.limits.quorum_wait_ms, "without a wait it ends"
        elif self.machine.status is Status.WRITING:
            for entry in range(self.E):
                present = [
                    slot for slot in write_set(entry, self.E, self.Qw) if slot not in self.machine.absent
                ]
                assert len(present) >= self.Qa, "a writer goes on only while every write set can reach Qa"
        for entry in range(max(0, self.confirmed - 40), self.confirmed + 1):
            ensemble = self.record.ensemble_of(entry)
            slots = write_set(entry, self.E, self.Qw)
            copies = sum(entry in self.stored[ensemble[slot]] for slot in slots)
            assert copies >= self.Qa, f"I2: entry {entry} has {copies} copies of {self.Qa} in {ensemble}"
            assert copies == self.Qw or not self.is_promised(entry), f"entry {entry} has {copies} copies"

    def is_promised(self, entry: int) -> bool:
        """Whether the write quorum of this entry is guaranteed by now."""
        record, window = self.record, self.machine.window
        decided = record.state is LedgerState.CLOSED or entry < record.last_fragment.first_entry
        return record.guaranteed and (decided or entry <= window.lafr)

    def play(self, choices) -> None:
        self.before = self.machine.ensemble
        for choice in choices:
            actions = self.enabled()
            if not actions:
                return
            self.step(actions[choice % len(actions)])

    def waiting(self) -> bool:
        return self.machine.pending or self.machine.status is Status.CLOSING

    def settle(self) -> None:
        """From here on everything is delivered: whoever is alive makes progress."""
        for _ in range(2000):
            if self.choice is not None:
                self.step(lambda: self.choose(all_of_them=True))
            elif self.request is not None:
                self.step(self.serve)
            elif any(self.adds.values()):
                self.step(lambda: self.deliver(next(name for name in self.names if self.adds[name])))
            elif self.answers:
                self.step(lambda: self.answer(0))
            elif self.waiting() and self.look is not None:
                self.step(self.find)
            elif self.waiting() and self.timer is not None:
                self.step(self.fire)
            else:
                break
        while self.ghosts:
            self.step(self.ghost_lands)
        assert not self.machine.pending, "F2: every entry of a live writer is answered in the end"
        assert self.machine.status is not Status.CLOSING
        assert self.machine.status in (Status.WRITING, Status.CLOSED, Status.ENDED, Status.ABANDONED)
