"""The bundles of one client: runs of many ledgers in one request, judged in one step, and answered part by part.

What is ordinary goes to the disk together. Each other run is taken or refused as an ADD of its own would be; one that
waits for the metadata store keeps no memory but its own, and holds up none of the others.

Source: `docs/formats/native-protocol.md`, "Bundles".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, KeysView, Sequence
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from quire.bookie.connections.client_connection import ClientConnection
from quire.bookie.ledgers.ledgers import OtherRow
from quire.bookie.ledgers.unknown_ledgers import RECORD_WAITS_MAX
from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError, StorageError
from quire.core.ids import NO_ENTRY
from quire.wire import native
from quire.wire.bundles import BundlePart, Row, encode_parts, open_bundle
from quire.wire.native import NO_KEY, Kind, Request
from quire.wire.native_bodies import run_of
from quire.wire.plain_adds import OrdinaryRun

_LEDGER_ID: Final = 0


class BundledRows(NamedTuple):
    """Rows of a bundle whose runs become durable, or fail, together.

    Attributes:
        number: of the request.
        rows: their indices, ascending.
        ledger_ids: of each.
        size: bytes of their runs.
    """

    number: int
    rows: Sequence[int]
    ledger_ids: Sequence[int]
    size: int


class BundleRequests:
    """Serves the bundles (adds of several ledgers in one frame) of one client.

    Args:
        owner: the client's connection.

    Attributes:
        answered: rows and the answer to them, which are not encoded yet.
    """

    __slots__ = ("_ledgers", "_left", "_owner", "_server", "answered")

    def __init__(self, owner: ClientConnection) -> None:
        self._owner, self._server, self._ledgers = owner, owner.server, owner.server.ledgers
        self._left: deque[OtherRow] = deque()  # of the bundle that is the first request again
        self.answered: list[tuple[BundledRows, Answer]] = []

    def serve(self, request: Request, frame: memoryview) -> None:
        """Take or refuse each run of a bundle, whose header is right.

        Where too many wait for records, the rest has to wait: the bundle becomes the client's first request again.

        Raises:
            MalformedFrameError: its rows are damaged, so that its runs cannot be separated. Nothing is stored.
        """
        if not self._left:
            self._admit(request, frame)
        while self._left:
            if self._owner.record_waits >= RECORD_WAITS_MAX:
                self._owner.requests.appendleft(frame)
                return
            self._serve_alone(request.number, *self._left.popleft())

    def _admit(self, request: Request, frame: memoryview) -> None:
        """Take what is ordinary of a bundle in one step; the other rows are left."""
        rows, at = open_bundle(frame)
        if request.flags or request.term or request.ledger_id >= 0:
            self._owner.answer_to(request, Answer.BAD_REQUEST)
            return
        if len({row[_LEDGER_ID] for row in rows}) < len(rows):
            rows = _each_once(rows)

        def tag(indices: Sequence[int], runs: Sequence[OrdinaryRun]) -> BundledRows:
            return self._taken(request.number, indices, runs)

        self._left.extend(self._ledgers.add_bundle(frame, rows, at, self._owner, tag))

    def _taken(self, number: int, indices: Sequence[int], runs: Sequence[OrdinaryRun]) -> BundledRows:
        """Some runs are on their way to the disk together."""
        size = sum([len(run[3]) for run in runs])
        self._owner.added = True
        self._server.admitted(size)
        return BundledRows(number, indices, [run[0] for run in runs], size)

    def _serve_alone(self, number: int, index: int, row: Row, body: bytes) -> None:
        """Take or refuse a run as an ADD of its own."""
        ledger_id, token, key, lac, size, body_crc = row
        request = Request(
            Kind.ADD, 0, 0, number, 0, ledger_id, token, b"" if key == NO_KEY else key, 0, lac, NO_ENTRY, body_crc,
            memoryview(body),
        )  # fmt: skip
        tag = BundledRows(number, (index,), (ledger_id,), size)
        answer = self._judge(request, tag)
        if answer is Answer.OK:
            self._owner.added = True
            self._server.admitted(size)
        else:
            self._answer(tag, answer)

    def _judge(self, request: Request, tag: BundledRows) -> Answer:
        if not request.is_intact():
            return Answer.DAMAGED_IN_TRANSIT
        try:
            run = run_of(request)
        except MalformedFrameError:
            return Answer.BAD_REQUEST
        request.digest_type = run.digest_type  # an ADD says both
        if not request.is_possible():
            return Answer.BAD_REQUEST
        return self._ledgers.add(request, run, self._owner, tag)

    def stored(self, rows: BundledRows, error: StorageError | None) -> None:
        """The runs of some rows are durable, or failed, or are refused late."""
        self._server.settled(rows.size)
        answer = Answer.OK if error is None else self._server.answer_for(error)
        if self._server.lease.pending:
            self._owner.later(partial(self._answer, rows, answer), rows.size)
        else:
            self._answer(rows, answer)

    # --- responses -----------------------------------------------------------------------------------------------

    def _answer(self, rows: BundledRows, answer: Answer) -> None:
        self.answered.append((rows, answer))
        self._owner.has_ready(native.ANSWER_BYTES)

    def encode(self) -> list[bytes]:
        """The responses to what was answered since: one for each bundle, for all of its rows that are in a row here."""
        answered, self.answered = self.answered, []
        followed, lsn = self._ledgers.followers.followed.keys(), self._server.storage.journal.durable_lsn
        return [
            encode_parts(number, _joined(part for one in some for part in _parts_of(*one, followed)), lsn)
            for number, some in groupby(answered, lambda one: one[0].number)
        ]


def _each_once(rows: Iterable[Row]) -> list[Row]:
    """The rows, each ledger's second and later ones without a key: nothing of them is taken."""
    seen: dict[int, None] = {}
    once = []
    for row in rows:
        ledger_id, token, _, lac, size, body_crc = row
        once.append((ledger_id, token, NO_KEY, lac, size, body_crc) if ledger_id in seen else row)
        seen[ledger_id] = None
    return once


def _parts_of(rows: BundledRows, answer: Answer, followed: KeysView[int]) -> Iterator[BundlePart]:
    """The same answer to all of these rows, with the flags of each one's ledger."""
    first, count = rows.rows[0], len(rows.rows)
    if rows.rows[-1] - first < count and (answer is not Answer.OK or followed.isdisjoint(rows.ledger_ids)):
        yield BundlePart(first, count, answer)
        return
    for row, ledger_id in zip(rows.rows, rows.ledger_ids, strict=True):
        flags = native.FOLLOWED if answer is Answer.OK and ledger_id in followed else 0
        yield BundlePart(row, 1, answer, flags)


def _joined(parts: Iterable[BundlePart]) -> Iterator[BundlePart]:
    """As few parts as there can be, in the same order."""
    before: BundlePart | None = None
    for part in parts:
        if before is not None and part == (
            before.first + before.rows,
            part.rows,
            before.answer,
            before.flags,
        ):
            before = before._replace(rows=before.rows + part.rows)
        else:
            if before is not None:
                yield before
            before = part
    if before is not None:
        yield before
