"""A naive world around recovery machines: bookies as dictionaries, a live writer, a record with compare-and-swap.

Every choice comes from one `random.Random`. Requests wait in lists; a step takes one of them in any order and
answers it, loses it, or lets it happen and loses the answer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from quire.core.answers import Answer
from quire.core.errors import MisuseError
from quire.core.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from quire.core.ledger.effects import (
    FindLength,
    FindReplacements,
    RecoveryClosed,
    RecoveryFailed,
    RecoveryInconclusive,
    RereadMetadata,
    SendLacRead,
    SendRecoveryAdds,
    SendRecoveryRead,
    WaitForAnswers,
    WriteMetadata,
)
from quire.core.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from quire.core.ledger.quorum import covers_exactly, write_set
from quire.core.recovery.machine import RecoveryMachine, RecoveryStatus
from quire_testing.explorer.switches import RULES, Rules

BYTES_PER_ENTRY = 10


@dataclass
class Bookie:
    held: dict[int, int] = field(default_factory=dict)
    lac: int = NO_ENTRY
    fenced: bool = False
    limbo: bool = False

    def add(self, entry_id: int, lac: int, *, recovery: bool) -> bool:
        if self.fenced and not recovery:
            return False
        self.held[entry_id] = BYTES_PER_ENTRY * (entry_id + 1)
        if not recovery:
            self.lac = max(self.lac, lac)
        return True

    def read(
        self, chance: random.Random, first: int, last: int
    ) -> tuple[dict[int, int], int, list[tuple[int, int]]]:
        through = last if chance.random() < 0.6 else chance.randint(first, last)
        entries = {e: length for e, length in sorted(self.held.items()) if first <= e <= through}
        if not self.limbo:
            return entries, through, []
        if chance.random() < 0.5:
            return entries, first - 1, []
        return entries, first - 1, [(first, through)]


@dataclass
class Recoverer:
    machine: RecoveryMachine
    pending: list[object] = field(default_factory=list)
    result: object = None


class World:
    """One ledger with a live writer, some recoverers, and everything that can happen between them."""

    def __init__(
        self, chance: random.Random, quorums: tuple[int, int, int], rules: Rules = RULES, **knobs: int
    ) -> None:
        self.chance = chance
        self.rules = rules
        self.E, self.Qw, self.Qa = quorums
        self.timeouts_left = knobs.get("timeouts", 2)
        self.reruns_left = knobs.get("reruns", 1)
        self.names = [BookieId(f"b{i}") for i in range(self.E)]
        spares = [BookieId(f"s{i}") for i in range(knobs.get("spares", 1))]
        self.bookies = {name: Bookie() for name in [*self.names, *spares]}
        self.first = chance.choice([0, 0, 0, 1, 2])
        fragments = [Fragment(EntryId(0), tuple(self.names))]
        if self.first:
            # The earlier fragment lay on other bookies, and all of it was confirmed.
            fragments[0] = Fragment(EntryId(0), tuple(BookieId(f"old{i}") for i in range(self.E)))
            fragments.append(Fragment(EntryId(self.first), tuple(self.names)))
        self.record = LedgerMetadata(
            LedgerId(1), self.E, self.Qw, self.Qa, DigestType.CRC32C, b"", LedgerState.OPEN, tuple(fragments)
        )
        self.version = 1
        # The writer.
        self.acknowledged = self.first - 1
        self.lap = self.first - 1
        self.max_entries = knobs.get("entries", 4)
        self.in_flight: list[tuple[int, int, int]] = []
        self.acks: dict[int, set[int]] = {}
        self.writer_fenced = False
        # The past: some of it happened before anybody recovers.
        for _ in range(chance.randint(0, 12)):
            self.writer_step()
        if knobs.get("limbo") and self.Qa > 1 and chance.random() < 0.5:
            lost = self.bookies[chance.choice(self.names)]
            lost.limbo = lost.fenced = True
            lost.held = {e: n for e, n in lost.held.items() if chance.random() < 0.5}
        self.limbo = any(bookie.limbo for bookie in self.bookies.values())
        self.recoverers = [self._recoverer() for _ in range(knobs.get("recoverers", 1))]
        self.verdicts: list[int] = []

    def _recoverer(self) -> Recoverer:
        window = self.chance.choice([1, 2, 3, 8])
        recoverer = Recoverer(RecoveryMachine(self.record, self.version, self.rules, window, window_bytes=25))
        recoverer.machine.recover()
        self.drain(recoverer)
        return recoverer

    # --- the writer ----------------------------------------------------------------------------------------------

    def writer_step(self) -> None:
        chance = self.chance
        if self.writer_fenced:
            return
        if self.in_flight and chance.random() < 0.7:
            # Adds from one client to one bookie arrive in order.
            entry_id, slot, lac = chance.choice([f for i, f in enumerate(self.in_flight) if self._is_next(i)])
            self.in_flight.remove((entry_id, slot, lac))
            if not self.bookies[self.names[slot]].add(entry_id, lac, recovery=False):
                self.writer_fenced = True
                return
            self.acks[entry_id].add(slot)
            while len(self.acks.get(self.acknowledged + 1, ())) >= self.Qa:
                self.acknowledged += 1
        elif self.lap - self.first + 1 < self.max_entries:
            self.lap += 1
            self.acks[self.lap] = set()
            self.in_flight += [
                (self.lap, slot, self.acknowledged) for slot in write_set(self.lap, self.E, self.Qw)
            ]

    def _is_next(self, index: int) -> bool:
        slot = self.in_flight[index][1]
        return not any(other[1] == slot for other in self.in_flight[:index])

    # --- recoverers ----------------------------------------------------------------------------------------------

    def drain(self, recoverer: Recoverer) -> None:
        machine = recoverer.machine
        machine.check()
        if machine.status in {RecoveryStatus.READING, RecoveryStatus.MEASURING, RecoveryStatus.CLOSING}:
            # I7: whoever reads forward has fenced enough of the original ensemble.
            fenced = sum(1 << slot for slot, name in enumerate(self.names) if self.bookies[name].fenced)
            assert covers_exactly(fenced, self.E, self.Qw, self.Qa), "the fence does not cover"
        out, machine.out = machine.out, []
        for effect in out:
            if isinstance(effect, RecoveryClosed | RecoveryInconclusive | RecoveryFailed):
                assert recoverer.result is None, "one result"
                recoverer.result = effect
            else:
                recoverer.pending.append(effect)

    def recoverer_step(self, recoverer: Recoverer) -> None:
        effect = recoverer.pending.pop(self.chance.randrange(len(recoverer.pending)))
        machine = recoverer.machine
        lost = happens = False
        if isinstance(effect, SendLacRead | SendRecoveryRead | SendRecoveryAdds) and self.timeouts_left:
            lost = self.chance.random() < 0.15
            happens = self.chance.random() < 0.5
            self.timeouts_left -= lost
        if isinstance(effect, SendLacRead):
            bookie = self.bookies[effect.bookie]
            if not lost or happens:
                bookie.fenced = bookie.fenced or effect.fence
            machine.fence_answered(
                effect.slot, Answer.TIMED_OUT if lost else Answer.OK, NO_ENTRY if lost else bookie.lac
            )
        elif isinstance(effect, SendRecoveryRead):
            bookie = self.bookies[effect.bookie]
            if not lost or happens:
                bookie.fenced = bookie.fenced or effect.fence
            if lost:
                machine.read_answered(effect.slot, Answer.TIMED_OUT, {}, NO_ENTRY, [])
            else:
                machine.read_answered(
                    effect.slot, Answer.OK, *bookie.read(self.chance, effect.first, effect.last)
                )
        elif isinstance(effect, SendRecoveryAdds):
            bookie = self.bookies[effect.bookie]
            if not lost or happens:
                for entry_id in range(effect.first, effect.last + 1):
                    if effect.stripes >> entry_id % effect.period & 1:
                        bookie.add(entry_id, effect.last_add_confirmed, recovery=True)
            answer = Answer.TIMED_OUT if lost else Answer.OK
            machine.adds_answered(effect.slot, effect.bookie, effect.first, effect.last, answer)
        elif isinstance(effect, FindReplacements):
            spares = [b for b in self.bookies if b not in effect.ensemble and b not in effect.excluded]
            machine.replacements_found(dict(zip(effect.slots, spares, strict=False)))
        elif isinstance(effect, WaitForAnswers):
            machine.waited()
        elif isinstance(effect, FindLength):
            self.length_found(machine, effect)
        elif isinstance(effect, WriteMetadata):
            self.cas(machine, effect)
        elif isinstance(effect, RereadMetadata):
            machine.metadata_read(self.record, self.version)
        self.drain(recoverer)

    def length_found(self, machine: RecoveryMachine, effect: FindLength) -> None:
        entry_id = effect.entry_id
        ensemble = self.record.ensemble_of(entry_id)
        slots = write_set(entry_id, self.E, self.Qw)
        holders = [
            b for b in (ensemble[slot] for slot in slots) if entry_id in self.bookies.get(b, Bookie()).held
        ]
        if entry_id < self.first or holders:
            machine.length_found(BYTES_PER_ENTRY * (entry_id + 1))
        else:
            machine.length_unavailable(())

    def cas(self, machine: RecoveryMachine, effect: WriteMetadata) -> None:
        answer_lost = self.chance.random() < 0.1
        if effect.version != self.version:
            machine.metadata_conflicted()
            return
        self.record, self.version = effect.record, self.version + 1
        if answer_lost:
            machine.metadata_conflicted()
        else:
            machine.metadata_written(effect.record, self.version)

    # --- running and judging ---------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(5000):
            active = [r for r in self.recoverers if r.pending]
            if not active:
                if self.record.state is LedgerState.CLOSED or not self.reruns_left:
                    break
                self.reruns_left -= 1
                self.recoverers.append(self._recoverer())
                continue
            if self.chance.random() < 0.3:
                self.writer_step()
            else:
                self.recoverer_step(self.chance.choice(active))
        else:
            raise AssertionError("it does not end")
        for _ in range(60):
            self.writer_step()
        self.judge()

    def judge(self) -> None:
        """Every invariant of a recovered ledger, from outside."""
        for recoverer in self.recoverers:
            assert recoverer.result is not None, "a recovery always has a result"
        closed = [r.result for r in self.recoverers if isinstance(r.result, RecoveryClosed)]
        if self.record.state is not LedgerState.CLOSED:
            assert not closed
            return
        self.record.checked()
        end = self.record.last_entry
        # I1: no acknowledged loss, the writer's late acknowledgements included.
        assert self.acknowledged <= end, f"acknowledged {self.acknowledged}, closed at {end}"
        # All who finished agree.
        for result in closed:
            assert result.record.last_entry == end, "one end"
        assert self.record.length == (BYTES_PER_ENTRY * (end + 1) if end >= 0 else 0), (
            "the length is the last entry's"
        )
        # I6: fragments are valid, and the earlier one is untouched.
        assert self.record.fragments[0].first_entry == 0
        if self.first:
            assert self.record.fragments[1].first_entry == self.first
        # I3: closed is complete.
        for entry_id in range(self.first, end + 1):
            ensemble = self.record.ensemble_of(entry_id)
            slots = write_set(entry_id, self.E, self.Qw)
            holders = sum(entry_id in self.bookies[ensemble[slot]].held for slot in slots)
            wanted = self.Qa - 1 if self.limbo else self.Qa
            assert holders >= wanted, f"entry {entry_id} of 0..{end} is on {holders} bookies"


def explore(seed: int, quorums: tuple[int, int, int], rules: Rules = RULES, **knobs: int) -> World:
    """One random run, judged."""
    world = World(random.Random(seed), quorums, rules, **knobs)
    world.run()
    return world


def violated(seed: int, quorums: tuple[int, int, int], rules: Rules, **knobs: int) -> bool:
    """Whether a run with (broken) rules shows a violation."""
    try:
        explore(seed, quorums, rules, **knobs)
    except (AssertionError, MisuseError):
        return True
    except Exception as error:  # a broken rule may also lead to an impossible record
        return "not a possible one" in str(error)
    return False
