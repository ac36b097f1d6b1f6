"""The judge: events in, a verdict out.

It looks at each event once, in order, and gives each to the ledger, log, sink or register that it is about. What it keeps
is a few bytes per entry and per event; a ledger that was deleted gives its share back.

Source: docs/formats/history.md, "What is judged".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from quire_testing.history.asked import Asked
from quire_testing.history.events import HASH_DIGITS, INVOKE, NOTE, OUTCOMES, Event, MalformedHistoryError
from quire_testing.history.kinds import KINDS, NOTES, OPERATIONS, TYPES, EventKind
from quire_testing.history.ledger import LedgerJudge
from quire_testing.history.logs import LogJudge
from quire_testing.history.registers import ANYTHING, Call, RegisterSearch, register
from quire_testing.history.sinks import SinkJudge
from quire_testing.history.verdict import Findings, Verdict


def judge(events: Iterable[Event], *, hash_digits: int = HASH_DIGITS) -> Verdict:
    """Judge a history.

    Args:
        events: all of them, in order.
        hash_digits: hexadecimal digits of one entry's hash.

    Returns:
        What was looked at, and what contradicts what.

    Raises:
        MalformedHistoryError: an event does not say what its kind must say, or answers what was not asked.
    """
    court = Judge(hash_digits=hash_digits)
    for event in events:
        court.see(event)
    return court.finish()


PERIOD_MAX: Final = 60
"""As many bookies as an ensemble may have."""


class Judge:
    """Judges a history event by event.

    Args:
        hash_digits: hexadecimal digits of one entry's hash.
    """

    def __init__(self, *, hash_digits: int = HASH_DIGITS) -> None:
        self._digits = hash_digits
        self._width = hash_digits // 2
        self._findings = Findings()
        self._asked: dict[tuple[str, int], Asked] = {}
        self._ledgers: dict[int, LedgerJudge] = {}
        self._logs: dict[str, LogJudge] = {}
        self._sinks: dict[str, SinkJudge] = {}
        self._registers: dict[str, RegisterSearch] = {}
        self._calls: dict[int, Call] = {}
        self._guaranteed = False

    def see(self, event: Event) -> None:
        """The next event.

        Raises:
            MalformedHistoryError: it does not say what its kind must say, or answers what was not asked.
        """
        place = self._findings.next_event(event)
        self._findings.verdict.events += 1
        kind = KINDS.get(event.kind)
        if kind is None:
            raise malformed(event, f"there is no kind {event.kind!r}; there are {', '.join(KINDS)}")
        counts = self._findings.verdict.kinds.setdefault(event.kind, Counter())
        if event.event == NOTE:
            self._check_fields(event, NOTES.get(event.kind), kind.invoke, kind.invoke_may)
            counts["note"] += 1
            self._noted(event, place)
        elif event.event == INVOKE:
            self._check_fields(event, OPERATIONS.get(event.kind), kind.invoke, kind.invoke_may)
            counts["open"] += 1
            self._invoked(event, place)
        elif event.event in OUTCOMES:
            asked = self._asked.pop((event.file, event.operation), None)
            if asked is None or asked.kind != event.kind or asked.process != event.process:
                raise malformed(event, self._no_question(event, asked))
            counts["open"] -= 1
            counts[event.event] += 1
            self._answered(event, asked, place)
        else:
            raise malformed(event, f"an event is invoke, ok, fail, unknown or note, not {event.event!r}")

    def _no_question(self, event: Event, asked: Asked | None) -> str:
        if asked is None:
            return f"this {event.event} answers operation {event.operation}, which was not asked or had its answer"
        return (
            f"operation {event.operation} is a {asked.kind} of {asked.process}, "
            f"and this answers a {event.kind} of {event.process}"
        )

    # --- what comes in ------------------------------------------------------------------------------------------

    def _invoked(self, event: Event, place: int) -> None:
        facts = event.facts
        key = event.file, event.operation
        if key in self._asked:
            raise malformed(event, f"operation {event.operation} is under way already")
        asked = self._asked[key] = Asked(event.process, event.kind, facts, place)
        if event.kind in {"append", "log_append"}:
            asked.data = bytes.fromhex(facts["hashes"])
            if not asked.data:
                raise malformed(event, "hashes is empty: an append has at least one entry")
        if event.kind == "read" and facts["first"] > facts["last"]:
            raise malformed(event, f"a read of {facts['first']}..{facts['last']} goes backwards")
        if "ledger" in facts:
            self._ledger(facts["ledger"]).invoked(asked)
        elif "log" in facts:
            self._log(facts["log"]).invoked(asked)
        elif "sink" in facts:
            self._sink(facts["sink"]).invoked(asked)
        elif "key" in facts:
            arguments = facts.get("expected"), facts.get("value")
            call = self._calls[place] = Call(event.kind, arguments, place)
            self._register(facts["key"]).invoke(call)

    def _answered(self, event: Event, asked: Asked, place: int) -> None:
        facts = event.facts
        if event.event == "ok":
            kind = KINDS[event.kind]
            self._check_fields(event, kind, kind.ok, kind.ok_may)
            self._check_answer(event, asked)
        about = {**asked.facts, **facts} if event.kind == "create" else asked.facts
        if "ledger" in about:
            self._ledger(about["ledger"]).answered(asked, event.event, facts, place)
        elif "log" in about:
            self._log(about["log"]).answered(asked, event.event, facts, place)
        elif "sink" in about:
            self._sink(about["sink"]).answered(asked, event.event, place)
        elif "key" in about:
            self._register_answered(event, asked, place)
        elif event.event == "ok":
            raise malformed(event, "a create that was answered ok must say which ledger was made")

    def _register_answered(self, event: Event, asked: Asked, place: int) -> None:
        key = asked.facts["key"]
        search, call = self._register(key), self._calls.pop(asked.place)
        if event.event == "fail" or (event.event == "unknown" and event.kind == "get"):
            search.fail(call)
        elif event.event == "unknown":
            search.unknown(call)
        else:
            self._findings.checked(12)
            self._fits(key, search.ok(call, event.facts.get("value"), place))

    def _fits(self, key: str, call: Call | None) -> None:
        if call is not None:
            self._findings.violation(
                12,
                f"register {key}: no order of its operations explains the {call.kind} that was asked at the first of these "
                "lines and answered at the second",
                call.invoked,
                call.answered,
            )

    def _noted(self, event: Event, place: int) -> None:
        facts = event.facts
        if event.kind == "metadata" and facts["state"] == "closed" and "last" not in facts:
            raise malformed(event, "the record of a closed ledger needs its last entry: last")
        if event.kind == "quiescent":
            self._guaranteed = facts.get("guaranteed", False)
        elif event.kind in {"comment", "synced", "crashed", "started"}:
            return
        elif "ledger" in facts:
            period = facts.get("period", 1)
            if not 1 <= period <= PERIOD_MAX or (
                "period" in facts and not 1 <= facts.get("residues", 0) < 1 << period
            ):
                raise malformed(
                    event,
                    f"a period is 1 to {PERIOD_MAX} and comes with residues, a bit for each of it that is held",
                )
            self._ledger(facts["ledger"]).noted(event.kind, facts, place)
        elif "log" in facts:
            self._log(facts["log"]).noted(facts, place)
        else:
            self._sink(facts["sink"]).noted(event.kind, facts, place)

    # --- is it an event of its kind -----------------------------------------------------------------------------

    def _check_fields(
        self, event: Event, kind: EventKind | None, must: dict[str, str], may: dict[str, str]
    ) -> None:
        if kind is None:
            what = "a note" if event.kind in NOTES else "an operation, not a note"
            raise malformed(event, f"{event.kind} is {what}")
        facts = event.facts
        for name in must:
            if name not in facts:
                raise malformed(event, f"{event.event} of {event.kind} needs the field {name}")
        for name, value in facts.items():
            type_name = must.get(name) or may.get(name)
            if type_name is None:
                if kind.free or name.startswith("x_"):
                    continue
                known = ", ".join([*must, *may]) or "none"
                raise malformed(event, f"{event.event} of {event.kind} has no field {name}; it has {known}")
            text, is_one = TYPES[type_name]
            if not is_one(value):
                raise malformed(event, f"{name} must be {text}, not {value!r}"[:200])
            if type_name == "hashes" and len(value) % self._digits:
                raise malformed(
                    event, f"{name} has {len(value)} digits, which is no multiple of {self._digits}"
                )
        if facts.get("first", 0) < 0:
            raise malformed(event, f"first must be 0 or more, not {facts['first']}")

    def _check_answer(self, event: Event, asked: Asked) -> None:
        facts = event.facts
        if not 0 <= facts.get("count", 0) <= len(asked.data) // self._width:
            raise malformed(event, f"count is 0 to {len(asked.data) // self._width}, not {facts['count']}")
        match event.kind:
            case "append" if "first" not in facts and "first" not in asked.facts:
                raise malformed(
                    event, "an append that was acknowledged needs the id of its first entry: first"
                )
            case "open" if facts["closed"] and "last" not in facts:
                raise malformed(event, "an open that found the ledger closed needs its last entry: last")
            case "read":
                first, last = asked.facts["first"], asked.facts["last"]
                if len(facts.get("hashes", "")) // self._digits > last + 1 - first:
                    raise malformed(
                        event, f"more hashes than the {last + 1 - first} entries that were asked for"
                    )
                for low, high in (*facts.get("missing", ()), *facts.get("unsure", ())):
                    if low < first or high > last:
                        raise malformed(
                            event, f"{low}..{high} lies outside of {first}..{last}, which was asked for"
                        )

    # --- what it is about ---------------------------------------------------------------------------------------

    def _ledger(self, ledger: int) -> LedgerJudge:
        found = self._ledgers.get(ledger)
        if found is None:
            found = self._ledgers[ledger] = LedgerJudge(ledger, self._width, self._findings)
        return found

    def _log(self, log: str) -> LogJudge:
        found = self._logs.get(log)
        if found is None:
            found = self._logs[log] = LogJudge(log, self._width, self._findings)
        return found

    def _sink(self, sink: str) -> SinkJudge:
        found = self._sinks.get(sink)
        if found is None:
            found = self._sinks[sink] = SinkJudge(sink, self._width, self._findings)
        return found

    def _register(self, key: str) -> RegisterSearch:
        found = self._registers.get(key)
        if found is None:
            found = self._registers[key] = RegisterSearch(ANYTHING, register)
        return found

    def finish(self) -> Verdict:
        """No more events will come.

        Returns:
            The verdict.
        """
        pending: dict[int, list[Asked]] = {}
        for asked in self._asked.values():
            if "ledger" in asked.facts:
                pending.setdefault(asked.facts["ledger"], []).append(asked)
        for number, ledger in self._ledgers.items():
            ledger.finish(pending.get(number, []), guaranteed=self._guaranteed)
        for log in self._logs.values():
            log.finish()
        for sink in self._sinks.values():
            sink.finish()
        for key, search in self._registers.items():
            self._fits(key, search.cut())
            if search.exhausted:
                self._findings.verdict.undecided.append(
                    f"register {key}: the search for an order of its operations"
                )
        return self._findings.verdict


def malformed(event: Event, what: str) -> MalformedHistoryError:
    """The error for an event that is none."""
    where = f"{event.file}, line {event.line}" if event.file else f"line {event.line}"
    return MalformedHistoryError(f"{where}: {what}", line=event.line, file=event.file)
