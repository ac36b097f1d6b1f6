"""One client of a bookie without time or threads: it sends frames of our own protocol, and lists what was answered."""

from __future__ import annotations

from typing import Any

from quire.bookie.connections.connection import Connection
from quire.core.answers import Answer
from quire.wire import native
from quire.wire.bundles import ROW, decode_parts, encode_bundle
from quire.wire.entry import EntryDigest
from quire.wire.native import AnswerFrame, Kind
from quire.wire.run import checksum, encode_run
from support.hostile_worlds import ACCESS, StillBookie, _Handed, feed


def add(
    entry_id: int, *, ledger: Any = ACCESS, number: int | None = None, size: int = 20, flags: int = 0
) -> bytes:
    digest: EntryDigest = ledger.digest
    payload = bytes([entry_id % 256]) * size
    entry = digest.seal(ledger.ledger_id, entry_id, entry_id - 1, 0, [payload])[0] + payload
    body = encode_run(
        ledger.ledger_id, entry_id, entry_id, [entry], [len(entry)], digest_type=digest.digest_type
    )
    head = native.encode_request(
        Kind.ADD,
        entry_id if number is None else number,
        len(body),
        checksum(body),
        ledger_id=ledger.ledger_id,
        digest_type=digest.digest_type,
        flags=flags,
        key=ledger.key,
        lac=entry_id - 1,
    )
    return head + body


class Counted(_Handed):
    """Counts the writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def send(self, data: bytes) -> None:
        self.writes += bool(data)
        super().send(data)


class Peer:
    """One client of a bookie: of its own, or of one that has others."""

    def __init__(self, bookie: StillBookie | None = None) -> None:
        self.bookie = bookie or StillBookie()
        self.line = Counted()
        self.line.owner = Connection(self.bookie.server)
        self.bookie.inside(lambda: self.line.owner.connection_made(self.line))
        self.send([self.bookie.hello])
        self.greeting = len(self.line.sent)
        self.line.writes = 0

    def send(self, pieces: list[bytes], *, wait: bool = True) -> None:
        """Let the bookie receive pieces, and do what it has to."""
        self.bookie.inside(lambda: feed(self.line.owner, pieces, self.line))
        if wait:
            self.wait()

    def wait(self) -> None:
        for _ in range(4):
            self.bookie.pass_time(1_000_000)
            if self.bookie.worker.jobs:
                self.bookie.inside(self.bookie.worker.finish)

    def answers(self) -> list[AnswerFrame]:
        """All that came after the hello."""
        said, at, found = bytes(self.line.sent), self.greeting, []
        while at < len(said):
            end = at + 4 + int.from_bytes(said[at : at + 4], "big")
            found.append(native.decode_answer(memoryview(said)[at:end]))
            at = end
        return found

    def told(self) -> list[tuple[int, Answer]]:
        return [(one.number, one.answer) for one in self.answers()]

    def holds(self, ledger: Any = ACCESS) -> list[int]:
        storage = self.bookie.server.storage
        held = storage.held(ledger.ledger_id)
        return [entry_id for one in held for entry_id in range(one[0], one[1] + 1)]


def bundle_of(adds: list[bytes], *, number: int = 1) -> bytes:
    """The runs of these ADDs in one bundle."""
    rows, bodies = [], []
    for one in adds:
        _, _, _, _, _, _, ledger_id, token, key, _, lac, _, body_crc, *_ = native.REQUEST.unpack_from(one)
        bodies.append(one[native.REQUEST_BYTES :])
        rows.append(ROW.pack(ledger_id, token, key, lac, len(bodies[-1]), body_crc))
    return encode_bundle(number, rows, bodies)


def parts_of(
    answers: list[AnswerFrame], *, number: int = 1, count: int
) -> list[tuple[int, int, Answer, int]]:
    """What was answered to the rows of a bundle, each of which has one answer."""
    parts = [
        tuple(part)
        for one in answers
        if one.number == number and one.kind == Kind.ADD_BUNDLE
        for part in decode_parts(one.body, count)
    ]
    rows = sorted(row for first, rows, *_ in parts for row in range(first, first + rows))
    assert rows == list(range(count)), "each row has one answer"
    return parts
