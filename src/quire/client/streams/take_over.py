"""Performs one take-over of a stream: a recovery's driver with a `TakeOverMachine`.

Where terms only fence, entries are read by their ids alone, and are written back under the origin terms that they were found
with; at the end every bookie of the ensemble truncates, and gets the no-op.

Source: docs/protocol/streams.md, "Take-over", "Terms that only fence".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import AddRequester, BookieClient
from quire.client.context import ClientContext
from quire.client.reading.range_read import open_runs
from quire.client.recovering.recovery import RecoveryPerformer
from quire.core.answers import Answer
from quire.core.errors import MetadataUnknownError, NoSuchStreamError
from quire.core.ids import BookieId, EntryId, Slot
from quire.core.ledger.effects import (
    AwaitBookies,
    RecoveryClosed,
    RecoveryFailed,
    SendRecoveryAdds,
    SendRecoveryRead,
    SendTruncation,
    TakeOverEffect,
    TakeOverResult,
    TakeOverSuperseded,
)
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.terms import needs_of
from quire.core.recovery.take_over import TakeOverMachine
from quire.core.settings import doubled
from quire.wire.entries import copies
from quire.wire.entry import Entry, NoOp
from quire.wire.native_bodies import BY_ID
from quire.wire.requests import AddRun
from quire.wire.responses import ReadReply

log = logging.getLogger(__name__)

SILENT_MS = 1_000
"""How long a bookie may take that must have what a take-over writes, before another is looked for in its place. What it answers
later counts as well, unless another has come into its place: so a take-over ends on slow bookies too."""
SLOW_BYTES_PER_MS = 2048
"""What it may take longer for each byte that is written back: a bookie that takes 2 MiB a second is slow, not silent."""
AWAITED_PAUSE_MS = 100
"""Before bookies without which a take-over cannot end are asked again."""
AWAITED_PAUSE_MS_MAX = 1_000
"""Between two looks for them, at most, where no take-over is under way since it could only fail."""
RECORD_PAUSE_MS = 1_000
"""How often the record is read meanwhile."""
AWAITED_TIMEOUT_MS = 500
"""How long one of them may take then: meanwhile another may have come that can take its place."""


@dataclass(slots=True)
class _Fencing:
    """What a take-over keeps where terms only fence.

    Attributes:
        found: the entries that are not recovered yet, by id and origin term: bookies may have several of one id.
        asked: the truncations on their way, by slot and bookie, also those that are late.
        said: what each bookie answered to the truncation last.
        late: the bookies that are late with what is written back to them.
        waiting: it has waited for bookies.
        look_at_ms: when the record is read again, which may say that the take-over is over.
    """

    found: dict[int, dict[int, Entry]] = field(default_factory=dict)
    asked: dict[tuple[Slot, BookieId], asyncio.Future[Answer]] = field(default_factory=dict)
    said: dict[BookieId, Answer] = field(default_factory=dict)
    late: set[BookieId] = field(default_factory=set)
    waiting: bool = False
    look_at_ms: int = 0


class _NoOpSent(AddRequester):
    """A no-op on its way to a bookie."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def add_answered(self, tag: object, answer: Answer) -> None:  # noqa: ARG002 - there is only one
        """The bookie's response."""
        if not self.answer.done():
            self.answer.set_result(answer)


class _Changes:
    """Whether other bookies take entries than before."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = asyncio.Event()

    def bookies_changed(self) -> None:
        """The list is another one."""
        self.seen.set()

    async def wait(self, most_ms: int) -> None:
        """Until the list changes, at most so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.seen.wait(), most_ms / 1000)
        self.seen.clear()


def why_awaited(bookie: BookieId, answer: Answer, bookies: BookieClient) -> str:
    """Why a take-over cannot end without a bookie, for people."""
    if not bookies.is_registered(bookie):
        what = "it is not registered"
    elif not bookies.is_writable(bookie):
        what = "it is read-only"
    elif answer in {Answer.TIMED_OUT, Answer.UNREACHABLE}:
        what = "it does not respond"
    else:
        what = f"it answered {answer.name}"
    return f"{what}, and no other bookie can take its place"


async def awaited_by(record: LedgerMetadata, context: ClientContext) -> dict[BookieId, str]:
    """What another client's take-over of a stream must be waiting for, by the record and what bookies answer now."""
    if not record.only_fences or record.state is not LedgerState.IN_RECOVERY:
        return {}
    bookies, named = context.bookies, record.last_fragment.ensemble
    answers = await bookies.probe(named, timeout_ms=context.config.probe_timeout_ms)
    away = [bookie for bookie in named if answers[bookie] is not Answer.OK or not bookies.is_writable(bookie)]
    spares = {*bookies.writable(needs_of(record.terms))} - {*named}
    if len(spares) >= len(away):
        return {}
    return {bookie: why_awaited(bookie, answers[bookie], bookies) for bookie in away}


def _nothing() -> None:
    """What has been waited for changes nothing by itself."""


class StreamTakeOver(RecoveryPerformer[TakeOverResult]):
    """One take-over, from the record as it was read to a result.

    Args:
        record: the stream's record; the password was compared before.
        version: its version in the store.
        context: what it shares with the client's other handles of streams.
    """

    _machine: TakeOverMachine

    def __init__(self, record: LedgerMetadata, version: int, context: ClientContext) -> None:
        machine = context.machines.take_over(record, version, context.chance.getrandbits(64))
        super().__init__(machine, LedgerAccess.of(record, machine.term), context)
        self._fencing = _Fencing()

    @property
    def term(self) -> int:
        """The term in which this client writes if it takes the stream over."""
        return self._machine.term

    @property
    def waits_for(self) -> dict[BookieId, str]:
        """The bookies without which it cannot end now, and why, where terms only fence."""
        fencing, machine, said = self._fencing, self._machine, self._fencing.said
        # Also one that is asked again at the moment: it has not answered yet.
        lacking = {bookie for bookie, answer in said.items() if answer is not Answer.OK}
        lacking |= {*machine.awaited, *fencing.late}
        return {
            bookie: why_awaited(bookie, said.get(bookie, Answer.TIMED_OUT), self._bookies)
            for bookie in machine.back.change.ensemble
            if bookie in lacking
        }

    async def until_another(self, pause_ms: int) -> TakeOverResult | None:
        """After it has failed for want of bookies: wait until another one may succeed; no term is announced meanwhile.

        Args:
            pause_ms: before the first look, if bookies do not come or go before; each further pause is twice as long.

        Returns:
            None, or what the record says that ends the wait.
        """
        changes, bookies = _Changes(), self._bookies
        named, needs = self._record.last_fragment.ensemble, needs_of(self._record.terms)
        bookies.follow(changes)
        try:
            while True:
                await changes.wait(pause_ms)
                pause_ms = doubled(pause_ms, AWAITED_PAUSE_MS_MAX)
                if (over := await self._over()) is not None:
                    return over
                answers = await bookies.probe(named, timeout_ms=self._config.probe_timeout_ms)
                silent = [bookie for bookie, answer in answers.items() if answer is not Answer.OK]
                # One that is read-only is not in the way: it takes what is written back, and truncates.
                if len(silent) <= len({*bookies.writable(needs)} - {*named}):
                    return None
        finally:
            bookies.unfollow(changes)

    def _perform_one(self, effect: TakeOverEffect) -> None:
        if isinstance(effect, SendTruncation):
            self._spawn(self._truncate(effect))
        elif isinstance(effect, AwaitBookies):
            self._spawn(self._await_bookies())
        else:
            super()._perform_one(effect)

    # --- where terms only fence: entries by their ids ------------------------------------------------------------------

    def _take(self, effect: SendRecoveryRead, reply: ReadReply, origin_term: int) -> None:
        if origin_term != BY_ID:
            super()._take(effect, reply, origin_term)
            return
        origins: dict[int, int] = {}
        lengths: dict[int, int] = {}
        unknown = [*reply.unknown]
        machine, several = self._machine, self._fencing.found
        before = machine.lap
        for run in sorted(reply.runs, key=lambda each: each.first):
            found, bad, _ = open_runs([run], self._access, effect.first, effect.last, BY_ID)
            unknown += bad
            for entry in found:
                entry_id = entry.entry_id
                lengths[entry_id], origins[entry_id] = entry.length, run.origin_term
                if entry_id > before:
                    several.setdefault(entry_id, {})[run.origin_term] = entry
        lengths = dict(sorted(lengths.items()))
        machine.read_answered(effect.slot, reply.answer, lengths, reply.conclusive_through, unknown, origins)
        for recovered in range(before + 1, machine.lap + 1):
            self._entries[recovered] = several.pop(recovered)[machine.origin_of(recovered)]
        self.recovered += machine.lap - before

    def _late_after_ms(self) -> int:
        """How long a bookie may take for what it must have."""
        silent_ms = AWAITED_TIMEOUT_MS if self._fencing.waiting else SILENT_MS
        lengths = self._machine.back.lengths
        on_their_way = lengths[-1] - lengths[0] if lengths else 0
        return min(self._config.recovery_timeout_ms, silent_ms + on_their_way // SLOW_BYTES_PER_MS)

    # --- bookies that are late -----------------------------------------------------------------------------------------

    def _write_back(self, effect: SendRecoveryAdds) -> None:
        super()._write_back(effect)
        if self._record.only_fences:
            self._spawn(self._replace_late(effect))

    def _unacknowledged_of(self, effect: SendRecoveryAdds) -> list[object]:
        """The tags of what a bookie has not acknowledged of its entries, while it is waited for."""
        slot, bookie, change = effect.slot, effect.bookie, self._machine.back.change
        if slot not in change.live or change.ensemble[slot] != bookie:
            return []
        runs = [tag for tag, sent in self._unacknowledged.items() if sent and isinstance(tag, tuple)]
        return [tag for tag in runs if tag[:2] == (slot, bookie) and effect.first <= tag[2] <= effect.last]

    async def _replace_late(self, effect: SendRecoveryAdds) -> Callable[[], None]:
        """Give a bookie up that is late, once another can take its place; without one that would only end the take-over."""
        bookie, fencing, back = effect.bookie, self._fencing, self._machine.back
        await asyncio.sleep(self._late_after_ms() / 1000)
        try:
            while tags := self._unacknowledged_of(effect):
                spares = {*self._bookies.writable(needs_of(self._record.terms))}
                if spares - {*back.change.ensemble, *back.failed}:
                    for tag in tags:
                        self.add_answered(tag, Answer.TIMED_OUT)
                    break
                fencing.late.add(bookie)
                self._tell_of_wait()
                await self._probe(bookie)
                await asyncio.sleep(AWAITED_PAUSE_MS / 1000)
                if (over := await self._over()) is not None:
                    return partial(self._perform_one, over)
        finally:
            fencing.late.discard(bookie)
        return _nothing

    async def _probe(self, bookie: BookieId) -> Callable[[], None]:
        """Ask a bookie that is late for a sign of life: a connection from which none comes is made anew."""
        await self._bookies.probe([bookie], timeout_ms=AWAITED_TIMEOUT_MS)
        return _nothing

    def _tell_of_wait(self) -> None:
        if not self._fencing.waiting:
            waiting = ", ".join(f"{bookie} ({why})" for bookie, why in self.waits_for.items())
            log.warning(
                "stream %d: the take-over in term %d waits for %s. It goes on when these respond again, or when other bookies are there",
                self._record.ledger_id, self.term, waiting,
            )  # fmt: skip
        self._fencing.waiting = True

    # --- the truncation ------------------------------------------------------------------------------------------------

    async def _truncate(self, effect: SendTruncation) -> Callable[[], None]:
        """What a bookie answers to the truncation, in time; it is not sent again while its answer is late.

        Each would be the same: a late answer also answers the truncation that the machine wants sent by then.
        """
        bookie, asked = effect.bookie, self._fencing.asked
        who = effect.slot, bookie
        late = asked.get(who)
        if late is not None and not late.done():
            self._spawn(self._probe(bookie))
        elif late is None or late.result() is not Answer.OK:
            late = asked[who] = asyncio.get_running_loop().create_future()
            self._spawn(self._send_truncation(effect, late))
        await asyncio.wait([late], timeout=self._late_after_ms() / 1000)
        answer = asked.pop(who).result() if late.done() else Answer.TIMED_OUT
        self._fencing.said[bookie] = answer
        self._note(bookie, answer)
        return lambda: self._machine.truncation_answered(effect.slot, bookie, answer)

    async def _send_truncation(
        self, effect: SendTruncation, answered: asyncio.Future[Answer]
    ) -> Callable[[], None]:
        """The truncation, and after it the no-op, on one connection."""
        timeout_ms = self._config.recovery_timeout_ms
        work = [self._bookies.truncate(effect.bookie, self._access, effect.entry_id, timeout_ms=timeout_ms)]
        if effect.no_op:
            work.append(self._put_no_op(effect, timeout_ms))
        answers = await asyncio.gather(*work)
        answered.set_result(next((each for each in answers if each is not Answer.OK), Answer.OK))
        return _nothing

    async def _put_no_op(self, effect: SendTruncation, timeout_ms: int) -> Answer:
        entry_id, lac = effect.entry_id, effect.last_add_confirmed
        no_op = NoOp(self._record.ledger_id, entry_id, lac, self._machine.end.length, b"")
        (run,) = copies([no_op], self._access.digest, self._config.run_bytes_max, origin_term=self.term)
        sent = _NoOpSent()
        add = AddRun(self._access, run.body, run.body_crc, EntryId(lac), recovery=True, term=self.term)
        self._bookies.add_run(effect.bookie, add, sent, None, timeout_ms)
        try:
            return await sent.answer
        finally:
            self._bookies.drop(effect.bookie, sent)

    async def _await_bookies(self) -> Callable[[], None]:
        self._tell_of_wait()
        await asyncio.sleep(AWAITED_PAUSE_MS / 1000)
        if (over := await self._over()) is not None:
            return partial(self._perform_one, over)
        # It may wait for hours: a bookie that was away at its beginning is a spare like others once it is back.
        return partial(self._machine.waited_for_bookies, clears_failures=True)

    async def _over(self) -> RecoveryClosed | RecoveryFailed | TakeOverSuperseded | None:
        """What ends the wait for bookies, looked for now and then in the record.

        The stream was deleted, or closed for good; or another client has taken it over: the bookies that would say so are not
        asked while others are waited for.
        """
        fencing, now_ms = self._fencing, self._context.clock.now_ms()
        fencing.look_at_ms = fencing.look_at_ms or now_ms + RECORD_PAUSE_MS
        if now_ms < fencing.look_at_ms:
            return None
        fencing.look_at_ms = now_ms + RECORD_PAUSE_MS
        try:
            record, version = await self._context.records.streams.read(self._record.ledger_id)
        except NoSuchStreamError:
            return RecoveryFailed(Answer.NO_LEDGER, ())
        except MetadataUnknownError:
            return None
        return self._machine.ended_by(record, version)
