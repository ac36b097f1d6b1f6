"""Truncations of a log next to its handles, on the machine of `core`: any client may run one, and one may stop anywhere.

A truncation that stops for ever is one whose steps are never taken. Its ledgers are deleted only after the
list without them is written; an opener of the log meanwhile finds them deleted.

Source: docs/decisions/022-truncation-intent.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from quire.core.ids import LedgerId
from quire.core.log import trimming as t
from quire.core.log.list import LogHead
from quire.core.log.trimming import TrimMachine
from quire_testing.explorer.log_parts import LogConfiguration, LogState, Trimmer, put
from quire_testing.explorer.parts import Label, Table
from quire_testing.explorer.snapshot import clone, state_of
from quire_testing.explorer.switches import Switches

Move = tuple[Label, LogState]


class Trims:
    """The steps of truncations, and how the list changes."""

    def __init__(self, configuration: LogConfiguration, switches: Switches) -> None:
        self.configuration = configuration
        self.switches = switches
        self.heads: Table[LogHead] = Table()
        self.trimmers: Table[Trimmer] = Table(lambda trimmer: trimmer.key)
        self._trim_states: Table[TrimMachine] = Table(state_of)

    def _trims(self, state: LogState) -> Iterator[Move]:
        if len(state.trimmers) < self.configuration.trims:
            for before in range(1, self.heads.parts[state.head].closed_end + 1):
                yield self._begins(state, before)
        for who, number in enumerate(state.trimmers):
            trimmer = self.trimmers.parts[number]
            for place, work in enumerate(trimmer.work):
                rest = replace(trimmer, work=(*trimmer.work[:place], *trimmer.work[place + 1 :]))
                yield from self._trim_works(state, who, rest, work)

    def _begins(self, state: LogState, before: int) -> Move:
        machine = self.switches.trim(before, end=self.heads.parts[state.head].closed_end)
        wider = state._replace(trimmers=(*state.trimmers, -1))
        who = len(state.trimmers)
        return self._trim_step(wider, who, Trimmer(machine), lambda m: m.start(), f"truncate before {before}")

    def _trim_works(self, state: LogState, who: int, rest: Trimmer, work: tuple[Any, ...]) -> Iterator[Move]:
        kind = work[0]
        if kind in ("swap", "late"):
            yield from self._trim_swaps(state, who, rest, work)
        elif rest.ended:
            return
        elif kind == "read":
            head, version = self.heads.parts[state.head], state.version
            yield self._trim_step(state, who, rest, lambda m: m.head_read(head, version), "reads the list")
        elif kind == "delete":
            ledger = state.ledgers[work[1] - 1]._replace(deleted=True, closed=True)
            after = state._replace(ledgers=put(state.ledgers, work[1], ledger))
            yield self._trim_step(
                after, who, rest, lambda m: m.ledger_deleted(LedgerId(work[1])), f"deletes ledger {work[1]}"
            )
        elif kind == "written":
            yield self._trim_step(
                state, who, rest, lambda m: m.head_written(work[1]), "hears that the list is written"
            )
        else:
            yield self._trim_step(state, who, rest, lambda m: m.head_conflicted(), "hears of a conflict")

    def _trim_swaps(self, state: LogState, who: int, rest: Trimmer, work: tuple[Any, ...]) -> Iterator[Move]:
        kind, head, version = work
        taken = version == state.version or self.switches.blind_lists == "trim"
        answer = ("written", state.version + 1) if taken else ("conflict",)
        after = rest if kind == "late" else replace(rest, work=(*rest.work, answer))
        swapped = self._with_trimmer(state, who, after)
        if taken:
            swapped = self._listed(swapped, head)
        ids = list(self.heads.parts[head].ledger_ids)
        command = f"takes v{version}: {ids} from truncation {who}"
        yield Label("store", command, (answer[0],), kind=f"swap {answer[0]}"), swapped
        if kind == "swap" and state.lost_swaps:
            late = replace(rest, work=(*rest.work, ("late", head, version)))
            spent = state._replace(lost_swaps=state.lost_swaps - 1)
            # The driver takes an unknown outcome for a conflict: whatever is in stays in.
            yield self._trim_step(
                spent, who, late, lambda m: m.head_conflicted(), "hears nothing of its swap"
            )

    def _trim_step(
        self, state: LogState, who: int, trimmer: Trimmer, put_in: Callable[[Any], object], command: str
    ) -> Move:
        machine = clone(trimmer.machine)
        machine.out = []
        put_in(machine)
        machine.check()
        work, said = list(trimmer.work), []
        for effect in machine.out:
            said.append(trim_text(effect))
            match effect:
                case t.TrimReadHead():
                    work.append(("read",))
                case t.TrimWriteHead(head, version):
                    work.append(("swap", self.heads.number(head), version))
                case t.TrimDeleteLedger(item):
                    work.append(("delete", int(item.ledger_id)))
        machine.out = []
        after = Trimmer(machine, self._trim_states.number(machine), tuple(work))
        label = Label(f"truncation {who}", command, tuple(said), kind=command.split(maxsplit=1)[0])
        return label, self._with_trimmer(state, who, after)

    def _with_trimmer(self, state: LogState, who: int, trimmer: Trimmer) -> LogState:
        number = self.trimmers.number(trimmer)
        return state._replace(trimmers=(*state.trimmers[:who], number, *state.trimmers[who + 1 :]))

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


def trim_text(effect: t.TrimEffect) -> str:
    """An effect on one line of a transcript."""
    match effect:
        case t.TrimReadHead():
            return "-> store read"
        case t.TrimWriteHead(head, version):
            return f"-> store write v{version}: {list(head.ledger_ids)}"
        case t.TrimDeleteLedger(item):
            return f"-> delete ledger {item.ledger_id}"
        case t.TrimEnded(outcome):
            return f"=> {outcome.value}"
    return f"-> {type(effect).__name__}"
