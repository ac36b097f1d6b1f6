"""The world of one log: handles that open it, lead it, roll it and are deposed, on the log's machine of `core`.

Ledgers are as the ledger's world proves them: an add lands or is refused, a recovery closes what it fences at what has
landed. What a handle asks for is carried out in any order, each request and each answer a step of its own; a
compare-and-swap whose response is lost may land later, or never.

Source: BookKeeper ledgers to logs; docs/protocol/log.md; docs/decisions/022-truncation-intent.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from quire.core.errors import QuireError
from quire.core.ids import LedgerId
from quire.core.log import effects as fx
from quire.core.log import trimming as t
from quire.core.log.list import Adoption, ItemState, LedgerSummary, LogHead, LogItem, LogPage
from quire.core.log.machine import LogMachine, LogStatus
from quire.core.log.trimming import TrimMachine
from quire_testing.explorer.invariants import LOG_INVARIANTS
from quire_testing.explorer.log_parts import Flight, Handle, Ledger, LogConfiguration, LogState, put
from quire_testing.explorer.snapshot import clone, state_of
from quire_testing.explorer.switches import SHIPPED, Switches
from quire_testing.explorer.tables import CAS_LOST, Label, Table

Move: TypeAlias = tuple[Label, LogState]


class LogWorld:
    """Every state that one log's world can come to."""

    def __init__(self, configuration: LogConfiguration, switches: Switches = SHIPPED) -> None:
        self.configuration = configuration
        self.switches = switches
        self.heads: Table[LogHead] = Table()
        self.trimmers: Table[Handle] = Table(lambda trimmer: trimmer.key)
        self.handles: Table[Handle] = Table(lambda handle: handle.key)
        self.machines: Table[LogMachine | TrimMachine] = Table(state_of)
        self._stepped: dict[Any, tuple[Label, Handle]] = {}

    def initial(self) -> LogState:
        """An empty log without a leader."""
        head = self.heads.number(LogHead(b"\x07" * 16, "orders"))
        c = self.configuration
        return LogState(head, 1, (), (), 0, c.lost_swaps, c.adopts, (), stages=c.stages)

    def successors(self, state: LogState) -> list[Move]:
        """Every next step: a label and the state after it."""
        moves = list(self._opens(state))
        for who, number in enumerate(state.handles):
            handle = self.handles.parts[number]
            moves += self._works(state, who, handle)
            if not handle.ended:
                moves += self._leads(state, who, handle)
        if state.adopts:
            moves.append(self._adopts(state))
        if state.stages:
            moves.append(self._stages(state))
        moves += self._begins(state)
        for who, number in enumerate(state.trimmers):
            moves += self._works(state, who, self.trimmers.parts[number])
        return moves

    def sources(self, state: LogState) -> Iterator[tuple[tuple[str, ...], Callable[[], list[Move]]]]:
        """Every next step, grouped by whose it is and what: each is cheap."""
        found: dict[tuple[str, ...], list[Move]] = {}
        for move in self.successors(state):
            label = move[0]
            found.setdefault((label.actor, label.kind, label.other), []).append(move)
        for source, moves in found.items():
            yield source, moves.copy

    # --- a handle ----------------------------------------------------------------------------------------------------

    def _step(
        self,
        state: LogState,
        who: int,
        handle: Handle,
        put: Callable[[Any], object],
        command: str,
        *details: object,
    ) -> Move:
        """Give a machine one input; `command` and `details` name it, so that it is worked out once."""
        key = (who, handle.key, command, details)
        found = self._stepped.get(key)
        if found is None:
            found = self._stepped[key] = self._worked_out(who, handle, put, command)
        return found[0], self._with(state, who, found[1])

    def _worked_out(
        self, who: int, handle: Handle, put: Callable[[Any], object], command: str
    ) -> tuple[Label, Handle]:
        """Run the machine on a copy; what it asks for becomes its handle's work."""
        machine = clone(handle.machine)
        machine.out = []
        fault = handle.fault
        said: list[str] = []
        try:
            put(machine)
            text = trim_text if handle.truncates else effect_text
            said = [text(effect) for effect in machine.out]
            machine.check()
        except (QuireError, AssertionError) as error:
            name, _, rest = str(error).partition(": ")
            fault = fault or ((name, rest) if name in LOG_INVARIANTS else ("L6", str(error)))
        handle = handle._replace(machine=machine, fault=fault)
        for effect in machine.out:
            handle = self._takes(handle, effect)
        machine.out = []
        handle = self._drained(handle)
        handle = handle._replace(state=self.machines.number(handle.machine))
        return Label(f"{handle.name} {who}", command, tuple(said), kind=command.split(maxsplit=1)[0]), handle

    def _takes(self, handle: Handle, effect: fx.Effect | t.TrimEffect) -> Handle:
        match effect:
            case fx.Serve(ledger_id) | fx.SwitchLedger(ledger_id):
                return handle._replace(target=int(ledger_id))
            case fx.DrainLedger(ledger_id):
                target = (
                    0 if handle.target == ledger_id else handle.target
                )  # it gets no more, also once drained
                return handle._replace(draining=int(ledger_id), target=target)
            case fx.ReadHead():
                return handle._replace(work=(*handle.work, ("read",)))
            case fx.RecoverLedger(item):
                return handle._replace(work=(*handle.work, ("recover", int(item.ledger_id))))
            case fx.CreateLedger():
                return handle._replace(work=(*handle.work, ("create",)))
            case fx.WriteHead(head, version):
                return handle._replace(work=(*handle.work, ("swap", self.heads.number(head), version)))
            case fx.DeleteLedger(ledger_id):
                return handle._replace(work=(*handle.work, ("delete", int(ledger_id))))
            case t.TrimDeleteLedger(item):
                return handle._replace(work=(*handle.work, ("delete", int(item.ledger_id))))
            case fx.BackOff():
                return handle._replace(work=(*handle.work, ("retry",)))
            case fx.CloseLedger(ledger_id):
                return handle._replace(work=(*handle.work, ("close", int(ledger_id))))
            case fx.LeadershipEnded():
                kept = tuple(("late", *w[1:]) if w[0] == "swap" else w for w in handle.work)
                return handle._replace(work=kept, flights=())
        return handle

    def _drained(self, handle: Handle) -> Handle:
        """The driver's answer once nothing is on its way to a ledger that is drained: part of the same turn."""
        ledger = handle.draining
        if not ledger or any(flight.ledger == ledger for flight in handle.flights):
            return handle
        machine = clone(handle.machine)
        machine.drained(LedgerId(ledger), handle.confirmed.count(ledger))
        out, machine.out = machine.out, []
        handle = handle._replace(machine=machine, draining=0)
        for effect in out:
            handle = self._takes(handle, effect)
        return handle

    def _with(self, state: LogState, who: int, handle: Handle) -> LogState:
        if handle.truncates:
            number = self.trimmers.number(handle)
            return state._replace(trimmers=(*state.trimmers[:who], number, *state.trimmers[who + 1 :]))
        handles = (*state.handles[:who], self.handles.number(handle), *state.handles[who + 1 :])
        return state._replace(handles=handles)

    def _opens(self, state: LogState) -> Iterator[Move]:
        if len(state.handles) < self.configuration.handles:
            who = len(state.handles)
            machine = self.switches.log(f"h{who}", name_page=_page_name, rules=self.switches.rules)
            wider = state._replace(handles=(*state.handles, -1))
            yield self._step(wider, who, Handle(machine), lambda m: m.open(), "open")

    def _leads(self, state: LogState, who: int, handle: Handle) -> Iterator[Move]:
        machine = handle.machine
        appends = handle.target and handle.target != handle.draining and not machine.is_closing
        if appends and state.written < self.configuration.writes:
            flight = Flight(handle.target, handle.appended, seen=len(state.acked))
            after = handle._replace(appended=handle.appended + 1, flights=(*handle.flights, flight))
            label = Label(
                f"handle {who}", f"append {flight.number} to ledger {flight.ledger}", (), kind="append"
            )
            yield label, self._with(state, who, after)._replace(written=state.written + 1)
        if machine.may_roll and len(state.ledgers) < self.configuration.ledgers:
            yield self._step(state, who, handle, lambda m: m.roll(), "roll")
        serving = machine.status is LogStatus.SERVING and not machine.is_closing
        if self.configuration.closes and serving and not handle.flights:
            # A writer confirms everything before it closes; a roll under way is finished first.
            yield self._step(state, who, handle, lambda m: m.close(), "close")
        seen: set[int] = set()
        for index, flight in enumerate(handle.flights):
            if flight.ledger not in seen and flight.fate:
                yield self._hears_of(state, who, handle, index)
            seen.add(flight.ledger)
        landing: set[int] = set()
        for index, flight in enumerate(handle.flights):
            if not flight.fate and flight.ledger not in landing:
                landing.add(flight.ledger)
                yield self._lands(state, who, handle, index)

    def _lands(self, state: LogState, who: int, handle: Handle, index: int) -> Move:
        """The oldest add to a ledger is on its bookies, or is refused: the ledger was fenced."""
        flight = handle.flights[index]
        ledger = state.ledgers[flight.ledger - 1]
        fate = "refused" if ledger.closed or ledger.deleted else "stored"
        flights = (*handle.flights[:index], flight._replace(fate=fate), *handle.flights[index + 1 :])
        after = self._with(state, who, handle._replace(flights=flights))
        if fate == "stored":
            stored = ledger._replace(records=(*ledger.records, (who, flight.number)))
            after = after._replace(ledgers=put(state.ledgers, flight.ledger, stored))
        return Label(
            f"ledger {flight.ledger}", f"takes {flight.number} from handle {who}", (fate,), kind=fate
        ), after

    def _hears_of(self, state: LogState, who: int, handle: Handle, index: int) -> Move:
        flight = handle.flights[index]
        rest = (*handle.flights[:index], *handle.flights[index + 1 :])
        if flight.fate == "refused":
            after = handle._replace(flights=rest)
            return self._step(
                state,
                who,
                after,
                lambda m: m.ledger_failed(LedgerId(flight.ledger), "fenced"),
                f"hears that ledger {flight.ledger} is fenced",
            )
        after = handle._replace(flights=rest, confirmed=(*handle.confirmed, flight.ledger))
        label, acked = self._step(state, who, after, lambda _: None, f"acknowledges {flight.number}")
        return label, acked._replace(acked=(*state.acked, (who, flight.number, flight.seen)))

    # --- what handles and truncations asked for ----------------------------------------------------------------------

    def _works(self, state: LogState, who: int, handle: Handle) -> Iterator[Move]:
        for index, work in enumerate(handle.work):
            rest = handle._replace(work=(*handle.work[:index], *handle.work[index + 1 :]))
            kind = work[0]
            if kind in ("swap", "late"):
                yield from self._cas(state, who, rest, work)
            elif kind == "delete":
                yield self._deletes(state, who, rest, work[1])
            elif not handle.ended:
                yield from self._asks(state, who, rest, work)

    def _deletes(self, state: LogState, who: int, rest: Handle, ledger_id: int) -> Move:
        """A ledger is deleted; a truncation's machine hears of it."""
        ledger, command = state.ledgers[ledger_id - 1], f"deletes ledger {ledger_id}"
        deleted = ledger._replace(deleted=True, closed=True)
        after = state._replace(ledgers=put(state.ledgers, ledger_id, deleted))
        if rest.truncates:
            return self._step(after, who, rest, lambda m: m.ledger_deleted(LedgerId(ledger_id)), command)
        return Label(f"handle {who}", command, (), kind="delete"), self._with(after, who, rest)

    def _asks(self, state: LogState, who: int, rest: Handle, work: tuple[Any, ...]) -> Iterator[Move]:
        kind = work[0]
        if kind == "read":
            head = self.heads.parts[state.head]
            yield self._step(
                state,
                who,
                rest,
                lambda m: m.head_read(head, state.version),
                "reads the list",
                state.head,
                state.version,
            )
        elif kind == "recover":
            yield self._recovers(state, who, rest, work[1])
        elif kind == "recovered":
            ledger = state.ledgers[work[1] - 1]
            if ledger.deleted:
                # Its last entry says what it holds, and may be asked for too late.
                yield self._finds_deleted(state, who, rest, work[1])
            summary = LedgerSummary(len(ledger.records))
            command = f"hears that ledger {work[1]} is recovered"
            yield self._step(
                state, who, rest, lambda m: m.recovered(LedgerId(work[1]), summary), command, summary.records
            )
        elif kind == "create":
            if len(state.ledgers) < self.configuration.ledgers:
                wider = state._replace(ledgers=(*state.ledgers, Ledger(who)))
                number = len(wider.ledgers)
                yield self._step(
                    wider, who, rest, lambda m: m.created(LedgerId(number), 0), f"creates ledger {number}"
                )
        elif kind == "retry":
            yield self._step(state, who, rest, lambda m: m.retry(), "retries")
        elif kind == "close":
            yield self._closes(state, who, rest, work[1])
        elif kind == "answer":
            yield self._answered(state, who, rest, work[1], work[2])

    def _recovers(self, state: LogState, who: int, rest: Handle, ledger_id: int) -> Move:
        """The fence lands and the ledger is closed; its opener hears of it later. A truncation may have taken it."""
        if state.ledgers[ledger_id - 1].deleted:
            return self._finds_deleted(state, who, rest, ledger_id)
        closed = state.ledgers[ledger_id - 1]._replace(closed=True)
        after = rest._replace(work=(*rest.work, ("recovered", ledger_id)))
        label = Label(f"handle {who}", f"fences and closes ledger {ledger_id}", (), kind="recover")
        return label, self._with(state, who, after)._replace(ledgers=put(state.ledgers, ledger_id, closed))

    def _finds_deleted(self, state: LogState, who: int, rest: Handle, ledger_id: int) -> Move:
        return self._step(
            state,
            who,
            rest,
            lambda m: m.recovery_failed(LedgerId(ledger_id), deleted=True, detail="it does not exist"),
            f"finds that ledger {ledger_id} is deleted",
        )

    def _closes(self, state: LogState, who: int, rest: Handle, ledger_id: int) -> Move:
        ledger = state.ledgers[ledger_id - 1]
        mine = rest.confirmed.count(ledger_id)
        if ledger.closed and len(ledger.records) != mine:
            return self._step(
                state,
                who,
                rest,
                lambda m: m.ledger_failed(LedgerId(ledger_id), "closed elsewhere"),
                f"cannot close ledger {ledger_id}",
            )
        closed = ledger._replace(closed=True, records=ledger.records[:mine])
        after = state._replace(ledgers=put(state.ledgers, ledger_id, closed))
        summary = LedgerSummary(mine)
        return self._step(
            after,
            who,
            rest,
            lambda m: m.ledger_closed(LedgerId(ledger_id), summary),
            f"closes ledger {ledger_id}",
            mine,
        )

    def _cas(self, state: LogState, who: int, rest: Handle, work: tuple[Any, ...]) -> Iterator[Move]:
        """The compare-and-swap reaches the store; or its handle gives up waiting, and it is late."""
        kind, head, version = work
        new = self._taken(state, rest, head, version)
        answer = "conflict" if new is None else "written"
        response = ("answer", answer, 0 if rest.truncates and new is None else state.version + 1)
        after = rest if kind == "late" else rest._replace(work=(*rest.work, response))
        after_cas = self._with(state, who, after)
        if new is not None:
            after_cas = self._listed(after_cas, new)
        ids = list(self.heads.parts[head].ledger_ids)
        command = f"takes v{version}: {ids} from {rest.name} {who}"
        yield Label("store", command, (answer,), kind=f"swap {answer}"), after_cas
        if kind == "swap" and state.lost_swaps and not rest.ended:
            late = rest._replace(work=(*rest.work, ("late", head, version)))
            spent = state._replace(lost_swaps=state.lost_swaps - 1)
            # A truncation's driver takes an unknown outcome for a conflict: whatever is in stays in.
            yield self._step(
                spent,
                who,
                late,
                lambda m: m.head_conflicted() if rest.truncates else m.head_unknown(),
                CAS_LOST,
            )

    def _taken(self, state: LogState, rest: Handle, head: int, version: int) -> int | None:
        """The head that the store has after a compare-and-swap, None after a conflict."""
        blind = self.switches.blind_lists
        if version == state.version or (blind == "trim" and rest.truncates):
            return head
        opening = rest.machine.status is LogStatus.STORING
        if not rest.truncates and blind == ("open" if opening else "roll"):
            now, asked = self.heads.parts[state.head], self.heads.parts[head]
            added = [item for item in asked.items if now.item(item.ledger_id) is None]
            merged = replace(now, items=(*now.items, *added))
            return self.heads.number(merged.with_leader(asked.leader) if opening else merged)
        return None

    def _answered(self, state: LogState, who: int, rest: Handle, answer: str, version: int) -> Move:
        if answer == "written":
            return self._step(
                state, who, rest, lambda m: m.head_written(version), "hears that the list is written", version
            )
        return self._step(state, who, rest, lambda m: m.head_conflicted(), "hears of a conflict")

    def _stages(self, state: LogState) -> Move:
        """A sink commits a closed ledger to the log; its place and offsets come later (docs/decisions/024-adoption.md)."""
        head = self.heads.parts[state.head]
        number = len(state.ledgers) + 1
        adoption = Adoption((LogItem(LedgerId(number), state=ItemState.CLOSED),))
        after = self._written(state, replace(head, adoptions=(*head.adoptions, adoption)))
        label = Label("sink", f"commits ledger {number}", (), kind="stage")
        return label, after._replace(stages=state.stages - 1)

    def _written(self, state: LogState, head: LogHead) -> LogState:
        """A sink has closed a ledger and changed the head."""
        ledgers = (*state.ledgers, Ledger(-1, (), closed=True))
        return state._replace(head=self.heads.number(head), version=state.version + 1, ledgers=ledgers)

    def _adopts(self, state: LogState) -> Move:
        """A sink puts a closed ledger at the list's end, whatever is open (without the rule `may_place_now`)."""
        head = self.heads.parts[state.head]
        number = len(state.ledgers) + 1
        item = LogItem(LedgerId(number), state=ItemState.CLOSED, first_offset=0, next_offset=0)
        after = self._written(state, replace(head, items=(*head.items, item)))
        label = Label("sink", f"puts ledger {number} on the list", (), kind="adopt")
        return label, after._replace(adopts=state.adopts - 1)

    def _begins(self, state: LogState) -> Iterator[Move]:
        """Any client may run a truncation, and one may stop anywhere: one whose steps are never taken.

        Its ledgers are deleted only after the list without them is written; an opener of the log meanwhile finds them
        deleted.
        """
        if len(state.trimmers) < self.configuration.trims:
            who, end = len(state.trimmers), self.heads.parts[state.head].closed_end
            wider = state._replace(trimmers=(*state.trimmers, -1))
            for before in range(1, end + 1):
                trimmer = Handle(self.switches.trim(before, end=end))
                yield self._step(wider, who, trimmer, lambda m: m.start(), f"truncate before {before}", end)

    def _listed(self, state: LogState, new: int) -> LogState:
        """The store takes a new head: what left the list's front was truncated, anything else is against L4."""
        old, head = self.heads.parts[state.head], self.heads.parts[new]
        before, after = list(old.ledger_ids), list(head.ledger_ids)
        count = head.dropped_items - old.dropped_items
        fault = state.fault
        if count < 0 or after[: len(before) - count] != before[count:]:
            fault = fault or ("L4", f"the list {before} became {after}")
        return state._replace(
            head=new,
            version=state.version + 1,
            fault=fault,
            dropped=(*state.dropped, *map(int, before[: max(0, count)])),
        )


def _page_name(page: LogPage) -> str:
    return f"{page.level}:" + ",".join(str(item.ledger_id) for item in page.items)


def effect_text(effect: fx.Effect | t.TrimEffect) -> str:
    """An effect on one line of a transcript."""
    match effect:
        case fx.WriteHead(head, version):
            return f"-> store write v{version}: {list(head.ledger_ids)}"
        case fx.RecoverLedger(item):
            return f"-> recover ledger {item.ledger_id}"
        case fx.Serve(ledger_id):
            return f"=> serve on ledger {ledger_id}"
        case fx.SwitchLedger(ledger_id):
            return f"=> switch to ledger {ledger_id}"
        case fx.LeadershipEnded(reason):
            return f"=> ended: {reason.value}"
        case fx.CloseLedger(ledger_id) | fx.DeleteLedger(ledger_id) | fx.DrainLedger(ledger_id):
            return f"-> {type(effect).__name__.removesuffix('Ledger').lower()} ledger {ledger_id}"
    return f"-> {type(effect).__name__}"


def trim_text(effect: t.TrimEffect) -> str:
    """An effect on one line of a transcript."""
    match effect:
        case fx.ReadHead():
            return "-> store read"
        case t.TrimDeleteLedger(item):
            return f"-> delete ledger {item.ledger_id}"
        case t.TrimEnded(outcome):
            return f"=> {outcome.value}"
    return effect_text(effect)
