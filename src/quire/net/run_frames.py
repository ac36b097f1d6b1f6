"""Runs as the frames of a bookie that takes entries one by one, made once for all bookies that get the same run.

Also what will come back: everything but a failure is answered in the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from quire.wire import add_columns, v2, v3
from quire.wire.entry import Buffer
from quire.wire.run import RunView

_DONE: Final = 0


class RunFrames(NamedTuple):
    """A run as frames.

    Attributes:
        body: the run that they were made of.
        made_for: the key and what else they depend on.
        data: the frames of the requests.
        answers: the frames of the responses, when all goes well.
        ids: the entries.
        txn_id: the first entry's transaction id in V3; the others' follow it.
    """

    body: Buffer
    made_for: tuple[object, ...]
    ledger_id: int
    data: bytes
    answers: bytes
    ids: Sequence[int]
    txn_id: int


class RunEncoder:
    """Makes frames of runs for all connections of a client: a run mostly goes to several bookies, in the same bytes.

    Transaction ids are the whole client's, so that they fit every connection.
    """

    __slots__ = ("_last", "_next_txn")

    def __init__(self) -> None:
        self._last: RunFrames | None = None
        self._next_txn = 1

    def next_txns(self, count: int) -> int:
        """The first of so many transaction ids that were never used."""
        first = self._next_txn
        self._next_txn += count
        return first

    def adds_v2(self, body: Buffer, key: bytes, *, recovery: bool) -> RunFrames:
        """The ADDs of a run."""
        made_for = (v2.VERSION, key, recovery)
        last = self._last
        if last is not None and last.body is body and last.made_for == made_for:
            return last
        run = RunView.parse(body)
        flags = v2.V2Flag.RECOVERY_ADD | v2.V2Flag.HIGH_PRIORITY if recovery else 0
        data = add_columns.encode_v2(run, key, flags)
        ids = run.ids()
        answers = v2.encode_add_answers(_DONE, run.ledger_id, ids)
        self._last = made = RunFrames(body, made_for, run.ledger_id, data, answers, ids, 0)
        return made

    def adds_v3(self, body: Buffer, key: bytes, *, recovery: bool, after_txn: int) -> RunFrames:
        """The ADD_ENTRYs of a run, with transaction ids above `after_txn`."""
        made_for = (v3.VERSION, key, recovery)
        last = self._last
        if last is not None and last.body is body and last.made_for == made_for and last.txn_id > after_txn:
            return last
        run = RunView.parse(body)
        txn_id = self.next_txns(run.count)
        priority = v3.HIGH_PRIORITY if recovery else 0
        data = add_columns.encode_v3(txn_id, run, key, recovery=recovery, priority=priority)
        ids = run.ids()
        txns = v3.numbers(range(txn_id, txn_id + run.count))
        answers = v3.encode_add_answers(_DONE, run.ledger_id, txns, v3.numbers(ids))
        self._last = made = RunFrames(body, made_for, run.ledger_id, data, answers, ids, txn_id)
        return made
