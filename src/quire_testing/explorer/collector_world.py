"""The world of one bookie's collector: a metadata store that is copied and put back, one ledger id, one bookie.

Every step of a pass that another could see, or that sees another, is a step of its own, and anything may come between
two of them; a look and the drop that its response allows are two. What only the bookie knows is done at once. Versions
come back with a copy that is put back. Requests that were under way to the store end with it, as their connections do.

Left out, by decision:

- an id that comes again while the bookie holds entries of a ledger with that id which a restored store has lost, and
  which was never deleted (`reuses` puts it in, for ledgers of ours). After a restore ids leap above all that bookies
  hold. Java's adds name no token, so nothing tells two of its ledgers apart, nor one of Java's from one of ours under
  its password;
- a third restore: with three, within as many passes, a record can be found in a store that is no part of the chain.

Source: docs/protocol/collection.md, "A store that went back".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from quire.core.answers import Answer
from quire.core.bookie.garbage import By, CollectorMachine, Kept, StopCollection, StoreName, TombstoneMark
from quire.core.bookie.ledger import BookieLedgerMachine, LedgerFacts
from quire_testing.explorer.collector_parts import (
    IDLE,
    LEDGER,
    CollectorBookie,
    CollectorConfiguration,
    CollectorState,
    CounterCas,
    Look,
    MetaStore,
    Pass,
    Tomb,
    count_text,
    store_text,
    tomb_text,
)
from quire_testing.explorer.snapshot import clone, frozen, state_of
from quire_testing.explorer.switches import SHIPPED, Switches
from quire_testing.explorer.tables import CAS_LOST, Label, Table

KEY = b"k" * 20
FEW = 2
"""With so many restores each copy is put back once, or the only one twice."""
NOT_OWN = -2
"""In place of the counter's version: nothing may be dropped."""
Moves = Iterator[tuple[Label, CollectorState]]


class CollectorWorld:
    """Every state that one bookie's collector can come to.

    Args:
        configuration: the size.
        switches: the collector, its rules, and how mutants drive it.
    """

    def __init__(self, configuration: CollectorConfiguration, switches: Switches = SHIPPED) -> None:
        self.configuration = configuration
        self.switches = switches
        seen = frozenset() if configuration.hands else frozenset({"unknown"})
        self.machines: Table[CollectorMachine] = Table(partial(state_of, without=seen))
        self.disks: Table[Kept] = Table(frozen)
        self._stores: Table[MetaStore] = Table()

    def initial(self) -> CollectorState:
        """Nothing is there; the bookie has never made a pass."""
        c = self.configuration
        kept = Kept()
        disk = self.disks.number(replace(kept))
        bookie = CollectorBookie(
            self.machines.number(self.switches.collector(kept, self.switches.rules)), disk
        )
        return CollectorState(
            MetaStore(), (), bookie, (), frozenset(), (), c.passes, c.backups, c.restores, c.crashes, c.lost,
            c.hands, c.accepts, c.full,
        )  # fmt: skip

    def successors(self, state: CollectorState) -> list[tuple[Label, CollectorState]]:
        """Every next step: a label and the state after it."""
        if self._is_over(state):
            return []
        return [
            (label, self._settled(after))
            for moves in (self._clients(state), self._people(state), self._faults(state), self._passes(state))
            for label, after in moves
        ]

    def sorted_copies(self, copies: Iterable[MetaStore]) -> tuple[MetaStore, ...]:
        """Copies in an order that depends on nothing but themselves."""
        return tuple(sorted(copies, key=self._stores.number))

    def _is_over(self, state: CollectorState) -> bool:
        """Whether nothing can be dropped any more, or nothing that could be missed, or it is what this world leaves out.

        What can be missed with several lives is what was never deleted. With no copy to be put back and no response to
        a look under way it has lost its record already: worlds of one life show that what has one stays.
        """
        c, bookie = self.configuration, state.bookie
        if not c.reuses and not self._is_told_apart(state):
            return True
        if (not state.passes and bookie.at.step == "idle") or (bookie.dead and not c.expires):
            return True
        if len(state.written) < c.lives:
            return False
        here = {life for life, _ in bookie.held}
        alive = {life for life, entries in enumerate(state.written, 1) if life in here or entries < c.writes}
        if c.lives > 1:
            alive -= state.deleted
            if not state.restores and bookie.at.step != "answer":
                alive.discard(state.store.record)
        return not alive

    def _settled(self, state: CollectorState) -> CollectorState:
        """Without what cannot matter any more: a disk that is not read, copies that are never put back, compare-and-swaps that cannot land."""
        bookie = state.bookie
        if not state.crashes and (bookie.disk or bookie.at.step == "keep"):
            at = IDLE if bookie.at.step == "keep" else bookie.at
            state = state._replace(bookie=bookie._replace(disk=0, at=at))
        if state.restores:
            return state
        late = tuple(cas for cas in state.late if cas.version == state.store.version)
        if state.copies or state.backups or late != state.late:
            return state._replace(copies=(), backups=0, late=late)
        return state

    # --- clients -----------------------------------------------------------------------------------------------------

    def _token(self, life: int) -> int:
        return life if self.configuration.ours else 0

    def _clients(self, state: CollectorState) -> Moves:
        c, store = self.configuration, state.store
        if not store.record and len(state.written) < c.lives:
            life = len(state.written) + 1
            after = state._replace(written=(*state.written, 0))
            yield (
                Label("client", f"creates life {life}", kind="create"),
                self._put(after, store._replace(record=life)),
            )
        for life, entries in enumerate(state.written, 1):
            if entries < c.writes:
                yield from self._writes(state, life)
        if store.record:
            life = store.record
            deleted = state._replace(deleted=state.deleted | {life})
            without = store._replace(record=0)
            if not c.ours or (c.mixed and self._is_told_apart(state)):
                yield (
                    Label("java client", f"deletes life {life}, without a tombstone", kind="delete"),
                    self._put(deleted, without),
                )
            if c.ours or c.mixed:
                tomb = self._tomb(store, self._token(life), by_hand=False)
                yield (
                    Label("client", f"deletes life {life}, with a tombstone", kind="delete"),
                    self._put(deleted, without._replace(tomb=tomb)),
                )

    def _is_told_apart(self, state: CollectorState) -> bool:
        """Whether the bookie holds nothing of another life that was not deleted."""
        return not state.store.record or all(
            life == state.store.record or life in state.deleted for life, _ in state.bookie.held
        )

    def _tomb(self, store: MetaStore, token: int, *, by_hand: bool) -> Tomb:
        """An order stays when another life is deleted, and a token when an order is made."""
        stands = store.tomb or Tomb(0, by_hand=False, version=-1)
        return Tomb(token or (stands.token if by_hand else 0), by_hand or stands.by_hand, stands.version + 1)

    def _writes(self, state: CollectorState, life: int) -> Moves:
        """An entry arrives; the bookie's own machine says whether it enters."""
        bookie, token = state.bookie, self._token(life)
        facts = LedgerFacts(LEDGER, KEY, bookie.token, deleted_until_ms=int(bookie.dead))
        machine = BookieLedgerMachine(facts, known=True, rules=self.switches.rules)
        ready = machine.add(key=KEY, token=token, digest_type=0, lac=-1, recovery=False)
        if ready.answer is not Answer.OK:
            return  # refused: nothing changes, and it may be tried again
        lsn = bookie.lsn + 1
        held = tuple(sorted({**dict(bookie.held), life: lsn}.items()))
        written = (*state.written[: life - 1], state.written[life - 1] + 1, *state.written[life:])
        after = bookie._replace(held=held, token=machine.facts.token, lsn=lsn)
        yield (
            Label("client", f"writes to life {life}", (f"LSN {lsn}",), kind="write"),
            state._replace(bookie=after, written=written),
        )

    def _put(self, state: CollectorState, store: MetaStore) -> CollectorState:
        revision = state.revision + 1 if self.configuration.revisions else 0
        return state._replace(store=store, revision=revision)

    # --- people, and what goes wrong ---------------------------------------------------------------------------------

    def _people(self, state: CollectorState) -> Moves:
        store, bookie = state.store, state.bookie
        unknown = self.machines.parts[bookie.machine].unknown
        if state.hands and not store.record and bookie.held and unknown:
            after = state._replace(
                hands=state.hands - 1, deleted=state.deleted | {life for life, _ in bookie.held}
            )
            tomb = self._tomb(store, 0, by_hand=True)
            yield (
                Label("person", "orders the orphan's deletion", kind="hand"),
                self._put(after, store._replace(tomb=tomb)),
            )
        count = store.counter
        if state.accepts and count is not None and count.own and count.accepted != count.own:
            after = state._replace(accepts=state.accepts - 1)
            accepted = store._replace(counter=count._replace(accepted=count.own), version=store.version + 1)
            yield (
                Label("person", f"accepts the store for {count.own} passes", kind="accept"),
                self._put(after, accepted),
            )

    def _faults(self, state: CollectorState) -> Moves:
        if state.backups and state.store not in state.copies:
            yield self._copies(state)
        if state.restores:
            for copy in state.copies:
                if copy != state.store:
                    yield self._restores(state, copy)
        for index, cas in enumerate(state.late):
            if cas.version == state.store.version:
                rest = (*state.late[:index], *state.late[index + 1 :])
                after = self._after_cas(state._replace(late=rest), cas)
                yield Label("store", f"takes late {count_text(cas.value)}", kind="late"), after
        if state.crashes and state.bookie.at.step in {"swap", "stopped", "list", "keep"}:
            # Elsewhere in a pass, memory and disk are what they were when it began to look.
            yield self._crashes(state)
        if self.configuration.expires and state.bookie.dead:
            bookie = state.bookie._replace(dead=False)
            yield Label("bookie", "forgets its own tombstone", kind="expire"), state._replace(bookie=bookie)

    def _copies(self, state: CollectorState) -> tuple[Label, CollectorState]:
        """A copy that is never put back is as none. So there are no more than can be put back, and with `FEW` those are."""
        few = self.configuration.restores <= FEW
        others = () if few and state.restores == 1 else state.copies
        copies = self.sorted_copies((*others, state.store))
        backups = 0 if few and len(copies) >= state.restores else state.backups - 1
        label = Label("store", "is copied", (store_text(state.store),), kind="backup")
        return label, state._replace(copies=copies, backups=backups)

    def _restores(self, state: CollectorState, copy: MetaStore) -> tuple[Label, CollectorState]:
        """Versions come back as well. Requests under way to the store that was there end with their connections."""
        left = state.restores - 1
        others = tuple(other for other in state.copies if other != copy)
        copies, backups = state.copies, state.backups
        if self.configuration.restores <= FEW and len(others) >= left:
            copies, backups = others, 0
        # A restored ensemble begins a new epoch: its revisions are higher than any that were seen.
        revision = 100 * (1 + state.revision // 100) if self.configuration.revisions else 0
        return Label("store", f"is put back to: {store_text(copy)}", kind="restore"), state._replace(
            store=copy, late=(), copies=copies, backups=backups, restores=left, revision=revision
        )

    def _after_cas(self, state: CollectorState, cas: CounterCas) -> CollectorState:
        return self._put(state, state.store._replace(counter=cas.value, version=cas.version + 1))

    def _crashes(self, state: CollectorState) -> tuple[Label, CollectorState]:
        """What is in memory is lost; a compare-and-swap that was asked for may still land."""
        bookie = state.bookie
        machine = self.switches.collector(replace(self.disks.parts[bookie.disk]), self.switches.rules)
        late = state.late
        if bookie.at.step in {"swap", "stopped"} and bookie.at.cas is not None:
            late = _with_late(late, bookie.at.cas)
        after = bookie._replace(machine=self.machines.number(machine), at=IDLE)
        return Label("bookie", "crashes and starts again", kind="crash"), state._replace(
            bookie=after, late=late, crashes=state.crashes - 1
        )

    # --- the pass ----------------------------------------------------------------------------------------------------

    def _machine(self, bookie: CollectorBookie) -> CollectorMachine:
        return clone(self.machines.parts[bookie.machine])

    def _now(
        self, state: CollectorState, at: Pass, machine: CollectorMachine | None = None
    ) -> CollectorState:
        bookie = state.bookie._replace(at=at)
        if machine is not None:
            bookie = bookie._replace(machine=self.machines.number(machine))
        return state._replace(bookie=bookie)

    def _passes(self, state: CollectorState) -> Moves:
        bookie = state.bookie
        match bookie.at.step:
            case "idle":
                if state.passes:
                    yield from self._begins(state)
            case "swap" | "stopped":
                yield from self._cas(state)
            case "list":
                yield self._lists(state)
                if state.lost and not self.machines.parts[bookie.machine].stopped:
                    ended = self._now(state, Pass("keep"))._replace(lost=state.lost - 1)
                    yield (
                        Label("bookie", "hears nothing of the records: its pass ends", kind="pass lost"),
                        ended,
                    )
            case "tomb":
                yield self._reads_tombstone(state)
            case "look":
                yield self._looks(state)
            case "answer":
                yield self._drops(state)
            case "keep":
                disk = self.disks.number(replace(self._machine(bookie).kept))
                label = Label("bookie", "keeps its evidence on the disk", kind="keep")
                yield label, state._replace(bookie=bookie._replace(disk=disk, at=IDLE))

    def _begins(self, state: CollectorState) -> Moves:
        store, machine = state.store, self._machine(state.bookie)
        stopped = machine.stopped
        name = StoreName("store", state.revision)
        does = machine.begin(store.counter, name, self._unused_chain(state), state.bookie.lsn)
        shown = "none" if store.counter is None else count_text(store.counter)
        label = Label("bookie", f"reads the counter: {shown}")
        begun = state._replace(passes=state.passes - 1)
        if isinstance(does, StopCollection):
            at = (
                Pass("list") if does.value is None else Pass("stopped", CounterCas(does.value, store.version))
            )
            label = label._replace(said=(f"=> stopped: {does.why}",), kind="stopped")
            yield label, self._now(begun, at, machine)
            return
        kind = "begin"
        if stopped:
            kind = "begin, accepted" if store.counter and store.counter.accepted else "begin, store is back"
        # To the disk before the compare-and-swap is asked for; with a crash in between nothing was asked.
        disk = self.disks.number(replace(machine.kept))
        after = self._now(begun, Pass("swap", CounterCas(does.value, store.version)), machine)
        label = label._replace(said=(f"-> compare-and-swap to {count_text(does.value)}",), kind=kind)
        yield label, after._replace(bookie=after.bookie._replace(disk=disk))
        if state.full:
            machine = clone(machine)
            machine.not_counted()
            own = store.version if machine.is_own(store.counter) else NOT_OWN
            after = self._now(begun._replace(full=state.full - 1), Pass("list", version=own), machine)
            yield label._replace(said=("its disk is full: it does not count",), kind="begin, full"), after

    def _unused_chain(self, state: CollectorState) -> int:
        """A number that no counter has any more; which one makes no difference."""
        bookie = state.bookie
        stores = (state.store, *state.copies)
        used = {store.counter.chain for store in stores if store.counter is not None}
        used |= {self.disks.parts[bookie.disk].chain, self.machines.parts[bookie.machine].kept.chain}
        used |= {cas.value.chain for cas in state.late}
        return next(number for number in range(1, len(used) + 2) if number not in used)

    def _cas(self, state: CollectorState) -> Moves:
        """The write of the counter, or of the reason why collection is stopped, reaches the store, and its response the bookie."""
        at = state.bookie.at
        assert at.cas is not None
        landed = at.cas.version == state.store.version
        after = self._after_cas(state, at.cas) if landed else state
        text = "written" if landed else "conflict"
        label = Label("store", f"takes {count_text(at.cas.value)}", (text,), kind=f"swap {text}")
        machine, stops = self._machine(state.bookie), at.step == "stopped"
        if not landed:
            machine.not_counted()
        elif not stops:
            machine.counted()
        if stops:
            yield label, self._now(after, Pass("list"), machine)
            return
        yield label, self._now(after, Pass("list", version=at.cas.version + 1) if landed else IDLE, machine)
        if state.lost:
            fewer = state.lost - 1
            if landed:
                no_response = label._replace(
                    said=("written, and the bookie never hears of it",), kind="lost answer"
                )
                yield no_response, self._now(after, IDLE)._replace(lost=fewer)
            late = state._replace(late=_with_late(state.late, at.cas), lost=fewer)
            yield Label("bookie", CAS_LOST, kind="lost swap"), self._now(late, IDLE)

    def _lists(self, state: CollectorState) -> tuple[Label, CollectorState]:
        at, bookie = state.bookie.at, state.bookie
        machine = self._machine(bookie)
        held = [LEDGER] if bookie.held else []
        machine.look(held, [LEDGER] if state.store.record else [])
        text = "missing" if machine.missing else "found" if held else "holds nothing"
        label = Label("bookie", "looks for the record", (text,), kind=text)
        if not machine.missing:
            return self._finished(label, state, machine, unknown=False)
        return label, self._now(state, at._replace(step="tomb"), machine)

    def _reads_tombstone(self, state: CollectorState) -> tuple[Label, CollectorState]:
        at, bookie, tomb = state.bookie.at, state.bookie, state.store.tomb
        machine = self._machine(bookie)
        mark = None if tomb is None else TombstoneMark(tomb.token, tomb.by_hand)
        label = Label("bookie", f"reads the tombstone: {tomb_text(tomb)}")
        unproven = clone(machine).proof(LEDGER, mark, bookie.token) is None
        proof = machine.judge(LEDGER, mark, bookie.token, partial(_written_since, bookie))
        if proof is None:
            text = "no proof" if unproven else "written since"
            label = label._replace(said=(text,), kind=text)
            return self._finished(label, state, machine, unknown=True)
        if machine.stopped:
            label, after = self._finished(label._replace(kind="due"), state, machine, unknown=False)
            if proof.by is By.CHAIN:
                # What a tombstone would delete is reported; this is not.
                after = _with_fault(
                    after, "G2", "ledger 1 is missing in a store that went back, and it is not reported"
                )
            return label, after
        if at.version == NOT_OWN:
            # The counter is not its own, and could not be made so: nothing is dropped in this pass.
            return self._finished(label._replace(kind="not own"), state, machine, unknown=False)
        through = bookie.lsn if proof.through is None else proof.through
        needed = -1 if proof.by is By.CHAIN or tomb is None else tomb.version
        said = f"proof: {proof.by.value}, for what was written through LSN {through}"
        label = label._replace(said=(said,), kind=f"proof by {proof.by.value}")
        return label, self._now(state, at._replace(step="look", look=Look(proof, through, needed)), machine)

    def _looks(self, state: CollectorState) -> tuple[Label, CollectorState]:
        """The store reads record, tombstone and counter in one moment; the response is under way."""
        at, store = state.bookie.at, state.store
        assert at.look is not None
        stands = at.look.tomb_version < 0 or (
            store.tomb is not None and store.tomb.version == at.look.tomb_version
        )
        own = store.version == at.version
        there = bool(store.record)
        machine = self.machines.parts[state.bookie.machine]
        allowed = stands and machine.may_drop(
            at.look.through, lambda _: False, record_there=there, counter_is_own=own
        )
        said = [
            "the record is there" if store.record else "no record",
            "the counter is its own" if own else "the counter is another",
            *(() if stands else ("the tombstone is gone",)),
        ]
        after = self._now(state, at._replace(step="answer", landed=allowed))
        if allowed and not self._is_newest(state):
            after = _with_fault(
                after, "G3", "a store with fewer passes than the bookie has made allowed the drop"
            )
        if allowed and store.record:
            after = _with_fault(after, "G4", "the record is there, and the drop was allowed")
        return Label("store", "is asked for the last look", tuple(said), kind="look"), after

    def _is_newest(self, state: CollectorState) -> bool:
        """Whether the store has as many passes as the bookie has made."""
        kept, count = self.machines.parts[state.bookie.machine].kept, state.store.counter
        return count is not None and count.passes >= kept.passes

    def _drops(self, state: CollectorState) -> tuple[Label, CollectorState]:
        at, bookie = state.bookie.at, state.bookie
        assert at.look is not None
        machine = self._machine(bookie)
        if not at.landed:
            label = Label("bookie", "hears that it may not drop", kind="may not drop")
            return self._finished(label, state, machine, unknown=False)
        since = partial(_written_since, bookie)
        if not machine.may_drop(at.look.through, since, record_there=False, counter_is_own=True):
            label = Label("bookie", "was written to since, and keeps the ledger", kind="written since")
            return self._finished(label, state, machine, unknown=False)
        machine.dropped(LEDGER)
        dropped = bookie._replace(held=(), token=0, dead=True)
        by = at.look.proof.by.value
        label = Label("bookie", f"drops the ledger, by {by}", kind=f"drop by {by}")
        label, after = self._finished(label, state._replace(bookie=dropped), machine, unknown=False)
        lost = [life for life, _ in bookie.held if life not in state.deleted]
        if lost:
            after = _with_fault(after, "G1", "entries of a life are dropped, and no client deleted it")
        return label, after

    def _finished(
        self, label: Label, state: CollectorState, machine: CollectorMachine, *, unknown: bool
    ) -> tuple[Label, CollectorState]:
        """The pass ends with this step: a step of its own for it would show nothing else."""
        machine.finish([LEDGER] if unknown else [])
        said = ("ends its pass, and tells that ledger 1 is unknown" if machine.unknown else "ends its pass",)
        after = self._now(state, Pass("keep"), machine)
        if unknown and not machine.unknown:
            after = _with_fault(after, "G2", "ledger 1 is missing without a proof, and it is not reported")
        return label._replace(said=(*label.said, *said)), after


def _written_since(bookie: CollectorBookie, lsn: int) -> bool:
    return any(written > lsn for _, written in bookie.held)


def _with_fault(state: CollectorState, name: str, how: str) -> CollectorState:
    return state._replace(faults=(*state.faults, (name, how)))


def _with_late(late: tuple[CounterCas, ...], cas: CounterCas) -> tuple[CounterCas, ...]:
    return tuple(sorted({*late, cas}, key=repr))
