"""The cluster's auditor: stands for election, and while it leads carries out what an `AuditMachine` asks for.

Auditors of Quire elect one among themselves for what only Quire marks and counts; Java's have an election of their own.
Two of them may act as leader at a time, because a session was lost: they make the same marks, and count no time twice.

Source: docs/protocol/audit.md; docs/autorecovery.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from quire.autorecovery.following import RETRY_S, following
from quire.client.client import Client
from quire.core.errors import AlreadyExistsError, CorruptMetadataError, MetadataUnknownError, QuireError
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.repair.audit import AuditMachine
from quire.core.repair.audit_effects import (
    LIMITS,
    AuditEffect,
    AuditEnded,
    AuditLimits,
    AuditReport,
    ClusterBookies,
    Counted,
    CountedState,
    CountTime,
    EndCount,
    ListLedgers,
    MarkLedgers,
    MissingMark,
    ReadBookies,
)
from quire.core.repair.rules import RULES, RepairRules
from quire.core.repair.under_replicated_marks import AwayCount
from quire.metadata.bookies import COOKIES, PREFIX
from quire.metadata.election import Election
from quire.metadata.repairs import RepairStore, Stored
from quire.metadata.store import VersionConflictError

ELECTION: Final = "auditor"
REQUESTS_MAX: Final = 64
"""Most marks that are written at the same time."""
DUTIES_S: Final = 3600
"""The pause between two rounds of the leader's duties."""
_LOG: Final = logging.getLogger(__name__)


class Auditor:
    """One candidate. There may be any number of them, and one at a time leads.

    Args:
        client: the cluster.
        marks: its marks.
        name: how people and other candidates know it.
        limits: ticks and pauses.
        duties: what the leader does hourly besides, such as collecting what crashes left of logs.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.

    Attributes:
        report: of the last audit; None before the first.
    """

    def __init__(
        self,
        client: Client,
        marks: RepairStore,
        name: str,
        *,
        limits: AuditLimits = LIMITS,
        duties: Sequence[Callable[[], Awaitable[object]]] = (),
        rules: RepairRules = RULES,
    ) -> None:
        self._client, self._marks, self._limits, self._rules = client, marks, limits, rules
        self._election = Election(client.store, ELECTION, name)
        self._duties = duties
        self._wake = asyncio.Event()
        self._moved = self._stale = True
        self._view: ClusterBookies | None = None
        self._times: dict[CountedState, dict[BookieId, Stored[AwayCount]]] = {}
        self.report: AuditReport | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this candidate audits, as far as it knows."""
        return self._election.is_leader

    async def run(self) -> None:
        """Stand for election, and audit while leading, until cancelled."""
        try:
            while True:
                try:
                    await self._marks.announce_audits()
                    await self._election.campaign()
                    await self._lead()
                except QuireError as error:
                    _LOG.warning("the auditor will retry: %s", error)
                await asyncio.sleep(RETRY_S)
        finally:
            with contextlib.suppress(QuireError):
                await self._election.resign()

    async def _lead(self) -> None:
        store = self._client.store
        watches = (
            lambda: store.watch(COOKIES),
            lambda: self._marks.watch_settings()[0],
            lambda: self._marks.watch_settings()[1],
            lambda: self._marks.watch_times()[0],
            lambda: self._marks.watch_times()[1],
        )
        machine = AuditMachine(self._limits, self._rules)
        _LOG.info("this process is the cluster's auditor now")
        duties = asyncio.create_task(self._do_duties(), name="duties of the auditor")
        try:
            with (
                following((lambda: store.watch(PREFIX),), self._bookies_moved),
                following(watches, self._settings_changed),
            ):
                await self._audit(machine)
        finally:
            duties.cancel()

    def _bookies_moved(self) -> None:
        self._moved = self._stale = True
        self._wake.set()

    def _settings_changed(self) -> None:
        self._stale = True

    async def _audit(self, machine: AuditMachine) -> None:
        """Until this candidate leads no more."""
        tick_ms = 1000 * self._limits.tick_s
        tick_at_ms = 0
        while self._election.is_leader:
            self._wake.clear()
            now_ms = self._client.clock.now_ms()
            if now_ms >= tick_at_ms:
                tick_at_ms = now_ms + tick_ms
                machine.tick(now_ms)
            await self._perform(machine)
            with contextlib.suppress(TimeoutError):
                wait_ms = max(0, tick_at_ms - self._client.clock.now_ms())
                await asyncio.wait_for(self._wake.wait(), wait_ms / 1000)

    async def _perform(self, machine: AuditMachine) -> None:
        """Carry out what the machine asks for, one after the other, and call it when bookies come and go."""
        while (machine.out or self._moved) and self._election.is_leader:
            if self._moved:
                self._moved = False
                machine.bookies_changed()
            out, machine.out = machine.out, []
            for effect in out:
                await self._do(effect, machine)

    async def _do(self, effect: AuditEffect, machine: AuditMachine) -> None:
        match effect:
            case ReadBookies():
                try:
                    machine.bookies_read(await self._bookies())
                except QuireError as error:
                    _LOG.warning("the bookies cannot be read from the metadata store: %s", error)
                    self._stale = True
                    machine.bookies_unread()
            case CountTime(state, bookie, seconds, version):
                self._stale = True
                with contextlib.suppress(VersionConflictError, AlreadyExistsError, MetadataUnknownError):
                    counted = await self._marks.count_time(state, bookie, seconds, version)
                    machine.counted(state, bookie, counted)
            case EndCount(state, bookie):
                if (stored := self._times[state].get(bookie)) is not None:
                    await self._marks.end_count(state, bookie, stored)
            case ListLedgers(after):
                await self._list(after, machine)
            case MarkLedgers(marks):
                await self._mark(marks, machine)
            case AuditEnded(report):
                self._ended(report)

    # --- what the store says --------------------------------------------------------------------------------------

    async def _bookies(self) -> ClusterBookies:
        """Who is there. While no watch says that something changed and no time is counted, what was read last stands."""
        view = self._view
        if view and not self._stale:
            # A bookie that is away and was read-only is not counted as such.
            read_only = [view.read_only_for[each] for each in view.read_only if each in view.read_only_for]
            counted = [*view.away.values(), *read_only]
            if all(each.seconds >= view.delay_s for each in counted):
                return view
        self._stale = False
        registered = await self._client.bookies.bookies()
        cookies = await self._client.bookies.members()
        self._times = {state: await self._marks.times(state) for state in CountedState}
        self._view = ClusterBookies(
            registered,
            cookies,
            self._counted(CountedState.AWAY),
            await self._marks.lost_delay_in_use_s(),
            await self._marks.is_enabled(),
            [bookie for bookie, registration in registered.items() if not registration.writable],
            self._counted(CountedState.READ_ONLY),
        )
        return self._view

    def _counted(self, state: CountedState) -> dict[BookieId, Counted]:
        return {
            bookie: Counted(0 if stored.mark is None else stored.mark.seconds, stored.version)
            for bookie, stored in self._times[state].items()
        }

    async def _list(self, after: int | None, machine: AuditMachine) -> None:
        try:
            page, is_last = await self._client.records.page(after)
        except QuireError as error:
            machine.listing_failed(error.message)
            return
        records: list[tuple[LedgerId, LedgerMetadata | None]] = []
        for listed in page:
            try:
                records.append((listed.ledger_id, listed.parsed()))
            except CorruptMetadataError as error:
                _LOG.warning("ledger %d is not audited: %s", listed.ledger_id, error)
                records.append((listed.ledger_id, None))
        machine.ledgers_listed(after, records, last=is_last)

    async def _mark(self, marks: Sequence[MissingMark], machine: AuditMachine) -> None:
        """Write marks, in their order, some at the same time."""

        async def one(mark: MissingMark) -> None:
            try:
                if mark.is_stream:
                    await self._marks.mark_lost(mark.ledger_id, mark.bookies)
                else:
                    await self._marks.mark_missing(mark.ledger_id, mark.bookies)
            except CorruptMetadataError as error:
                _LOG.warning("a mark is kept as it is, and nothing is added to it: %s", error)

        for start in range(0, len(marks), REQUESTS_MAX):
            some = marks[start : start + REQUESTS_MAX]
            found = await asyncio.gather(*map(one, some), return_exceptions=True)
            for error in found:
                if isinstance(error, QuireError):
                    machine.marking_failed(error.message)
                    return
                if isinstance(error, BaseException):
                    raise error
        machine.marked()

    def _ended(self, report: AuditReport) -> None:
        self.report = report
        lost = ", ".join(f"{bookie} ({seconds} s)" for bookie, seconds in report.away.items()) or "none"
        if not report.concluded:
            _LOG.warning("the audit was inconclusive and will be repeated: %s", report.why)
        else:
            _LOG.info(
                "audit: %d ledgers read, %d marked; lost bookies: %s", report.ledgers, report.marked, lost
            )

    # --- duties ---------------------------------------------------------------------------------------------------

    async def _do_duties(self) -> None:
        while True:
            for duty in self._duties:
                try:
                    await duty()
                except QuireError as error:
                    _LOG.warning(
                        "a periodic task of the auditor failed and will be repeated in an hour: %s", error
                    )
            await asyncio.sleep(DUTIES_S)
