"""Openers, leaders and a truncater over one list, in any order, with crashes and lost answers: L1 to L7 hold.

The world is small and adversarial: every effect is a step of its own that may happen late; a compare-and-swap may land without its
answer, or after its caller has given up; a client may vanish between any two steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.errors import NotWritingError, QuireError
from quire.core.ids import LedgerId
from quire.core.log import effects
from quire.core.log.effects import EndReason
from quire.core.log.list import LedgerSummary, LogHead, LogItem, LogPage, PageLayout
from quire.core.log.machine import LogMachine, LogStatus
from quire.core.log.rules import RULES, LogRules
from quire.core.log.trimming import (
    TrimDeleteLedger,
    TrimDeletePage,
    TrimEnded,
    TrimMachine,
    TrimReadPage,
)
from quire_testing.explorer.mutants import MUTANTS

LAYOUT = PageLayout(page_items=2, fan_out=2)


@dataclass
class Ledger:
    """A ledger as its bookies and its record have it."""

    records: list[tuple[int, int]] = field(default_factory=list)
    closed: bool = False


class Client:
    """One handle: its machine, what it was asked to append, what is under way."""

    def __init__(self, number: int, rules: LogRules, name_page: object) -> None:
        self.number = number
        self.machine = LogMachine(f"h{number}", name_page=name_page, layout=LAYOUT, rules=rules)
        self.work: deque = deque()
        self.appended = 0
        self.sent: deque[tuple[LedgerId, int]] = deque()
        self.target: LedgerId | None = None
        self.draining: LedgerId | None = None
        self.confirmed: dict[LedgerId, int] = {}
        self.alive = True


class World:
    """The store, the ledgers, the clients; every public method is one step."""

    def __init__(self, rules: LogRules = RULES) -> None:
        self.rules = rules
        self.head: LogHead | None = LogHead(b"\x07" * 16, "orders")
        self.version = 1
        self.pages: dict[str, LogPage] = {}
        self.ledgers: dict[int, Ledger] = {}
        self.next_ledger = 0
        self.clients: list[Client] = []
        self.late: list[tuple[LogHead, int]] = []
        self.acked: list[tuple[int, int]] = []
        self.indexes: dict[int, int] = {}
        self.trimmed: list[tuple[int, int]] = []
        self.trims: list[TrimMachine] = []
        self.trim_work: deque = deque()
        self.deleted: set[int] = set()

    # --- steps -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        if sum(client.alive for client in self.clients) < 3:
            client = Client(len(self.clients), self.rules, self.name_page)
            self.clients.append(client)
            client.machine.open()
            self.settle(client)

    def name_page(self, page: LogPage) -> str:
        return f"{page.level}:" + ",".join(
            [str(item.ledger_id) for item in page.items] + [child.name for child in page.children]
        )

    def append(self, client: Client) -> None:
        if client.target is not None:
            client.sent.append((client.target, client.appended))
            client.appended += 1

    def land(self, client: Client) -> None:
        """The oldest add reaches its ledger and is confirmed, or is refused and ends its writer."""
        if not client.sent:
            return
        ledger_id, number = client.sent.popleft()
        ledger = self.ledgers.get(ledger_id)
        if ledger is None or ledger.closed:
            client.machine.ledger_failed(ledger_id, "fenced")
        else:
            ledger.records.append((client.number, number))
            self.acked.append((client.number, number))
            client.confirmed[ledger_id] = client.confirmed.get(ledger_id, 0) + 1
            self.drained(client)
        self.settle(client)

    def drained(self, client: Client) -> None:
        if client.draining is not None and all(ledger != client.draining for ledger, _ in client.sent):
            ledger_id, client.draining = client.draining, None
            client.machine.drained(ledger_id, client.confirmed.get(ledger_id, 0))

    def work(self, client: Client, fate: int) -> None:
        """Carry out the oldest effect of a client."""
        if not client.work:
            return
        effect = client.work.popleft()
        machine = client.machine
        match effect:
            case effects.ReadHead():
                machine.head_read(self.head, self.version)
            case effects.RecoverLedger(item):
                ledger = self.ledgers.get(item.ledger_id)
                if ledger is None:
                    machine.recovery_failed(item.ledger_id, deleted=True, detail="gone")
                else:
                    ledger.closed = True
                    machine.recovered(item.ledger_id, LedgerSummary(len(ledger.records)))
            case effects.CreateLedger():
                self.next_ledger += 1
                self.ledgers[self.next_ledger] = Ledger()
                machine.created(LedgerId(self.next_ledger), 0)
            case effects.WriteHead(head, version, pages):
                self.pages.update({self.name_page(page): page for page in pages})
                self.cas(client, head, version, fate)
            case effects.DeleteLedger(ledger_id):
                assert ledger_id not in self.listed(), (
                    f"ledger {ledger_id} was deleted while the list holds it"
                )
                self.delete(ledger_id)
            case effects.BackOff():
                machine.retry()
            case effects.CloseLedger(ledger_id):
                self.close_ledger(client, ledger_id)
        self.settle(client)

    def cas(self, client: Client, head: LogHead, version: int, fate: int) -> None:
        if fate == 0:
            self.late.append((head, version))
            client.machine.head_unknown()
        elif self.head is not None and version == self.version:
            self.write(head)
            if fate == 1:
                client.machine.head_unknown()
            elif fate == 2:
                client.machine.head_conflicted()
            else:
                client.machine.head_written(self.version)
        else:
            client.machine.head_conflicted()

    def later(self, client: Client) -> None:
        """What a client asked for first happens last."""
        client.work.rotate(-1)

    def land_late(self) -> None:
        """A compare-and-swap whose caller was told nothing arrives after all."""
        if self.late:
            head, version = self.late.pop(0)
            if version == self.version and self.head is not None:
                self.write(head)

    def write(self, head: LogHead) -> None:
        self.head = head
        self.version += 1

    def close_ledger(self, client: Client, ledger_id: LedgerId) -> None:
        while any(sent[0] == ledger_id for sent in client.sent):
            before = len(client.sent)
            self.land(client)
            if client.machine.status is LogStatus.ENDED or len(client.sent) == before:
                return
        ledger = self.ledgers.get(ledger_id)
        mine = client.confirmed.get(ledger_id, 0)
        if ledger is None or (ledger.closed and len(ledger.records) != mine):
            client.machine.ledger_failed(ledger_id, "closed elsewhere")
        else:
            ledger.closed = True
            client.machine.ledger_closed(ledger_id, LedgerSummary(len(ledger.records)))

    def settle(self, client: Client) -> None:
        """Take a client's new effects; those without an answer happen at once."""
        while client.machine.out:
            taken, client.machine.out = client.machine.out, []
            for effect in taken:
                match effect:
                    case effects.Serve(ledger_id) | effects.SwitchLedger(ledger_id):
                        client.target = ledger_id
                    case effects.DrainLedger(ledger_id):
                        if client.target == ledger_id:
                            client.target = None
                        client.draining = ledger_id
                        self.drained(client)
                    case effects.LeadershipEnded():
                        client.target = None
                    case effects.Rolled():
                        pass
                    case _:
                        client.work.append(effect)
            if any(
                isinstance(each, effects.CloseLedger) and each.ledger_id == client.target for each in taken
            ):
                client.target = None
        if client.machine.status is LogStatus.ENDED and not client.work:
            client.alive = False

    def roll(self, client: Client) -> None:
        if client.machine.may_roll:
            client.machine.roll()
            self.settle(client)

    def close(self, client: Client) -> None:
        if client.machine.status is LogStatus.SERVING:
            try:
                client.machine.close()
            except NotWritingError:
                return
            client.target = None
            self.settle(client)

    def crash(self, client: Client) -> None:
        client.alive = False
        for effect in client.work:
            if isinstance(effect, effects.WriteHead):
                self.pages.update({self.name_page(page): page for page in effect.pages})
                self.late.append((effect.head, effect.version))
        client.work.clear()
        client.sent.clear()
        client.target = None
        client.machine.abandon("crashed")

    def other_client_closes(self, which: int) -> None:
        """Auto-recovery closes a ledger of the list; the list is not told."""
        if self.head is not None and self.head.items:
            item = self.head.items[which % len(self.head.items)]
            if item.ledger_id in self.ledgers:
                self.ledgers[item.ledger_id].closed = True

    def truncate(self, share: int) -> None:
        if self.head is None or len(self.trims) >= 2:
            return
        end = self.head.closed_end
        machine = TrimMachine(end * share // 100, end=end)
        machine.start()
        self.trims.append(machine)
        self.settle_trim(machine)

    def settle_trim(self, machine: TrimMachine) -> None:
        machine.check()
        taken, machine.out = machine.out, []
        for effect in taken:
            if isinstance(effect, TrimEnded):
                self.trims.remove(machine)
            else:
                self.trim_work.append((machine, effect))

    def trim(self, fate: int) -> None:
        if not self.trim_work:
            return
        machine, effect = self.trim_work.popleft()
        match effect:
            case effects.ReadHead():
                machine.head_read(self.head, self.version)
            case effects.WriteHead(head, version):
                if version == self.version and self.head is not None:
                    if fate == 0:
                        self.late.append((head, version))
                    else:
                        self.write(head)
                    if fate > 1:
                        machine.head_written(self.version)
                        self.settle_trim(machine)
                        return
                machine.head_conflicted()
            case TrimReadPage(page):
                machine.page_read(self.pages.get(page.name))
            case TrimDeleteLedger(item):
                self.delete(item.ledger_id)
                machine.ledger_deleted(item.ledger_id)
            case TrimDeletePage(page):
                self.pages.pop(page.name, None)
                machine.page_deleted(page.name)
        self.settle_trim(machine)

    def trim_crash(self) -> None:
        self.trim_work.clear()
        self.trims.clear()

    def delete(self, ledger_id: int) -> None:
        ledger = self.ledgers.pop(ledger_id, None)
        self.deleted.add(ledger_id)
        if ledger is not None:
            self.trimmed += ledger.records

    # --- what must hold ----------------------------------------------------------------------------------------

    def all_indexes(self) -> list[LogItem | None]:
        """Every index of the list; None where a page below a kept page was truncated away."""
        assert self.head is not None
        found: list[LogItem | None] = []

        def walk(page: LogPage) -> None:
            found.extend(page.items)
            for child in page.children:
                if child.name in self.pages:
                    walk(self.pages[child.name])
                else:
                    found.extend([None] * child.items)

        for reference in self.head.pages:
            walk(self.pages[reference.name])
        return [*found, *self.head.items]

    def all_items(self) -> list[LogItem]:
        return [item for item in self.all_indexes() if item is not None]

    def listed(self) -> list[int]:
        return [item.ledger_id for item in self.all_items()]

    def check(self) -> None:
        assert self.head is not None
        self.head.checked()
        for client in self.clients:
            client.machine.check()
        items = self.all_items()
        kept = [
            item for item in items if item.next_offset is None or item.next_offset > self.head.start_offset
        ]
        records: list[tuple[int, int]] = []
        for item in kept:
            ledger = self.ledgers.get(item.ledger_id)
            assert ledger is not None, f"L1: ledger {item.ledger_id} is listed and gone"
            records += ledger.records
            if not item.is_open:
                assert ledger.closed, f"L6: ledger {item.ledger_id} is called closed and is not"
                assert item.count == len(ledger.records), f"L2: {item} holds {ledger.records}"
        # L1, L2: what was acknowledged is there, once, in the order of acknowledgement.
        order = {record: place for place, record in enumerate(records)}
        assert len(order) == len(records), "L2: a record is there twice"
        gone = set(self.trimmed)
        alive = [record for record in self.acked if record not in gone and record in order]
        below = sum(1 for record in self.acked if record not in order)
        assert below <= self.head.start_offset, "L1: an acknowledged record is in no listed ledger"
        assert [order[record] for record in alive] == sorted(order[record] for record in alive), (
            "L2: out of order"
        )
        # L3: at most one handle can still be acknowledged.
        able = [
            client.number
            for client in self.clients
            if client.target is not None
            and client.target in self.ledgers
            and not self.ledgers[client.target].closed
            and client.alive
        ]
        assert len(able) <= 1, f"L3: handles {able} can all be acknowledged"
        # L4, L5: an item has one index for ever.
        for index, item in enumerate(self.all_indexes(), self.head.dropped_items):
            if item is not None:
                known = self.indexes.setdefault(index, item.ledger_id)
                assert known == item.ledger_id, "L5: the list was rewritten"
        # L7: the log keeps a prefix of each writer's appends.
        if not self.head.start_offset:
            for client in self.clients:
                mine = [number for who, number in records if who == client.number]
                assert mine == list(range(len(mine))), f"L7: writer {client.number} left {mine}"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "open",
                "append",
                "append",
                "land",
                "land",
                "work",
                "work",
                "work",
                "work",
                "roll",
                "close",
                "crash",
                "late",
                "later",
                "other client",
                "truncate",
                "trim",
                "trim",
                "trim_crash",
            ]
        ),
        st.integers(0, 11),
    ),
    max_size=140,
)


def run(world: World, steps: list[tuple[str, int]], *, other_client: bool = True) -> None:
    world.open()
    for step, number in steps:
        alive = [client for client in world.clients if client.alive]
        client = alive[number % len(alive)] if alive else None
        match step:
            case "open":
                world.open()
            case "late":
                world.land_late()
            case "other client" if other_client:
                world.other_client_closes(number)
            case "truncate":
                world.truncate(number * 10)
            case "trim":
                world.trim(number)
            case "trim_crash":
                world.trim_crash()
            case "work" if client:
                world.work(client, number)
            case "append" | "land" | "roll" | "close" | "crash" | "later" if client:
                getattr(world, step)(client)
        world.check()


def finish(world: World) -> Client:
    """Let everything end, then open once more without faults: the log must accept (F4) and hold everything."""
    while world.late:
        world.land_late()
    for client in world.clients:
        if client.alive:
            world.crash(client)
    while world.late:
        world.land_late()
    world.trim_crash()
    world.open()
    client = world.clients[-1]
    for _ in range(100):
        world.work(client, 9)
        world.check()
    assert client.machine.status is LogStatus.SERVING
    world.append(client)
    world.land(client)
    world.check()
    return client


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_no_order_of_steps_breaks_the_log(steps: list[tuple[str, int]]) -> None:
    world = World()
    run(world, steps)
    finish(world)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_a_truncation_that_stopped_anywhere_is_carried_out_by_the_next(steps: list[tuple[str, int]]) -> None:
    world = World()
    run(world, steps)
    finish(world)
    world.truncate(100)
    for _ in range(400):
        world.trim(9)
        world.check()
    assert world.head is not None
    assert not world.head.intents
    assert not world.trim_work
    listed = set(world.listed())
    # Only what a crash cut off between creation and listing may be left: it is open or empty, and never listed.
    left = [ledger for ledger in world.ledgers if ledger not in listed]
    assert all(not world.ledgers[each].records for each in left)


def play(world: World, *lines: str) -> None:
    """Steps by name: `0 work 9` lets client 0 carry out its oldest effect with fate 9."""
    for line in lines:
        who, step, *rest = line.split()
        client = world.clients[int(who)] if who != "-" else None
        if step == "work":
            for _ in range(int(rest[1]) if len(rest) > 1 else 1):
                assert client is not None
                world.work(client, int(rest[0]))
                world.check()
        elif client is None:
            getattr(world, step)(*map(int, rest))
        else:
            getattr(world, step)(client)
        world.check()


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "X19",
            # The leader rolls; the opener comes while the next ledger is listed and the former still takes adds.
            [
                "- open",
                "0 work 9 3",
                "0 append",
                "0 land",
                "0 append",
                "0 roll",
                "0 work 9 2",
                "- open",
                "1 work 9 5",
                "1 append",
                "1 land",
            ],
        ),
        (
            "X20-fence",
            ["- open", "0 work 9 3", "0 append", "- open", "1 work 9 3", "1 append"],
        ),
        (
            "X21",
            ["- open", "0 work 9 2", "0 append", "0 land"],
        ),
        (
            "X34",
            [
                "- open",
                "0 work 9 3",
                "0 append",
                "0 land",
                "0 roll",
                "0 work 9 2",
                "0 roll",
                "0 later",
                "0 work 9",
                "0 later",
                "0 work 9",
            ],
        ),
        (
            "log-sends-early",
            ["- open", "0 work 9 3", "0 append", "0 roll", "0 work 9 2", "0 append"],
        ),
    ],
)
def test_a_rule_taken_out_is_noticed(name: str, lines: list[str]) -> None:
    switches = MUTANTS[name].switches
    with switches.applied(), pytest.raises((AssertionError, QuireError)):
        play(World(switches.rules), *lines)


def test_an_ended_handle_says_why() -> None:
    world = World()
    play(world, "- open", "0 work 9 3", "0 append", "- open", "1 work 9 4", "0 land")
    assert world.clients[0].machine.ended is not None
    assert world.clients[0].machine.ended.reason is EndReason.LEDGER_FAILED
    assert world.clients[1].machine.status is LogStatus.SERVING
