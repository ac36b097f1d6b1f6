"""A bookie's disk as the bookie sees it: put runs and facts, get a call when they are durable, read them back.

All methods are called on one loop. What is put is visible to reads at once; "stored" comes later, in the order of the
puts. It knows runs, ledgers and their facts, nothing of fragments, requests or peers.

Source: `docs/formats/segment.md`; docs/protocol/bookie.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from quire.core.bookie.boot import BootState, Marker
from quire.core.bookie.ledger import LedgerFacts
from quire.core.bookie.rules import RULES, BookieRules
from quire.core.errors import DirectoryLostError, StorageError
from quire.core.ledger.placement import RandomSource
from quire.core.ledger.stripes import HeldInterval
from quire.env.descriptors import is_shortage
from quire.env.interfaces import Clock, Files, Worker
from quire.storage.config import StorageConfig
from quire.storage.damages import Damages
from quire.storage.directory.boot_file import BootFile
from quire.storage.directory.identity import Identity
from quire.storage.directory.patient_worker import shortage
from quire.storage.formats.footer_format import OFFSET_UNIT, ROW, Row, RowFlag, Trailer
from quire.storage.formats.segment_format import ALL_LEDGERS, LSN_GAP, RecordFlag, SegmentRecordKind
from quire.storage.holding import RangeHeld
from quire.storage.index import RecentRuns
from quire.storage.journal import Journal
from quire.storage.reading import RunReader
from quire.storage.reclaiming.compaction import Compactor
from quire.storage.reclaiming.dropping import EntryDropper
from quire.storage.reclaiming.forgetting import RangeForgetter
from quire.storage.reclaiming.housekeeping import Housekeeping
from quire.storage.reclaiming.kept_records import KeptRecords
from quire.storage.reclaiming.measuring import SpaceMeter
from quire.storage.reclaiming.reclaim import Reclaimer
from quire.storage.reclaiming.relocating import Relocator
from quire.storage.reclaiming.tombstones import TombstoneShrinker
from quire.storage.segments.segment import Segment, WriteCallback
from quire.storage.segments.segment_files import NO_SPACE, SegmentFiles, Space
from quire.storage.starting.first_group import write_start
from quire.storage.starting.installing import SegmentInstaller
from quire.storage.starting.rebuild import StoredRecord, records_of
from quire.storage.starting.start import Start, StartReport
from quire.storage.states import States, StoredLedger
from quire.wire.plain_adds import AddedRun, OrdinaryRun, add_of


class LedgerStorage:
    """One bookie's disk. Made by `open`.

    Attributes:
        report: what the start found.
        boots: counts the starts on the directory.
        journal: writes what is put.
        reader: finds what is stored.
        states: what is known of each ledger.
        drops: lets entries of a ledger die, at once or soon.
        damages: what is damaged, found by the start or since.
        on_sealed: called when a segment has been sealed.
        started_lsn: of the mark of this start: a limbo that it began, or that begins while it runs, has this LSN.
        found: what the directory was before this start counted itself.
        kept: records that are relocated as they are.
        segments: in use, by sequence.
        unsealed: those of them whose runs are in memory.
        housekeeping: gives back what holds nothing any more.
    """

    def __init__(
        self,
        config: StorageConfig,
        segment_files: SegmentFiles,
        start: Start,
        worker: Worker,
        clock: Clock,
        boots: BootFile,
        identity: Identity,
    ) -> None:
        self.boots = boots
        self._identity = identity
        self._unbegun: Callable[[], None] = lambda: None
        self._config = config
        self._files = segment_files
        self._clock = clock
        self._recent = RecentRuns(config.recent_bytes_max)
        self._looked_for_space_ms = clock.now_ms()
        self._closed = False
        self.found = boots.own(start.found_lsn)
        self.on_sealed: Callable[[], None] = lambda: None
        self.report: StartReport = start.report
        self.started_lsn = 0
        self.segments: dict[int, Segment] = dict(sorted(start.segments.items()))
        self.unsealed = {number: one for number, one in self.segments.items() if one.table is not None}
        self.damages = Damages([*start.report.damages], config.damages_max, start.report.damages_more)
        self.reader = RunReader(self, segment_files, self._recent, config)
        self.journal = Journal(
            config,
            segment_files,
            worker,
            current=start.resume,
            sequences=self._sequences_in_use,
            on_opened=self._opened,
            on_durable=self._durable,
            on_sealed=self._install,
        )
        self.journal.last_lsn = self.journal.durable_lsn = start.last_lsn
        self.journal.next_sequence = start.next_sequence
        self.journal.terms = any(segment.header.terms for segment in self.segments.values())
        self.journal.before_last = start.before_last
        self.states = States(
            start.ledgers,
            start.unnamed_limbo,
            start.unnamed_limbo_place[1],
            self.journal,
            self.segments,
            self.unsealed,
        )
        start.ledgers.clear()
        self._ledgers = self.states.ledgers
        self._set_up_housekeeping(start)

    def _set_up_housekeeping(self, start: Start) -> None:
        """Who looks after segments and states while requests go on."""
        config, segment_files, clock = self._config, self._files, self._clock
        self.kept = KeptRecords(self.segments, segment_files, self.journal, self.damages.found)
        for sequence, locations in start.kept:
            self.kept.found(sequence, locations)
        self.drops = EntryDropper(
            self,
            self.reader,
            self.states,
            self.kept,
            self.journal,
            self.damages,
            RangeForgetter(self, self.reader, segment_files),
            start.rules,
        )
        reclaimer = Reclaimer(
            self.segments,
            self.states,
            self.kept,
            self.journal,
            segment_files,
            clock,
            config.spares_max,
            on_freed=self._on_freed,
        )
        compactor = Compactor(
            self.segments,
            self.states,
            self.reader,
            self.journal,
            segment_files,
            clock,
            self.damages,
            Relocator(self.journal, self.states, self._recent, segment_files, self.damages),
        )
        meter = SpaceMeter(
            self.segments,
            self.states,
            self.reader,
            segment_files,
            clock,
            reserve=config.reserve_segments,
        )
        shrinker = TombstoneShrinker(self.states, self.journal, clock)
        self.housekeeping = Housekeeping(reclaimer, compactor, shrinker, meter, self.states, self.journal)
        self._installer = SegmentInstaller(
            self.segments,
            self.unsealed,
            reclaimer.retiring,
            reclaimer.pinned,
            self.states,
            self.journal,
            segment_files,
            self.reader.cache,
            self.damages,
            clock,
            lambda: self.on_sealed(),  # noqa: PLW0108 - the callback is set later
        )

    # --- opening and closing --------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls, directory: Path | str, config: StorageConfig, identity: Identity, **parts: Any
    ) -> LedgerStorage:
        """Bring a bookie's disk up: `look`, whose other arguments `parts` are, then `begin`."""
        storage = cls.look(directory, config, identity, **parts)
        storage.begin()
        return storage

    @classmethod
    def look(
        cls,
        directory: Path | str,
        config: StorageConfig,
        identity: Identity,
        *,
        files: Files,
        worker: Worker,
        clock: Clock,
        chance: RandomSource | None = None,
        served: bool = False,
        stored: BootState | None = None,
        rules: BookieRules = RULES,
    ) -> LedgerStorage:
        """Read what is on a bookie's disk, and refuse it if need be. Nothing is written before `begin`.

        Args:
            directory: the bookie's; `identity` holds its lock.
            config: sizes and limits.
            identity: whose segments these are.
            files: the file system.
            worker: the thread for writes.
            clock: for the pace of looking for space.
            chance: where nonces come from.
            served: this bookie has been up before: if no segment is there, all have been lost.
            stored: how far the cluster knows the directory to be: if it is older, anything may have been lost.
            rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.

        Raises:
            DamagedSegmentError: a segment's header is damaged, or a newer version wrote it.
            WrongDirectoryError: a segment is another bookie's.
            StorageError: the disk fails already.
        """
        chance = chance or random.SystemRandom()
        segment_files = SegmentFiles(
            Path(directory),
            config,
            identity.cluster_instance,
            identity.bookie_id,
            files,
            chance,
            clock.now_ms,
        )
        start = Start(segment_files, rules)
        try:
            boots = BootFile(Path(directory), files)
            start.run(served=served)
            if stored is not None:
                start.judge(rules.older_directory(stored, boots.own(start.found_lsn)), stored.lsn)
            if start.resume is None and boots.last is not None:
                # Also where segments are missing: the LSN of an earlier limbo must not end a later one.
                start.last_lsn = max(start.last_lsn, boots.last.durable_lsn + LSN_GAP)
            storage = cls(config, segment_files, start, worker, clock, boots, identity)
        except OSError as error:
            segment_files.close()
            raise _failed(directory, error) from error
        except BaseException:
            segment_files.close()
            raise
        storage._unbegun = partial(storage._begin, start, stored)
        return storage

    def begin(self) -> None:
        """Write down what may be lost, and begin to write. From here on the directory is this process's.

        Raises:
            StorageError: the disk fails already.
        """
        try:
            self._unbegun()
        except OSError as error:
            self._files.close()
            raise _failed(self._files.directory.parent, error) from error
        except BaseException:
            self._files.close()
            raise

    def _begin(self, start: Start, stored: BootState | None) -> None:
        """Make the decisions of the start durable before anything is served."""
        self._files.prepare()
        self.report.write_path = self._files.write_path
        journal = self.journal
        unsealed = list(self.unsealed.values())
        for segment in unsealed:
            self._files.settle(segment.sequence)  # the start's group says what is in them
        if start.resume is not None:
            self._files.reopen(start.resume)
            unsealed.remove(start.resume)
        self.started_lsn = write_start(start, self.states, journal, self._config.group_bytes_max)
        journal.finish()
        if journal.failure is not None:
            raise journal.failure
        # What may have been lost is on disk now: only now may the evidence of it change.
        for segment in unsealed:
            self._seal_here(segment)
        self.drops.settle()
        for sequence in sorted(start.leftover):
            self._files.recycle(sequence, keep=self._config.spares_max)
        if not self._files.make_spares(self._config.reserve_segments):
            journal.full = True
            journal.finish()  # until its segments are all installed
            # Each start takes a spare. What earlier ones have left behind must come back, or none is left one day.
            self.housekeeping.reclaim()
            journal.finish()
            if journal.failure is not None:
                raise journal.failure

        self.states.note_all_limbo()
        self._count_boot(stored)

    def _count_boot(self, stored: BootState | None) -> None:
        try:
            self.boots.begin(self.journal.durable_lsn, stored)
        except OSError as error:
            # On a full disk the next start makes it.
            if error.errno not in NO_SPACE or self.boots.last is not None:
                raise

    def _seal_here(self, segment: Segment) -> None:
        """Seal a segment that an earlier process left unsealed, or whose footer is bad."""
        if segment.file is None:
            self._files.reopen(segment)
        self._install(segment, *segment.seal())
        self.damages.footer_replaced(str(self._files.path(segment.sequence)), segment.data_end)

    def close(self, *, clean: bool = True) -> None:
        """Stop: `clean` writes what was put and a mark; otherwise the disk is left as a crash would leave it."""
        if self._closed:
            return
        self._closed = self._installer.closed = True
        self.housekeeping.close()
        journal = self.journal
        if clean and journal.failure is None:
            journal.finish()
            if journal.failure is None:
                try:
                    journal.put(SegmentRecordKind.CLEAN_STOP, ALL_LEDGERS, b"", Space.STATE)
                    journal.finish()
                    if journal.failure is None:
                        self.boots.stopped(journal.durable_lsn)
                except (StorageError, OSError):
                    pass  # without the marks the next start looks more closely, that is all
        else:
            journal.drop()
        for segment in self.segments.values():
            segment.close()
        self._files.close()

    async def drain(self) -> None:
        """Return when all that was put is durable or has failed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.journal.flush()
        self.journal.try_again(last=True)
        self.journal.when_idle(partial(_settle, done))
        await done

    # --- putting ----------------------------------------------------------------------------------------------------

    def put_run(
        self,
        run: AddedRun,
        body_crc: int,
        *,
        lac: int,
        token: int,
        recovery: bool,
        callback: WriteCallback,
        tag: object,
        low_priority: bool = False,
    ) -> bool:
        """Store a run: reads see it at once, the callback is called when it is durable.

        Args:
            run: the run; its body is kept as it is.
            body_crc: the body's checksum, verified on receipt.
            lac: the LAC that came with it; it raises the ledger's known LAC unless this is a recovery add.
            token: the ledger's token.
            recovery: a recoverer sent it: it may use the reserve of a full disk.
            callback: is called with `tag`.
            tag: whatever the caller knows the put by.
            low_priority: it may not use that reserve, from any client.

        Returns:
            Whether it was taken; else the callback is called with the error, in its turn.
        """
        ledger_id, body, origin_term = run.ledger_id, run.body, run.origin_term
        space = Space.RECOVERY if recovery and not low_priority else Space.ADDS
        ledger = self._ledgers.get(ledger_id)
        try:
            if ledger is None:
                ledger = self.states.revive(ledger_id, space)
            segment, offset, lsn = self.journal.put(
                SegmentRecordKind.RUN,
                ledger_id,
                body,
                space,
                run,
                body_checksum=body_crc,
                token=token,
                lac=lac,
                flags=RecordFlag.RECOVERY if recovery else 0,
                item=(callback, tag, None),
            )
        except StorageError as error:
            self.journal.refuse(callback, tag, error)
            return False
        if ledger is None:
            ledger = self.states.new(ledger_id)
            self.states.place(ledger_id, ledger)
        # Half the time of a call of `Row`, which every run would pay.
        row = tuple.__new__(Row, (
            ledger_id, origin_term, run.first, run.last, lsn, offset // OFFSET_UNIT, len(body), run.count, run.period,
            RowFlag.RECOVERY if recovery else 0, run.digest_type, SegmentRecordKind.RUN, run.stripes,
        ))  # fmt: skip
        table = segment.table
        assert table is not None
        table.add(row, -1 if recovery else lac)
        self._recent.add(segment.sequence, offset, body, lsn)
        if self.reader.pending_deletions:
            self.drops.cancel_deletion(ledger_id)
        if recovery:
            self.damages.put_back(ledger_id, run.first, run.last, origin_term)
        ledger.last = max(ledger.last, run.last)
        if not recovery and ledger.facts is not None and lac > ledger.facts.lac:
            ledger.facts.lac, ledger.facts.lac_term = lac, origin_term
        return True

    def put_runs(
        self, runs: Sequence[OrdinaryRun], callback: WriteCallback, tag: Callable[[int, int], object]
    ) -> list[int]:
        """Store runs as `put_run` does each, with one call of the callback for those that come into one group in a row.

        Args:
            runs: of one ledger each.
            callback: is called with what `tag` has made of (the index of the first, how many), as often as need be.
            tag: whatever the caller knows some runs in a row by.

        Returns:
            The indices of those that were not taken: the callback is called with the error, in its turn.
        """
        known = self._ledgers
        try:
            ledgers = [known[run[0]] for run in runs]
        except KeyError:
            return self._put_one_by_one(runs, callback, tag)  # a state may have to be put before some
        at, refused = 0, []
        while at < len(runs):
            left = runs[at:] if at else runs
            try:
                segment, offsets, lsn = self.journal.put_runs(left, callback, partial(tag, at))
            except StorageError as error:
                self.journal.refuse(callback, tag(at, 1), error)
                refused.append(at)
                at += 1
            else:
                end = at + len(offsets)
                self._note_runs(runs[at:end], ledgers[at:end], segment, offsets, lsn)
                at = end
        return refused

    def _put_one_by_one(
        self, runs: Sequence[OrdinaryRun], callback: WriteCallback, tag: Callable[[int, int], object]
    ) -> list[int]:
        refused = []
        for at, run in enumerate(runs):
            _, token, lac, _, body_crc, *_ = run
            one = add_of(run)
            if not self.put_run(
                one, body_crc, lac=lac, token=token, recovery=False, callback=callback, tag=tag(at, 1)
            ):
                refused.append(at)
        return refused

    def _note_runs(
        self,
        runs: Sequence[OrdinaryRun],
        ledgers: Sequence[StoredLedger],
        segment: Segment,
        offsets: Sequence[int],
        lsn: int,
    ) -> None:
        """Note of runs of these ledgers where they are: in the segment, at these offsets, the first with this LSN."""
        table, pack, kind = segment.table, ROW.pack, int(SegmentRecordKind.RUN)
        assert table is not None
        rows: list[bytes] = []
        for at, (run, ledger, offset) in enumerate(zip(runs, ledgers, offsets, strict=True), lsn):
            ledger_id, _, lac, body, _, digest_type, first, last, count = run
            offset8 = offset // OFFSET_UNIT
            rows.append(
                pack(ledger_id, 0, first, last, at, offset8, len(body), count, 1, 0, digest_type, kind, 1)
            )
            if last > ledger.last:  # noqa: PLR1730 - as in `add_ordinary`
                ledger.last = last
            facts = ledger.facts
            if facts is not None and lac > facts.lac:
                facts.lac, facts.lac_term = lac, 0
        ledger_ids = [run[0] for run in runs]
        table.extend_late(b"".join(rows), ledger_ids, {run[0]: run[2] for run in runs})
        self._recent.add_all(segment.sequence, offsets, [run[3] for run in runs], lsn + len(runs) - 1)
        if self.reader.pending_deletions:
            for ledger_id, *_ in runs:
                self.drops.cancel_deletion(ledger_id)

    def put_facts(self, facts: LedgerFacts, callback: WriteCallback, tag: object) -> None:
        """Store all that is known of a ledger; the newest is the whole."""
        known = self.states.get(facts.ledger_id)
        ledger = known or self.states.new(facts.ledger_id)
        until = ledger.facts.deleted_until_ms if ledger.facts is not None else 0
        before, ledger.facts = ledger.facts, facts.copy()
        try:
            self.states.put(SegmentRecordKind.LEDGER_STATE, facts.ledger_id, ledger)
        except StorageError as error:
            ledger.facts = before
            self.journal.refuse(callback, tag, error)
            return
        if known is None or until != facts.deleted_until_ms:
            self.states.place(facts.ledger_id, ledger)
        self.states.note_limbo(facts.ledger_id, ledger)
        if before is not None and before.in_limbo and not facts.in_limbo:
            self.damages.ledger_good(facts.ledger_id)
        self.journal.wait(callback, tag)

    def delete(self, ledger_id: int, until_ms: int, callback: WriteCallback, tag: object) -> None:
        """Kill a ledger's entries; its tombstone keeps fence and key, for who decides what it refuses until then."""
        ledger = self.states.get(ledger_id) or self.states.new(ledger_id)
        before, through, ranges = ledger.facts, ledger.dead_through, ledger.dead_ranges
        facts = before or LedgerFacts(ledger_id)
        ledger.facts = replace(facts, deleted_until_ms=until_ms)
        # Everything put before this has a lower LSN, nothing after it has: also what is still on its way.
        ledger.dead_through, ledger.dead_ranges = self.journal.last_lsn, ()
        try:
            self.states.put(SegmentRecordKind.DELETE, ledger_id, ledger, Space.DELETE)
        except StorageError as error:
            ledger.facts, ledger.dead_through, ledger.dead_ranges = before, through, ranges
            self.journal.refuse(callback, tag, error)
            return
        self.states.place(ledger_id, ledger)
        self.states.note_limbo(ledger_id, ledger)
        self.drops.cancel_deletion(ledger_id)
        self.kept.forget(ledger_id, ledger.dead_through)
        self.damages.ledger_good(ledger_id)
        for sequence in ledger.drop_spans():
            segment = self.segments.get(sequence)
            if segment is not None:
                segment.live -= 1
        self.journal.wait(callback, tag)

    def clear_unnamed_limbo(self, callback: WriteCallback, tag: object) -> None:
        """Responses about unknown ledgers are conclusive again: whatever may have been lost has been named."""
        before = self.states.unnamed_limbo
        try:
            self.states.put_unnamed_limbo(before._replace(unknown=False))
        except StorageError as error:
            self.journal.refuse(callback, tag, error)
            return
        self.journal.wait(callback, tag)
        self.report.unknown_in_limbo = False

    def flush(self) -> None:
        """The end of a loop turn: what was put starts towards the disk."""
        self.journal.flush()

    # --- reading ------------------------------------------------------------------------------------------------------

    def token(self, ledger_id: int) -> int:
        """The token of a ledger, deleted or not; 0 if it has none or is not known."""
        ledger = self.states.get(ledger_id)
        return 0 if ledger is None or ledger.facts is None else ledger.facts.token

    def facts(self, ledger_id: int) -> LedgerFacts | None:
        """A copy of what is known of a ledger, None if it is not known, or is deleted and refuses nothing any more."""
        ledger = self.states.get(ledger_id)
        return None if ledger is None or ledger.facts is None else ledger.facts.copy()

    def read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        bytes_max: int,
        *,
        origin_term: int = 0,
        located: bool = False,
        low_priority: bool = False,
    ) -> RangeHeld:
        """What is here of entries first..last: at least one if any is, then up to `bytes_max` bytes.

        Of a stream, only entries of the origin term: one of another term is another entry; with `ANY_ORIGIN`, of each id the
        entry that was put last. With `located`, long runs may be
        left where they lie; see `Held.locations`. Of a `low_priority` read memory keeps nothing.
        """
        ledger = self.states.get(ledger_id)
        if ledger is None or last < first:
            return RangeHeld(conclusive_through=last)
        held = self.reader.read(
            ledger_id,
            ledger,
            first,
            last,
            bytes_max,
            origin_term=origin_term,
            located=located,
            low_priority=low_priority,
        )
        if self.reader.pending_deletions:
            held.unknown = sorted(
                (*held.unknown, *self.drops.unsaid(ledger_id, first, held.conclusive_through))
            )
        if self.states.in_unrecorded_limbo(ledger_id):
            held.conclusive_through = first - 1
        return held

    def last_entry(self, ledger_id: int) -> int:
        """The highest entry id that is here, -1 if none."""
        ledger = self.states.get(ledger_id)
        return -1 if ledger is None else ledger.last

    def is_recovered(self, ledger_id: int, entry_id: int, origin_term: int = 0) -> bool:
        """Whether the copy of an entry that is here was written by a recoverer: its header's LAC proves nothing."""
        ledger = self.states.get(ledger_id)
        if ledger is None:
            return False
        pieces = self.reader.pieces(ledger_id, ledger, entry_id, entry_id, origin_term)
        return any(piece.row.flags & RowFlag.RECOVERY for piece in pieces)

    def held(self, ledger_id: int) -> list[tuple[int, int, int, int]]:
        """(first, last, period, stripes) of what is here and not known to be damaged, neighbours joined."""
        return [(each[0], each[1], each[2], each[3]) for each in self.held_from(ledger_id, 0)]

    def held_from(self, ledger_id: int, first: int) -> Iterator[HeldInterval]:
        """What is here from an id on and not known to be damaged, by ascending first id, neighbours joined.

        Found lazily: a caller that wants only some stops, in the same loop turn. Intervals of two origin terms may have
        ids in common.
        """
        ledger = self.states.get(ledger_id)
        if ledger is None or ledger.last < first:
            return iter(())
        return self.reader.held(ledger_id, ledger, first)

    def good_from(self, ledger_id: int, first: int) -> Iterator[HeldInterval]:
        """The same, without what reads found to be damaged since: a repair copies that too."""
        return self.damages.without(ledger_id, self.held_from(ledger_id, first))

    # --- state of the disk --------------------------------------------------------------------------------------------

    @property
    def boot_state(self) -> BootState | None:
        """What the cluster is to know of this directory; None where a full disk kept no count."""
        last = self.boots.last
        if last is None:
            return None
        lsn = last.durable_lsn if last.clean else self.journal.durable_lsn
        return BootState(last.number, lsn, Marker(*last.marker), last.clean)

    @property
    def failure(self) -> StorageError | None:
        """Set for ever once a write or sync has failed."""
        return self.journal.failure

    @property
    def writable(self) -> bool:
        """New adds are taken."""
        if self.journal.failure is not None or self._closed:
            return False
        if self.journal.full:
            now_ms = self._clock.now_ms()
            if now_ms - self._looked_for_space_ms >= self._config.full_retry_ms:
                self._looked_for_space_ms = now_ms
                self.journal.look_for_space()
        return not self.journal.full

    @property
    def short(self) -> bool:
        """There is no space because no descriptor is left, not because the disk is full."""
        return self.journal.full and self._files.short

    @property
    def why_full(self) -> str:
        """Why there is no space for new adds, if there is none."""
        folder, size = self._files.directory, self._config.segment_bytes
        if self._files.short:
            return f"no file descriptor is left to create a file in {folder}"
        return f"the disk is full: {folder} has no room for another segment of {size} bytes"

    def check_disk(self) -> None:
        """Now and then: is it this process's, has a full one room again, is there a descriptor for what waits for one?"""
        self.check_owned()
        if self.journal.failure is not None:
            self.journal.flush()  # what waits is refused
        self.journal.try_again()
        if self.journal.full and not self._closed:
            self.journal.look_for_space()

    def check_owned(self) -> None:
        """Now and then, and before a segment: nothing more is written once another process has opened the directory."""
        if self.journal.failure is None and not self._closed:
            why = self.boots.other_writer()
            lock = self._identity.lock
            if lock is not None and not lock.stands():
                why = "another directory is in its place"
            if why:
                # Final, as after a failed write; the next `flush` refuses what waits.
                self.journal.failure = DirectoryLostError(
                    f"{self._files.directory.parent} is not this bookie's any more: {why}. Nothing more is acknowledged "
                    "or written here, and what this bookie does not have is unknown. Find out which process uses the "
                    "directory now, and let only one of them run",
                    path=str(self._files.directory.parent),
                )

    def statistics(self) -> dict[str, Any]:
        """Figures for people and monitoring."""
        journal = self.journal
        return {
            "segments": len(self.segments),
            "spares": len(self._files.spares),
            "segment_bytes": sum(segment.header.segment_bytes for segment in self.segments.values()),
            "file_bytes": self.housekeeping.file_bytes,
            "ledgers": len(self._ledgers),
            "tombstones": len(self.states.tombstones),
            "shrunk_tombstones": len(self.states.shrunk),
            "groups_written": journal.groups_written,
            "bytes_written": journal.bytes_written,
            "recent_bytes": self._recent.bytes,
            "footer_cache_bytes": self.reader.cache.bytes,
            "write_path": self._files.write_path,
            "full": journal.full,
            "damages": self.damages.count,
            "carried_bytes": self.housekeeping.compactor.relocated_bytes,
            "merged_runs": self.housekeeping.compactor.merged_runs,
        }

    # --- segments -----------------------------------------------------------------------------------------------------

    def _sequences_in_use(self) -> list[int]:
        retiring = self.housekeeping.reclaimer.retiring
        return [sequence for sequence in sorted(self.segments) if sequence not in retiring]

    def _opened(self, segment: Segment) -> None:
        self.check_owned()
        self.segments[segment.sequence] = self.unsealed[segment.sequence] = segment

    def _on_freed(self, sequence: int) -> None:
        self.damages.file_freed(str(self._files.path(sequence)))
        self.reader.cache.segment_freed(sequence)

    def _durable(self, lsn: int) -> None:
        if self._recent.bytes > self._recent.bytes_max:
            self._recent.trim(lsn)
        self.journal.prepare_spare()

    def _install(self, segment: Segment, trailer: Trailer, directory: bytes) -> None:
        """A footer is on disk."""
        self._installer.install(segment, trailer, directory)

    def read_again(self, segment: Segment) -> None:
        """A sealed segment's footer does not verify: begin to read its records instead."""
        self._installer.read_again(segment)

    # --- tools --------------------------------------------------------------------------------------------------------

    def scan(self) -> Iterator[StoredRecord]:
        """Every record on disk that can be found, segment by segment."""
        for sequence in sorted(self.segments):
            segment = self.segments[sequence]
            if not segment.spare:
                yield from records_of(self._files, segment.header)


def _failed(directory: Path | str, error: OSError) -> StorageError:
    if is_shortage(error):
        return shortage(directory, error)
    return StorageError(f"{directory} cannot be read or written: {error}", path=str(directory))


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
