"""What a machine said, as lines a person can read: the same text in golden tests, simulator and checker.

`-> ` goes to a bookie or the store, `=> ` to the caller, `?? ` asks the driver for a choice, `.. ` is news for the
log. A test is a dialogue: a command, `----`, everything the machine said.

Source: docs/testing.md, golden transcripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from quire.core import effects as e
from quire.core.ids import BookieId
from quire.core.ledger_metadata import LedgerMetadata, LedgerState

NOTHING = "nothing"


def record_text(record: LedgerMetadata) -> str:
    """A record on one line: state, end, fragments."""
    end = f" at {record.last_entry} length {record.length}" if record.state is LedgerState.CLOSED else ""
    fragments = " ".join(f"{part.first_entry}:[{' '.join(part.ensemble)}]" for part in record.fragments)
    return f"{record.state.name}{end} {fragments}"


def _range(first: int, last: int) -> str:
    return f"{first}..{last}"


def _names(slots: Iterable[int], ensemble: Sequence[BookieId]) -> str:
    return " ".join(ensemble[slot] for slot in slots) or "nobody"


def _problem(problem: e.Problem) -> str:
    return problem.kind.code


_LINES: dict[type, Callable[[Any, Sequence[BookieId]], str]] = {
    e.SendRun: lambda x, who: f"-> {_names(x.slots, who)} add {_range(x.first, x.last)} lac={x.lac}",
    e.DropUnsent: lambda x, _: f"-> {x.bookie} drop unsent",
    e.SendExplicitLac: lambda x, who: f"-> {_names(x.slots, who)} explicit lac={x.lac}",
    e.WriteMetadata: lambda x, _: f"-> store write v{x.version}: {record_text(x.record)}",
    e.RereadMetadata: lambda _, __: "-> store read",
    e.SetTimer: lambda x, _: f"-> timer at {x.at_ms}",
    e.Confirmed: lambda x, _: f"=> confirmed {_range(x.first, x.last)}",
    e.Failed: lambda x, _: f"=> failed {_range(x.first, x.last)}: {_problem(x.problem)}",
    e.Ended: lambda x, _: f"=> ended: {_problem(x.problem)}",
    e.Closed: lambda x, _: f"=> closed: {record_text(x.record)}",
    e.CloseFailed: lambda x, _: f"=> close failed: {_problem(x.problem)}",
    e.ChooseReplacements: lambda x, _: (
        f"?? replace {_names(x.slots, x.ensemble)}, failed {' '.join(x.failed)}{', required' if x.required else ''}"
    ),
    e.LookForBookies: lambda x, _: f"?? look for {_names(x.slots, x.ensemble)} or a spare",
    e.EnsembleChanged: lambda x, _: f".. ensemble from {x.first}: {' '.join(x.ensemble)}",
    e.SlotAbsent: lambda x, _: f".. {x.bookie} is absent from {x.first}",
    e.SlotReturned: lambda x, _: f".. {x.bookie} is back from {x.first}",
}


def effect_line(effect: object, ensemble: Sequence[BookieId]) -> str:
    """One effect on one line; slots are named by their bookies of `ensemble`."""
    line = _LINES.get(type(effect))
    if line is not None:
        return line(effect, ensemble)
    names = [field.name for field in fields(effect)] if is_dataclass(effect) else []
    return f"-> {type(effect).__name__} " + " ".join(f"{name}={getattr(effect, name)}" for name in names)


def effect_lines(out: Sequence[object], ensemble: Sequence[BookieId]) -> list[str]:
    """Everything that a machine said, or the line `nothing`."""
    return [effect_line(effect, ensemble) for effect in out] or [NOTHING]


def block(command: str, said: Sequence[str], comments: Sequence[str] = ()) -> str:
    """One exchange of a transcript."""
    return "\n".join([*comments, command, "----", *said]) + "\n"
