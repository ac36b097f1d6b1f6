"""A valid history of everything, and tools to spoil it."""

from __future__ import annotations

import copy
import json
from typing import Any

from quire_testing.history import Event, History, entry_hashes


def clock():
    now = 0

    def now_ns():
        nonlocal now
        now += 10
        return now

    return now_ns


def payloads(first: int, last: int, tag: str = "entry") -> list[bytes]:
    """What entry `n` of a ledger holds; different for every id and tag."""
    return [f"{tag} {number}".encode() for number in range(first, last + 1)]


def hashes(first: int, last: int, tag: str = "entry") -> str:
    return entry_hashes(payloads(first, last, tag))


def striped(low: int, high: int, period: int, stripes: int, tag: str = "entry") -> str:
    """The hashes of the entries of some stripes."""
    wanted = [number for number in range(low, high + 1) if stripes >> number % period & 1]
    return "".join(hashes(number, number, tag) for number in wanted)


def one_of_everything() -> list[Event]:
    """Ledgers, terms, a log, a sink, registers: every kind of event, nothing wrong."""
    history = History(clock())
    closed_ledger(history)
    taken_over_ledger(history)
    recovered_ledger(history)
    striped_ledger(history)
    deleted_ledger(history)
    one_log(history)
    one_sink(history)
    one_register(history)
    history.note("scan", "quiescent", guaranteed=True)
    return history.events


def closed_ledger(history: History) -> None:
    """Ledger 1: written in order, read beside the writer, closed by it; three whole replicas."""
    history.invoke("w1", "create", ensemble_size=3, write_quorum=3, ack_quorum=2).ok(ledger=1)
    first = history.invoke("w1", "append", ledger=1, first=0, hashes=hashes(0, 3))
    second = history.invoke("w1", "append", ledger=1, first=4, hashes=hashes(4, 9))
    first.ok(first=0, lac=3)
    history.invoke("r1", "open", ledger=1, recover=False).ok(closed=False, lac=3)
    history.invoke("r1", "read", ledger=1, first=0, last=5).ok(
        hashes=hashes(0, 3), missing=[[4, 4]], unsure=[[5, 5]]
    )
    history.invoke("r1", "read_lac", ledger=1).ok(lac=3)
    second.ok(first=4, lac=9)
    third = history.invoke("w1", "append", ledger=1, hashes=hashes(10, 10))
    third.ok(first=10)
    history.invoke("r1", "read_lac", ledger=1).ok(lac=9)
    history.invoke("w1", "change_ensemble", ledger=1, first=5, ensemble=["b1", "b2", "b4"]).ok(version=2)
    history.invoke("w1", "close", ledger=1).ok(last=10)
    history.invoke("r1", "open", ledger=1, recover=False).ok(closed=True, last=10)
    history.invoke("r1", "read", ledger=1, first=0, last=10).ok(hashes=hashes(0, 10))
    history.invoke("r2", "read", ledger=1, first=0, last=12).ok(hashes=hashes(0, 10), missing=[[11, 12]])
    quorums = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
    fragments = [[0, ["b1", "b2", "b3"]]]
    history.note("metadata", "metadata", ledger=1, version=1, state="open", **quorums, fragments=fragments)
    fragments = [[0, ["b1", "b2", "b3"]], [5, ["b1", "b2", "b4"]]]
    history.note("metadata", "metadata", ledger=1, version=2, state="open", **quorums, fragments=fragments)
    history.note(
        "metadata", "metadata", ledger=1, version=3, state="closed", last=10, **quorums, fragments=fragments
    )
    history.note("b3", "stored", bookie="b3", ledger=1, first=0, hashes=hashes(0, 3))
    history.note("b3", "synced", bookie="b3")
    for bookie, low, high in (("b1", 0, 10), ("b2", 0, 10), ("b3", 0, 6), ("b4", 5, 10)):
        history.note("scan", "replica", bookie=bookie, ledger=1, first=low, hashes=hashes(low, high))
        history.note("scan", "scanned", bookie=bookie, ledger=1)


def recovered_ledger(history: History) -> None:
    """Ledger 2: its writer died; two recoverers; one unacknowledged entry survives, two do not."""
    history.invoke("w2", "create", ensemble_size=3, write_quorum=3, ack_quorum=2).ok(ledger=2)
    history.invoke("w2", "append", ledger=2, first=0, hashes=hashes(0, 4)).ok()
    late = history.invoke("w2", "append", ledger=2, first=5, hashes=hashes(5, 6))
    history.invoke("w2", "append", ledger=2, first=7, hashes=hashes(7, 7))
    history.invoke("r1", "fence", ledger=2).ok(lac=4)
    history.note("b1", "fenced", bookie="b1", ledger=2)
    one = history.invoke("r1", "recover", ledger=2)
    other = history.invoke("r2", "open", ledger=2, recover=True)
    late.unknown("LedgerFencedError")
    one.ok(last=5)
    other.ok(closed=True, last=5, lac=5)
    history.invoke("w2", "close", ledger=2).fail("LedgerFencedError")
    history.invoke("r2", "read", ledger=2, first=0, last=7).ok(hashes=hashes(0, 5), missing=[[6, 7]])
    history.invoke("r1", "read", ledger=2, first=5, last=5).ok(hashes=hashes(5, 5))


def taken_over_ledger(history: History) -> None:
    """Ledger 3: terms; the second writer begins behind what it found, and writes another value over an unacknowledged one."""
    history.invoke("t1", "takeover", ledger=3, term=1).ok(first=0)
    history.invoke("t1", "append", ledger=3, term=1, first=0, hashes=hashes(0, 2)).ok(first=0)
    lost = history.invoke("t1", "append", ledger=3, term=1, first=3, hashes=hashes(3, 4, "lost"))
    history.invoke("t2", "takeover", ledger=3, term=2).ok(first=3)
    history.note("b1", "truncated", bookie="b1", ledger=3, last=2, term=2)
    lost.unknown("TermSupersededError")
    history.invoke("t1", "resolve", ledger=3, term=1, first=3, hashes=hashes(3, 4, "lost")).ok(kept=False)
    history.invoke("t2", "append", ledger=3, term=2, first=3, hashes=hashes(3, 5)).ok(first=3)
    history.note("b1", "stored", bookie="b1", ledger=3, term=2, first=3, hashes=hashes(3, 5))
    history.invoke("r1", "read", ledger=3, first=0, last=5).ok(hashes=hashes(0, 5))
    history.note("scan", "replica", bookie="b1", ledger=3, first=0, hashes=hashes(0, 5))


def striped_ledger(history: History) -> None:
    """Ledger 4: E = 3, Qw = 2: each bookie has two thirds."""
    history.invoke("w4", "create", ensemble_size=3, write_quorum=2, ack_quorum=2).ok(ledger=4)
    history.invoke("w4", "append", ledger=4, first=0, hashes=hashes(0, 11)).ok(first=0)
    history.invoke("w4", "close", ledger=4).ok(last=11)
    history.note(
        "metadata",
        "metadata",
        ledger=4,
        version=1,
        state="closed",
        last=11,
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        fragments=[[0, ["b1", "b2", "b3"]]],
    )
    for bookie, first, stripes in (("b1", 0, 0b101), ("b2", 0, 0b011), ("b3", 1, 0b110)):
        which = {"period": 3, "residues": stripes}
        history.note(
            "scan",
            "replica",
            bookie=bookie,
            ledger=4,
            first=first,
            hashes=striped(first, 11, 3, stripes),
            **which,
        )
        history.note("scan", "scanned", bookie=bookie, ledger=4)


def deleted_ledger(history: History) -> None:
    """Ledger 5: deleted while somebody reads."""
    history.invoke("w5", "create", ensemble_size=1, write_quorum=1, ack_quorum=1).ok(ledger=5)
    history.invoke("w5", "append", ledger=5, first=0, hashes=hashes(0, 1)).ok(first=0)
    history.invoke("w5", "close", ledger=5).ok(last=1)
    reading = history.invoke("r1", "read", ledger=5, first=0, last=1)
    deleting = history.invoke("w5", "delete", ledger=5)
    reading.ok(missing=[[0, 1]])
    deleting.ok()
    history.invoke("r1", "read", ledger=5, first=0, last=1).ok(missing=[[0, 1]])
    history.invoke("r1", "open", ledger=5, recover=False).fail("NoSuchLedgerError")


def one_log(history: History) -> None:
    """Log `orders`: two leaders, the second takes over; one append of unknown outcome is in it, one is not."""
    swap = {"log": "orders", "leader": 1}
    history.invoke("l1", "list_read", log="orders").ok(version=0, ledgers=[10])
    history.invoke("l1", "list_swap", **swap, expected=0, ledgers=[10, 11]).ok(version=1)
    history.invoke("l1", "log_append", log="orders", leader=1, hashes=hashes(0, 4, "log")).ok(first=0)
    survives = history.invoke("l1", "log_append", log="orders", leader=1, hashes=hashes(5, 6, "log"))
    vanishes = history.invoke("l1", "log_append", log="orders", leader=1, hashes=hashes(90, 91, "log"))
    taking = history.invoke("l2", "list_swap", log="orders", leader=2, expected=1, ledgers=[10, 11, 12])
    history.invoke("l1", "list_swap", **swap, expected=1, ledgers=[10, 11, 13]).fail("conflict")
    taking.ok(version=2)
    survives.unknown("NotLeaderError")
    vanishes.unknown("NotLeaderError")
    history.invoke("l2", "log_append", log="orders", leader=2, hashes=hashes(7, 9, "log")).ok(first=7)
    history.invoke("r1", "log_read", log="orders", first=0).ok(hashes=hashes(0, 9, "log"))
    history.invoke("l2", "log_truncate", log="orders", before=5).ok()
    history.invoke("l2", "list_swap", log="orders", leader=2, expected=2, ledgers=[11, 12]).ok(version=3)
    history.invoke("r1", "log_read", log="orders", first=0, last=9).ok(hashes="", missing=[[0, 4]])
    history.note("metadata", "log_list", log="orders", version=3, ledgers=[11, 12], leader=2)


def one_sink(history: History) -> None:
    """Sink `table`: two epochs committed, one tried and given up."""
    for epoch in (0, 1):
        history.note("source", "source_rows", sink="table", epoch=epoch, hashes=hashes(0, 5, f"row {epoch}"))
        history.invoke("job", "sink_commit", sink="table", epoch=epoch).ok()
    history.note("source", "source_rows", sink="table", epoch=2, hashes=hashes(0, 5, "row 2"))
    history.invoke("job", "sink_commit", sink="table", epoch=2).fail("conflict")
    history.invoke("job", "sink_commit", sink="table", epoch=3).unknown("TimeoutError")
    history.note(
        "scan", "sink_rows", sink="table", epoch=1, hashes=hashes(3, 5, "row 1") + hashes(0, 2, "row 1")
    )
    history.note("scan", "sink_rows", sink="table", epoch=0, hashes=hashes(0, 5, "row 0"))


def one_register(history: History) -> None:
    """Register `leader`: two swaps at once, and reads around them."""
    history.invoke("a", "swap", key="leader", expected=None, value="a").ok()
    of_a = history.invoke("a", "swap", key="leader", expected="a", value="a2")
    of_b = history.invoke("b", "swap", key="leader", expected="a2", value="b")
    reading = history.invoke("c", "get", key="leader")
    of_b.ok()
    of_a.ok()
    reading.ok(value="a2")
    history.invoke("a", "swap", key="leader", expected="b", value="c").unknown("TimeoutError")
    history.invoke("c", "get", key="leader").ok(value="b")
    history.invoke("c", "get", key="leader").ok(value="c")
    history.note("c", "crashed", reason="end")
    history.note("c", "comment", text="all is told")


class Spoiled:
    """A copy of a history that can be spoiled in one place.

    Args:
        events: the history.
    """

    def __init__(self, events: list[Event]) -> None:
        self.events = copy.deepcopy(events)

    def find(self, kind: str, what: str, nth: int = 0, **facts: Any) -> int:
        """Where the nth such event stands; `facts` are of the event itself, or of its invocation."""
        asked: dict[int, dict[str, Any]] = {}
        found = []
        for index, event in enumerate(self.events):
            if event.event == "invoke":
                asked[event.operation] = event.facts
            about = {**asked.get(event.operation, {}), **event.facts, "process": event.process}
            if event.kind == kind and event.event == what and facts.items() <= about.items():
                found.append(index)
        return found[nth]

    def change(self, kind: str, what: str, nth: int = 0, *, to: dict[str, Any], **facts: Any) -> None:
        """Say something else in one event."""
        self.events[self.find(kind, what, nth, **facts)].facts.update(to)

    def drop(self, kind: str, what: str, nth: int = 0, *, only: str = "", **facts: Any) -> None:
        """Leave an event out; `only`: leave a field out instead."""
        index = self.find(kind, what, nth, **facts)
        if only:
            del self.events[index].facts[only]
        else:
            del self.events[index]

    def insert(self, index: int, process: str, kind: str, arguments: dict[str, Any], **result: Any) -> None:
        """Put an operation that was answered ok at a place."""
        number = 1000 + len(self.events)
        self.events[index:index] = [
            Event(0, process, "invoke", number, kind, arguments),
            Event(0, process, "ok", number, kind, result),
        ]

    def note(self, index: int, kind: str, **facts: Any) -> None:
        """Put a note at a place."""
        self.events[index:index] = [Event(0, "scan", "note", -1, kind, facts)]

    def swap(self, one: int, other: int) -> None:
        """Two events change places."""
        self.events[one], self.events[other] = self.events[other], self.events[one]

    def numbered(self) -> list[Event]:
        """The history with its lines counted anew."""
        for line, event in enumerate(self.events, 1):
            event.line = line
        return self.events


def text_of(events: list[Event]) -> bytes:
    """A history as a file."""
    from quire_testing.history.recorder import event_line, header_line

    return (header_line("monotonic") + "".join(map(event_line, events))).encode()


def flipped(text: str, digit: int) -> str:
    """Hashes with one digit changed."""
    other = format(int(text[digit], 16) ^ 1, "x")
    return text[:digit] + other + text[digit + 1 :]


def pretty(events: list[Event]) -> str:
    return "\n".join(
        json.dumps([event.line, event.process, event.event, event.kind, event.facts]) for event in events
    )
