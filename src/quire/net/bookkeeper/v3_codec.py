"""What a connection says in V3: every request of ours but a few has frames there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from quire.core.answers import Answer
from quire.core.ledger.stripes import HeldInterval
from quire.net.bookkeeper.codec import BookKeeperCodec
from quire.net.bookkeeper.pending_requests import (
    PendingLac,
    PendingPlain,
    PendingRange,
    PendingRequest,
    PendingRun,
)
from quire.net.bookkeeper.runs_expected import RunsExpected, v3_place_of
from quire.net.channel_codec import ChannelContext
from quire.net.run_frames import RunFrames
from quire.net.security.signing_in import WANTS_A_NAME
from quire.wire import add_columns, bookkeeper, v3
from quire.wire.entry import Buffer
from quire.wire.proto import bookkeeper_protocol_pb2 as pb
from quire.wire.requests import AskInfo, ListEntries, LongPoll, ReadRange, WriteLac
from quire.wire.responses import EntryListReply, InfoReply, ReadReply
from quire.wire.run import RunView

_OF_NO_ENTRY: Final = -2
"""Stands where other requests have an entry id."""
_AFTER_A_POLL_SECONDS: Final = 5.0
"""How long after the deadline of a long poll what it waited for may still be read."""
_SLICE_MS: Final = 300
"""A Java bookie may not wake a long poll when a LAC comes, only at the end of its time: so it is asked in short ones."""


class V3Codec(BookKeeperCodec):
    """The client's side of BookKeeper's protocol V3 on one channel."""

    is_v2 = False

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context, RunsExpected(v3.ledger_of_add_answer, v3_place_of))
        self._last_run_txn = 0
        self._expected: dict[int, tuple[PendingRequest, int]] = {}

    # --- sending -------------------------------------------------------------------------------------------------

    def frames_of(self, body: Buffer, key: bytes, *, recovery: bool) -> RunFrames:
        frames = self._encoder.adds_v3(body, key, recovery=recovery, after_txn=self._last_run_txn)
        self._last_run_txn = frames.txn_id
        return frames

    def frames_again(self, pending: PendingRun) -> bytes:
        request, run = pending.request, RunView.parse(pending.request.body)
        recovery = request.recovery
        priority = v3.HIGH_PRIORITY if recovery else 0
        return add_columns.encode_v3(
            pending.txn_id, run, request.ledger.key, recovery=recovery, priority=priority
        )

    def questions(self, pending: PendingRequest, items: Sequence[int]) -> bytes:
        ledger_id, priority = pending.ledger_id, v3.HIGH_PRIORITY
        if isinstance(pending, PendingLac):
            if not pending.key:
                message = v3.request(pb.READ_LAC, self._expect(pending, bookkeeper.LAST_ENTRY))
                message.readLacRequest.ledgerId = ledger_id
                return v3.frame_of(message)
            key, priority = pending.key, 0
        else:
            assert isinstance(pending, PendingRange)
            key = pending.key
            if not key and not pending.recovery:
                txn_id = self._encoder.next_txns(len(items))
                self._expected.update(
                    (txn, (pending, entry_id)) for txn, entry_id in enumerate(items, txn_id)
                )
                pending.expected += len(items)
                return v3.encode_plain_reads(txn_id, ledger_id, items)
        flag = v3.FENCE_LEDGER if key else None
        parts = [
            v3.encode_read(
                self._expect(pending, entry_id), ledger_id, entry_id, key=key, flag=flag, priority=priority
            )
            for entry_id in items
        ]
        return b"".join(parts)

    def ask_otherwise(
        self,
        request: Any,
        pending: Callable[[type[PendingRequest]], PendingRequest],
    ) -> bool:
        match request:
            case LongPoll(origin_term=0):
                self._poll(pending(_PendingPoll), request.wait_ms)
            case WriteLac(ledger, lac, body, 0):
                plain = pending(PendingPlain)
                message = v3.request(pb.WRITE_LAC, self._expect(plain, _OF_NO_ENTRY))
                written = message.writeLacRequest
                written.ledgerId, written.masterKey, written.lac, written.body = (
                    ledger.ledger_id, ledger.key, lac, body
                )  # fmt: skip
                self.give(plain, v3.frame_of(message))
            case ListEntries(ledger):
                held = pending(_PendingList)
                message = v3.request(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, self._expect(held, _OF_NO_ENTRY))
                message.getListOfEntriesOfLedgerRequest.ledgerId = ledger.ledger_id
                self.give(held, v3.frame_of(message))
            case AskInfo(None):  # INFO about one ledger is a request of ours alone
                disk = pending(_PendingDisk)
                message = v3.request(pb.GET_BOOKIE_INFO, self._expect(disk, _OF_NO_ENTRY))
                message.getBookieInfoRequest.requested = v3.TOTAL_DISK_CAPACITY | v3.FREE_DISK_SPACE
                self.give(disk, v3.frame_of(message))
            case _:
                return False
        return True

    def _poll(self, poll: PendingRequest, left_ms: int) -> None:
        """Ask a bookie to wait for a part of the time that is left."""
        assert isinstance(poll, _PendingPoll)
        poll.left_ms = left_ms
        poll.since = asyncio.get_running_loop().time()
        frame = v3.encode_read(
            self._expect(poll, _OF_NO_ENTRY),
            poll.ledger_id,
            bookkeeper.LAST_ENTRY,
            flag=v3.ENTRY_PIGGYBACK,
            previous_lac=poll.request.previous_lac,
            timeout_ms=min(left_ms, _SLICE_MS),
        )
        self.give(poll, frame)

    def _expect(self, pending: PendingRequest, entry_id: int) -> int:
        txn_id = self._encoder.next_txns(1)
        self._expected[txn_id] = (pending, entry_id)
        pending.expected += 1
        return txn_id

    def forget(self, pending: PendingRequest) -> None:
        pending.expected = 0
        for txn_id in [txn_id for txn_id, (other, _) in self._expected.items() if other is pending]:
            del self._expected[txn_id]

    # --- responses -----------------------------------------------------------------------------------------------

    def other_received(self, data: Buffer, at: int) -> None:
        added = v3.take_add_answer(data, at)
        if added is not None:
            self._add_answered(*added)
            return
        size = int.from_bytes(data[at : at + 4], "big")
        message = v3.decode_response(memoryview(data)[at : at + 4 + size])
        found = self._expected.pop(message.header.txnId, None)
        if found is not None:
            found[0].expected -= 1
            if not found[0].done:
                self._answered(message, *found)
        elif message.header.operation == pb.ADD_ENTRY and not self._is_unknown_here(message):
            self._add_answered(message.header.txnId, v3.status_of(message))

    def _is_unknown_here(self, message: pb.Response) -> bool:
        """Whether a bookie says, in header and status alone, that it does not know this client; then the connection is abandoned.

        Another key than the ledger's is answered with a body.
        """
        unauthorised = message.status == bookkeeper.v3_code(Answer.UNAUTHORISED)
        body = v3.RESPONSE_BODY.get(message.header.operation)
        if not unauthorised or (body is not None and message.HasField(body)):
            return False
        self.channel.refuse(WANTS_A_NAME)
        return True

    def _add_answered(self, txn_id: int, status: int) -> None:
        found = self.runs.odd(txn_id)
        if found is not None:
            self.add_answered(*found, bookkeeper.v3_answer(status))

    def _answered(self, message: pb.Response, pending: PendingRequest, entry_id: int) -> None:
        answer = bookkeeper.v3_answer(v3.status_of(message))
        operation = message.header.operation
        if answer is Answer.UNAUTHORISED and self._is_unknown_here(message):
            return
        if not self.item_answered(pending, entry_id, answer):
            return
        if operation == pb.READ_ENTRY:
            read = message.readResponse
            lac = read.maxLAC if read.HasField("maxLAC") else -1
            if isinstance(pending, _PendingPoll) and entry_id == _OF_NO_ENTRY:
                self._woken(pending, answer, read, lac)
            else:
                pending.got(entry_id, answer, read.body, lac)
        elif operation == pb.READ_LAC and isinstance(pending, PendingLac):
            lacs = message.readLacResponse
            if answer is Answer.OK or (answer is Answer.ERROR and lacs.lacBody):
                pending.on_response(lacs.lacBody, lacs.lastEntryBody)
            else:
                pending.finish_with(answer)
        elif operation == pb.GET_LIST_OF_ENTRIES_OF_LEDGER and isinstance(pending, _PendingList):
            pending.listed(answer, message.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger)
        elif operation == pb.GET_BOOKIE_INFO and isinstance(pending, _PendingDisk):
            pending.on_response(answer, message.getBookieInfoResponse)
        else:
            pending.got(entry_id, answer, b"", -1)

    def _woken(self, poll: _PendingPoll, answer: Answer, read: pb.ReadResponse, lac: int) -> None:
        """The end of a long poll: with news, the entry that came with it and those after it are the response."""
        request = poll.request
        first = request.first
        if answer is not Answer.OK:
            poll.finish_with(answer, lac)
            return
        if lac < first:  # the time is over, or a slice of it that the bookie did wait
            waited_ms = int(1000 * (asyncio.get_running_loop().time() - poll.since))
            if waited_ms < poll.left_ms and 2 * waited_ms >= min(poll.left_ms, _SLICE_MS):
                self._poll(poll, poll.left_ms - waited_ms)
                return
            poll.finish(ReadReply(Answer.OK, conclusive_through=first - 1, lac=lac))
            return
        wanted = ReadRange(request.ledger, first, min(request.last, lac), request.bytes_max)
        pending = PendingRange(self, wanted, poll.requester, poll.tag, poll.deadline + _AFTER_A_POLL_SECONDS)
        poll.done = True
        self.finished(poll)
        self.begin(pending, self._queues.reads)
        pending.start([read.body] if read.body and read.entryId == first else (), lac)


class _PendingList(PendingRequest):
    """The entries that a bookie holds: the whole list at one time."""

    __slots__ = ()

    def listed(self, answer: Answer, data: bytes) -> None:
        if answer is not Answer.OK:
            self.finish_with(answer)
            return
        held = [HeldInterval(*each) for each in bookkeeper.decode_entry_list(data)]
        self.finish(EntryListReply(Answer.OK, held))


class _PendingDisk(PendingRequest):
    """How large a bookie's disk is, and how much of it is free."""

    __slots__ = ()

    def on_response(self, answer: Answer, info: pb.GetBookieInfoResponse) -> None:
        if answer is not Answer.OK:
            self.finish_with(answer)
            return
        disk = {"bytes": info.totalDiskCapacity, "free_bytes": info.freeDiskSpace}
        self.finish(InfoReply(Answer.OK, {"disk": disk}))


class _PendingPoll(PendingRequest):
    """A long poll; what it was for is read after it, as the range that it asks for.

    Attributes:
        left_ms: how long the bookie might still wait when it was asked last.
        since: when that was.
    """

    request: LongPoll
    left_ms = 0
    since = 0.0
