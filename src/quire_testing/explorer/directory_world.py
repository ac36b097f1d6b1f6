"""The world of one bookie's identity: its directory, copies of it, and the processes that are started on them.

Directories are copied and put back at any step, processes are killed, stopped cleanly or paused for longer than their
session, and started on any directory. Entries are numbered; one that was acknowledged must not be denied. Limbo covers what
was written before the claim of its start: a bookie in unnamed limbo finds out after that which ledgers are concerned.

Left out, by decision, and said in `docs/formats/segment.md`:

- bytes put back below a marker that stays (a disk's snapshot), younger than the last record of the boots;
- a session that the store ends while its owner runs and cannot reach the store, and a copy is started meanwhile.

Source: docs/decisions/015-who-a-directory-is.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from quire.core.bookie.boot import BootState, Claim, Marker, claim, next_boot
from quire.core.bookie.identity_lease import IdentityLeaseMachine
from quire_testing.explorer.invariants import DIRECTORY_INVARIANTS, Violation
from quire_testing.explorer.switches import SHIPPED, Switches
from quire_testing.explorer.tables import Label

PAUSE_MS: Final = 1
NO_ONE: Final = 0


@dataclass(frozen=True, slots=True)
class DirectoryConfiguration:
    """The size of a world.

    Attributes:
        copies: how many copies are made.
        entries: how many entries are written.
        starts: how many processes are started.
        kills, pauses, stops: how often that happens; a stop is clean.
        puts: how often the bytes of a copy are put back below the marker of another directory.
    """

    copies: int = 1
    entries: int = 2
    starts: int = 3
    kills: int = 1
    pauses: int = 1
    stops: int = 1
    puts: int = 1

    @property
    def name(self) -> str:
        """What is explored, in a line."""
        return (
            f"directories {self.copies} copies {self.entries} entries {self.starts} starts kills={self.kills} "
            f"pauses={self.pauses} stops={self.stops} puts={self.puts}"
        )


class DirectoryDisk(NamedTuple):
    """One directory: its boots, its newest LSN, which marker file it has, its entries, and those that are in limbo.

    `finds_loss`: a start found it older and wrote that down; no start since has claimed the identity.
    """

    boot: int
    lsn: int
    marker: int
    clean: bool = False
    finds_loss: bool = False
    entries: frozenset[int] = frozenset()
    in_limbo: frozenset[int] = frozenset()


class Process(NamedTuple):
    """A process on a directory.

    Attributes:
        phase: "opened", "registered", "serving", "settling" (it is registered again, its record is not written yet).
        own: its boot.
        seen: the version of the record that it read at its start.
        found: what its directory was then; None if it is in limbo.
        pending: entries that are durable and not acknowledged.
    """

    phase: str
    own: BootState
    seen: int
    found: BootState | None
    lease_pending: bool = True
    paused: bool = False
    pending: frozenset[int] = frozenset()


class DirectoryState(NamedTuple):
    """All that can differ."""

    record: BootState | None
    version: int
    registered: int
    disks: tuple[DirectoryDisk, ...]
    processes: tuple[Process | None, ...]
    acknowledged: frozenset[int]
    written: int
    left: DirectoryConfiguration


Moves = Iterator[tuple[Label, DirectoryState]]


class DirectoryWorld:
    """Every state that one bookie's identity can come to.

    Args:
        configuration: the size.
        switches: the rules.
    """

    def __init__(self, configuration: DirectoryConfiguration, switches: Switches = SHIPPED) -> None:
        self.configuration = configuration
        self.rules = switches.rules

    def initial(self) -> DirectoryState:
        """An empty directory without a record."""
        return DirectoryState(
            None, 0, NO_ONE, (DirectoryDisk(0, 0, 1),), (None,), frozenset(), 0, self.configuration
        )

    def successors(self, state: DirectoryState) -> list[tuple[Label, DirectoryState]]:
        """Every next step: a label and the state after it."""
        moves = list(self._people(state))
        for index, process in enumerate(state.processes):
            if process is None:
                moves += self._starts(state, index)
            elif process.paused:
                moves.append((_label(index, "wakes", "wake"), self._wakes(state, index, process)))
            else:
                moves += self._runs(state, index, process)
        return moves

    # --- people, and the store ---------------------------------------------------------------------------------------

    def _people(self, state: DirectoryState) -> Moves:
        left = state.left
        for index, disk in enumerate(state.disks):
            if left.copies and disk.boot:
                copy = disk._replace(marker=len(state.disks) + 1)
                after = state._replace(
                    disks=(*state.disks, copy),
                    processes=(*state.processes, None),
                    left=_less(left, "copies"),
                )
                yield Label("person", f"copies directory {index}", kind="copy"), after
            for other, old in enumerate(state.disks):
                record = state.record
                known = record is not None and (old.boot < record.boot or old.lsn < record.lsn)
                if left.puts and index != other and state.processes[index] is None and known:
                    after = _with_disk(state, index, old._replace(marker=disk.marker))
                    yield (
                        Label("person", f"puts the bytes of {other} back into {index}", kind="put back"),
                        after._replace(left=_less(left, "puts")),
                    )
        if state.registered and not any(
            each is not None and each.own.owner == state.registered and not each.paused
            for each in state.processes
        ):
            yield Label("store", "ends a session", kind="expire"), state._replace(registered=NO_ONE)

    # --- a process -----------------------------------------------------------------------------------------------------

    def _starts(self, state: DirectoryState, index: int) -> Moves:
        if not state.left.starts:
            return
        disk, record = state.disks[index], state.record
        found = BootState(disk.boot, disk.lsn, Marker(disk.marker, 0), disk.clean)
        older = self.rules.older_directory(record, found)
        lsn = max(disk.lsn, 0 if record is None or older is None else record.lsn) + 1
        owner = self.configuration.starts - state.left.starts + 1
        own = BootState(next_boot(record, disk.boot), lsn, found.marker, owner=owner)
        process = Process("opened", own, state.version, None if older else found)
        after = _with_disk(
            state,
            index,
            disk._replace(
                boot=own.boot, lsn=lsn, clean=False, finds_loss=disk.finds_loss or older is not None
            ),
        )
        after = _with(after, index, process)._replace(left=_less(state.left, "starts"))
        said = (older,) if older else ()
        yield _label(index, f"starts as boot {own.boot}", "start", said), after

    def _runs(self, state: DirectoryState, index: int, process: Process) -> Moves:
        left = state.left
        if left.kills:
            yield (
                _label(index, "is killed", "kill"),
                _with(state, index, None)._replace(left=_less(left, "kills")),
            )
        if process.phase == "opened":
            if state.registered == NO_ONE:
                after = _with(state, index, process._replace(phase="registered"))
                yield _label(index, "registers", "register"), after._replace(registered=process.own.owner)
        elif process.phase == "registered":
            yield _label(index, "claims the identity", "claim"), self._claims(state, index, process)
        else:
            if left.pauses:
                after = _with(state, index, process._replace(paused=True))
                yield _label(index, "is paused", "pause"), after._replace(left=_less(left, "pauses"))
            if process.lease_pending:
                yield self._settles(state, index, process)
            else:
                yield from self._serves(state, index, process)

    def _claims(self, state: DirectoryState, index: int, process: Process) -> DirectoryState:
        disk, record = state.disks[index], state.record
        moved_on = (
            state.version != process.seen
            and process.found is not None
            and self.rules.older_directory(record, process.found) is not None
        )
        if moved_on or claim(record, process.own) is Claim.ANOTHER:
            return _ended(state, index, process)
        if disk.finds_loss:
            disk = disk._replace(finds_loss=False, in_limbo=disk.in_limbo | frozenset(range(state.written)))
        after = _recorded(_with_disk(state, index, disk), process.own._replace(lsn=disk.lsn))
        return _with(after, index, process._replace(phase="serving", lease_pending=False))

    def _serves(self, state: DirectoryState, index: int, process: Process) -> Moves:
        disk, own = state.disks[index], process.own
        if state.written < self.configuration.entries:
            entry = state.written
            put = disk._replace(lsn=disk.lsn + 1, entries=disk.entries | {entry})
            after = _with(
                _with_disk(state, index, put), index, process._replace(pending=process.pending | {entry})
            )
            yield _label(index, f"stores {entry}", "store"), after._replace(written=entry + 1)
        if process.pending:
            after = _with(state, index, process._replace(pending=frozenset()))
            yield (
                _label(index, f"acknowledges {sorted(process.pending)}", "acknowledge"),
                after._replace(acknowledged=state.acknowledged | process.pending),
            )
        if state.record is None or state.record.lsn != disk.lsn or state.record.owner != own.owner:
            if claim(state.record, own) is Claim.ANOTHER:
                after = _ended(state, index, process)
            else:
                after = _recorded(state, own._replace(lsn=disk.lsn))
            yield _label(index, f"tells LSN {disk.lsn}", "tell"), after
        if state.left.stops:
            stopped = disk._replace(lsn=disk.lsn + 1, clean=True)
            after = _ended(_with_disk(state, index, stopped), index, process)
            after = after._replace(left=_less(state.left, "stops"))
            yield _label(index, "stops, and the store is away", "stop unanswered"), after
            if claim(state.record, own) is not Claim.ANOTHER:
                yield (
                    _label(index, "stops", "stop"),
                    _recorded(after, own._replace(lsn=stopped.lsn, clean=True)),
                )

    def _wakes(self, state: DirectoryState, index: int, process: Process) -> DirectoryState:
        machine = IdentityLeaseMachine(PAUSE_MS, 0, self.rules)
        machine.pending = process.lease_pending
        lease_pending = machine.look(PAUSE_MS + 1)
        phase = "serving" if process.phase == "settling" else process.phase
        return _with(state, index, process._replace(paused=False, lease_pending=lease_pending, phase=phase))

    def _settles(self, state: DirectoryState, index: int, process: Process) -> tuple[Label, DirectoryState]:
        """First its registration, then its record: while it is registered no other process writes that."""
        if process.phase == "serving":
            if state.registered not in (NO_ONE, process.own.owner):
                return _label(index, "finds another registered", "taken"), _ended(state, index, process)
            after = _with(state, index, process._replace(phase="settling"))
            return _label(index, "is registered again", "register again"), after._replace(
                registered=process.own.owner
            )
        if claim(state.record, process.own) is Claim.ANOTHER:
            return _label(index, "was replaced", "replaced"), _ended(state, index, process)
        after = _recorded(state, process.own._replace(lsn=state.disks[index].lsn))
        after = _with(after, index, process._replace(phase="serving", lease_pending=False))
        return _label(index, "writes its record, and goes on", "confirm"), after


class DirectoryWatch:
    """Looks at states of such a world."""

    def __init__(self, names: tuple[str, ...] = tuple(DIRECTORY_INVARIANTS)) -> None:
        self._names = frozenset(names)

    def __call__(self, state: DirectoryState) -> Violation | None:
        """The first violation in a state, if there is one that is looked for."""
        serving = [
            (disk, process)
            for disk, process in zip(state.disks, state.processes, strict=True)
            if process is not None and not process.lease_pending and not process.paused
        ]
        for disk, process in serving:
            denied = state.acknowledged - disk.entries - disk.in_limbo
            if "W1" in self._names and denied:
                return Violation(
                    "W1", f"boot {process.own.boot} denies {sorted(denied)}, which were acknowledged"
                )
        if "W2" in self._names and len(serving) > 1:
            boots = " and ".join(str(process.own.boot) for _, process in serving)
            return Violation("W2", f"boots {boots} speak for one bookie")
        return None


def directory_rows(state: DirectoryState) -> list[tuple[str, str]]:
    """A state as (part, what it is), for the table under a counterexample."""
    record = state.record
    rows = [("record", "none" if record is None else f"boot {record.boot}, LSN {record.lsn}")]
    for index, (disk, process) in enumerate(zip(state.disks, state.processes, strict=True)):
        has = f"boot {disk.boot}, LSN {disk.lsn}, entries {sorted(disk.entries)}, in limbo {sorted(disk.in_limbo)}"
        runs = "nobody runs"
        if process is not None:
            runs = f"boot {process.own.boot} {process.phase}" + (
                ", lease pending" if process.lease_pending else ""
            )
        rows.append((f"directory {index}", f"{has}; {runs}"))
    return [*rows, ("acknowledged", str(sorted(state.acknowledged)))]


def _label(index: int, command: str, kind: str, said: tuple[str, ...] = ()) -> Label:
    return Label(f"directory {index}", command, said, kind=kind)


def _less(left: DirectoryConfiguration, what: str) -> DirectoryConfiguration:
    values = {name: getattr(left, name) for name in DirectoryConfiguration.__dataclass_fields__}
    return DirectoryConfiguration(**{**values, what: values[what] - 1})


def _with(state: DirectoryState, index: int, process: Process | None) -> DirectoryState:
    processes = (*state.processes[:index], process, *state.processes[index + 1 :])
    return state._replace(processes=processes)


def _with_disk(state: DirectoryState, index: int, disk: DirectoryDisk) -> DirectoryState:
    return state._replace(disks=(*state.disks[:index], disk, *state.disks[index + 1 :]))


def _recorded(state: DirectoryState, record: BootState) -> DirectoryState:
    return state._replace(record=record, version=state.version + 1)


def _ended(state: DirectoryState, index: int, process: Process) -> DirectoryState:
    """It ends and takes its registration back, if it has one; what it kept back is never sent."""
    registered = NO_ONE if state.registered == process.own.owner else state.registered
    return _with(state, index, None)._replace(registered=registered)
