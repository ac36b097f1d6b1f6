"""What a machine said, as lines a person can read: the same text in golden tests, simulator and explorer.

`-> ` goes to a bookie or the store, `=> ` to the caller, `?? ` asks the driver for a choice, `.. ` tells the
driver what changed. A test is a dialogue: a command, `----`, everything the machine said.

Source: docs/testing.md, golden transcripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger import effects as e
from quire.core.ledger.guarantee import GIVEN_UP
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.notes import EntryRange
from quire.core.repair import effects as r

NOTHING = "nothing"


def record_text(record: LedgerMetadata) -> str:
    """A record on one line: state, end, fragments."""
    end = f" at {record.last_entry} length {record.length}" if record.state is LedgerState.CLOSED else ""
    fragments = " ".join(f"{part.first_entry}:[{' '.join(part.ensemble)}]" for part in record.fragments)
    terms = "".join(f" {each.term}>{each.first_entry}" for each in record.ranges)
    term = f" term {record.term}, ranges{terms};" if record.terms else ""
    given_up = ", write quorum given up" if GIVEN_UP in record.custom else ""
    return f"{record.state.name}{term}{end} {fragments}{given_up}"


def _range(first: int, last: int) -> str:
    return f"{first}..{last}"


def _names(slots: Iterable[int], ensemble: Sequence[BookieId]) -> str:
    return " ".join(ensemble[slot] for slot in slots) or "nobody"


def _problem(problem: e.Problem) -> str:
    return problem.kind.code


_LINES: dict[type, Callable[[Any, Sequence[BookieId]], str]] = {
    e.SendRun: lambda x, who: (
        f"-> {_names(x.slots, who)} add {_range(x.first, x.last)} lac={x.lac}"
        + (f" lafr={x.lafr}" if x.lafr != NO_ENTRY else "")
    ),
    e.DropUnsent: lambda x, _: f"-> {x.bookie} drop unsent",
    e.SendExplicitLac: lambda x, who: f"-> {_names(x.slots, who)} explicit lac={x.lac}",
    e.WriteMetadata: lambda x, _: f"-> store write v{x.version}: {record_text(x.record)}",
    e.RereadMetadata: lambda _, __: "-> store read",
    e.SetTimer: lambda x, _: f"-> timer at {x.at_ms}",
    e.Confirmed: lambda x, _: f"=> confirmed {_range(x.first, x.last)}",
    e.FullyReplicated: lambda x, _: f".. on the write quorum through {x.last}",
    e.Failed: lambda x, _: f"=> failed {_range(x.first, x.last)}: {_problem(x.problem)}",
    e.Ended: lambda x, _: f"=> ended: {_problem(x.problem)}",
    e.Closed: lambda x, _: f"=> closed: {record_text(x.record)}",
    e.CloseFailed: lambda x, _: f"=> close failed: {_problem(x.problem)}",
    e.ChooseReplacements: lambda x, _: (
        f"?? replace {_names(x.slots, x.ensemble)}, failed {' '.join(x.failed)}{', required' if x.required else ''}"
        + (f", truncated from {x.truncated_from}" if x.truncated_from != NO_ENTRY else "")
    ),
    e.LookForBookies: lambda x, _: f"?? look for {_names(x.slots, x.ensemble)} or a spare",
    e.AskLeftBookies: lambda x, _: f"?? ask who left of {' '.join(x.ensemble)}",
    e.EnsembleChanged: lambda x, _: f".. ensemble from {x.first}: {' '.join(x.ensemble)}",
    e.SlotAbsent: lambda x, _: f".. {x.bookie} is absent from {x.first}",
    e.SlotReturned: lambda x, _: f".. {x.bookie} is back from {x.first}",
    e.QuorumAwaited: lambda x, who: f".. no ack quorum without {_names(x.slots, who)}, waiting",
    e.SendRead: lambda x, _: f"-> {x.bookie} read {_range(x.first, x.last)}",
    e.ReadDone: lambda _, __: "=> done",
    e.ReadFailed: lambda x, _: (
        f"=> entry {x.entry_id} {'no such entry' if x.conclusive else 'unavailable'}: {_said(x.answers)}"
    ),
    e.SendLacRead: lambda x, _: f"-> {x.bookie} {'fence, read lac' if x.fence else 'read lac'}",
    e.LacFound: lambda x, _: f"=> lac {x.last_add_confirmed}",
    e.LacUnavailable: lambda x, _: f"=> lac unavailable, at least {x.highest}, silent {' '.join(x.silent)}",
    e.SendRecoveryRead: lambda x, _: (
        f"-> {x.bookie} {'fence, read' if x.fence else 'read'} {_range(x.first, x.last)}"
    ),
    e.SendRecoveryAdds: lambda x, _: (
        f"-> {x.bookie} recovery add {_range(x.first, x.last)}{_share(x)} lac={x.last_add_confirmed}"
    ),
    e.FindReplacements: lambda x, _: (
        f"?? replace {_names(x.slots, x.ensemble)}, failed {' '.join(x.excluded)}"
    ),
    e.WaitForAnswers: lambda x, _: f"?? wait for {' '.join(x.bookies)}",
    e.SendTruncation: lambda x, _: (
        f"-> {x.bookie} {f'no-op {x.entry_id}, ' if x.no_op else ''}truncate {x.entry_id} lac={x.last_add_confirmed}"
    ),
    e.AwaitBookies: lambda x, _: f"?? wait until {' '.join(x.bookies)} or others are there",
    e.FindLength: lambda x, _: f"?? length at {x.entry_id}",
    e.RecoveryClosed: lambda x, _: f"=> {'accepted' if x.accepted else 'recovered'}: {record_text(x.record)}",
    e.TakenOver: lambda x, _: (
        f"=> taken over at {x.last_entry} length {x.length}: {record_text(x.record)}"
        + (f", absent {list(x.absent)}" if x.absent else "")
    ),
    e.TakeOverSuperseded: lambda x, _: f"=> superseded{'' if x.term is None else f' by term {x.term}'}",
    e.RecoveryInconclusive: lambda x, _: (
        f"=> inconclusive at {'the fence' if x.entry_id == NO_ENTRY else x.entry_id}, silent {' '.join(x.silent) or '-'}"
        + "".join(f", {bookie} has lac {lac}" for bookie, lac in x.contradicting)
    ),
    r.ReadRecord: lambda _, __: "-> store read",
    r.ListReplica: lambda x, _: f"-> {x.bookie} list",
    r.CopyRange: lambda x, _: (
        f"?? copy {_range(x.entries.first, x.entries.last)}{_share(x.entries)} to {x.bookie} from {' '.join(sorted(x.sources))}"
    ),
    r.WriteRepaired: lambda x, _: f"-> store write v{x.version}: {record_text(x.record)}",
    r.EndLimbo: lambda x, _: f"-> {x.bookie} clear limbo {x.limbo_lsn}",
    r.RepairEnded: lambda x, _: f"=> {x.outcome.value}",
    e.RecoveryFailed: lambda x, _: f"=> failed {x.answer.name}: {' '.join(x.bookies) or '-'}",
}


def _said(answers: Sequence[tuple[BookieId, Answer]]) -> str:
    return ", ".join(f"{bookie} {answer.name}" for bookie, answer in answers)


def _share(adds: e.SendRecoveryAdds | EntryRange) -> str:
    """Which of a striped range one bookie is sent."""
    if adds.period == 1:
        return ""
    return f" stripes {[r for r in range(adds.period) if adds.stripes >> r & 1]} of {adds.period}"


def effect_line(effect: object, ensemble: Sequence[BookieId]) -> str:
    """One effect on one line; slots are named by their bookies of `ensemble`."""
    line = _LINES.get(type(effect))
    if line is not None:
        return line(effect, ensemble)
    names = [field.name for field in fields(effect)] if is_dataclass(effect) else []
    return f"-> {type(effect).__name__} " + " ".join(f"{name}={getattr(effect, name)}" for name in names)


def block(command: str, said: Sequence[str], comments: Sequence[str] = ()) -> str:
    """One exchange of a transcript."""
    return "\n".join([*comments, command, "----", *said]) + "\n"
