"""Requests at a bookie that takes entries one by one (V2, V3): each becomes many frames, and their responses become one again.

A run is answered when all its entries are; a range is asked for entry by entry, some ahead, and put together. Knows
neither V2 nor V3: frames are sent by a `RangeConnection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from quire.core.answers import NEGATIVES, Answer
from quire.core.errors import DigestMismatchError
from quire.core.ids import NO_ENTRY
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.stripes import stretches_of
from quire.net.bookkeeper.paced_queue import PacedTurn
from quire.net.channel_codec import Requester
from quire.net.run_frames import RunFrames
from quire.wire.bookkeeper import run_shapes, whole_frames
from quire.wire.entry import HEADER, HEADER_BYTES, Buffer
from quire.wire.requests import AddRun, AnyRequest, ReadLac, ReadRange
from quire.wire.responses import LacReply, ReadReply
from quire.wire.run import RunView

AHEAD_FIRST: Final = 8
AHEAD_MAX: Final = 256
"""Entries of a range that are asked for before the first of them has come."""
NEGATIVES_MAX: Final = 64
"""After so many ids in a row that are not there, a range ends early: what follows is hardly there either."""


class RangeConnection(Protocol):
    """What a range needs of its connection, which stands above."""

    def ask_entries(self, pending: PendingRange, entry_ids: Sequence[int]) -> None:
        """Ask for entries; `pending.got` is called for each."""

    def finished(self, pending: PendingRequest) -> None:
        """It has been answered, or is abandoned: nothing more of it is waited for."""


class PendingRequest:
    """One request that is outstanding.

    Attributes:
        request: what was asked; what comes for it is about its ledger, or none.
        done: it was answered or dropped; what still comes for it is ignored.
        expected: responses of the bookie that it waits for; the connection counts them.
        turn: where its entries wait while the bookie has enough, if they are of a kind that does.
    """

    __slots__ = (
        "_sender",
        "deadline",
        "done",
        "expected",
        "ledger_id",
        "request",
        "requester",
        "tag",
        "turn",
    )

    def __init__(
        self,
        sender: RangeConnection,
        request: AnyRequest,
        requester: Requester,
        tag: object,
        deadline: float,
    ) -> None:
        self._sender = sender
        self.request = request
        self.ledger_id = -1 if request.ledger is None else request.ledger.ledger_id
        self.requester = requester
        self.tag = tag
        self.deadline = deadline
        self.done = False
        self.expected = 0
        self.turn: PacedTurn | None = None

    @property
    def in_flight(self) -> int:
        """How many of its entries the bookie has and has not answered."""
        return self.expected

    def finish(self, response: Any) -> None:
        """The one response."""
        if self.done:
            return
        self.done = True
        self._sender.finished(self)
        self.requester.answered(self.tag, response)

    def finish_with(self, answer: Answer, lac: int = NO_ENTRY) -> None:
        """It ends with a response that says no more than this answer."""
        self.finish(self.request.refused(answer, lac))

    def got(self, entry_id: int, answer: Answer, entry: Buffer, lac: int) -> None:
        """A bookie's response about one entry, and the LAC that came with it.

        To a request that did not ask for an entry, this is a response to another one: its entry is ignored.
        """
        del entry_id, entry, lac
        self.finish_with(Answer.ERROR if answer is Answer.OK else answer)


class PendingRun(PendingRequest):
    """A run on its way, entry by entry.

    Attributes:
        ids: its entries.
        txn_id: the first one's transaction id in V3.
        answers: the frames that say that all is well.
        offset: where in them the next one begins, while they come in order.
        data: the frames of the requests, until all have left; empty afterwards.
        waiting_bytes: how many bytes of them wait.
        begun: some have left.
        was_refused: the bookie was too busy for some; the frames are kept until the end.
    """

    request: AddRun

    __slots__ = (
        "_starts",
        "answers",
        "begun",
        "data",
        "ids",
        "offset",
        "txn_id",
        "waiting_bytes",
        "was_refused",
    )

    def __init__(
        self,
        sender: RangeConnection,
        request: AddRun,
        requester: Requester,
        tag: object,
        deadline: float,
        frames: RunFrames,
    ) -> None:
        super().__init__(sender, request, requester, tag, deadline)
        self.ids = frames.ids
        self.txn_id = frames.txn_id
        self.answers = frames.answers
        self.offset = 0
        self.expected = len(frames.ids)
        self.data = frames.data
        self.waiting_bytes = 0
        self.begun = self.was_refused = False
        self._starts: list[int] = []

    @property
    def in_flight(self) -> int:
        return self.expected - (0 if self.turn is None else self.turn.waiting)

    def frames_at(self, positions: Sequence[int]) -> bytes:
        """The frames of some of its entries, in their order; `data` must be there."""
        data = self.data
        if len(positions) == len(self.ids):
            return data
        if not self._starts:
            for stretch in whole_frames(data, len(data))[0]:
                self._starts += stretch
            self._starts.append(len(data))
        starts = self._starts
        if isinstance(positions, range):
            return data[starts[positions[0]] : starts[positions[-1] + 1]]
        return b"".join([data[starts[position] : starts[position + 1]] for position in positions])

    def got(self, entry_id: int, answer: Answer, entry: Buffer, lac: int) -> None:  # noqa: ARG002 - any of the run
        if answer is not Answer.OK:
            # "Bad request" is also how Java says that adding failed inside: a bookie's failure, not the writer's.
            self.finish_with(Answer.ERROR if answer is Answer.BAD_REQUEST else answer)
        elif not self.expected:
            self.finish_with(Answer.OK)


class PendingRange(PendingRequest):
    """Entries first..last on their way, as many as fit.

    Attributes:
        first: the first of them.
        key: empty unless each read is to fence.
        recovery: reads come before others at the bookie.
    """

    request: ReadRange

    __slots__ = (
        "_ahead",
        "_bytes",
        "_found",
        "_lac",
        "_last",
        "_negatives",
        "_next",
        "_under_way",
        "first",
        "key",
        "recovery",
    )

    def __init__(
        self,
        sender: RangeConnection,
        request: ReadRange,
        requester: Requester,
        tag: object,
        deadline: float,
    ) -> None:
        super().__init__(sender, request, requester, tag, deadline)
        self.first, self._last = request.first, request.last
        self.key, self.recovery = request.ledger.key if request.fence else b"", request.recovery
        self._next = self.first
        self._under_way = 0
        self._ahead = AHEAD_FIRST
        self._bytes = 0
        self._negatives = 0
        self._lac = int(NO_ENTRY)
        self._found: dict[int, tuple[Answer, Buffer]] = {}

    @property
    def left(self) -> tuple[int, int]:
        """(entries, bytes) that are still wanted."""
        return self._last - self._next + 1, self.request.bytes_max - self._bytes

    def start(self, found: Sequence[Buffer] = (), lac: int = NO_ENTRY) -> None:
        """Begin to ask, after entries that came already."""
        self._lac = max(self._lac, lac)
        for entry in found:
            self._take(self._next, Answer.OK, entry, NO_ENTRY)
            self._next += 1
        self._go_on()

    def batch_came(self, entries: Sequence[Buffer], lac: int) -> None:
        """One response brought entries from the first on. It was full, or ended at a gap, as in every striped ledger.

        After a gap entries are asked for one by one: batches would bring as many as there are up to the next gap.
        """
        self._lac = max(self._lac, lac)
        for entry in entries[: self._last - self._next + 1]:
            self._take(self._next, Answer.OK, entry, NO_ENTRY)
            self._next += 1
        if self._next <= self._last and 2 * self._bytes < self.request.bytes_max:
            self._go_on()
        else:
            self._conclude()

    def batch_failed(self, answer: Answer) -> None:
        """A batch brought nothing. When that is because its first entry is not there, the next ones still may be."""
        self._take(self._next, answer, b"", NO_ENTRY)
        self._next += 1
        if answer is Answer.NO_ENTRY:
            self._go_on()
        elif not self.done:
            self._conclude()

    def got(self, entry_id: int, answer: Answer, entry: Buffer, lac: int) -> None:
        self._under_way -= 1
        self._take(entry_id, answer, entry, lac)
        if self.done or (self._under_way and 2 * self._under_way > self._ahead):
            return
        self._go_on()

    def _is_it(self, entry_id: int, entry: Buffer) -> bool:
        """Whether a body proves to be an entry. Java's SortedLedgerStorage sends it with "no such entry" at times."""
        digest = self.request.ledger.digest
        if not len(entry) or digest.digest_type is DigestType.DUMMY:
            return False
        try:
            digest.open(entry, self.ledger_id, entry_id)
        except DigestMismatchError:
            return False
        return True

    def _take(self, entry_id: int, answer: Answer, entry: Buffer, lac: int) -> None:
        if answer is Answer.NO_ENTRY:
            answer, entry = (Answer.OK, entry) if self._is_it(entry_id, entry) else (answer, b"")
        self._found[entry_id] = (answer, entry)
        self._lac = max(self._lac, lac)
        self._bytes += len(entry)
        self._negatives = self._negatives + 1 if answer in NEGATIVES else 0
        if answer is Answer.UNAUTHORISED:
            self.finish_with(answer)

    def _go_on(self) -> None:
        if self.done:
            return
        ended = self._next > self._last or self._negatives >= NEGATIVES_MAX
        if ended or (self._bytes >= self.request.bytes_max and self._found):
            if not self._under_way:
                self._conclude()
            return
        count = self._ahead - self._under_way
        if self._bytes:
            usual = self._bytes / len(self._found)
            count = min(count, int((self.request.bytes_max - self._bytes) / usual) + 1 - self._under_way)
        count = min(count, self._last - self._next + 1)
        if count > 0:
            ids = range(self._next, self._next + count)
            self._next += count
            self._under_way += count
            self._ahead = min(4 * self._ahead, AHEAD_MAX)
            self._sender.ask_entries(self, ids)

    def _conclude(self) -> None:
        ids = [entry_id for entry_id in sorted(self._found) if self._found[entry_id][0] is Answer.OK]
        others = {answer for answer, _ in self._found.values() if answer is not Answer.OK}
        if not ids and len(others) == 1 and others != {Answer.NO_ENTRY}:
            self.finish_with(others.pop(), self._lac)
            return
        entries = [self._found[entry_id][1] for entry_id in ids]
        runs: list[RunView] = []
        for start, end, period, stripes in run_shapes(ids) if ids else ():
            part = entries[start:end]
            runs.append(
                RunView.of(
                    self.ledger_id,
                    ids[start],
                    ids[end - 1],
                    part,
                    list(map(len, part)),
                    digest_type=self.request.ledger.digest.digest_type,
                    period=period,
                    stripes=stripes,
                )
            )
        said = {Answer.OK, *NEGATIVES}
        unknown = stretches_of(e for e, (answer, _) in sorted(self._found.items()) if answer not in said)
        self.finish(ReadReply(Answer.OK, runs, self._next - 1, unknown, self._lac))


class PendingLac(PendingRequest):
    """How far a ledger is confirmed: an explicit LAC, or the last entry, whose header says it."""

    request: ReadLac

    __slots__ = ()

    @property
    def key(self) -> bytes:
        """Empty unless it is to fence."""
        return self.request.ledger.key if self.request.fence else b""

    def got(self, entry_id: int, answer: Answer, entry: Buffer, lac: int) -> None:  # noqa: ARG002 - the last entry, whatever its id
        if answer is Answer.OK:
            self.on_response(b"", entry)
        else:
            self.finish_with(answer)

    def on_response(self, explicit_lac: bytes, evidence: Buffer) -> None:
        """What the bookie has, each part empty if it has none."""
        lac = header_lac(evidence)
        if explicit_lac:
            lac = max(lac, int.from_bytes(explicit_lac[8:16], "big", signed=True))
        self.finish(LacReply(Answer.OK, lac, explicit_lac, bytes(evidence)))


class PendingPlain(PendingRequest):
    """A request with one response and nothing to put together."""

    __slots__ = ()

    def got(self, entry_id: int, answer: Answer, entry: Buffer, lac: int) -> None:  # noqa: ARG002 - it is about no entry
        self.finish_with(answer, lac)


def header_lac(entry: Buffer) -> int:
    """The LAC in an entry's header; -1 if it is none."""
    if len(entry) < HEADER_BYTES:
        return int(NO_ENTRY)
    return max(int(HEADER.unpack_from(entry)[2]), NO_ENTRY)
