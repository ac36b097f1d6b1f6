"""The tables of machines: every input in every state acts as its row says, changes nothing, or is refused.

The writer's is in test_writer_legality.py; what the other machines of a ledger refuse, in test_state_tables.py.
"""

from __future__ import annotations

import pytest

from quire.core.answers import Answer
from quire.core.errors import MisuseError, NotWritingError
from quire.core.ids import LedgerId
from quire.core.ledger.flush import FLUSH_TABLE, FlushMachine, FlushStatus, UnacknowledgedCopies
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.core.ledger.reader import LAC_TABLE, READ_TABLE, LacMachine, ReadMachine, ReadStatus
from quire.core.log.cas import CAS, CasStep, HeadCas
from quire.core.log.commit import COMMIT, CommitBatch, CommitMachine, CommitStatus, FoundHead, Part
from quire.core.log.fencing import Fencing
from quire.core.log.list import ItemState, Leader, LedgerSummary, LogHead, LogItem, PageLayout
from quire.core.log.machine import LOG, LogMachine, LogStatus
from quire.core.log.rewriting import REWRITE, Replacement, RewriteMachine, RewriteStatus
from quire.core.log.roll import ROLL, Roll, RollStep
from quire.core.log.trimming import TRIM, TrimMachine, TrimStatus
from quire.core.recovery.machine import RECOVERY_TABLE, RecoveryMachine, RecoveryStatus
from quire.wire.log_records import page_name
from quire_testing.explorer.snapshot import state_of
from quire_testing.explorer.switches import RULES

ONE, TWO, NEXT = LedgerId(1), LedgerId(2), LedgerId(3)
SUMMARY = LedgerSummary(4)


def head_of(*ledgers, open_last=True):
    head = LogHead(b"\x05" * 16, "orders", leader=Leader(1, "before"))
    for each in ledgers:
        head = head.with_item(LogItem(each))
        if each != ledgers[-1] or not open_last:
            head = head.with_completed(each, SUMMARY)
    return head


def opened(*steps):
    machine = LogMachine("me", name_page=page_name)
    machine.open()
    for step in steps:
        step(machine)
    return machine


def read(machine):
    machine.head_read(head_of(ONE), 1)


def fenced(machine):
    machine.recovered(ONE, SUMMARY)


def created(machine):
    machine.created(TWO, 0)


def lost(machine):
    machine.head_conflicted()
    machine.head_read(head_of(ONE, open_last=False).with_leader(Leader(9, "other")), 7)


LOGS = {
    LogStatus.IDLE: lambda: LogMachine("me", name_page=page_name),
    LogStatus.READING: lambda: opened(),
    LogStatus.FENCING: lambda: opened(read),
    LogStatus.CREATING: lambda: opened(read, fenced),
    LogStatus.STORING: lambda: opened(read, fenced, created),
    LogStatus.BACKING_OFF: lambda: opened(read, fenced, created, lost),
    LogStatus.SERVING: lambda: opened(read, fenced, created, lambda m: m.head_written(2)),
    LogStatus.CLOSING: lambda: opened(
        read, fenced, created, lambda m: m.head_written(2), lambda m: m.close()
    ),
    LogStatus.ENDED: lambda: opened(lambda m: m.abandon()),
}
LOG_INPUTS = {
    "open": lambda m: m.open(),
    "retry": lambda m: m.retry(),
    "head_read": lambda m: m.head_read(head_of(ONE), 5),
    "recovered": lambda m: m.recovered(ONE, SUMMARY),
    "recovery_failed": lambda m: m.recovery_failed(ONE, deleted=False, detail="no quorum"),
    "created": lambda m: m.created(NEXT, 0),
    "create_failed": lambda m: m.create_failed("too few bookies"),
    "head_written": lambda m: m.head_written(6),
    "head_conflicted": lambda m: m.head_conflicted(),
    "head_unknown": lambda m: m.head_unknown(),
    "roll": lambda m: m.roll(),
    "head_seen": lambda m: m.head_seen(m.head or head_of(), 5),
    "drained": lambda m: m.drained(TWO, 1),
    "ledger_closed": lambda m: m.ledger_closed(TWO, SUMMARY),
    "ledger_failed": lambda m: m.ledger_failed(TWO, "fenced"),
    "close": lambda m: m.close(),
    "abandon": lambda m: m.abandon(),
}


def started(machine, *steps):
    machine.start()
    for step in steps:
        step(machine)
    return machine


def trimmed(*steps):
    return started(TrimMachine(4, end=8), *steps)


def trim_read(machine):
    machine.head_read(head_of(ONE, TWO), 1)


TRIMS = {
    TrimStatus.IDLE: lambda: TrimMachine(4, end=8),
    TrimStatus.READING: lambda: trimmed(),
    TrimStatus.STORING: lambda: trimmed(trim_read),
    TrimStatus.DELETING: lambda: trimmed(trim_read, lambda m: m.head_written(2)),
    TrimStatus.CLEARING: lambda: trimmed(
        trim_read, lambda m: m.head_written(2), lambda m: m.ledger_deleted(ONE)
    ),
    TrimStatus.ENDED: lambda: trimmed(lambda m: m.head_read(None, -1)),
}
TRIM_INPUTS = {
    "start": lambda m: m.start(),
    "head_read": lambda m: m.head_read(head_of(ONE, TWO), 5),
    "head_written": lambda m: m.head_written(6),
    "head_conflicted": lambda m: m.head_conflicted(),
    "ledger_deleted": lambda m: m.ledger_deleted(ONE),
    "page_read": lambda m: m.page_read(None),
    "page_deleted": lambda m: m.page_deleted("page"),
    "log_deleted": lambda m: m.log_deleted(),
}
STAGED = LogItem(TWO, state=ItemState.CLOSED, count=4)


def committed(*steps, takeover=False, marked=True):
    batch = CommitBatch((Part(b"\x05" * 16, (STAGED,)),), "query" if marked else "", takeover=takeover)
    return started(CommitMachine(batch, name_page=page_name), *steps)


def heads_read(machine):
    machine.heads_read([FoundHead(LogHead(b"\x05" * 16, "orders"), 1)])


COMMITS = {
    CommitStatus.IDLE: lambda: CommitMachine(CommitBatch(()), name_page=page_name),
    CommitStatus.READING: lambda: committed(),
    CommitStatus.LOOKING: lambda: committed(heads_read, lambda m: m.conflicted(), heads_read, marked=False),
    CommitStatus.FENCING: lambda: committed(
        lambda m: m.heads_read([FoundHead(head_of(ONE), 1)]), takeover=True
    ),
    CommitStatus.STORING: lambda: committed(heads_read),
    CommitStatus.ENDED: lambda: committed(lambda m: m.heads_read([FoundHead(None)])),
}
COMMIT_INPUTS = {
    "start": lambda m: m.start(),
    "heads_read": heads_read,
    "looked": lambda m: m.looked(0, listed=False),
    "recovered": lambda m: m.recovered(ONE, SUMMARY),
    "recovery_failed": lambda m: m.recovery_failed(ONE, deleted=False, detail="no quorum"),
    "stored": lambda m: m.stored(),
    "conflicted": lambda m: m.conflicted(),
    "unknown": lambda m: m.unknown(),
    "ledger_missing": lambda m: m.ledger_missing(),
}
B = ("b0", "b1", "b2")


def answered_by(machine, *slots):
    machine.read(0)
    for slot in slots:
        machine.answered(slot, Answer.OK, range(2), 1, (), 0)
    return machine


def lac_of(*slots):
    machine = LacMachine(B, 3, 2)
    machine.read()
    for slot in slots:
        machine.answered(slot, Answer.OK, 1)
    return machine


def flushed(*, to_do=True):
    runs = {0: (0, 1), 1: (2, 3)} if to_do else {}
    return FlushMachine(3, [UnacknowledgedCopies(0, "b0", runs, 0, 1_000)], 0, latest_ms=9_000)


READS = {
    ReadStatus.IDLE: lambda: ReadMachine(0, 1, B, 3, speculate_after_ms=10),
    ReadStatus.READING: lambda: answered_by(ReadMachine(0, 1, B, 3, speculate_after_ms=10)),
    ReadStatus.ENDED: lambda: answered_by(ReadMachine(0, 1, B, 3, speculate_after_ms=10), 0),
}
READ_INPUTS = {
    "read": lambda m: m.read(0),
    "answered": lambda m: m.answered(0, Answer.OK, [0], 1, (), 0),
    "timer_fired": lambda m: m.timer_fired(20),
}
LACS = {
    ReadStatus.IDLE: lambda: LacMachine(B, 3, 2),
    ReadStatus.READING: lambda: lac_of(),
    ReadStatus.ENDED: lambda: lac_of(0, 1),
}
LAC_INPUTS = {"read": lambda m: m.read(), "answered": lambda m: m.answered(2, Answer.OK, 1)}
FLUSHES = {FlushStatus.WAITING: lambda: flushed(), FlushStatus.DONE: lambda: flushed(to_do=False)}
FLUSH_INPUTS = {
    "acked": lambda m: m.acked(0, 0, 5),
    "failed": lambda m: m.failed(0, 5),
    "moved": lambda m: m.moved(0, 5),
    "timer_fired": lambda m: m.timer_fired(9_000),
    "give_up": lambda m: m.give_up(5),
}
RECORD = new_ledger(ONE, B[:2], write_quorum=2, ack_quorum=2, digest_type=DigestType.CRC32C, password=b"")
ENDS = RECORD.in_recovery()


def recovering(*steps):
    machine = RecoveryMachine(RECORD, 1)
    machine.recover()
    for step in steps:
        step(machine)
    return machine


def announced(machine):
    machine.metadata_written(ENDS, 2)


def covered(machine, lac=-1):
    machine.fence_answered(0, Answer.OK, lac)


def denied(machine):
    machine.read_answered(0, Answer.NO_LEDGER, {}, -1, [])
    machine.waited()


RECOVERIES = {
    RecoveryStatus.NEW: lambda: RecoveryMachine(RECORD, 1),
    RecoveryStatus.ANNOUNCING: lambda: recovering(),
    RecoveryStatus.FENCING: lambda: recovering(announced),
    RecoveryStatus.READING: lambda: recovering(announced, covered),
    RecoveryStatus.MEASURING: lambda: recovering(announced, lambda m: covered(m, 5), denied),
    RecoveryStatus.CLOSING: lambda: recovering(announced, covered, denied),
    RecoveryStatus.ENDED: lambda: recovering(
        announced, covered, denied, lambda m: m.metadata_written(ENDS.closed(-1, 0), 3)
    ),
}
RECOVERY_INPUTS = {
    "recover": lambda m: m.recover(),
    "metadata_written": lambda m: m.metadata_written(ENDS, 9),
    "metadata_conflicted": lambda m: m.metadata_conflicted(),
    "metadata_read": lambda m: m.metadata_read(None, 9),
    "fence_answered": lambda m: m.fence_answered(1, Answer.OK, -1),
    "read_answered": lambda m: m.read_answered(0, Answer.OK, {0: 7}, 5, []),
    "waited": lambda m: m.waited(),
    "adds_answered": lambda m: m.adds_answered(0, "b0", 0, 0, Answer.OK),
    "replacements_found": lambda m: m.replacements_found({}),
    "length_found": lambda m: m.length_found(7),
    "length_unavailable": lambda m: m.length_unavailable(()),
}
CLOSED = head_of(ONE, TWO, LedgerId(4), LedgerId(5), open_last=False)
COPY = LogItem(NEXT, state=ItemState.CLOSED, count=8)


def rewritten(*steps):
    copied = [Replacement.by_copy(CLOSED.items[:2], COPY)]
    return started(RewriteMachine(copied, PageLayout(), page_name), *steps)


def list_read(machine):
    machine.head_read(CLOSED, 3, [])


REWRITES = {
    RewriteStatus.IDLE: lambda: RewriteMachine([], PageLayout(), page_name),
    RewriteStatus.READING: lambda: rewritten(),
    RewriteStatus.STORING: lambda: rewritten(list_read),
    RewriteStatus.ENDED: lambda: rewritten(list_read, lambda m: m.head_written()),
}
REWRITE_INPUTS = {
    "start": lambda m: m.start(),
    "head_read": list_read,
    "head_written": lambda m: m.head_written(),
    "head_conflicted": lambda m: m.head_conflicted(),
}
MACHINES = {
    RewriteMachine: (REWRITE, REWRITES, REWRITE_INPUTS, {"check"}),
    RecoveryMachine: (RECOVERY_TABLE, RECOVERIES, RECOVERY_INPUTS, {"check", "lac", "lap"}),
    ReadMachine: (READ_TABLE, READS, READ_INPUTS, {"check"}),
    LacMachine: (LAC_TABLE, LACS, LAC_INPUTS, {"check"}),
    FlushMachine: (FLUSH_TABLE, FLUSHES, FLUSH_INPUTS, {"check"}),
    LogMachine: (LOG, LOGS, LOG_INPUTS, {"check"}),
    TrimMachine: (TRIM, TRIMS, TRIM_INPUTS, {"check"}),
    CommitMachine: (COMMIT, COMMITS, COMMIT_INPUTS, {"check"}),
}
CASES = [
    pytest.param(kind, name, status, id=f"{kind.__name__}-{name}-{status.value}")
    for kind, (table, _, _, _) in MACHINES.items()
    for name in table.rows
    for status in table.states
]
NOT_ASKED = {
    *(("LogMachine", "head_read", status) for status in ("storing", "serving", "closing")),
    *(
        ("LogMachine", name, status)
        for name in ("head_written", "head_conflicted", "head_unknown")
        for status in ("serving", "closing")
    ),
    *(("LogMachine", name, "serving") for name in ("create_failed", "drained", "ledger_closed")),
    ("TrimMachine", "page_read", "deleting"),
    *(("RecoveryMachine", name, "reading") for name in ("waited", "adds_answered", "replacements_found")),
}
"""Responses to what was not asked for on the shortest way to a status: they change nothing either."""


@pytest.mark.parametrize("kind", MACHINES, ids=lambda kind: kind.__name__)
def test_a_table_names_every_input_and_every_status(kind):
    table, ways, inputs, others = MACHINES[kind]
    public = {name for name, what in vars(kind).items() if not name.startswith("_") and callable(what)}
    assert public - others == table.rows.keys() == inputs.keys()
    assert ways.keys() == set(table.states)
    for status, way in ways.items():
        assert way().status is status


@pytest.mark.parametrize(("kind", "name", "status"), CASES)
def test_an_input_does_what_the_table_says(kind, name, status):
    table, ways, inputs, _ = MACHINES[kind]
    machine = ways[status]()
    machine.out.clear()
    before = state_of(machine)
    if status in table.rows[name]:
        inputs[name](machine)
        assert machine.status in table.rows[name][status]
        changed = state_of(machine) != before or bool(machine.out)
        assert changed == ((kind.__name__, name, status.value) not in NOT_ASKED)
    elif status not in table.acts[name]:
        with pytest.raises((MisuseError, NotWritingError)):
            inputs[name](machine)
        assert state_of(machine) == before
    else:
        inputs[name](machine)
        assert state_of(machine) == before
        assert machine.out == []
    machine.check()


@pytest.mark.parametrize("table", [LOG, TRIM, COMMIT, ROLL, CAS], ids=lambda table: table.states.__name__)
def test_only_the_moves_of_a_table_are_made(table):
    listed = {(old, new) for row in table.rows.values() for old, after in row.items() for new in after}
    for old in table.states:
        for new in table.states:
            if (old, new) in listed:
                assert table.moved[old, new] is new
            else:
                with pytest.raises(AssertionError, match=f"from {old.value} to {new.value}"):
                    table.moved[old, new]


CAS_INPUTS = {
    "read": lambda cas: cas.read(),
    "found": lambda cas: cas.found("b", 2),
    "learned": lambda cas: cas.learned("b", 2),
    "write": lambda cas: cas.write("c"),
    "written": lambda cas: cas.written(3),
}


@pytest.mark.parametrize("step", CasStep, ids=lambda step: step.value)
@pytest.mark.parametrize("name", CAS.rows)
def test_a_compare_and_swap_takes_what_its_table_says(name, step):
    cas = HeadCas(1, "a", "c", step)
    assert cas.awaits(name) == (step in CAS.rows[name])
    if cas.awaits(name):
        CAS_INPUTS[name](cas)
        assert {cas.step} == CAS.rows[name][step]
        value, version = {"found": ("b", 2), "learned": ("b", 2), "written": ("c", 3)}.get(name, ("a", 1))
        assert (cas.value, cas.version) == (value, version)
    else:
        with pytest.raises(MisuseError, match=f"{name} is not possible while {step.value}"):
            CAS_INPUTS[name](cas)
        assert cas == HeadCas(1, "a", "c", step)


def test_a_roll_that_is_over_has_no_former_ledger():
    roll = Roll(RollStep.LISTING, True, ONE, (TWO,))
    roll.to(RollStep.NONE)
    assert roll == Roll(RollStep.NONE, False, None, (TWO,))
    assert roll.under_way, "a former ledger is not sealed yet"


def test_no_ledger_is_fenced_twice_and_one_that_is_gone_is_looked_for_once():
    fencing = Fencing()
    head = head_of(ONE, TWO)
    assert [item.ledger_id for item in fencing.begin([head], RULES)] == [ONE, TWO]
    assert not fencing.done(ONE, SUMMARY)
    assert fencing.failed(deleted=True, version=1)
    assert [item.ledger_id for item in fencing.begin([head], RULES)] == [TWO]
    assert not fencing.failed(deleted=True, version=1), "the list has not changed since"
    assert fencing.begin([head], RULES)
    assert fencing.done(TWO, SUMMARY)
    assert not fencing.completed(head).open_items
