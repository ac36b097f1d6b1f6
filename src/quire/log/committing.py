"""Drives one `CommitMachine`: compare-and-swap of heads, recovery of ledgers, deletion of what is provably in no list.

Source: docs/spark-sink.md, "Exactly once: how"; docs/decisions/017-leader-epoch.md; docs/decisions/024-adoption.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from quire.client.client import Client
from quire.core.errors import (
    LogLedError,
    MetadataUnknownError,
    MisuseError,
    NoSuchLedgerError,
    NoSuchLogError,
    OutcomeUnknownError,
    QuireError,
    RecoveryInconclusiveError,
    StagedLedgerGoneError,
)
from quire.core.ledger.metadata import LedgerState
from quire.core.log import commit as c
from quire.core.log.commit import (
    COMMIT_RULES,
    CommitBatch,
    CommitMachine,
    CommitOutcome,
    CommitRules,
    FoundHead,
)
from quire.core.log.effects import RecoverLedger
from quire.core.log.fingerprints import Fingerprint
from quire.core.log.list import ItemFlags, LogHead, LogItem, PageLayout
from quire.core.log.trimming import TrimMachine
from quire.log.config import LogConfig
from quire.log.cursors import LogCursors
from quire.log.electing import election_of
from quire.log.heads import LogHeads
from quire.log.ledgers import LogLedgers
from quire.log.listing import Listing, delete_unlisted, read_listing
from quire.log.refusing import mark_error
from quire.log.trimming import LogTrimmer
from quire.metadata.election import Election
from quire.metadata.retries import StoreRetries
from quire.wire.log_records import page_name

GUARDED_MAX: Final = 100
"""Most ledgers of a batch, within what the store takes besides the heads, that the compare-and-swap itself requires.
Those beyond are looked at right before it, which a collector's grace time then has to cover."""

OwnFingerprint: TypeAlias = Callable[[int], Awaitable[Fingerprint | None]]
"""What the caller's checkpoint has of the batch of a number; None when it has nothing that can be read."""


async def _no_checkpoint(batch_id: int) -> Fingerprint | None:
    del batch_id
    return None


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of committing a batch.

    Attributes:
        already: it was in the log before: nothing was done.
        unplaced: logs whose leader has not assigned the batch its offsets yet, as far as is known.
        by_number: logs whose sink position could be compared by its number alone: an older program wrote it, or the checkpoint
            has no file of its batch.
    """

    already: bool
    unplaced: tuple[str, ...] = ()
    by_number: tuple[str, ...] = ()


class _Before(NamedTuple):
    """A log's list as it was read: the head's version, and the first offset after all that is closed."""

    version: int
    end: int


class LogCommitter:
    """Commits one batch. Use a new one for the next.

    Args:
        client: the cluster.
        names: the logs of the batch's parts, for people.
        batch: what is committed.
        password: of the logs' ledgers.
        config: settings.
        own: what the caller's checkpoint says of a batch of its query, for the comparison with a log's sink position.
        rules: the rules of the machine; a check takes one out.
        at: called before and after each step; a check makes the process exit there.
    """

    def __init__(
        self,
        client: Client,
        names: Sequence[str],
        batch: CommitBatch,
        password: bytes = b"",
        config: LogConfig | None = None,
        *,
        own: OwnFingerprint = _no_checkpoint,
        rules: CommitRules = COMMIT_RULES,
        at: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._own = own
        self._names = tuple(names)
        self._batch = batch
        self._config = config or LogConfig()
        self._heads = LogHeads(client.store, self._config.cached_pages_max)
        self._ledgers = LogLedgers(client, password)
        self._at = at
        layout = PageLayout(self._config.page_items, self._config.fan_out)
        self._machine = CommitMachine(batch, name_page=page_name, layout=layout, rules=rules)
        self._retries = StoreRetries(self._config.metadata_attempts_max)
        self._read: dict[bytes, _Before] = {}
        # As they were before a compare-and-swap of unknown outcome.
        self._unsettled: dict[bytes, _Before] = {}

    async def commit(self, *, placed_within_ms: int = 0) -> Committed:
        """Commit the batch, once, whatever responses are lost.

        Args:
            placed_within_ms: how long to wait until a leader has placed what was offered to it.

        Raises:
            MisuseError: it goes into more logs than the store changes in one step, or their lists are too long for that.
            NoSuchLogError: a log of the batch is not there.
            LogLedError: a log has a leader that does not adopt, or open ledgers and no leader.
            TransactionResetError: the named transaction counts from the beginning again, or its number is below the
                last.
            TransactionRowsError: its number is in the log with other rows.
            CheckpointWentBackError: the stream's checkpoint was put back or copied since the log's sink position was made.
            DamagedMarkError: what the log has of the query cannot be right.
            CursorHoldsError: an overwrite would take away what a cursor holds.
            StagedLedgerGoneError: a ledger of the batch was deleted; nothing was committed.
            MetadataUnknownError: the store was away for too long, or a log was rewritten or truncated before a lost
                response could be looked up. The batch may or may not be in the logs: commit it again, under the same
                number. Never once it is known to be in.
            StoreAwayError, …: it was away before the logs were changed: the batch is not in.
        """
        self._check_count()
        self._machine.start()
        try:
            await self._run()
        except QuireError as error:
            if not self._unsettled or isinstance(error, OutcomeUnknownError):
                raise
            raise self._may_be_in(error) from error
        ended = self._machine.ended
        assert ended is not None
        self._judge(ended)
        if self._batch.truncate:
            await self._carry_out_truncations()
        unplaced = await self._placed(placed_within_ms)
        by_number = tuple(self._names[index] for index in self._machine.by_number)
        return Committed(ended.outcome is CommitOutcome.ALREADY, unplaced, by_number)

    def _check_count(self) -> None:
        count, most = len(self._batch.parts), self._client.store.ops_max
        if most is not None and count > most:
            raise MisuseError(
                f"this batch goes into {count} logs, and the metadata store changes at most {most} in one step; nothing was"
                " committed: write it as several batches, each into fewer logs"
            )

    async def _run(self) -> None:
        machine = self._machine
        while machine.out:
            out, machine.out = machine.out, []
            for effect in out:
                await self._carry_out(effect)

    async def _carry_out(self, effect: c.CommitEffect) -> None:
        machine = self._machine
        match effect:
            case c.ReadHeads():
                self._at("read")
                machine.heads_read([await self._found(part.log_id) for part in self._batch.parts])
            case c.LookForLedger(index, head, ledger_id):
                listing = await self._retries.ask(read_listing, self._client.store, self._heads, head.log_id)
                if listing is None:
                    raise MetadataUnknownError(
                        f"the metadata store did not return the list of log {self._names[index]!r}"
                    )
                listed = ledger_id in listing.ledgers or await self._was_listed(listing, ledger_id)
                machine.looked(index, listed=listed)
            case RecoverLedger(item):
                await self._recover(item)
            case c.CasHeads():
                await self._store_heads(effect)
            case c.DeleteUnlisted(log_id, items):
                await self._delete(log_id, items)

    async def _found(self, log_id: bytes) -> FoundHead:
        found = await self._retries.ask(self._heads.read, log_id)
        if found is None:
            return FoundHead(None)
        head, version = found
        self._read[log_id] = _Before(version, head.closed_end)
        if self._batch.truncate:
            if await self._trimmer(head).make_room():
                return await self._found(log_id)
            cursors = LogCursors(self._client.store, self._client.clock.wall_ms)
            await self._retries.ask(cursors.check_truncation, head, head.closed_end)
        leader, alive = head.leader, True
        if leader.holder and not self._batch.takeover:
            election = Election(self._client.store, election_of(log_id), "")
            standing = await self._retries.ask(election.candidates)
            alive = f"{leader.holder}@{leader.host}" in standing
        position, own = head.sink_position(self._batch.query_id), None
        if (
            position is not None
            and position.fingerprint is not None
            and position.batch_id != self._batch.batch_id
        ):
            own = await self._own(position.batch_id)
        return FoundHead(head, version, alive, own)

    async def _was_listed(self, listing: Listing, ledger_id: int) -> bool:
        """Whether a list that does not name a ledger took it in with the compare-and-swap whose response was lost.

        Raises:
            MetadataUnknownError: it does not show that any more: it was rewritten, or truncated, where the ledger would be.
        """
        head = listing.head
        before = None if head is None else self._unsettled.get(head.log_id)
        if head is None or before is None or listing.version == before.version:
            return False
        above = await self._retries.ask(self._heads.all_items, head, before.end)
        if any(item.ledger_id == ledger_id for item in above):
            return True
        if head.start_offset > before.end or any(item.flags & ItemFlags.REWRITTEN for item in above):
            raise MetadataUnknownError(
                f"the metadata store did not say whether it took this batch into log {head.name!r}, and the log was "
                f"rewritten or truncated after offset {before.end} before it could be looked up; read the log from there "
                "on before writing the batch again",
                log=head.name,
            )
        return False

    async def _recover(self, item: LogItem) -> None:
        self._at("fence")
        try:
            summary = await self._ledgers.recover(item)
        except QuireError as error:
            deleted = isinstance(error, NoSuchLedgerError)
            self._machine.recovery_failed(item.ledger_id, deleted=deleted, detail=error.message)
        else:
            self._machine.recovered(item.ledger_id, summary)

    async def _store_heads(self, effect: c.CasHeads) -> None:
        required = []
        for item in effect.required:
            try:
                record, version = await self._retries.ask(self._client.records.ledgers.read, item.ledger_id)
            except NoSuchLedgerError:
                self._machine.ledger_missing()
                return
            if record.token != item.token or record.state is not LedgerState.CLOSED:
                self._machine.ledger_missing()
                return
            required.append((item.ledger_id, version))
        self._at("swap")

        def stored(_: object) -> None:
            self._at("swapped")
            self._machine.stored()

        def unknown() -> None:
            self._unsettled = dict(self._read)
            self._machine.unknown()

        self._unsettled = {}  # what was read since has shown that the batch is not in
        most = self._client.store.ops_max
        guarded = GUARDED_MAX if most is None else min(GUARDED_MAX, most - len(effect.changes))
        write = self._heads.write_all(effect.changes, required[:guarded])
        try:
            await self._retries.compare_and_swap(write, stored, self._machine.conflicted, unknown)
        except MetadataUnknownError as error:
            raise self._may_be_in(error) from error

    def _may_be_in(self, error: QuireError) -> MetadataUnknownError:
        msg = f"this batch may or may not be in log {', '.join(map(repr, self._names))} ({error.message})"
        return MetadataUnknownError(msg, **error.ids)

    async def _delete(self, log_id: bytes, items: tuple[LogItem, ...]) -> None:
        """What a replay staged is garbage; if it cannot be deleted now, the collector finds it."""
        for item in items:
            self._at("delete")
            with contextlib.suppress(QuireError):
                await delete_unlisted(
                    self._client.store, self._client.records.ledgers, self._heads, log_id, item.ledger_id
                )

    async def _carry_out_truncations(self) -> None:
        """The ledgers that an overwrite took out of the list go; if not now, then with the next truncation."""
        for part in self._batch.parts:
            with contextlib.suppress(QuireError):
                found = await self._heads.read(part.log_id)
                if found is not None and found[0].intents:
                    await self._trimmer(found[0]).run(TrimMachine(-1))

    def _trimmer(self, head: LogHead) -> LogTrimmer:
        return LogTrimmer(head, self._heads, self._ledgers, self._config)

    # --- waiting -----------------------------------------------------------------------------------------------

    async def _placed(self, within_ms: int) -> tuple[str, ...]:
        """The logs whose leader has not placed the batch yet when the time is over, or of which that is unknown."""
        unplaced = []
        for name, part in zip(self._names, self._batch.parts, strict=True):
            with contextlib.suppress(TimeoutError, QuireError):  # the batch is in the log
                async with asyncio.timeout(within_ms / 1000 if within_ms else None):
                    if await self._wait_until_placed(part.log_id, part.items, wait=bool(within_ms)):
                        continue
            unplaced.append(name)
        return tuple(unplaced)

    async def _wait_until_placed(self, log_id: bytes, items: tuple[LogItem, ...], *, wait: bool) -> bool:
        mine = {item.ledger_id for item in items}
        async with contextlib.AsyncExitStack() as stack:
            found = await self._retries.ask(self._heads.read, log_id)
            if found is None or not _waits(found[0], mine):
                return True
            if not wait:
                return False
            changes = await stack.enter_async_context(self._heads.watch(log_id))
            async for _ in changes:
                found = await self._retries.ask(self._heads.read, log_id)
                if found is None or not _waits(found[0], mine):
                    return True
        return False

    def _judge(self, ended: c.CommitEnded) -> None:
        name = self._names[max(ended.index, 0)] if self._names else ""
        batch, detail = self._batch, ended.detail
        match ended.outcome:
            case CommitOutcome.NO_SUCH_LOG:
                raise NoSuchLogError(f"there is no log {name!r} in this cluster", log=name)
            case CommitOutcome.LEADER_LIVES:
                what = (
                    "that does not adopt" if not batch.truncate else "and cannot be truncated while it runs"
                )
                msg = f"log '{name}' has a leader ({detail}) {what}; stop it or set takeover=true."
                raise LogLedError(msg, log=name)
            case CommitOutcome.LEADER_GONE:
                msg = (
                    f"log '{name}' has an open ledger of a leader that has ended ({detail}); set "
                    "takeover=true, which recovers that ledger."
                )
                raise LogLedError(msg, log=name)
            case (
                CommitOutcome.WAS_RESET
                | CommitOutcome.IS_BEHIND
                | CommitOutcome.OTHER_HISTORY
                | CommitOutcome.MARK_DAMAGED
            ):
                raise mark_error(ended, batch, name)
            case CommitOutcome.LEDGER_GONE:
                msg = (
                    f"log '{name}': a ledger of this batch was deleted before the batch was committed, so nothing was "
                    "committed. Run the batch again; if batches take longer than the collector's grace time, raise it"
                )
                raise StagedLedgerGoneError(msg, log=name)
            case CommitOutcome.RECOVERY_FAILED:
                raise RecoveryInconclusiveError(f"log '{name}' cannot be taken over now: {detail}", log=name)
            case CommitOutcome.REFUSED:
                raise MisuseError(detail, log=name)


def _waits(head: LogHead, ledgers: set[Any]) -> bool:
    return any(item.ledger_id in ledgers for adoption in head.adoptions for item in adoption.items)


async def discard(
    client: Client,
    log_id: bytes,
    ledger_ids: Sequence[int],
    *,
    looks: bool = True,
    at: Callable[[str], None] = lambda _: None,
) -> list[int]:
    """Delete staged ledgers that the log does not name; proven in the deletion, so it is safe after any commit.

    Returns:
        Those that stay: listed, or that is unknown now. The collector looks at them again.
    """
    heads = LogHeads(client.store)
    stay = []
    for ledger_id in ledger_ids:
        at("delete")
        try:
            deleted = await delete_unlisted(
                client.store, client.records.ledgers, heads, log_id, ledger_id, looks=looks
            )
        except QuireError:
            deleted = False
        if not deleted:
            stay.append(ledger_id)
    at("deleted")
    return stay
