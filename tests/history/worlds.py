"""Valid histories at random: small models that are right by construction, their events shuffled as time allows.

Each model offers steps; the world takes steps of all of them in any order, so that operations overlap.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

from history.scenes import clock, hashes
from quire_testing.history import Event, History

QUORUMS = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
BOOKIES = ["b1", "b2", "b3"]


def world(seed: int) -> list[Event]:
    """One random history of ledgers, logs, sinks and registers."""
    chance = random.Random(seed)
    history = History(clock())
    models = [
        *(ledger(chance, history, number) for number in range(1, chance.randint(1, 3) + 1)),
        log(chance, history, "orders"),
        sink(chance, history, "table"),
        register(chance, history, "leader"),
    ]
    while models:
        model = chance.choice(models)
        if next(model, None) is None:
            models.remove(model)
    return history.events


class Truth:
    """What is so of one ledger."""

    def __init__(self) -> None:
        self.sent = self.acked = 0
        self.last: int | None = None
        self.fenced = False
        self.pending: deque = deque()
        self.seen: dict[str, int] = {}

    @property
    def confirmed(self) -> int:
        """Entries that are in the ledger for ever."""
        return self.acked if self.last is None else self.last + 1


def ledger(chance: random.Random, history: History, number: int) -> Iterator[bool]:
    """A writer, two readers, perhaps recoverers, a scan, perhaps a delete."""
    truth = Truth()
    reading: list = []
    history.invoke(f"w{number}", "create", **QUORUMS).ok(ledger=number)
    for _ in range(chance.randint(5, 60)):
        match chance.choice(["append", "append", "ack", "ack", "read", "answer", "lac", "lac"]):
            case "append":
                append(chance, history, number, truth)
            case "ack" if truth.pending:
                acknowledge(chance, truth)
            case "read":
                first = chance.randint(0, truth.sent)
                last = first + chance.randint(0, 9)
                process = f"r{chance.randint(1, 2)}"
                asked = history.invoke(process, "read", ledger=number, first=first, last=last)
                reading.append((asked, first, last, truth.confirmed))
            case "answer" if reading:
                answer(chance, truth, *reading.pop(chance.randrange(len(reading))), number)
            case "lac":
                process = f"r{chance.randint(1, 2)}"
                low = truth.seen.get(process, -1)
                lac = chance.randint(low, max(low, truth.acked - 1))
                history.invoke(process, "read_lac", ledger=number).ok(lac=lac)
                truth.seen[process] = lac
        yield True
    if chance.random() < 0.5:
        yield from recovered(chance, history, number, truth)
    else:
        while truth.pending:
            acknowledge(chance, truth)
            yield True
        truth.last = truth.acked - 1
        history.invoke(f"w{number}", "close", ledger=number).ok(last=truth.last)
    while reading:
        answer(chance, truth, *reading.pop(), number)
        yield True
    history.invoke("r3", "open", ledger=number, recover=False).ok(closed=True, last=truth.last)
    asked = history.invoke("r3", "read", ledger=number, first=0, last=truth.last + 2)
    answer(chance, truth, asked, 0, truth.last + 2, truth.confirmed, number)
    yield True
    scan(chance, history, number, truth)
    if chance.random() < 0.3:
        late = history.invoke("r1", "read", ledger=number, first=0, last=5)
        history.invoke(f"w{number}", "delete", ledger=number).ok()
        late.ok(missing=[[0, 5]])


def append(chance: random.Random, history: History, number: int, truth: Truth) -> None:
    if truth.fenced:
        return
    first, count = truth.sent, chance.randint(1, 6)
    value = hashes(first, first + count - 1, f"ledger {number}")
    known = {"first": first} if chance.random() < 0.8 else {}
    asked = history.invoke(f"w{number}", "append", ledger=number, hashes=value, **known)
    truth.pending.append((asked, first, count))
    truth.sent += count


def acknowledge(chance: random.Random, truth: Truth) -> None:
    """The oldest group is answered: acknowledged if it is, or can come to be, confirmed."""
    asked, first, count = truth.pending.popleft()
    confirmed = count if not truth.fenced else min(count, max(0, truth.confirmed - first))
    if confirmed == count:
        asked.ok(first=first)
    elif confirmed and chance.random() < 0.5:
        asked.ok(first=first, count=confirmed)
    else:
        asked.unknown("LedgerFencedError")
        truth.fenced = True
        return
    truth.acked = max(truth.acked, first + confirmed)


def answer(
    chance: random.Random, truth: Truth, asked, first: int, last: int, before: int, number: int
) -> None:
    """A read is answered: what was confirmed when it was asked is there, what was confirmed since may be."""
    end = chance.randint(min(before, truth.confirmed), truth.confirmed) - 1
    told = {}
    if end >= first:
        told["hashes"] = hashes(first, min(end, last), f"ledger {number}")
    if end < last:
        told[chance.choice(["missing", "unsure"])] = [[max(first, end + 1), last]]
    asked.ok(**told)


def recovered(chance: random.Random, history: History, number: int, truth: Truth) -> Iterator[bool]:
    """One or two recoverers; of what was not acknowledged, a prefix is in the ledger."""
    one = history.invoke("c1", "recover", ledger=number)
    other = history.invoke("c2", "open", ledger=number, recover=True) if chance.random() < 0.5 else None
    yield True
    truth.fenced = True
    truth.last = chance.randint(truth.acked, truth.sent) - 1
    order = [lambda: one.ok(last=truth.last)]
    if other is not None:
        order.append(lambda: other.ok(closed=True, last=truth.last))
    chance.shuffle(order)
    for tell in order:
        tell()
        if truth.pending and chance.random() < 0.5:
            acknowledge(chance, truth)
        yield True
    while truth.pending and chance.random() < 0.7:
        truth.pending.popleft()[0].unknown("LedgerFencedError")
        yield True


def scan(chance: random.Random, history: History, number: int, truth: Truth) -> None:
    """Two bookies have everything; the third has it from somewhere on, and the first some more."""
    fragments = [[0, BOOKIES]]
    history.note(
        "m",
        "metadata",
        ledger=number,
        version=2,
        state="closed",
        last=truth.last,
        **QUORUMS,
        fragments=fragments,
    )
    held = {
        "b1": (0, truth.sent - 1),
        "b2": (0, truth.last),
        "b3": (chance.randint(0, truth.last + 1), truth.last),
    }
    for bookie, (first, last) in held.items():
        while first <= last:
            end = min(last, first + chance.randint(0, 9))
            value = hashes(first, end, f"ledger {number}")
            history.note("scan", "replica", bookie=bookie, ledger=number, first=first, hashes=value)
            first = end + 1
        history.note("scan", "scanned", bookie=bookie, ledger=number)


def log(chance: random.Random, history: History, name: str) -> Iterator[bool]:
    """Leaders one after the other; appends that a take-over overtakes are in the log or not."""
    ledgers, version, end, sent = [1], 0, 0, 0
    records: dict[int, str] = {}
    history.invoke("r1", "list_read", log=name).ok(version=0, ledgers=[1])
    for leader in range(1, chance.randint(2, 5)):
        process = f"l{leader}"
        trimmed = ledgers[chance.randint(0, len(ledgers) - 1) :]
        ledgers = [*trimmed, 100 + leader]
        swap = history.invoke(
            process, "list_swap", log=name, expected=version, ledgers=list(ledgers), leader=leader
        )
        version += 1
        yield True
        if chance.random() < 0.8:
            swap.ok(version=version)
        else:
            swap.unknown("MetadataUnknownError")
        for _ in range(chance.randint(1, 8)):
            count = chance.randint(1, 5)
            value = hashes(sent, sent + count - 1, name)
            sent += count
            asked = history.invoke(process, "log_append", log=name, leader=leader, hashes=value)
            yield True
            if chance.random() < 0.8:
                asked.ok(first=end)
                records[end] = value
                end += count
                continue
            kept = chance.randint(0, count)
            if kept:
                records[end] = value[: 8 * kept]
                end += kept
            asked.unknown("NotLeaderError")
            break
        yield True
        if end:
            read = "".join(records[offset] for offset in sorted(records))
            first = chance.randrange(end)
            history.invoke("r1", "log_read", log=name, first=first).ok(hashes=read[8 * first :])
    history.invoke("r1", "list_read", log=name).ok(version=version, ledgers=list(ledgers))


def sink(chance: random.Random, history: History, name: str) -> Iterator[bool]:
    """Epochs that are committed, given up, or of unknown outcome."""
    for epoch in range(chance.randint(1, 4)):
        rows = [hashes(row, row, name) for row in range(epoch * 10, epoch * 10 + chance.randint(1, 9))]
        history.note("source", "source_rows", sink=name, epoch=epoch, hashes="".join(rows))
        commit = history.invoke("job", "sink_commit", sink=name, epoch=epoch)
        yield True
        outcome = chance.choice(["ok", "ok", "ok", "fail", "unknown"])
        there = outcome == "ok" or (outcome == "unknown" and chance.random() < 0.5)
        if outcome == "ok":
            commit.ok()
        elif outcome == "fail":
            commit.fail("conflict")
        else:
            commit.unknown("TimeoutError")
        yield True
        chance.shuffle(rows)
        history.note("scan", "sink_rows", sink=name, epoch=epoch, hashes="".join(rows) if there else "")


def register(chance: random.Random, history: History, key: str) -> Iterator[bool]:
    """Up to four operations at a time, each of which happens at one moment between its two events."""
    value: str | None = None
    under_way: list = []
    for number in range(chance.randint(5, 40)):
        for call in under_way:
            if not call["done"] and chance.random() < 0.5:
                call["done"] = True
                if call["kind"] == "get":
                    call["saw"] = value
                elif call["expected"] == value:
                    call["won"], value = True, call["value"]
        if len(under_way) < 4 and chance.random() < 0.7:
            kind = chance.choice(["get", "swap"])
            call = {"kind": kind, "done": False, "won": False, "expected": value, "value": f"v{number}"}
            arguments = {} if kind == "get" else {"expected": value, "value": call["value"]}
            call["asked"] = history.invoke(f"p{number}", kind, key=key, **arguments)
            under_way.append(call)
        elif under_way:
            call = under_way.pop(chance.randrange(len(under_way)))
            if call["kind"] == "get":
                if call["done"]:
                    call["asked"].ok(value=call["saw"])
            elif chance.random() < 0.15:
                call["asked"].unknown("TimeoutError")
            elif call["won"]:
                call["asked"].ok()
            elif call["done"]:
                call["asked"].fail("conflict")
        yield True
