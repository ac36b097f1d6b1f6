"""A run that a writer has handed over and still holds, and the bookie of a slot that it is sent to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from quire.client.bookies.bookies import AddSink
from quire.client.sending.bundles import Bundle, RunWriter
from quire.client.sending.run_sealer import Share
from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId
from quire.wire.responses import AddReply

RUN_BYTES: Final = 1024
"""What a run costs besides its bodies: the objects that wait with it, here and in the channels, and a short body's copy in
a frame."""


class RunOwner(RunWriter, Protocol):
    """Whose runs they are."""

    def answered(self, place: SlotConnection, run: int, answer: Answer) -> None:
        """A bookie's response to a run."""


class SlotConnection(AddSink):
    """One bookie at one slot of the ensemble, until it fails, is replaced, or the writer rests."""

    __slots__ = (
        "_writer",
        "answers",
        "bookie",
        "entries_answered",
        "moved_ms",
        "oldest",
        "oldest_ms",
        "retired",
        "seen",
        "sent_bytes",
        "sent_runs",
        "slot",
        "told_lac",
        "unacked",
        "written_bytes",
    )

    def __init__(self, writer: RunOwner, slot: int, bookie: BookieId, now_ms: int) -> None:
        self._writer = writer
        self.slot = slot
        self.bookie = bookie
        self.retired = False
        self.followed = False
        self.told_lac: int = NO_ENTRY
        self.sent_bytes = 0
        self.sent_runs = 0
        self.written_bytes = 0
        self.answers = 0
        self.entries_answered = 0
        self.seen = 0
        self.moved_ms = now_ms
        self.unacked: dict[int, tuple[int, int]] = {}  # (first, last) of each run, the oldest first
        self.oldest: int | None = None  # of them, when it was last looked at
        self.oldest_ms = now_ms

    def add_answered(self, tag: Any, answer: Answer) -> None:
        """The bookie's response to run `tag`, from a bookie that is not there."""
        self.answered(tag, AddReply(answer))

    def answered(self, tag: Any, response: AddReply) -> None:
        """The bookie's response to run `tag`."""
        answer, self.followed = response
        if not self.retired:
            self.answers += 1
            if answer is Answer.OK:
                self.unacked.pop(tag, None)
            self._writer.answered(self, tag, answer)


class HeldRun:
    """A run with its bodies and callers: `futures[i]` completes with entry `first + i`, if a caller waits.

    What outlives a turn is what Python's collector looks at, again and again: a run of one entry needs no list.

    Attributes:
        future, futures: of its only entry; of all of them, where there are more.
        number, lac: as the machine has sent it; unset before.
        marks: how far a bookie's connection must be for the run to have left, where it did not leave at once.
        bundle: what it left with, or is to leave with; None if it travels alone.
        is_sent: whether its first sending is over.
        settled: nothing is sent again.
    """

    __slots__ = (
        "bundle",
        "cost",
        "first",
        "future",
        "futures",
        "is_sent",
        "lac",
        "last",
        "marks",
        "number",
        "settled",
        "shares",
    )

    number: int
    lac: int

    def __init__(
        self,
        first: int,
        last: int,
        shares: Sequence[Share | None],
        futures: Sequence[asyncio.Future[int] | None],
        future: asyncio.Future[int] | None = None,
    ) -> None:
        self.first = first
        self.last = last
        self.shares = shares
        self.futures = futures
        self.future = future
        self.cost = RUN_BYTES
        for share in shares:
            if share is not None:
                self.cost += len(share[0])
        self.marks: Sequence[tuple[SlotConnection, int]] = ()
        self.bundle: Bundle | None = None
        self.is_sent = False
        self.settled = False

    def waiting(self) -> Iterator[tuple[int, asyncio.Future[int]]]:
        """(entry id, future) of the callers that still wait."""
        for entry_id, future in enumerate(self.futures or (self.future,), self.first):
            if future is not None and not future.done():
                yield entry_id, future
