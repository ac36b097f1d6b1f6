"""Drives one `TrimMachine`: truncates or deletes a log, or carries out the intent that a crash left in the list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from quire.core.errors import MisuseError, NoSuchLogError, PastEndError
from quire.core.log import trimming as t
from quire.core.log.effects import ReadHead, WriteHead
from quire.core.log.list import INTENTS_MAX, LogHead
from quire.core.log.trimming import TrimMachine, TrimOutcome
from quire.log.config import LogConfig
from quire.log.cursors import LogCursors
from quire.log.heads import LogHeads
from quire.log.ledgers import LogLedgers
from quire.metadata.retries import StoreRetries

MakeTrimMachine: TypeAlias = Callable[..., TrimMachine]
"""Makes the machine of one truncation or deletion; called as `TrimMachine` is."""


class LogTrimmer:
    """Drives one truncation or deletion of a log.

    Args:
        head: the log, as it was found.
        heads: the metadata.
        ledgers: its ledgers.
        config: settings.
        cursors: go with a log that is deleted.
    """

    def __init__(
        self,
        head: LogHead,
        heads: LogHeads,
        ledgers: LogLedgers,
        config: LogConfig,
        cursors: LogCursors | None = None,
    ) -> None:
        self._first_head, self._cursors = head, cursors
        self._heads, self._ledgers, self._config = heads, ledgers, config
        self._name, self._log_id = head.name, head.log_id
        self._at_once = asyncio.Semaphore(config.deletes_at_once)
        self._writes = self._retries()

    async def make_room(self) -> bool:
        """Carry out what earlier truncations left, if the list holds no more of them; says whether it did.

        Raises:
            QuireError: as `run`.
        """
        if len(self._first_head.intents) < INTENTS_MAX:
            return False
        await self.run(TrimMachine(-1))
        return True

    async def run(self, machine: TrimMachine) -> None:
        """Run a machine to its end.

        Raises:
            PastEndError: the log does not reach as far as its new start.
            NoSuchLogError: it was deleted meanwhile.
            QuireError: what stopped it; the intent stays and the next truncation carries it out.
        """
        machine.start()
        while True:
            out, machine.out = machine.out, []
            if len(out) == 1 and isinstance(out[0], t.TrimEnded):
                self._judge(out[0])
                return
            assert out, "a truncation without a pending effect"
            # Several effects at once are deletions of one page; they run at the same time.
            await asyncio.gather(*(self._carry_out(machine, effect) for effect in out))

    def _judge(self, ended: t.TrimEnded) -> None:
        if ended.outcome is TrimOutcome.NO_SUCH_LOG:
            msg = f"log {self._name!r} was deleted"
            raise NoSuchLogError(msg, log=self._name)
        if ended.outcome is TrimOutcome.PAST_END:
            raise PastEndError(ended.detail, log=self._name)
        if ended.outcome is TrimOutcome.REFUSED:
            raise MisuseError(ended.detail, log=self._name)

    async def _carry_out(self, machine: TrimMachine, effect: Any) -> None:
        match effect:
            case ReadHead():
                found = await self._retries().ask(self._heads.read, self._log_id)
                machine.head_read(*(found or (None, -1)))
            case WriteHead(head, version):
                reread = machine.head_conflicted  # after either: the head shows what is in
                await self._writes.compare_and_swap(
                    self._heads.write(head, version), machine.head_written, reread, reread
                )
            case t.TrimReadPage(page):
                machine.page_read(await self._retries().ask(self._heads.read_page, self._log_id, page.name))
            case t.TrimDeletePage(page):
                await self._retries().ask(self._heads.remove_page, self._log_id, page.name)
                machine.page_deleted(page.name)
            case t.TrimDeleteLedger(item):
                async with self._at_once:
                    await self._retries().ask(self._ledgers.delete_item, item)
                machine.ledger_deleted(item.ledger_id)
            case t.TrimDeleteLog():
                if self._cursors is not None:
                    await self._retries().ask(self._cursors.remove_all, self._log_id.hex())
                await self._retries().ask(self._heads.remove, self._first_head)
                machine.log_deleted()

    def _retries(self) -> StoreRetries:
        """For one call: concurrent calls count their missing responses separately. Requests may repeat.

        The writes of the head, which come one after the other, share one.
        """
        return StoreRetries(self._config.metadata_attempts_max)
