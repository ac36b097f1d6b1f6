"""What a connection says in V2. What V2 has no frames for goes over a second connection, in V3, as Java does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from quire.core.answers import Answer
from quire.net.bookkeeper.codec import BookKeeperCodec
from quire.net.bookkeeper.paced_queue import PacedQueue
from quire.net.bookkeeper.pending_requests import (
    PendingLac,
    PendingRange,
    PendingRequest,
    PendingRun,
    header_lac,
)
from quire.net.bookkeeper.runs_expected import RunsExpected, v2_ledger_of, v2_place_of
from quire.net.channel import Channel
from quire.net.channel_codec import ChannelContext, Requester
from quire.net.run_frames import RunFrames
from quire.net.security.signing_in import WANTS_A_NAME
from quire.wire import bookkeeper, v2, v3
from quire.wire.entry import Buffer
from quire.wire.requests import AddRun, AnyRequest, ReadLac, ReadRange

_ADDED = v2.packet_header(v2.VERSION, v2.Op.ADD)
_UNAUTHORISED: Final = bookkeeper.v2_code(Answer.UNAUTHORISED)
_A_BATCH: Final = -3
"""Stands where other reads have an entry id."""
_FENCING = v2.V2Flag.DO_FENCING | v2.V2Flag.HIGH_PRIORITY


class Batches(Protocol):
    """What is known of a bookie's BATCH_READ: `BatchReads`, which stands above."""

    def usable(self) -> bool:
        """Whether a range may be asked for by it now."""

    def lost(self) -> None:
        """The connection ended while one was outstanding."""


class V2Codec(BookKeeperCodec):
    """The client's side of BookKeeper's protocol V2 on one channel.

    Args:
        make_v3: makes the V3 connection to the same bookie; called when it is needed.
        batches: whether the bookie takes BATCH_READ; else entries are read one by one.
    """

    is_v2 = True

    def __init__(self, context: ChannelContext, make_v3: Callable[[], Channel], batches: Batches) -> None:
        super().__init__(context, RunsExpected(v2_ledger_of, v2_place_of))
        self._batches = batches
        self._make_v3 = make_v3
        self._v3: Channel | None = None
        self._expected: dict[tuple[int, int, int], list[PendingRequest]] = {}
        # By ledger, and whether they fence: reads that are under way, and those of entries that are not answered.
        self._reads: Counter[tuple[int, bool]] = Counter()
        # By ledger, and whether they are a recovery's: runs that are under way, and entries of those abandoned.
        self._adds: Counter[tuple[int, bool]] = Counter()
        self._next_batch = 1

    # --- sending -------------------------------------------------------------------------------------------------

    def frames_of(self, body: Buffer, key: bytes, *, recovery: bool) -> RunFrames:
        return self._encoder.adds_v2(body, key, recovery=recovery)

    def frames_again(self, pending: PendingRun) -> bytes:
        request = pending.request
        return self.frames_of(request.body, request.ledger.key, recovery=request.recovery).data

    def begin_range(self, pending: PendingRange) -> None:
        count, _ = pending.left
        if count <= 1 or not self._batches.usable():
            pending.start()
        else:
            self.ask_entries(pending, (_A_BATCH,))

    def questions(self, pending: PendingRequest, items: Sequence[int]) -> bytes:
        if isinstance(pending, PendingLac):
            flags, key = int(v2.V2Flag.DO_FENCING if pending.key else v2.V2Flag.NONE), pending.key
        else:
            assert isinstance(pending, PendingRange)
            if items[0] == _A_BATCH:
                return self._batch(pending)
            flags, key = _FENCING if pending.key else 0, pending.key
            if pending.recovery:
                flags |= v2.V2Flag.HIGH_PRIORITY
        parts = []
        for entry_id in items:
            self._expect(pending, v2.Op.READ, pending.ledger_id, entry_id)
            parts.append(v2.encode_read(pending.ledger_id, entry_id, flags, key))
        return b"".join(parts)

    def _batch(self, pending: PendingRange) -> bytes:
        count, size = pending.left
        number, self._next_batch = self._next_batch, self._next_batch + 1
        self._expect(pending, v2.Op.BATCH_READ, pending.ledger_id, number)
        count = min(count, 0x7FFF_FFFF)
        limit = min(size, self.sent_bytes_max)
        flags = _FENCING if pending.key else 0
        return v2.encode_batch_read(
            pending.ledger_id, pending.first, number, count, limit, flags, pending.key
        )

    def send(self, request: AnyRequest, requester: Requester, tag: object, deadline: float) -> bool:
        pending: object = request
        # Responses to adds do not say whether they are a recovery's: "fenced" to an earlier one would count for it.
        if isinstance(pending, AddRun) and not (
            pending.recovery and self._adds[pending.ledger.ledger_id, False]
        ):
            return super().send(request, requester, tag, deadline)
        # Those to reads do not say whether they fenced: those that do and those that do not would be confused.
        if (
            isinstance(pending, ReadRange) or (isinstance(pending, ReadLac) and pending.fence)
        ) and not self._reads[pending.ledger.ledger_id, not pending.fence]:
            return super().send(request, requester, tag, deadline)
        if self._v3 is None or self._v3.closed:
            self._v3 = self._make_v3()
        return self._v3.send(request, requester, tag, deadline=deadline)

    def ask_otherwise(
        self,
        request: Any,  # noqa: ARG002 - only what has no origin term or key
        pending: Callable[[type[PendingRequest]], PendingRequest],  # noqa: ARG002 - is sent
    ) -> bool:
        return False

    def _expect(self, pending: PendingRequest, op: int, ledger_id: int, number: int) -> None:
        self._expected.setdefault((op, ledger_id, number), []).append(pending)
        pending.expected += 1
        if op == v2.Op.READ:
            self._reads[_kind_of(pending)] += 1

    def begin(self, pending: PendingRequest, queue: PacedQueue | None = None) -> None:
        if isinstance(pending, PendingRun):
            self._adds[pending.ledger_id, pending.request.recovery] += 1
        else:
            self._reads[_kind_of(pending)] += 1
        super().begin(pending, queue)

    def finished(self, pending: PendingRequest) -> None:
        if isinstance(pending, PendingRun):
            kind = pending.ledger_id, pending.request.recovery
            self._adds[kind] += pending.in_flight if pending.begun else 0
            _over(self._adds, kind)
        else:
            _over(self._reads, _kind_of(pending))
        super().finished(pending)

    # --- the connection in V3 ------------------------------------------------------------------------------------

    def forget(self, pending: PendingRequest) -> None:
        pending.expected = 0
        for key in [key for key, waiting in self._expected.items() if pending in waiting]:
            waiting = self._expected[key]
            waiting.remove(pending)
            if not waiting:
                del self._expected[key]

    def drop(self, requester: Requester) -> Sequence[float]:
        if self._v3 is not None:
            self._v3.drop(requester)
        return super().drop(requester)

    def late(self, now: float) -> Sequence[PendingRequest]:
        if self._v3 is not None:
            self._v3.expire(now)
        return super().late(now)

    def end(self) -> None:
        if any(op == v2.Op.BATCH_READ for op, _, _ in self._expected):
            self._batches.lost()
        if self._v3 is not None and not self._v3.closed:
            self._v3.close()
        super().end()

    # --- responses -----------------------------------------------------------------------------------------------

    def is_unknown_here(self, data: Buffer, at: int) -> bool:
        # V2 has one code for a client that the bookie does not know and for another key. A client that it has served
        # nothing yet is told to check its settings first. A Java bookie that asks for a name under TLS says so in V3.
        in_v3 = data[at + 4 : at + 5] == bytes([v3.FIRST_BYTE])
        unknown = len(data) >= v2.ANSWER.size and v2.ANSWER.unpack_from(data, at)[2] == _UNAUTHORISED
        if in_v3 or unknown:
            self.channel.refuse(WANTS_A_NAME)
        return in_v3 or unknown

    def other_received(self, data: Buffer, at: int) -> None:
        size, header = v2.HEAD.unpack_from(data, at)
        if header == _ADDED and size == v2.ANSWER.size - 4:
            _, _, code, ledger_id, entry_id = v2.ANSWER.unpack_from(data, at)
            self._add_answered(code, ledger_id, entry_id)
            return
        answer = v2.decode_answer(memoryview(data)[at : at + 4 + size])
        if isinstance(answer, v2.ReadAnswer):
            fenced = (answer.ledger_id, True)
            _over(self._reads, fenced if fenced in self._reads else (answer.ledger_id, False))
            pending = self._answered(v2.Op.READ, answer.ledger_id, answer.entry_id)
            said = bookkeeper.v2_answer(answer.code)
            if pending is not None and self.item_answered(pending, answer.entry_id, said):
                pending.got(answer.entry_id, said, answer.entry, header_lac(answer.entry))
        elif isinstance(answer, v2.BatchReadAnswer):
            self._batch_came(answer)
        elif isinstance(answer, v2.AddAnswer):
            self._add_answered(answer.code, answer.ledger_id, answer.entry_id)

    def _add_answered(self, code: int, ledger_id: int, entry_id: int) -> None:
        found = self.runs.odd((ledger_id, entry_id))
        if found is not None:
            self.add_answered(*found, bookkeeper.v2_answer(code))
            return
        recovery = (ledger_id, True)
        _over(self._adds, recovery if recovery in self._adds else (ledger_id, False))

    def _batch_came(self, answer: v2.BatchReadAnswer) -> None:
        pending = self._answered(v2.Op.BATCH_READ, answer.ledger_id, answer.request_id)
        if not isinstance(pending, PendingRange) or pending.done:
            return
        said = bookkeeper.v2_answer(answer.code)
        if not self.item_answered(pending, _A_BATCH, said):
            return
        if said is not Answer.OK or not answer.entries:
            pending.batch_failed(said if said is not Answer.OK else Answer.NO_ENTRY)
            return
        pending.batch_came(answer.entries, max(map(header_lac, answer.entries)))

    def _answered(self, op: int, ledger_id: int, number: int) -> PendingRequest | None:
        """The requests that wait for this response, first come first served; None if none does any more."""
        key = (op, ledger_id, number)
        waiting = self._expected.get(key)
        if waiting is None:
            return None
        if len(waiting) == 1:
            del self._expected[key]
            pending = waiting[0]
        else:
            pending = waiting.pop(0)
        pending.expected -= 1
        return pending


def _over(under_way: Counter[tuple[int, bool]], kind: tuple[int, bool]) -> None:
    """One of them less."""
    under_way[kind] -= 1
    if under_way[kind] <= 0:
        del under_way[kind]


def _kind_of(pending: PendingRequest) -> tuple[int, bool]:
    request: Any = pending.request  # of a range, or of a LAC
    return pending.ledger_id, bool(request.fence)
