"""Adds that came one by one become runs: those of one ledger in one chunk are one record and one write of responses.

Source: `docs/formats/bookkeeper-protocol.md`, "Entries become runs again".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quire.bookie.ledgers.digest_types import DigestTypes
from quire.bookie.ledgers.ledgers import Ledgers
from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY
from quire.core.ledger.metadata import DigestType
from quire.storage.segments.segment import WriteCallback
from quire.wire import bookkeeper, v2, v3
from quire.wire.add_columns import Adds
from quire.wire.entries import open_entries
from quire.wire.entry import HEADER, Buffer
from quire.wire.native import Flag, Kind, Request
from quire.wire.run import RunView, checksum


class Adder(NamedTuple):
    """Who adds what, and how the responses are to look. `version` is that of V2's packets, None in V3."""

    ledger_id: int
    key: bytes
    recovery: bool
    version: int | None


class AddGroup:
    """Entries of one ledger that came together, their ids ascending."""

    __slots__ = ("adder", "body_bytes", "entries", "ids", "lac", "txns")

    def __init__(
        self,
        adder: Adder,
        ids: Sequence[int],
        entries: Sequence[Buffer],
        txns: Sequence[bytes],
        lac: int = NO_ENTRY,
    ) -> None:
        self.adder = adder
        self.ids = ids
        self.entries = entries
        self.txns = txns
        self.lac = lac
        self.body_bytes = 0

    def part(self, start: int, end: int) -> AddGroup:
        """Some of the entries."""
        if end - start == len(self.ids):
            return self
        ids, entries, txns = self.ids[start:end], self.entries[start:end], self.txns[start:end]
        return AddGroup(self.adder, ids, entries, txns, self.lac)

    def answers(self, answer: Answer) -> bytes:
        """The frames that answer all of them alike."""
        ledger_id, _, _, version = self.adder
        if version is None:
            status = bookkeeper.v3_code(answer)
            return v3.encode_add_answers(status, ledger_id, self.txns, v3.numbers(self.ids))
        return v2.encode_add_answers(bookkeeper.v2_code(answer), ledger_id, self.ids, version)


class _Collected:
    """Adds of one ledger that have come so far, their ids ascending."""

    __slots__ = ("entries", "ids", "lac", "txns")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.entries: list[Buffer] = []
        self.txns: list[bytes] = []
        self.lac = int(NO_ENTRY)


class AddCollector:
    """The adds of one chunk of one connection.

    Args:
        ledgers: decides and stores.
        digests: the ledgers' digest types.
        callback: called when a group is on disk; its tag is the group.
    """

    def __init__(self, ledgers: Ledgers, digests: DigestTypes, callback: WriteCallback) -> None:
        self._ledgers = ledgers
        self._digests = digests
        self._callback = callback
        self._collected: dict[Adder, _Collected] = {}
        self._period = 1
        self._refused: list[tuple[AddGroup, Answer]] = []
        self._admitted = 0

    def add(self, adder: Adder, entry_id: int, entry: Buffer, txn_id: int = 0) -> Answer:
        """Take an add whose ids are its own.

        Returns:
            OK: its response comes with its group. BAD_REQUEST, at once: the entry is none, or has other ids inside.
        """
        if len(entry) < bookkeeper.ENTRY_BYTES_MIN or entry_id < 0:
            return Answer.BAD_REQUEST
        ledger_id, own_id, lac, length = HEADER.unpack_from(entry)
        if own_id != entry_id or ledger_id != adder.ledger_id or ledger_id < 0 or length < 0:
            return Answer.BAD_REQUEST
        so_far = self._collected.get(adder)
        if so_far is None:
            so_far = self._collected[adder] = _Collected()
        elif entry_id <= so_far.ids[-1]:
            self._put_collected(adder, self._collected.pop(adder))
            so_far = self._collected[adder] = _Collected()
        so_far.ids.append(entry_id)
        so_far.entries.append(entry)
        so_far.txns.append(v3.number(txn_id))
        # No writer has confirmed the entry that it is sending; a LAC beyond it is not taken.
        so_far.lac = max(so_far.lac, min(lac, entry_id - 1))
        return Answer.OK

    def add_all(self, adds: Adds) -> None:
        """Take adds that came together; their responses come with their group."""
        self._put_all_collected()
        adder = Adder(adds.ledger_id, adds.key, adds.recovery, adds.version)
        self._put(AddGroup(adder, adds.entry_ids, adds.entries, adds.txns, max(adds.lac, NO_ENTRY)))

    def flush(self) -> tuple[int, list[tuple[AddGroup, Answer]]]:
        """Hand everything over.

        Returns:
            Bytes that are on their way to the disk now, and the groups that were refused, with the responses.
        """
        self._put_all_collected()
        admitted, self._admitted = self._admitted, 0
        refused, self._refused = self._refused, []
        return admitted, refused

    def _put_all_collected(self) -> None:
        collected, self._collected = self._collected, {}
        for adder, so_far in collected.items():
            self._put_collected(adder, so_far)

    def _put_collected(self, adder: Adder, so_far: _Collected) -> None:
        self._put(AddGroup(adder, so_far.ids, so_far.entries, so_far.txns, so_far.lac))

    def _put(self, group: AddGroup) -> None:
        for start, end, period, stripes in bookkeeper.run_shapes(group.ids, self._period):
            self._period = max(period, 1)
            self._put_run(group.part(start, end), period, stripes)

    def _put_run(self, group: AddGroup, period: int, stripes: int) -> None:
        ledger_id, key, recovery, _ = group.adder
        # Where the ledger is not known, its id may have had another one, with another digest.
        kind = self._digests.get(ledger_id) if self._ledgers.unknown_ledgers.knows(ledger_id) else None
        run = RunView.of(
            ledger_id,
            group.ids[0],
            group.ids[-1],
            group.entries,
            list(map(len, group.entries)),
            digest_type=kind or 0,
            period=period,
            stripes=stripes,
        )
        body = run.body
        group.entries = ()
        group.body_bytes = len(body)
        if not self._intact(run, kind):
            self._refused.append((group, Answer.DAMAGED_IN_TRANSIT))
            return
        request = Request(
            kind=Kind.ADD,
            digest_type=kind or 0,
            flags=Flag.RECOVERY if recovery else 0,
            number=0,
            deadline_ms=0,
            ledger_id=ledger_id,
            token=0,
            key=key,
            term=0,
            lac=group.lac,
            lafr=NO_ENTRY,
            body_crc=checksum(body),
            body=memoryview(body),
        )
        answer = self._ledgers.add(request, run, self._callback, group)
        if answer is Answer.OK:
            self._admitted += len(body)
        else:
            self._refused.append((group, answer))

    def _intact(self, run: RunView, kind: DigestType | None) -> bool:
        """Whether each entry has the digest that it must have, as far as that can be checked here."""
        checker = self._digests.checker(kind)
        if checker is None:
            return True
        _, bad = open_entries(checker, run.ledger_id, run.ids(), run.body, run.offsets())
        if bad:
            self._digests.mismatched(run.ledger_id, len(bad))
        return not bad
