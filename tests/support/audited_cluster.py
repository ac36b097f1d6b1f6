"""A cluster as auditors see it: registrations, records, counters and marks, with what may go wrong on the way to them."""

from quire.core.ids import BookieId
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.core.repair.audit import AUDIT_TABLE, AuditMachine
from quire.core.repair.audit_effects import (
    AuditEnded,
    AuditLimits,
    ClusterBookies,
    Counted,
    CountedState,
    CountTime,
    EndCount,
    ListLedgers,
    MarkLedgers,
    ReadBookies,
)
from quire.core.repair.rules import RULES
from quire_testing.explorer.patches import Patch

B = [BookieId(f"b{number}") for number in range(6)]
DELAY_S = 60
TICK_S = 10


def ledger(ledger_id, ensemble=(0, 1, 2), write=3, ack=2):
    bookies = [B[number] for number in ensemble]
    return new_ledger(
        ledger_id, bookies, write_quorum=write, ack_quorum=ack, digest_type=DigestType.CRC32C, password=b""
    )


SHORT_LISTING_IS_AN_AUDIT = Patch(AuditMachine._listing_over, "if why:", "if False:")
"""X41."""


class AuditedCluster:
    """Answers auditors out of its state; what they say, in order, is in `log`.

    Attributes:
        registered: the bookies that are there, each with whether it is writable; `cookies`: of bookies.
        records: the ledgers; None: a record that cannot be read.
        marks: the bookies that each ledger's mark names.
        list_fails, marks_fail, bookies_fail: the store does not respond to this.
        between: called before each answer, with the effect: what happens meanwhile.
    """

    def __init__(self, records=(), *, bookies=B[:5], delay_s=DELAY_S, page=1000):
        self.registered = dict.fromkeys(bookies, True)
        self.cookies = [*bookies]
        self.records = {record.ledger_id: record for record in records}
        self.counts, self.read_only_for, self.version = {}, {}, 0
        self.delay_s, self.page, self.enabled = delay_s, page, True
        self.marks, self.log, self.reports = {}, [], []
        self.list_fails = self.marks_fail = self.bookies_fail = False
        self.between = lambda effect: None
        self.now_ms = 0

    def auditor(self, rules=RULES, **limits):
        return AuditMachine(AuditLimits(**{"tick_s": TICK_S} | limits), rules)

    def leave(self, *bookies):
        for bookie in bookies:
            self.registered.pop(bookie, None)

    def ticks(self, auditor, count=1, seconds=TICK_S):
        for _ in range(count):
            self.now_ms += 1000 * seconds
            self.say(auditor, "tick", self.now_ms)
            self.run(auditor)

    def say(self, auditor, name, *given, **named):
        """An input, which must lead where the table says."""
        before = auditor.status
        getattr(auditor, name)(*given, **named)
        auditor.check()
        row = AUDIT_TABLE.rows[name]
        assert auditor.status in (row.get(before, {before})), (name, before, auditor.status)

    def run(self, auditor):
        while auditor.out:
            effect = auditor.out.pop(0)
            self.log.append(effect)
            self.between(effect)
            self.answer(auditor, effect)

    def answer(self, auditor, effect):
        if isinstance(effect, ReadBookies):
            if self.bookies_fail:
                self.say(auditor, "bookies_unread")
                return
            read_only = [bookie for bookie, writable in self.registered.items() if not writable]
            view = ClusterBookies(
                list(self.registered),
                self.cookies,
                dict(self.counts),
                self.delay_s,
                self.enabled,
                read_only,
                dict(self.read_only_for),
            )
            self.say(auditor, "bookies_read", view)
        elif isinstance(effect, CountTime):
            counts = self.counts_in(effect.state)
            stored = counts.get(effect.bookie)
            if effect.version == (stored and stored.version):
                self.version += 1
                counts[effect.bookie] = Counted(effect.seconds, self.version)
                self.say(auditor, "counted", effect.state, effect.bookie, self.version)
        elif isinstance(effect, EndCount):
            counts = self.counts_in(effect.state)
            stored = counts.get(effect.bookie)
            if stored and stored.version == effect.version:
                del counts[effect.bookie]
        elif isinstance(effect, ListLedgers):
            after = -1 if effect.after is None else effect.after
            left = sorted((n, record) for n, record in self.records.items() if n > after)
            if self.list_fails:
                self.say(auditor, "listing_failed", "the store is away")
            else:
                self.say(
                    auditor, "ledgers_listed", effect.after, left[: self.page], last=len(left) <= self.page
                )
        elif isinstance(effect, MarkLedgers):
            if self.marks_fail:
                self.say(auditor, "marking_failed", "the store is away")
                return
            for mark in effect.marks:
                self.marks.setdefault(mark.ledger_id, set()).update(mark.bookies)
            self.say(auditor, "marked")
        else:
            assert isinstance(effect, AuditEnded)
            self.reports.append(effect.report)

    def counts_in(self, state):
        return self.counts if state is CountedState.AWAY else self.read_only_for

    def said(self, kind):
        return [effect for effect in self.log if isinstance(effect, kind)]
