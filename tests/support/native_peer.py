"""One client of a bookie without time or threads: it sends frames of our own protocol, and lists what was answered."""

from __future__ import annotations

from typing import Any

from quire.bookie.connection import Connection
from quire.core.answers import Answer
from quire.wire import native
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
