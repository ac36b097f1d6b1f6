"""An unbounded ledger, or stream, by its name: a ledger without an end, which clients write in turn.

`core/recovery/take_over.py` decides how a client becomes the writer, `streams/take_over.py` performs it. Reads are those of a
ledger (`reading/reader.py`), with a record that has terms.

Source: Vanlightly's unbounded ledgers; docs/protocol/streams.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Final, Protocol

from quire.client.access import LedgerAccess
from quire.client.context import ClientContext
from quire.client.reading.reader import LedgerReader
from quire.client.recovering.recovery import AGAIN_PAUSE_S
from quire.client.recovering.recovery_failures import check_ignored_lacs, is_final, not_recovered
from quire.client.repairing.copies import LedgerReport, verify_copies
from quire.client.streams.take_over import (
    AWAITED_PAUSE_MS,
    AWAITED_PAUSE_MS_MAX,
    StreamTakeOver,
    awaited_by,
    why_awaited,
)
from quire.client.writing.creating import check_custom, place, shape_of
from quire.client.writing.writer import LedgerWriter
from quire.core.answers import Answer
from quire.core.errors import (
    AlreadyExistsError,
    ElectionUnavailableError,
    MisuseError,
    NotEnoughBookiesError,
    NotLeaderError,
    QuireError,
    StreamClosedError,
    WrongPasswordError,
)
from quire.core.ids import BookieId
from quire.core.ledger import effects as e
from quire.core.ledger.guarantee import GUARANTEE_KEY
from quire.core.ledger.metadata import (
    TOKEN_KEY,
    DigestType,
    LedgerMetadata,
    LedgerState,
    new_ledger,
    new_stream,
)
from quire.core.ledger.placement import Shape
from quire.core.ledger.terms import StreamMode, needs_of, resolve
from quire.core.settings import doubled
from quire.env.home import not_pickled
from quire.metadata.retries import pause_by_chance
from quire.wire.entry import Entry, digest_type_of
from quire.wire.stream_metadata import STREAM_BYTES_MAX, encode_stream

log = logging.getLogger(__name__)

_IDS_TRIED_MAX: Final = 10
_ROOM_BYTES: Final = 1024
"""Of a record: for the range of one more term, a fragment and its end."""


def _why_not(mode: StreamMode) -> str:
    """Why bookies cannot hold a stream of a mode."""
    return (
        f"they do not register the feature `{mode.needs[-1]}` (Java's bookies and older ones of ours), or this client speaks "
        "another protocol with them than our own"
    )


class StreamElection(Protocol):
    """Who should write a stream: advice, such as an `Election` of the metadata store. Safety never rests on it."""

    async def campaign(self) -> None:
        """Stand as a candidate, and return when this client should write; may be cancelled, and called again."""


class UnboundedLedger:
    """One unbounded ledger of a cluster. Made by `Client.unbounded_ledger`; nothing is asked before a method is called.

    Args:
        name: its name.
        password: the one that it was or is created with.
        context: what it shares with the client's other handles.
        turn: held while this client takes it over: never twice at once.
        mode: that the stream must have, or is created with; None: whichever it has.
    """

    __reduce__ = not_pickled

    def __init__(
        self,
        name: str,
        password: bytes,
        context: ClientContext,
        turn: asyncio.Lock,
        mode: StreamMode | None = None,
    ) -> None:
        self.name = name
        self._mode = mode
        self._password = password
        self._streams, self._context = context.records.streams, context
        self._turn = turn
        self._under_way: StreamTakeOver | None = None
        self._lacks: dict[BookieId, str] = {}

    def __repr__(self) -> str:
        return f"<UnboundedLedger {self.name}>"

    # --- its record --------------------------------------------------------------------------------------------------

    async def create(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest: str | DigestType = "crc32c",
        custom: Mapping[str, bytes] | None = None,
    ) -> LedgerMetadata:
        """Create it, without entries and without a writer.

        Where terms are in the identifier and fewer than E bookies take entries, it begins with absent slots, as a ledger does.

        Args:
            ensemble_size: E, bookies that share the entries.
            write_quorum: Qw, bookies that each entry is sent to.
            ack_quorum: Qa, bookies that must have it on disk before it counts.
            digest: crc32c, crc32, mac or dummy.
            custom: the caller's own metadata.

        Returns:
            Its record.

        Raises:
            AlreadyExistsError: another stream has the name.
            InvalidQuorumError: unless E >= Qw >= Qa >= 1.
            NotEnoughBookiesError: fewer bookies that know terms take entries than a ledger's creation needs; where terms only
                fence, fewer than E.
            MisuseError: the name cannot be one, or custom metadata is not bytes or guarantees the write quorum.
        """
        mode = self._mode or StreamMode.IDENTIFIERS
        # Where terms only fence, each bookie of the ensemble truncates in a take-over: none may be away from the beginning.
        all_present = ensemble_size if mode is StreamMode.FENCING else None
        usual = self._context.config.min_present
        shape = shape_of(ensemble_size, write_quorum, ack_quorum, all_present, usual)
        if GUARANTEE_KEY in (custom or {}):
            msg = f"the custom metadata {GUARANTEE_KEY!r} is for ledgers: a stream cannot guarantee its write quorum"
            raise MisuseError(msg)
        check_custom(custom or {})
        context, digest_type = self._context, digest_type_of(digest)
        for _ in range(_IDS_TRIED_MAX):
            token = context.chance.getrandbits(64) | 1
            ledger = new_ledger(
                await self._streams.next_id(),
                await self._ensemble(shape, mode),
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                digest_type=digest_type,
                password=self._password,
                custom={**(custom or {}), TOKEN_KEY: token.to_bytes(8, "big")},
                created_ms=context.clock.wall_ms(),
                creation_token=context.chance.getrandbits(62) | 1,
            )
            record = new_stream(ledger, context.chance.getrandbits(64), mode)
            try:
                await self._streams.create(record, self.name)
            except AlreadyExistsError as error:
                if "stream" in error.ids:
                    raise
                continue
            return record
        msg = f"{_IDS_TRIED_MAX} ids in a row were in use; was the metadata store restored from a backup?"
        raise AlreadyExistsError(msg)

    async def _ensemble(self, shape: Shape, mode: StreamMode) -> tuple[BookieId, ...]:
        context = self._context
        quarantined = context.quarantine.bookies(context.clock.now_ms())
        try:
            placed = await place(shape, context.bookies, context.chance, quarantined, needs=mode.needs)
        except NotEnoughBookiesError as error:
            msg = f"stream {self.name!r}: {error.message}"
            if mode is StreamMode.FENCING:
                msg += ". Where terms only fence, every bookie of the ensemble truncates in a take-over, so none may be away"
            if others := context.bookies.unable(mode.needs):
                msg += f". {', '.join(others)} cannot hold a stream: {_why_not(mode)}"
            raise NotEnoughBookiesError(msg, **error.ids) from error
        return placed.ensemble

    async def show(self) -> LedgerMetadata:
        """Its record as it is now, with its terms and which entries each wrote.

        Raises:
            NoSuchStreamError: there is none of this name.
            WrongPasswordError: the password is another.
        """
        return (await self._record())[0]

    async def _record(self) -> tuple[LedgerMetadata, int]:
        record, version = await self._streams.read(await self._streams.find(self.name))
        if not hmac.compare_digest(record.password, self._password):
            msg = f"stream {self.name!r}: the password is not the one that it was created with"
            raise WrongPasswordError(msg, ledger_id=record.ledger_id)
        mode = self._mode
        if record.terms is not None and mode is not None and mode is not record.terms.mode:
            has = record.terms.mode.word
            msg = f"stream {self.name!r} has the mode {has}, which never changes, and not {mode.word}"
            raise MisuseError(msg, ledger_id=record.ledger_id)
        return record, version

    async def waits_for(self) -> dict[BookieId, str]:
        """The bookies without which a take-over of this stream cannot end now, and why; empty where none waits.

        Only where terms only fence: there a take-over needs every bookie of the last ensemble, or another in its place. It is
        what this handle's own take-over waits for, else what one of another client does, by the record and by what bookies
        respond now.

        Raises:
            NoSuchStreamError: there is none of this name.
            WrongPasswordError: the password is another.
        """
        own = self._lacks if self._under_way is None else self._under_way.waits_for or self._lacks
        return dict(own) or await awaited_by(await self.show(), self._context)

    # --- writing -----------------------------------------------------------------------------------------------------

    async def open_writer(
        self, election: StreamElection | None = None, *, ignored_lacs: Collection[str] = ()
    ) -> LedgerWriter:
        """Take the stream over, from the client that writes it, and write it from after its last entry on.

        A stream whose terms only fence needs every bookie of its last ensemble, or others: without one this waits, and
        `waits_for` says for which. When another client takes it over, pending appends fail with `TermSupersededError`.
        The writer's `release`, and leaving its `async with`, leave the stream open for the next writer; its `close`
        closes it for good.

        Args:
            election: asked before the take-over, and again after one that another client won. None: at once.
            ignored_lacs: bookies whose last add confirmed is ignored, where the error says that it contradicts the
                entries: entries up to it that no bookie holds are dropped.

        Raises:
            NoSuchStreamError: there is none of this name.
            WrongPasswordError: the password is another.
            StreamClosedError: it was closed for good.
            NotLeaderError: other clients took it over each time.
            ElectionUnavailableError: the election does not respond; nothing was changed.
            RecoveryInconclusiveError: too few bookies responded to determine where it ends; no client writes it now.
            NotEnoughBookiesError: too few bookies took what is to be written back.
            MetadataUnknownError: the metadata store does not respond.
            MisuseError: its record has no room for one more term; or `ignored_lacs` names none of its bookies.

        Source: docs/protocol/streams.md, "Take-over".
        """
        return await self._take_over(election, [BookieId(bookie) for bookie in ignored_lacs])

    async def _take_over(
        self,
        election: StreamElection | None = None,
        ignored: Collection[BookieId] = (),
        *,
        to_close: bool = False,
    ) -> LedgerWriter:
        try:
            return await self._until_taken(election, ignored, to_close=to_close)
        finally:
            self._lacks = {}

    async def _until_taken(
        self, election: StreamElection | None, ignored: Collection[BookieId], *, to_close: bool
    ) -> LedgerWriter:
        context = self._context
        config, attempts, deadline_ms = context.config, 0, 0
        lack_ms = AWAITED_PAUSE_MS
        while True:
            if election is not None:
                await self._campaign(election)
            async with self._turn:
                record, version = await self._record()
                self._check_terms(record)
                check_ignored_lacs(f"stream {self.name!r}", "a take-over", record, ignored)
                if not to_close:
                    self._check_room(record)
                take_over = self._under_way = StreamTakeOver(record, version, context)
                try:
                    result = await take_over.run(ignored)
                finally:
                    self._under_way, self._lacks = None, {}
            if (
                record.only_fences
                and isinstance(result, e.RecoveryFailed)
                and result.answer is Answer.READ_ONLY
            ):
                # Each entry that is written back needs its whole write set, as the no-op needs every bookie.
                self._lacks = {b: why_awaited(b, Answer.TIMED_OUT, context.bookies) for b in result.bookies}
                over = await take_over.until_another(lack_ms)
                self._lacks, lack_ms = {}, doubled(lack_ms, AWAITED_PAUSE_MS_MAX)
                if over is None:
                    continue
                result = over
            if isinstance(result, e.TakenOver):
                return self._writer(result, take_over)
            if isinstance(result, e.TakeOverSuperseded):
                attempts += 1
                if attempts >= config.recovery_attempts_max:
                    msg = (
                        f"stream {self.name!r}: other clients took it over in {attempts} attempts of this one; let an "
                        "election say who writes it, or try again"
                    )
                    raise NotLeaderError(msg, ledger_id=record.ledger_id)
                wait_ms = doubled(config.change_retry_ms_min, config.change_retry_ms_max, attempts - 1)
                await pause_by_chance(wait_ms, context.chance)
                continue
            now_ms = context.clock.now_ms()
            deadline_ms = deadline_ms or now_ms + config.recovery_patience_ms
            if is_final(result) or now_ms >= deadline_ms:
                raise not_recovered(record, result, context.bookies.troubles(), self.name)
            await asyncio.sleep(AGAIN_PAUSE_S)

    async def _campaign(self, election: StreamElection) -> None:
        try:
            await election.campaign()
        except QuireError as error:
            msg = (
                f"stream {self.name!r}: the election does not respond ({error}); nothing was changed. Try again, or take "
                "the stream over without an election, which is advice only"
            )
            raise ElectionUnavailableError(msg, stream=self.name) from error

    def _check_room(self, record: LedgerMetadata) -> None:
        """A take-over that could not open its term would leave the stream without a writer."""
        size = len(encode_stream(record))
        if size > STREAM_BYTES_MAX - _ROOM_BYTES:
            msg = (
                f"stream {self.name!r}: its record has {size} of at most {STREAM_BYTES_MAX} bytes, which is no room for "
                "one more term; close the stream for good (`quire stream close`) and go on in another one"
            )
            raise MisuseError(msg, ledger_id=record.ledger_id)

    def _check_terms(self, record: LedgerMetadata) -> None:
        ensemble = record.last_fragment.ensemble
        assert record.terms is not None
        if others := [
            bookie for bookie in self._context.bookies.unable(needs_of(record.terms)) if bookie in ensemble
        ]:
            why = _why_not(record.terms.mode)
            msg = f"stream {self.name!r} is on {', '.join(others)}, and this client cannot use it: {why}"
            raise MisuseError(msg, ledger_id=record.ledger_id)

    def _writer(self, taken: e.TakenOver, take_over: StreamTakeOver) -> LedgerWriter:
        record = taken.record
        for hole in take_over.stragglers:
            log.warning(
                "stream %s was taken over before bookie %s acknowledged entries %d to %d, which it may lack",
                self.name,
                hole.bookie,
                hole.first,
                hole.last,
            )
        writer = LedgerWriter(
            record,
            taken.version,
            LedgerAccess.of(record, take_over.term),
            self._context,
            taken.absent,
            taken.last_entry,
            taken.length,
        )
        writer.bookies_changed()  # those that left before it was there are replaced, also if it never appends
        return writer

    async def resolve(self, error: Exception) -> bool | None:
        """Whether an entry whose append ended with an unknown outcome is in the stream: its ranges tell.

        Args:
            error: what the append ended with, such as `TermSupersededError`.

        Returns:
            True: every reader sees the entry. False: no reader ever will. None: no later term is open yet, so ask again
            when the next writer has taken the stream over.

        Raises:
            NoSuchStreamError: there is none of this name.
            MisuseError: the error is not that of an append to this stream.
        """
        record = await self.show()
        ids = error.ids if isinstance(error, QuireError) else {}
        entry_id, term = ids.get("entry_id"), ids.get("term")
        if (
            ids.get("ledger_id") != record.ledger_id
            or not isinstance(entry_id, int)
            or not isinstance(term, int)
        ):
            msg = (
                f"stream {self.name!r}: {type(error).__name__} is not the error of an append to it, and names no entry and "
                "term whose outcome could be found"
            )
            raise MisuseError(msg, ledger_id=record.ledger_id)
        kept = resolve(entry_id, term, record.ranges)
        if kept is None and record.state is LedgerState.CLOSED:
            return entry_id <= record.last_entry
        return kept

    # --- reading -----------------------------------------------------------------------------------------------------

    async def open_reader(self) -> LedgerReader:
        """A reader of all terms' entries, up to what the writer of the last one has confirmed.

        Raises:
            NoSuchStreamError: there is none of this name.
            WrongPasswordError: the password is another.
        """
        record, version = await self._record()
        self._check_terms(record)
        reader = LedgerReader(record, version, LedgerAccess.of(record), self._context)
        if not reader.closed:
            await reader.refresh()
        return reader

    async def verify(self) -> LedgerReport:
        """Read every copy of every entry up to the last confirmed one and compare them. Changes nothing.

        Raises:
            NoSuchStreamError: there is none of this name.
            WrongPasswordError: the password is another.
        """
        return await verify_copies(self.open_reader, self._context)

    async def read(
        self, first: int = 0, last: int | None = None, *, no_ops: bool = False
    ) -> AsyncGenerator[Entry, None]:
        """The entries first..last, in order; by default up to the last one confirmed. As `LedgerReader.read`."""
        reader = await self.open_reader()
        async with contextlib.aclosing(reader.read(first, last, no_ops=no_ops)) as entries:
            async for entry in entries:
                yield entry

    async def tail(self, first: int = 0) -> AsyncGenerator[Entry, None]:
        """Every entry from `first` on, as it is confirmed, whichever client writes it; ends when the stream is closed for good."""
        reader = await self.open_reader()
        async with contextlib.aclosing(reader.tail(first)) as entries:
            async for entry in entries:
                yield entry

    # --- its end -----------------------------------------------------------------------------------------------------

    async def close(self) -> LedgerMetadata:
        """Close the stream for good, at its last entry: it is taken over once more, and its tails end. Again is allowed.

        Returns:
            Its record.

        Raises:
            NoSuchStreamError, WrongPasswordError, NotLeaderError, RecoveryInconclusiveError, NotEnoughBookiesError,
            MetadataUnknownError: as `open_writer`.
            TermSupersededError: another client took it over before it was closed.
        """
        try:
            writer = await self._take_over(to_close=True)
        except StreamClosedError:
            return await self.show()
        await writer.close()
        return writer.metadata

    async def delete(self, *, fence: bool = True) -> None:
        """Delete the stream's record and name, and leave a tombstone; bookies drop its entries when they see that.

        One that is not closed is taken over first: until the bookies notice, its writer would still get
        acknowledgements.

        Args:
            fence: False deletes it as it is, for a stream whose bookies are permanently lost or that has no writer.

        Raises:
            NoSuchStreamError: there is none of this name.
            RecoveryInconclusiveError: its writer could not be stopped; nothing was deleted.
        """
        if fence and (await self.show()).state is not LedgerState.CLOSED:
            await (await self._take_over(to_close=True)).abandon()
        await self._streams.delete(await self._streams.find(self.name), name=self.name)
