"""What a bookie shows its operator: in the log, a line for each state when it begins and when it is over, and in INFO.

Source: `docs/operations.md`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from quire.bookie.collecting.cleaning import COMPACTING
from quire.core.bookie import conditions as kinds
from quire.core.bookie.conditions import Announcements, Condition, SlowLoop
from quire.core.errors import DirectoryLostError

if TYPE_CHECKING:
    from quire.bookie.collecting.collector import GarbageCollector
    from quire.bookie.identity.lease import IdentityLease
    from quire.core.ids import BookieId
    from quire.env.interfaces import Clock
    from quire.storage.ledger_storage import LedgerStorage
    from quire.storage.segments.findings import Damage

log = logging.getLogger(__name__)

NAMED_MAX: Final = 10
"""So many ledgers are named in a sentence."""
DAMAGES_A_LOOK: Final = 5
"""So many damages have a line of the log each, until the next look."""


class BookieAlerts:
    """The alerts of one bookie.

    Args:
        bookie_id: whose.
        storage, collector, identity_lease: where they come from.
        clock: for the loop's lateness.

    Attributes:
        searching: it does not know yet which ledgers it may have lost.
    """

    def __init__(
        self,
        bookie_id: BookieId,
        storage: LedgerStorage,
        collector: GarbageCollector,
        identity_lease: IdentityLease,
        clock: Clock,
    ) -> None:
        self._bookie_id = bookie_id
        self._storage = storage
        self._collector = collector
        self._identity_lease = identity_lease
        self._clock = clock
        self._failed: dict[str, str] = {}
        self._loop = SlowLoop()
        self._announced = Announcements()
        self._began_ms = clock.now_ms()
        self._damages_left = DAMAGES_A_LOOK
        self._damages_unsaid = 0
        self.searching: Callable[[], bool] = lambda: False
        for damage in storage.damages.kept:
            self._damaged(damage)
        storage.damages.on_found = self._damaged

    @property
    def uptime_ms(self) -> int:
        """How long the bookie has been running."""
        return self._clock.now_ms() - self._began_ms

    # --- what happens --------------------------------------------------------------------------------------------

    def watch(self, task: asyncio.Task[Any]) -> None:
        """A task that is to run as long as the bookie: a failure is logged at once."""
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed[task.get_name()] = str(error) or repr(error)
            log.error("bookie %s: the task %r failed", self._bookie_id, task.get_name(), exc_info=error)
            self.look()

    def came(self, late_ms: int, ran_ms: int) -> None:
        """The loop came so much later than it wanted to; `ran_ms` is the CPU time since it last came."""
        self._loop.came(late_ms, ran_ms, self._clock.now_ms())

    def _damaged(self, damage: Damage) -> None:
        if self._damages_left:
            self._damages_left -= 1
            log.error("bookie %s: damage in %s", self._bookie_id, damage)
        else:
            self._damages_unsaid += 1

    # --- telling -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Now and then: log what began and what is over."""
        if self._damages_unsaid:
            log.error("bookie %s: %d more damaged places", self._bookie_id, self._damages_unsaid)
        self._damages_left, self._damages_unsaid = DAMAGES_A_LOOK, 0
        news = self._announced.look(self.conditions(), self._clock.now_ms())
        for one in news.began:
            log.warning("bookie %s: %s", self._bookie_id, one)
        for one in news.over:
            log.warning("bookie %s: no longer the case: %s: %s", self._bookie_id, one.kind, one.what)

    def info(self) -> list[dict[str, str]]:
        """What INFO says of the states."""
        return [{"kind": one.kind, "what": one.what, "ends": one.ends} for one in self.conditions()]

    def conditions(self) -> list[Condition]:
        """All states that there are now."""
        return [*self._of_the_disk(), *self._of_the_store(), *self._of_the_process()]

    def reasons(self) -> list[Condition]:
        """Why it takes no new entries."""
        return [one for one in self.conditions() if one.kind == kinds.READ_ONLY]

    # --- the states ----------------------------------------------------------------------------------------------

    def _of_the_disk(self) -> Iterator[Condition]:
        storage = self._storage
        if storage.damages.count:
            yield self._damage()
        if storage.failure is not None:
            ends = "check the disk, then restart the bookie"
            if isinstance(storage.failure, DirectoryLostError):
                ends = "stop this process, and start the bookie on its own directory when no other process uses it"
            yield Condition(kinds.READ_ONLY, storage.failure.message, ends, "failed")
        elif storage.journal.full:
            what = f"{storage.why_full}; new entries are refused, stored entries stay readable"
            ends = "delete ledgers or add disk space, or start the bookie with smaller segments (--segment-bytes)"
            if storage.short:
                ends = "raise the limit of descriptors (ulimit -n)"
            yield Condition(kinds.READ_ONLY, what, f"{ends}; the bookie continues by itself", "full")
        if self.searching():
            what = (
                "the bookie does not know yet which ledgers it may have lost, and reads the "
                "records of all ledgers to find out"
            )
            ends = (
                "the bookie continues by itself when it has read them; check that the metadata store responds"
            )
            yield Condition(kinds.READ_ONLY, what, ends, "searching")
        limbo = storage.states.limbo
        if limbo:
            what = (
                f"the bookie may have lost entries of {_ledgers(limbo)}, so it gives no negative "
                "responses for them"
            )
            ends = (
                "run `quire ledger recover ID` for each ledger, once its writer has closed it or "
                "is to be stopped"
            )
            yield Condition(kinds.LIMBO, what, ends)

    def _damage(self) -> Condition:
        damages = self._storage.damages
        what = f"{_places(damages.count)} on the disk differ from what was written"
        if damages.kept:
            what += f", the first: {damages.kept[0]}"
        concerned = damages.ledgers()
        ends = "check the disk; damage that names no ledger is reported until the bookie is restarted"
        if concerned:
            ends = (
                f"`quire ledger recover ID` copies what is damaged from other bookies ({_ledgers(concerned)});"
                " then check the disk"
            )
        return Condition(kinds.DAMAGE, what, ends)

    def _of_the_store(self) -> Iterator[Condition]:
        collector, identity_lease = self._collector, self._identity_lease
        if identity_lease.pending:
            what = f"the bookie defers adds, fences and negative responses: {identity_lease.why}"
            ends = (
                "the bookie continues by itself when it is registered again; check that the "
                "metadata store responds"
            )
            yield Condition(kinds.LOST_REGISTRATION, what, ends)
        if collector.stopped:
            ends = "restore the newest metadata store, or accept this one with `quire cluster accept-store`"
            yield Condition(
                kinds.STOPPED_COLLECTION, f"the collector deletes no ledgers: {collector.stopped}", ends
            )
        if collector.report.failure:
            what = f"the collector could not look for deleted ledgers: {collector.report.failure}"
            ends = "the next pass that succeeds; check that the metadata store responds"
            yield Condition(kinds.FAILED_TASK, what, ends, "collector")
        if stuck_ms := collector.progress.stuck_ms(self._clock.now_ms()):
            yield self._stuck(stuck_ms, collector.progress.doing)

    @staticmethod
    def _stuck(stuck_ms: int, doing: str) -> Condition:
        name = "compactor" if doing == COMPACTING else "collector"
        what = f"the {name} has not moved for {stuck_ms // 1000} s, three of its intervals or more: {doing or 'waiting'}"
        ends = "its next step; check that the metadata store and the disk respond, or restart the bookie, and report it"
        return Condition(kinds.FAILED_TASK, what, ends, f"stuck {name}")

    def _of_the_process(self) -> Iterator[Condition]:
        for name, error in self._failed.items():
            yield Condition(kinds.FAILED_TASK, f"{name}: {error}", "restart the bookie, and report it", name)
        late_ms = self._loop.late_ms(self._clock.now_ms())
        if late_ms:
            ends = f"{kinds.REMEMBERED_MS // 1000} s without a blocked loop; "
            if self._loop.suspended:
                what = f"the process did not run for {late_ms // 1000} s, and requests waited"
                ends += "find out who suspended it or its machine, or which disk it waited for"
            else:
                what = f"the event loop was blocked for {late_ms} ms, and requests waited"
                ends += "reduce the load of the machine, or find what blocks the process"
            yield Condition(kinds.SLOW_LOOP, what, ends)


def _places(count: int) -> str:
    return "1 place" if count == 1 else f"{count:,} places"


def _ledgers(ids: Collection[int]) -> str:
    """Some ledgers in words."""
    more = len(ids) - NAMED_MAX
    named = ", ".join(map(str, islice(ids, NAMED_MAX))) + (f" and {more:,} more" if more > 0 else "")
    return f"ledger {named}" if len(ids) == 1 else f"ledgers {named}"
