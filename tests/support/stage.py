"""One ledger on a stage: the shipped machines of a writer, of bookies and of a recoverer, moved by hand.

Nothing happens by itself. A scenario says which message arrives, which is lost and when the metadata store answers,
so an incident can be played in the order in which it happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine, LedgerFacts
from quire.core.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from quire.core.ledger import effects as e
from quire.core.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState, new_ledger
from quire.core.ledger.quorum import write_set
from quire.core.ledger.writer import WriterMachine
from quire.core.recovery.machine import RecoveryMachine
from quire_testing.explorer.switches import RULES, Rules
from support.museum import require

KEY = b"k" * 20
ENTRY_BYTES = 10


@dataclass(frozen=True)
class Add:
    """A writer's run on its way to one bookie."""

    bookie: str
    slot: int
    run: int
    first: int
    last: int
    lac: int


class StageBookie:
    """One bookie: its machine decides, a set holds what it took."""

    def __init__(self, rules: Rules) -> None:
        self.machine = BookieLedgerMachine(LedgerFacts(1), known=False, rules=rules)
        self.held: set[int] = set()
        self.rules = rules

    def add(self, ids: Sequence[int], lac: int, *, recovery: bool) -> Answer:
        answer = self.machine.add(key=KEY, token=0, digest_type=0, lac=lac, recovery=recovery).answer
        if answer is Answer.OK:
            self.held.update(ids)
        return answer

    def fence(self) -> None:
        ready = self.machine.set_fence(key=KEY, token=0, digest_type=0)
        assert ready.answer is Answer.OK
        self.machine.saved(ready.facts or self.machine.facts)

    def lose_everything(self, *, limbo: bool) -> None:
        """Its disk is empty; with `limbo` it knows that it may have lost something."""
        self.held.clear()
        self.machine = BookieLedgerMachine(LedgerFacts(1), known=False, rules=self.rules)
        if limbo:
            self.machine.enter_limbo()


class Stage:
    """A writer with its bookies and the stored record.

    Args:
        names: all bookies; the first E are the ensemble, the others are spares.
        quorums: E, Qw, Qa.
        rules: the judgements of every machine.
        writer: the writer's class.

    Attributes:
        choice: the question for replacements that is open.
        told: the entries that the writer's callers heard are safe.
        flying: adds on their way, in the order of sending.
        said: everything else that the writer said, by the name of the effect.
    """

    def __init__(
        self,
        names: Sequence[str],
        quorums: tuple[int, int, int],
        *,
        rules: Rules = RULES,
        writer: type[WriterMachine] = WriterMachine,
    ) -> None:
        ensemble_size, self.write_quorum, self.ack_quorum = quorums
        self.rules = rules
        self.record = new_ledger(
            LedgerId(1),
            [BookieId(name) for name in names[:ensemble_size]],
            write_quorum=self.write_quorum,
            ack_quorum=self.ack_quorum,
            digest_type=DigestType.CRC32C,
            password=b"",
        )
        self.version = 1
        self.bookies = {name: StageBookie(rules) for name in names}
        self.told: list[int] = []
        self.flying: list[Add] = []
        self.writes: list[e.WriteMetadata] = []
        self.choice: e.ChooseReplacements | None = None
        self.said: list[str] = []
        self.writer = writer(self.record, 1, rules=rules)

    def start_later(self, fragments: Sequence[tuple[int, Sequence[str]]], confirmed: int) -> None:
        """Put an older ledger on the stage: its fragments, everything up to an entry stored and acknowledged."""
        parts = tuple(
            Fragment(EntryId(first), tuple(BookieId(name) for name in names)) for first, names in fragments
        )
        size = self.record.ensemble_size
        self.record = LedgerMetadata(
            LedgerId(1),
            size,
            self.write_quorum,
            self.ack_quorum,
            DigestType.CRC32C,
            b"",
            LedgerState.OPEN,
            parts,
        )
        for entry_id in range(confirmed + 1):
            ensemble = self.record.ensemble_of(entry_id)
            for slot in write_set(entry_id, size, self.write_quorum):
                self.bookies[ensemble[slot]].add([entry_id], entry_id - 1, recovery=False)
            self.told.append(entry_id)

    # --- the writer ----------------------------------------------------------------------------------------------

    def append(self, count: int = 1) -> int:
        first = self.writer.append(count, ENTRY_BYTES * count)
        self.listen()
        return first

    def listen(self) -> None:
        out, self.writer.out = self.writer.out, []
        for effect in out:
            if isinstance(effect, e.SendRun):
                for slot in effect.slots:
                    bookie = self.writer.ensemble[slot]
                    self.flying.append(Add(bookie, slot, effect.run, effect.first, effect.last, effect.lac))
            elif isinstance(effect, e.Confirmed):
                self.told += range(effect.first, effect.last + 1)
            elif isinstance(effect, e.WriteMetadata):
                self.writes.append(effect)
            elif isinstance(effect, e.ChooseReplacements):
                self.choice = effect
            else:
                self.said.append(type(effect).__name__)

    def _take(self, bookie: str, entry: int | None) -> Add:
        add = next(
            a for a in self.flying if a.bookie == bookie and entry in (None, *range(a.first, a.last + 1))
        )
        self.flying.remove(add)
        return add

    def arrives(self, bookie: str, entry: int | None = None) -> Answer:
        """The oldest add to a bookie arrives there (or that of an entry), and the answer at the writer."""
        add = self._take(bookie, entry)
        ids = [i for i in range(add.first, add.last + 1) if self._stores(add.slot, i)]
        answer = self.bookies[bookie].add(ids, add.lac, recovery=False)
        self.answered(add, answer)
        return answer

    def fails(self, bookie: str, entry: int | None = None, answer: Answer = Answer.UNREACHABLE) -> None:
        """The oldest add to a bookie never gets there, and the writer learns that."""
        self.answered(self._take(bookie, entry), answer)

    def loses(self, *bookies: str) -> None:
        """Bookies break their connections: what was on its way to them is lost."""
        for bookie in bookies:
            self.flying = [add for add in self.flying if add.bookie != bookie]
            self.writer.bookie_lost(self.writer.ensemble.index(BookieId(bookie)), BookieId(bookie))
        self.listen()

    def rest_arrives(self) -> None:
        """Whatever is on its way to a bookie of the ensemble arrives; what was sent to others is lost."""
        while self.flying:
            add = self.flying[0]
            if add.bookie == self.writer.ensemble[add.slot]:
                self.arrives(add.bookie, add.first)
            else:
                self.flying.remove(add)

    def answered(self, add: Add, answer: Answer) -> None:
        """An answer, perhaps a late one, about an add."""
        if answer is Answer.OK:
            self.writer.adds_acked(add.slot, BookieId(add.bookie), add.run)
        else:
            self.writer.add_failed(add.slot, BookieId(add.bookie), add.run, answer)
        self.listen()

    def _stores(self, slot: int, entry_id: int) -> bool:
        return slot in write_set(entry_id, self.record.ensemble_size, self.write_quorum)

    def choose(self, **spares: str) -> None:
        """Answer ChooseReplacements: `b1="b4"` says who may come for b1; a bookie left out gets nobody."""
        assert self.choice is not None
        slots, ensemble = self.choice.slots, self.choice.ensemble
        self.choice = None
        chosen = {slot: BookieId(spares[ensemble[slot]]) for slot in slots if ensemble[slot] in spares}
        self.writer.replacements_chosen(chosen, 0)
        self.listen()

    def change(self, **spares: str) -> None:
        """Carry an ensemble change through all its rounds."""
        while self.choice is not None or self.writes:
            if self.choice is not None:
                self.choose(**spares)
            else:
                self.store_answers()

    def store_answers(self) -> None:
        """The metadata store carries out the oldest compare-and-swap and says so."""
        cas = self.writes.pop(0)
        assert cas.version == self.version, "nobody else changes the record in this scenario"
        self.record, self.version = cas.record, self.version + 1
        self.writer.metadata_written(self.version)
        self.listen()

    # --- recovery ------------------------------------------------------------------------------------------------

    def recover(self, window: int = 4) -> Recovery:
        return Recovery(self, window)

    # --- what must hold ------------------------------------------------------------------------------------------

    def holders(self, entry_id: int) -> list[str]:
        """The bookies of an entry's write set, by the stored record, that hold it."""
        ensemble = self.record.ensemble_of(entry_id)
        slots = write_set(entry_id, self.record.ensemble_size, self.write_quorum)
        return [ensemble[slot] for slot in slots if entry_id in self.bookies[ensemble[slot]].held]

    def check_copies(self) -> None:
        """I2, of everything that callers were told."""
        for entry_id in self.told:
            holders = self.holders(entry_id)
            where = self.record.ensemble_of(entry_id)
            require(
                len(holders) >= self.ack_quorum,
                "I2",
                f"entry {entry_id} was acknowledged and its record names {', '.join(where)}, of which hold it: {holders}",
            )

    def check_end(self) -> None:
        """I1, once the ledger is closed."""
        if self.record.state is LedgerState.CLOSED and self.told:
            require(
                self.record.last_entry >= max(self.told),
                "I1",
                f"closed at {self.record.last_entry}, acknowledged up to {max(self.told)}",
            )

    def check_answered(self) -> None:
        """F2: when nothing is on its way and nothing is asked, nobody waits."""
        machine = self.writer
        waits = machine.pending and not self.flying and not self.writes
        require(
            not waits,
            "F2",
            f"entries {machine.lac + 1} to {machine.lap} wait for ever: the writer is {machine.status.value}, nothing is "
            "on its way",
        )


class Recovery:
    """A recoverer on the stage, told by hand what each bookie says.

    Attributes:
        result: RecoveryClosed, RecoveryInconclusive or RecoveryFailed, once there is one.
    """

    def __init__(self, stage: Stage, window: int) -> None:
        self.stage = stage
        self.machine = RecoveryMachine(stage.record, stage.version, stage.rules, window_entries=window)
        self.waiting: list[Any] = []
        self.result: Any = None
        self.machine.recover()
        self.listen()

    def listen(self) -> None:
        while self.machine.out:
            out, self.machine.out = self.machine.out, []
            for effect in out:
                if isinstance(effect, e.RecoveryClosed | e.RecoveryInconclusive | e.RecoveryFailed):
                    self.result = effect
                elif isinstance(effect, e.WriteMetadata):
                    self._cas(effect)
                elif isinstance(effect, e.FindLength):
                    self.machine.length_found(ENTRY_BYTES * (effect.entry_id + 1))
                elif isinstance(effect, e.WaitForAnswers):
                    self.machine.waited()
                else:
                    self.waiting.append(effect)

    def _cas(self, effect: e.WriteMetadata) -> None:
        stage = self.stage
        assert effect.version == stage.version
        stage.record, stage.version = effect.record, stage.version + 1
        self.machine.metadata_written(stage.record, stage.version)

    def _take(self, kind: type, bookie: str) -> Any:
        effect = next(one for one in self.waiting if isinstance(one, kind) and one.bookie == bookie)
        self.waiting.remove(effect)
        return effect

    def fences(self, bookie: str) -> None:
        """The fencing LAC read arrives, and its answer."""
        effect = self._take(e.SendLacRead, bookie)
        self.stage.bookies[bookie].fence()
        self.machine.fence_answered(effect.slot, Answer.OK, self.stage.bookies[bookie].machine.facts.lac)
        self.listen()

    def fence_lost(self, bookie: str) -> None:
        """The fencing LAC read never arrives; the recoverer may never learn."""
        self._take(e.SendLacRead, bookie)

    def reads(self, bookie: str) -> None:
        """A recovery read arrives, and its answer."""
        effect = self._take(e.SendRecoveryRead, bookie)
        there = self.stage.bookies[bookie]
        if effect.fence:
            there.fence()
        held = {i: ENTRY_BYTES * (i + 1) for i in sorted(there.held) if effect.first <= i <= effect.last}
        facts = there.machine.facts
        unsure = self.stage.rules.negative_answer(limbo=facts.in_limbo, damaged=False) is Answer.UNKNOWN
        through = effect.first - 1 if unsure else effect.last
        unknown = [(effect.first, effect.last)] if unsure else []
        self.machine.read_answered(effect.slot, Answer.OK, held, through, unknown)
        self.listen()

    def silent(self, bookie: str) -> None:
        """A recovery read gets no answer in time."""
        effect = self._take(e.SendRecoveryRead, bookie)
        self.machine.read_answered(effect.slot, Answer.TIMED_OUT, {}, NO_ENTRY, [])
        self.listen()

    def writes_back(self, bookie: str, answer: Answer = Answer.OK) -> None:
        """A recovery add arrives, or does not."""
        effect = self._take(e.SendRecoveryAdds, bookie)
        if answer is Answer.OK:
            ids = [i for i in range(effect.first, effect.last + 1) if effect.stripes >> i % effect.period & 1]
            answer = self.stage.bookies[bookie].add(ids, effect.last_add_confirmed, recovery=True)
        self.machine.adds_answered(effect.slot, effect.bookie, effect.first, effect.last, answer)
        self.listen()

    def replace(self, *spares: str) -> None:
        """Spares for the slots of the oldest FindReplacements."""
        effect = next(one for one in self.waiting if isinstance(one, e.FindReplacements))
        self.waiting.remove(effect)
        self.machine.replacements_found(dict(zip(effect.slots, map(BookieId, spares), strict=False)))
        self.listen()

    def finish(
        self, *, deaf: Sequence[str] = (), refusing: Sequence[str] = (), spares: Sequence[str] = ()
    ) -> Any:
        """Everything that is still waiting arrives and is answered.

        Args:
            deaf: bookies that time out.
            refusing: bookies that fail when they are to store something.
            spares: who may come for those that fail.
        """
        for _ in range(200):
            self.machine.check()
            if self.result is not None or not self.waiting:
                return self.result
            effect = self.waiting[0]
            bookie = getattr(effect, "bookie", "")
            if isinstance(effect, e.SendLacRead):
                if bookie in deaf:
                    self._take(e.SendLacRead, bookie)
                    self.machine.fence_answered(effect.slot, Answer.TIMED_OUT, NO_ENTRY)
                    self.listen()
                else:
                    self.fences(bookie)
            elif isinstance(effect, e.SendRecoveryRead):
                (self.silent if bookie in deaf else self.reads)(bookie)
            elif isinstance(effect, e.SendRecoveryAdds):
                fails = bookie in deaf or bookie in refusing
                self.writes_back(bookie, Answer.TIMED_OUT if fails else Answer.OK)
            else:
                self.replace(*spares)
        raise AssertionError("the recovery does not end")
