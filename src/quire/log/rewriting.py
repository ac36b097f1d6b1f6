"""Copies closed ledgers of a log into one and replaces them in its list: the records and their offsets stay.

Copying moves batch entries as they are; only their headers count anew. The list changes once for many copies, guarded
by the records of the new ledgers, so that no collector has deleted one meanwhile. What left the list is deleted by the
collector, after its grace time.

Source: docs/spark-jobs.md, "Rewrite".
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from quire.client.client import Client
from quire.core.errors import (
    CorruptMetadataError,
    ListChangedError,
    MisuseError,
    NoSuchLedgerError,
    NoSuchLogError,
    StagedLedgerGoneError,
)
from quire.core.ids import LedgerId
from quire.core.log.commit import HeadChange
from quire.core.log.effects import WriteHead
from quire.core.log.list import ItemLocation, LogHead, LogItem, LogSettings, PageLayout, PageRef
from quire.core.log.rewriting import Replacement, RewriteMachine, RewriteStatus, replaceable
from quire.log.config import LogConfig
from quire.log.heads import LogHeads
from quire.log.ledgers import LogLedgers, is_batched, read_views, summary
from quire.log.staging import StagedBy, stage
from quire.metadata.retries import StoreRetries
from quire.wire.batch import BatchView
from quire.wire.log_records import page_name

REPLACED_AT_ONCE: Final = 64
"""New ledgers of one compare-and-swap: each is a key that it requires, and stores take about a hundred."""


class LogRewriter:
    """Rewrites a log's closed ledgers.

    Args:
        client: the cluster.
        log_id: the log.
        password: of its ledgers.
        config: settings.
    """

    def __init__(
        self, client: Client, log_id: bytes, password: bytes = b"", config: LogConfig | None = None
    ) -> None:
        self._client, self._log_id, self._password = client, log_id, password
        self._config = config or LogConfig()
        self._heads = LogHeads(client.store, self._config.cached_pages_max)
        self._ledgers = LogLedgers(client, password)

    async def items(self) -> tuple[LogHead, list[LogItem]]:
        """The list, and all its items, oldest first.

        Raises:
            NoSuchLogError: the log was deleted.
        """
        head, _ = await self._head()
        return head, [*_flat(await self._paged(head)), *head.items]

    async def candidates(self) -> tuple[LogHead, list[LogItem]]:
        """The list, and those of its items that may be replaced now.

        Raises:
            NoSuchLogError: the log was deleted.
        """
        head, items = await self.items()
        return head, replaceable(head, items)

    async def copy(self, items: Sequence[LogItem], settings: LogSettings, by: StagedBy) -> Replacement:
        """Copy the records of neighbours into one new ledger, in no log's list yet.

        Args:
            items: closed items with batch entries, oldest first.
            settings: quorums and digest of the new ledger.
            by: who copies.

        Raises:
            CorruptMetadataError: a ledger does not hold what its item says.
            MalformedBatchError: an entry is not a batch.
            QuireError: an old ledger cannot be read, or the new one not written; it is left to the collector.
        """
        staged = await stage(self._client, self._log_id, settings, by, self._password)
        records, through, low, high = 0, 0, 0, 0
        try:
            for item in items:
                before, above = records, (item.first_offset or 0) - (items[0].first_offset or 0)
                async for view in self._batches(item):
                    header = view.header
                    low = header.min_ms if not records else min(low, header.min_ms)
                    high = header.max_ms if not records else max(high, header.max_ms)
                    await staged.append(view.moved(above + header.records_before, low, high))
                    records += header.count
                    through = above + header.records_through
                if records - before != item.count:
                    held = f"ledger {item.ledger_id} holds {records - before} records"
                    msg = f"{held}, the list says {item.count}: it is not copied"
                    raise CorruptMetadataError(msg, ledger_id=item.ledger_id)
            new = await staged.close(records, *((low, high) if records else (None, None)))
        except BaseException:
            await staged.abandon()
            raise
        found = await summary(await self._ledgers.open(new))
        if (found.records, found.payload_bytes) != (through, new.payload_bytes):
            msg = (
                f"ledger {new.ledger_id} was written up to record {through}, and {found.records} "
                "records were read back"
            )
            raise CorruptMetadataError(msg, ledger_id=new.ledger_id)
        return Replacement.by_copy(items, new)

    async def _batches(self, item: LogItem) -> AsyncGenerator[BatchView, None]:
        """Each entry of an item's ledger."""
        reader = await self._ledgers.open(item)
        if not is_batched(reader.metadata):
            msg = f"the entries of ledger {item.ledger_id} are not batches; the ledger is not rewritten"
            raise MisuseError(msg, ledger_id=item.ledger_id)
        if reader.last_add_confirmed < 0:
            return
        async with contextlib.aclosing(read_views(reader, reader.last_add_confirmed)) as views:
            async for _, view in views:
                yield view

    async def replace(
        self, replacements: Sequence[Replacement], *, archive: str = "", compacted_below: int = 0
    ) -> None:
        """Replace the list by compare-and-swap, exactly once, also when responses are lost.

        Args:
            replacements: in the list's order, at most `REPLACED_AT_ONCE`.
            archive: the directory with the files of items that move there.
            compacted_below: up to where later records were looked for, if some were left out for their sake.

        Raises:
            ListChangedError: an old item has changed; the list is unchanged.
            StagedLedgerGoneError: a new ledger was deleted; the list is unchanged.
            MisuseError: the log has its archive elsewhere.
            NoSuchLogError: the log was deleted.
            MetadataUnknownError: the outcome is unknown; call again.
        """
        layout = PageLayout(self._config.page_items, self._config.fan_out)
        machine = RewriteMachine(
            replacements, layout, page_name, archive=archive, compacted_below=compacted_below
        )
        new = [each.new for each in replacements if each.new.location is not ItemLocation.ARCHIVE]
        retries, reread = StoreRetries(self._config.metadata_attempts_max), machine.head_conflicted
        machine.start()
        while machine.status is not RewriteStatus.ENDED:
            (effect,), machine.out = machine.out, []
            if isinstance(effect, WriteHead):
                required = [await self._guard(each, retries) for each in new]
                write = self._heads.write_all(
                    [HeadChange(effect.head, effect.version, effect.pages)], required
                )
                await retries.compare_and_swap(write, lambda _: machine.head_written(), reread, reread)
            else:
                machine.head_read(*await retries.ask(self._list))

    async def _list(self) -> tuple[LogHead, int, list[tuple[PageRef, list[LogItem]]]]:
        head, version = await self._head()
        return head, version, await self._paged(head)

    async def _head(self) -> tuple[LogHead, int]:
        found = await self._heads.read(self._log_id)
        if found is None or found[0].is_being_deleted:
            msg = f"log {self._log_id.hex()} was deleted"
            raise NoSuchLogError(msg, log_id=self._log_id.hex())
        return found

    async def _paged(self, head: LogHead) -> list[tuple[PageRef, list[LogItem]]]:
        """The head's pages with all the items below each.

        Raises:
            ListChangedError: a page is deleted: the log was truncated since the head was read.
        """
        try:
            return [(page, await self._heads.items_of(head, page)) for page in head.pages]
        except NoSuchLogError as error:
            raise ListChangedError(f"{error.message}; plan again", log=head.name) from error

    async def _guard(self, new: LogItem, retries: StoreRetries) -> tuple[LedgerId, int]:
        """A new ledger and the version of its record, which says that it is there as it was made."""
        try:
            record, version = await retries.ask(self._client.records.ledgers.read, new.ledger_id)
        except NoSuchLedgerError as error:
            msg = f"ledger {new.ledger_id} was deleted before it was added to the list; copy again"
            raise StagedLedgerGoneError(msg, ledger_id=new.ledger_id) from error
        if record.token != new.token:
            msg = f"ledger {new.ledger_id} was replaced by another ledger; copy again"
            raise StagedLedgerGoneError(msg, ledger_id=new.ledger_id)
        return new.ledger_id, version


def _flat(paged_items: Sequence[tuple[PageRef, Sequence[LogItem]]]) -> list[LogItem]:
    return [item for _, items in paged_items for item in items]
