"""Which bookies a writer's ensemble gets when some fail or leave: choices, and what is asked before one.

Source: BookKeeper protocol, "Writing to the ledger"; docs/protocol/ensemble-change.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from quire.client.access import LedgerAccess
from quire.client.context import ClientContext
from quire.client.writing.joining import truncated_first
from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger.effects import AskLeftBookies, ChooseReplacements, LookForBookies
from quire.core.ledger.placement import choose_replacements
from quire.core.ledger.terms import needs_of
from quire.core.ledger.writer import WriterMachine


class BookieChoices:
    """The bookies that one writer's machine asks for.

    Args:
        machine: the writer's; it gets what was chosen and found.
        access: id, master key and term of the ledger.
        context: the connections, the quarantine, the clock and chance.
        start: begins what takes time.
        perform: carries out what the machine says about it.
    """

    __slots__ = ("_access", "_context", "_machine", "_paused", "_perform", "_start")

    def __init__(
        self,
        machine: WriterMachine,
        access: LedgerAccess,
        context: ClientContext,
        start: Callable[[Coroutine[Any, Any, None]], None],
        perform: Callable[[], None],
    ) -> None:
        self._machine = machine
        self._access = access
        self._context = context
        self._start, self._perform = start, perform
        # The LAC at the last choice of a quarantined bookie, and the pause before it.
        self._paused: tuple[int | None, int] = (None, 0)

    # --- replacements ------------------------------------------------------------------------------------------------

    def choose(self, effect: ChooseReplacements) -> None:
        """Choose a bookie for each slot that can have one; at once, unless one is quarantined or has to truncate first."""
        chosen, quarantined = self._replacements(effect)
        pause_ms = self._pause_before_quarantined() if quarantined else 0
        if pause_ms or (chosen and effect.truncated_from != NO_ENTRY):
            self._start(self._choose_later(effect, pause_ms))
        else:
            self._chosen(effect, chosen)

    async def _choose_later(self, effect: ChooseReplacements, pause_ms: int) -> None:
        await asyncio.sleep(pause_ms / 1000)
        chosen = await truncated_first(effect, self._replacements, self._access, self._context.bookies)
        self._chosen(effect, chosen)
        self._perform()

    def _chosen(self, effect: ChooseReplacements, chosen: dict[int, BookieId]) -> None:
        bookies = self._context.bookies
        refused = [slot for slot in effect.slots if bookies.are_refused([effect.ensemble[slot]])]
        self._machine.replacements_chosen(chosen, self._now_ms(), refused=refused)

    def _replacements(self, effect: ChooseReplacements) -> tuple[dict[int, BookieId], bool]:
        """A bookie for each slot that can have one, and whether one of them is quarantined."""
        quarantined = self._quarantined()
        chosen = choose_replacements(
            effect.slots,
            effect.ensemble,
            self._writable(),
            self._context.chance,
            failed=effect.failed,
            quarantined=quarantined,
            required=effect.required,
        )
        return chosen, any(bookie in quarantined for bookie in chosen.values())

    def _pause_before_quarantined(self) -> int:
        """Milliseconds; none as long as entries are confirmed in between.

        A crashed bookie stays registered until its session ends. Two of them would otherwise replace each other, with a
        compare-and-swap of the record each time, as fast as the store responds.
        """
        config, lac = self._context.config, self._machine.window.lac
        before, pause_ms = self._paused
        longer = min(max(2 * pause_ms, config.change_retry_ms_min), config.change_retry_ms_max)
        self._paused = lac, longer if lac == before else 0
        return self._paused[1]

    # --- who is there ------------------------------------------------------------------------------------------------

    async def look(self, effect: LookForBookies) -> None:
        """Is there a spare, or is an absent bookie back? A spare makes the probes unnecessary."""
        context = self._context
        spare, answers = self._has_spare(effect.ensemble), dict[BookieId, Answer]()
        if not spare:
            there = sorted({effect.ensemble[slot] for slot in effect.slots}.intersection(self._writable()))
            answers = await context.bookies.probe(there, timeout_ms=context.config.probe_timeout_ms)
        slots = [slot for slot in effect.slots if answers.get(effect.ensemble[slot]) is Answer.OK]
        self._machine.bookies_found(slots, self._now_ms(), spare=spare)
        self._perform()

    def bookies_changed(self) -> None:
        """Those of the ensemble that are not registered any more, or as read-only, have left."""
        context, machine, now_ms = self._context, self._machine, self._now_ms()
        config = context.config
        for slot, bookie in enumerate(machine.ensemble):
            if not context.bookies.is_writable(bookie):
                span_ms = config.left_wait_ms_max - config.left_wait_ms_min + 1
                wait_ms = config.left_wait_ms_min + context.chance.getrandbits(32) % span_ms
                machine.bookie_left(slot, bookie, now_ms, wait_ms)
        self._perform()

    async def ask_left(self, effect: AskLeftBookies) -> None:
        """Which bookies that left are read-only or silent, and which answer? Without a spare none is asked."""
        bookies, spare = self._context.bookies, self._has_spare(effect.ensemble)
        left = [item for item in enumerate(effect.ensemble) if spare and not bookies.is_writable(item[1])]
        away = [bookie for _, bookie in left if not bookies.is_registered(bookie)]
        replies = await bookies.probe(away, timeout_ms=self._context.config.probe_timeout_ms)
        silent = (None, Answer.UNREACHABLE, Answer.TIMED_OUT)
        answered = [item for item in left if replies.get(item[1]) not in silent]
        leaving = [item for item in left if item not in answered]
        self._machine.left_bookies_asked(leaving, self._now_ms(), spare=spare, answered=answered)
        self._perform()

    def _has_spare(self, ensemble: Sequence[BookieId]) -> bool:
        return not {*ensemble, *self._quarantined()}.issuperset(self._writable())

    def _writable(self) -> list[BookieId]:
        """The bookies that may get the ledger's entries."""
        return self._context.bookies.writable(needs_of(self._machine.cas.record.terms))

    def _quarantined(self) -> tuple[BookieId, ...]:
        return self._context.quarantine.bookies(self._now_ms())

    def _now_ms(self) -> int:
        return self._context.clock.now_ms()
