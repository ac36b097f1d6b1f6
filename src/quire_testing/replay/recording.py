"""Machines that record inputs and effects, and the check that a fresh one has the same effects.

A recording machine is a subclass made from the one that ships: handed to a client at construction
(`client/machines.py`), it costs nothing where it is not used. What was written down is judged without the driver: a
machine of the same class, with the same inputs in the same order, must have the same effects. A driver that decides by
itself would show: by an input that the machine does not expect, or by an effect that was not carried out.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes".
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from quire.client.machines import Machines
from quire.core.errors import QuireError
from quire.core.ids import NO_ENTRY
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import WRITER_TABLE, WriterLimits
from quire.core.log.machine import LOG
from quire.core.log.trimming import TRIM
from quire.core.recovery.machine import RECOVERY_TABLE, RecoveryMachine
from quire.core.repair.effects import LIMITS, REPAIR_TABLE, RepairLimits
from quire.core.repair.rereplication import RepairMachine
from quire.core.transcript import block, effect_line
from quire_testing.explorer.snapshot import clone, slots_of
from quire_testing.explorer.switches import RULES, Rules

WRITER_INPUTS = tuple(WRITER_TABLE.rows)
SAID_BY = {"assign_ids": "append", "confirm_head": "adds_acked_together"}
"""Inputs that do what another does and leave its effects to their caller: they are written down as that one."""
RECOVERY_INPUTS = tuple(RECOVERY_TABLE.rows)
REPAIR_INPUTS = tuple(REPAIR_TABLE.rows)
LOG_INPUTS = tuple(name for name in LOG.rows if name != "head_seen")  # no input of the explorer's world
TRIM_INPUTS = tuple(TRIM.rows)
CHOICES = frozenset({"replacements_chosen", "replacements_found", "waited"})
"""Inputs that answer a question of the same turn."""


class RecordedInput(NamedTuple):
    """One input: what was called with what, what the machine said, what it raised.

    `after` is a copy of the machine, where copies are kept.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    said: tuple[Any, ...]
    error: Exception | None = None
    after: Any = None

    @property
    def text(self) -> str:
        """The call on one line."""
        parts = [repr(arg) for arg in self.args] + [f"{key}={value!r}" for key, value in self.kwargs.items()]
        return f"{self.name} {' '.join(parts)}".rstrip()


class InputLog:
    """The inputs of one machine.

    Args:
        kind: the machine's class.
        made: makes a machine in its first state.
        keeps: whether to keep a copy of the machine after each input.
    """

    def __init__(self, kind: type[Any], made: Callable[[], Any], *, keeps: bool = False) -> None:
        self.kind = kind
        self.made = made
        self.keeps = keeps
        self.inputs: list[RecordedInput] = []
        self.inside = False

    @property
    def text(self) -> str:
        """The whole dialogue as a transcript."""
        ensemble = self.made().record.last_fragment.ensemble if self.kind is WriterMachine else ()
        return "\n".join(block(each.text, _lines(each.said, ensemble)) for each in self.inputs)


def _lines(said: Iterable[Any], ensemble: Sequence[Any]) -> list[str]:
    lines = []
    for effect in said:
        try:
            lines.append(effect_line(effect, ensemble))
        except IndexError:
            lines.append(repr(effect))
    return lines or ["nothing"]


def recording(kind: type[Any], inputs: tuple[str, ...]) -> type[Any]:
    """A subclass of a machine that writes down its inputs."""
    made = _RECORDING.get(kind)
    if made is None:
        made = _RECORDING[kind] = _made(kind, inputs)
    return made


_RECORDING: dict[type[Any], type[Any]] = {}


def _made(kind: type[Any], inputs: tuple[str, ...]) -> type[Any]:
    members: dict[str, Any] = {name: _recorded(getattr(kind, name)) for name in inputs}
    return type(f"Recording{kind.__name__}", (kind,), {"__slots__": ("log",), **members})


def _recorded(plain: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        log: InputLog = self.log
        if log.inside:  # a machine's own use of its input
            return plain(self, *args, **kwargs)
        log.inside = True
        before, lac, error, result = len(self.out), _lac(self), None, None
        kept = (
            copy.copy(kwargs),
            tuple(copy.copy(arg) if isinstance(arg, list | dict) else arg for arg in args),
        )
        try:
            result = plain(self, *args, **kwargs)
        except Exception as raised:
            error = raised
            raise
        finally:
            said = (*self.out[before:], *_left_to_caller(self, plain.__name__, lac, result))
            log.inside = False
            name = SAID_BY.get(plain.__name__, plain.__name__)
            if plain.__name__ != "confirm_head" or result:  # else nothing has happened
                after = plain_copy(self, log.kind) if log.keeps else None
                log.inputs.append(RecordedInput(name, kept[1], kept[0], said, error, after))
        return result

    return recorded


def _lac(machine: Any) -> int:
    return machine.window.lac if isinstance(machine, WriterMachine) else NO_ENTRY


def _left_to_caller(machine: Any, name: str, lac: int, result: Any) -> list[Any]:
    """What an input of `SAID_BY` does not say, because its caller does it: the effects that the other one says."""
    before = len(machine.out)
    if name == "assign_ids" and result is not None:
        machine._send_new(result)
    elif name == "confirm_head" and result:
        machine._confirmed(machine.window.lac - lac)
    said: list[Any] = machine.out[before:]
    del machine.out[before:]
    return said


def plain_copy(machine: Any, kind: type[Any]) -> Any:
    """A copy of a recording machine as a plain one that has said everything."""
    other: Any = object.__new__(kind)
    for name in slots_of(kind):
        setattr(other, name, getattr(machine, name))
    other = clone(other)
    other.out = []
    return other


@dataclass(slots=True)
class Recorder:
    """Makes recording machines and keeps what they write down.

    Attributes:
        rules: the protocol's rules (`core/rules.py`).
        writer, recovery, repair: the classes they are made from.
        logs: one for each machine made, in order.
        keeps: whether copies of the machines are kept.
        window: entries that a round of recovery reads asks for; None: as it ships.
        limits: of repairs.
    """

    rules: Rules
    writer: type[WriterMachine]
    recovery: type[RecoveryMachine]
    logs: list[InputLog]
    keeps: bool = False
    window: int | None = None
    repair: type[RepairMachine] = RepairMachine
    limits: RepairLimits = LIMITS

    @classmethod
    def shipped(cls) -> Recorder:
        """Of the machines that ship."""
        return cls(RULES, WriterMachine, RecoveryMachine, [])

    @property
    def machines(self) -> Machines:
        """What a client is handed."""
        return Machines(self._writer, self._recovery, self._repair)

    def _writer(
        self,
        record: LedgerMetadata,
        version: int,
        limits: WriterLimits,
        last: int = NO_ENTRY,
        length: int = 0,
    ) -> WriterMachine:
        def made(kind: type[WriterMachine] = self.writer) -> WriterMachine:
            return kind(record, version, rules=self.rules, limits=limits, last=last, length=length)

        machine: WriterMachine = made(recording(self.writer, WRITER_INPUTS))
        self._write_down(machine, self.writer, made)
        return machine

    def _recovery(self, record: LedgerMetadata, version: int) -> RecoveryMachine:
        window = {} if self.window is None else {"window_entries": self.window}

        def made(kind: type[RecoveryMachine] = self.recovery) -> RecoveryMachine:
            return kind(record, version, self.rules, **window)

        machine: RecoveryMachine = made(recording(self.recovery, RECOVERY_INPUTS))
        self._write_down(machine, self.recovery, made)
        return machine

    def _repair(self, *bookies: Any, **more: Any) -> RepairMachine:
        def made(kind: type[RepairMachine] = self.repair) -> RepairMachine:
            return kind(*bookies, **more, rules=self.rules, limits=self.limits)

        machine: RepairMachine = made(recording(self.repair, REPAIR_INPUTS))
        self._write_down(machine, self.repair, made)
        return machine

    def _write_down(self, machine: Any, kind: type[Any], made: Callable[[], Any]) -> None:
        machine.log = InputLog(kind, made, keeps=self.keeps)
        self.logs.append(machine.log)


class DriverDiffersError(Exception):
    """A driver and the machines do not say the same."""


def check_log(log: InputLog) -> int:
    """Replay the inputs on a fresh machine.

    Returns:
        How many inputs were compared.

    Raises:
        DriverDiffersError: it says something else, with the dialogue up to there.
    """
    machine = log.made()
    for number, step in enumerate(log.inputs):
        error = None
        try:
            getattr(machine, step.name)(*step.args, **step.kwargs)
        except (QuireError, AssertionError, KeyError) as raised:
            error = raised
        said, machine.out = tuple(machine.out), []
        if said != step.said or (error is None) != (step.error is None):
            msg = f"input {number} ({step.text}): recorded {step.said}, {step.error!r}; now {said}, {error!r}"
            raise DriverDiffersError(msg)
        if error is None:
            machine.check()
    return len(log.inputs)
