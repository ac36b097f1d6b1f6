"""A counterexample as text that a person can read, and that can be played again.

The form is that of golden transcripts: who does what, `----`, everything that was said. The last lines name the
invariant and show the state that breaks it.

Source: `core/transcript.py`; docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.core.ledger.writer import WriterMachine
from quire.core.repair.rereplication import RepairMachine
from quire.core.transcript import NOTHING, block, record_text
from quire_testing.explorer.beginning import NOT_CREATED
from quire_testing.explorer.bookies import BookieState
from quire_testing.explorer.bundle_world import BundleWorld
from quire_testing.explorer.collector_parts import LEDGER, CollectorState, store_text
from quire_testing.explorer.collector_world import CollectorWorld
from quire_testing.explorer.directory_world import DirectoryWorld, directory_rows
from quire_testing.explorer.explorer import Explorable
from quire_testing.explorer.invariants import Violation
from quire_testing.explorer.log_parts import LogState
from quire_testing.explorer.log_world import LogWorld
from quire_testing.explorer.stream_watch import stream_rows
from quire_testing.explorer.stream_world import StreamWorld
from quire_testing.explorer.tables import Label, State
from quire_testing.explorer.world import LedgerWorld


def transcript(
    header: Sequence[str],
    path: Sequence[tuple[Any, Any]],
    violation: Violation | None,
    rows: Sequence[tuple[str, str]] = (),
) -> str:
    """The way to a violation.

    Args:
        header: comments above it: configuration, mutant.
        path: (label, state after it), the first with label None.
        rows: the violating state, as `state_rows` gives it.
    """
    parts = ["".join(f"# {line}\n" for line in header)]
    parts += [block(f"{label.actor}: {label.command}", label.said or (NOTHING,)) for label, _ in path[1:]]
    if violation is not None:
        parts.append(f"{verdict(violation)}\n")
    if rows:
        width = max(len(part) for part, _ in rows)
        parts.append("".join(f"# {part:{width}}  {what}\n" for part, what in rows))
    return "\n".join(parts)


def verdict(violation: Violation) -> str:
    """The line under a transcript that names the broken invariant."""
    return f"# VIOLATED {violation.invariant}: {violation.text}"


def exchanges(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """What a transcript says: each command with everything that was said then, in order."""
    found = []
    for part in text.split("\n\n"):
        lines = [line for line in part.splitlines() if line and not line.startswith("#")]
        if len(lines) > 1 and lines[1] == "----":
            found.append((lines[0], tuple(lines[2:])))
    return found


class CannotReplayError(Exception):
    """A step of a transcript is not possible in this world."""


def replayed(world: Explorable, steps: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[Any, Any]]:
    """The path that a transcript's exchanges take through a world: who did what, and all that was said.

    Raises:
        CannotReplayError: naming the step that is not possible, or of which something else comes.
    """
    path: list[tuple[Any, Any]] = [(None, world.initial())]
    for number, (command, said) in enumerate(steps, 1):
        for label, after in world.successors(path[-1][1]):
            if f"{label.actor}: {label.command}" == command and (label.said or (NOTHING,)) == said:
                path.append((label, after))
                break
        else:
            msg = f"step {number} is not possible: {command}"
            raise CannotReplayError(msg)
    return path


def led(world: Explorable, commands: Sequence[str]) -> list[tuple[Any, Any]]:
    """The path that these commands lead along, each with whatever is said then; behind ` | ` may stand a line that is."""
    path: list[tuple[Any, Any]] = [(None, world.initial())]
    for command in commands:
        wanted, _, line = command.partition(" | ")
        path.append(
            next(
                move
                for move in world.successors(path[-1][1])
                if f"{move[0].actor}: {move[0].command}" == wanted
                and (not line or line in map(str.strip, move[0].said))
            )
        )
    return path


def state_rows(
    world: LedgerWorld | LogWorld | CollectorWorld | DirectoryWorld | StreamWorld | BundleWorld, state: Any
) -> list[tuple[str, str]]:
    """A state as (part, what it is), for the table under a counterexample."""
    if isinstance(world, LogWorld):
        return _log_rows(world, state)
    if isinstance(world, CollectorWorld):
        return _collector_rows(world, state)
    if isinstance(world, DirectoryWorld):
        return directory_rows(state)
    if isinstance(world, StreamWorld):
        return stream_rows(world, state)
    if isinstance(world, BundleWorld):
        return [
            *(
                (f"{ledger.name}: {part}", what)
                for ledger, at in zip(world.ledgers, state.ledgers, strict=True)
                for part, what in _ledger_rows(ledger.world, ledger.states.parts[at])
            ),
            *world.rows(state),
        ]
    return _ledger_rows(world, state)


def _ledger_rows(world: LedgerWorld, state: State) -> list[tuple[str, str]]:
    store = world.stores.parts[state[world.at.store]]
    absent = "not created" if store == NOT_CREATED else "deleted"
    rows = [("record", record_text(store.record) if store.record else absent)]
    for number in range(world.n):
        rows.append((f"b{number}", _bookie_text(world.bookies.parts[state[number]])))
    for name, client in zip(world.names, world.clients_of(state), strict=True):
        machine = client.machine
        if machine is None:
            rows.append((name, "repairs nothing" if name.startswith("repairer") else "not started"))
        elif isinstance(machine, WriterMachine):
            rows.append(
                (name, f"{machine.status.value}, acknowledged through {client.confirmed}, LAP {machine.lap}")
            )
        elif isinstance(machine, RepairMachine):
            rows.append((name, machine.status.value))
        else:
            end = f", {client.result}" if client.result else f", LAC {machine.lac}, LAP {machine.lap}"
            rows.append((name, f"{machine.status.value}{end}"))
    for name, number in zip(world.reader_names, state[world.at.reader : world.at_clearing], strict=True):
        reader = world.readers.parts[number]
        rows.append((name, f"knows LAC {reader.lac}, has read through {reader.next_entry - 1}"))
    return rows


def _bookie_text(bookie: BookieState) -> str:
    held = " ".join(str(entry) for entry in range(bookie.held.bit_length()) if bookie.held >> entry & 1)
    fence = "fenced" if bookie.is_fenced else "not fenced"
    durable = " (not durable)" if bookie.is_fenced and not bookie.fence_is_durable else ""
    lost = "gone for ever, with " if bookie.lost else ""
    return f"{lost}entries {held or 'none'}, {fence}{durable}, LAC {bookie.lac}"


def _log_rows(world: LogWorld, state: LogState) -> list[tuple[str, str]]:
    head = world.heads.parts[state.head]
    items = " ".join(f"{item.ledger_id}{'' if item.is_open else ' closed'}" for item in head.items)
    rows = [
        (
            "list",
            f"[{items}] from offset {head.start_offset}, leader {head.leader.holder or 'nobody'}, epoch {head.leader.epoch}",
        )
    ]
    for number, ledger in enumerate(state.ledgers, 1):
        what = "deleted" if ledger.deleted else "closed" if ledger.closed else "open"
        rows.append((f"ledger {number}", f"{what}, of handle {ledger.owner}, writes {list(ledger.records)}"))
    for number, at in enumerate(state.trimmers):
        rows.append((f"truncation {number}", world.trimmers.parts[at].machine.status.value))
    for number, at in enumerate(state.handles):
        machine = world.handles.parts[at].machine
        rows.append((f"handle {number}", f"{machine.status.value}, epoch {machine.epoch}"))
    return rows


def _collector_rows(world: CollectorWorld, state: CollectorState) -> list[tuple[str, str]]:
    bookie, kept = state.bookie, world.machines.parts[state.bookie.machine].kept
    held = ", ".join(f"life {life} through LSN {lsn}" for life, lsn in bookie.held)
    rows = [
        ("store", store_text(state.store)),
        *(("copy", store_text(copy)) for copy in state.copies),
        # A new chain of passes begins where the store does not have the bookie's own last count.
        ("bookie", f"holds {held or 'nothing'}, has made {kept.passes} passes of chain {kept.chain}"),
    ]
    if kept.findings:
        rows.append(("evidence", f"found in {kept.findings[LEDGER]} passes, through LSN {kept.found_lsn}"))
    return [*rows, ("deleted", ", ".join(f"life {life}" for life in sorted(state.deleted)) or "nothing")]


def lanes(path: Sequence[tuple[Label | None, Any]]) -> list[str]:
    """The actors of a path, in the order of their first step; an actor that is only written to comes last."""
    actors = [label.actor for label, _ in path if label is not None]
    others = [label.other for label, _ in path if label is not None and label.other]
    return list(dict.fromkeys([*actors, *others]))
