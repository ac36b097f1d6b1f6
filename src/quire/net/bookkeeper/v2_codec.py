"""What a connection says in V2. What V2 has no frames for goes over a second connection, in V3, as Java does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from quire.core.answers import Answer
from quire.net.bookkeeper.asked import LacAsked, PendingRequest, RangeAsked, RunAsked, header_lac
from quire.net.bookkeeper.codec import BookKeeperCodec
from quire.net.bookkeeper.paced_queue import PacedQueue
from quire.net.bookkeeper.runs_expected import RunsExpected, v2_ledger_of, v2_place_of
from quire.net.channel import Channel
from quire.net.channel_codec import AnswerSink, ChannelContext
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

    def frames_again(self, asked: RunAsked) -> bytes:
        request = asked.request
        return self.frames_of(request.body, request.ledger.key, recovery=request.recovery).data

    def begin_range(self, asked: RangeAsked) -> None:
        count, _ = asked.left
        if count <= 1 or not self._batches.usable():
            asked.start()
        else:
            self.ask_entries(asked, (_A_BATCH,))

    def questions(self, asked: PendingRequest, items: Sequence[int]) -> bytes:
        if isinstance(asked, LacAsked):
            flags, key = int(v2.V2Flag.DO_FENCING if asked.key else v2.V2Flag.NONE), asked.key
        else:
            assert isinstance(asked, RangeAsked)
            if items[0] == _A_BATCH:
                return self._batch(asked)
            flags, key = _FENCING if asked.key else 0, asked.key
            if asked.recovery:
                flags |= v2.V2Flag.HIGH_PRIORITY
        parts = []
        for entry_id in items:
            self._expect(asked, v2.Op.READ, asked.ledger_id, entry_id)
            parts.append(v2.encode_read(asked.ledger_id, entry_id, flags, key))
        return b"".join(parts)

    def _batch(self, asked: RangeAsked) -> bytes:
        count, size = asked.left
        number, self._next_batch = self._next_batch, self._next_batch + 1
        self._expect(asked, v2.Op.BATCH_READ, asked.ledger_id, number)
        count = min(count, 0x7FFF_FFFF)
        limit = min(size, self.sent_bytes_max)
        flags = _FENCING if asked.key else 0
        return v2.encode_batch_read(asked.ledger_id, asked.first, number, count, limit, flags, asked.key)

    def send(self, request: AnyRequest, sink: AnswerSink, tag: object, deadline: float) -> bool:
        asked: object = request
        # Responses to adds do not say whether they are a recovery's: "fenced" to an earlier one would count for it.
        if isinstance(asked, AddRun) and not (asked.recovery and self._adds[asked.ledger.ledger_id, False]):
            return super().send(request, sink, tag, deadline)
        # Those to reads do not say whether they fenced: those that do and those that do not would be confused.
        if (isinstance(asked, ReadRange) or (isinstance(asked, ReadLac) and asked.fence)) and not self._reads[
            asked.ledger.ledger_id, not asked.fence
        ]:
            return super().send(request, sink, tag, deadline)
        if self._v3 is None or self._v3.closed:
            self._v3 = self._make_v3()
        return self._v3.send(request, sink, tag, deadline=deadline)

    def ask_otherwise(
        self,
        request: Any,  # noqa: ARG002 - only what has no origin term or key
        asked: Callable[[type[PendingRequest]], PendingRequest],  # noqa: ARG002 - is sent
    ) -> bool:
        return False

    def _expect(self, asked: PendingRequest, op: int, ledger_id: int, number: int) -> None:
        self._expected.setdefault((op, ledger_id, number), []).append(asked)
        asked.expected += 1
        if op == v2.Op.READ:
            self._reads[_kind_of(asked)] += 1

    def begin(self, asked: PendingRequest, queue: PacedQueue | None = None) -> None:
        if isinstance(asked, RunAsked):
            self._adds[asked.ledger_id, asked.request.recovery] += 1
        else:
            self._reads[_kind_of(asked)] += 1
        super().begin(asked, queue)

    def finished(self, asked: PendingRequest) -> None:
        if isinstance(asked, RunAsked):
            kind = asked.ledger_id, asked.request.recovery
            self._adds[kind] += asked.in_flight if asked.begun else 0
            _over(self._adds, kind)
        else:
            _over(self._reads, _kind_of(asked))
        super().finished(asked)

    # --- the connection in V3 ------------------------------------------------------------------------------------

    def forget(self, asked: PendingRequest) -> None:
        asked.expected = 0
        for key in [key for key, waiting in self._expected.items() if asked in waiting]:
            waiting = self._expected[key]
            waiting.remove(asked)
            if not waiting:
                del self._expected[key]

    def drop(self, sink: AnswerSink) -> Sequence[float]:
        if self._v3 is not None:
            self._v3.drop(sink)
        return super().drop(sink)

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
        # V2 has one code for a client that the bookie does not know and for another key. One that it has served
        # nothing yet is asked to look to itself first. A Java bookie that asks for a name under TLS says so in V3.
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
            asked = self._answered(v2.Op.READ, answer.ledger_id, answer.entry_id)
            said = bookkeeper.v2_answer(answer.code)
            if asked is not None and self.item_answered(asked, answer.entry_id, said):
                asked.got(answer.entry_id, said, answer.entry, header_lac(answer.entry))
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
        asked = self._answered(v2.Op.BATCH_READ, answer.ledger_id, answer.request_id)
        if not isinstance(asked, RangeAsked) or asked.done:
            return
        said = bookkeeper.v2_answer(answer.code)
        if not self.item_answered(asked, _A_BATCH, said):
            return
        if said is not Answer.OK or not answer.entries:
            asked.batch_failed(said if said is not Answer.OK else Answer.NO_ENTRY)
            return
        asked.batch_came(answer.entries, max(map(header_lac, answer.entries)))

    def _answered(self, op: int, ledger_id: int, number: int) -> PendingRequest | None:
        """The requests that wait for this response, first come first served; None if none does any more."""
        key = (op, ledger_id, number)
        waiting = self._expected.get(key)
        if waiting is None:
            return None
        if len(waiting) == 1:
            del self._expected[key]
            asked = waiting[0]
        else:
            asked = waiting.pop(0)
        asked.expected -= 1
        return asked


def _over(under_way: Counter[tuple[int, bool]], kind: tuple[int, bool]) -> None:
    """One of them less."""
    under_way[kind] -= 1
    if under_way[kind] <= 0:
        del under_way[kind]


def _kind_of(asked: PendingRequest) -> tuple[int, bool]:
    request: Any = asked.request  # of a range, or of a LAC
    return asked.ledger_id, bool(request.fence)
