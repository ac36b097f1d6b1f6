"""Ledgers of a log's replay: what a handle asks of its client waits until the schedule carries it out.

They stand where the client's writers and readers stand, and are as the ledger's world proves those: an add lands or is
refused, a recovery closes what it fences at what has landed. The entries are the bytes that the log made.

Source: BookKeeper ledgers to logs; docs/testing-coverage.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from quire.client.config import ClientConfig
from quire.client.leaving import OpenWriters
from quire.core.errors import LedgerClosedError, LedgerFencedError, NoSuchLedgerError
from quire.core.ids import BookieId, EntryId, LedgerId
from quire.core.ledger.guarantee import WRITE_QUORUM
from quire.core.ledger.metadata import FORMAT_KEY, DigestType, LedgerMetadata, new_ledger
from quire.core.ledger.placement import RandomSource
from quire.core.ledger.writer_state import Hole
from quire.metadata.store import MetadataStore
from quire.wire.batch import BatchView
from quire.wire.batch_format import FORMAT_BATCH1
from quire.wire.entries import Entries
from quire.wire.entry import Entry
from quire_testing.explorer.log_parts import Ledger
from quire_testing.kit.stepped import StepClock

SINK = -1
"""Who owns what a sink made."""
ENSEMBLE = [BookieId(f"b{number}") for number in range(3)]


def value_of(who: int, number: int) -> bytes:
    """What a handle's n-th record says."""
    return b"%d %d" % (who, number)


def records_of(payload: bytes) -> list[tuple[int, int]]:
    """The records of an entry, by handle and number."""
    view = BatchView.parse(payload)
    values = [value or b"" for value in view.values(0, view.header.count)]
    return [(int(who), int(number)) for who, number in (value.split() for value in values)]


@dataclass(slots=True, eq=False)
class PendingAdd:
    """One entry on its way."""

    entry: bytes
    confirmed: asyncio.Future[int]
    fate: str = ""


@dataclass(slots=True, eq=False)
class StepLedger:
    """One ledger as bookies and its record have it, and what its writer has on the way.

    Attributes:
        entries: that landed.
        confirmed: how many its writer knows of.
        adds: on their way, oldest first.
    """

    record: LedgerMetadata
    owner: int
    entries: list[bytes] = field(default_factory=list)
    confirmed: int = 0
    closed: bool = False
    deleted: bool = False
    adds: list[PendingAdd] = field(default_factory=list)

    @property
    def view(self) -> Ledger:
        """As the explorer's."""
        records = tuple(record for entry in self.entries for record in records_of(entry))
        return Ledger(self.owner, records, self.closed, self.deleted)

    def lands(self) -> str:
        """The oldest add that has no fate is stored, or refused.

        Returns:
            Which.
        """
        add = next(add for add in self.adds if not add.fate)
        add.fate = "refused" if self.closed or self.deleted else "stored"
        if add.fate == "stored":
            self.entries.append(add.entry)
        return add.fate

    def answers(self) -> None:
        """The writer hears of its oldest add."""
        add = self.adds.pop(0)
        ledger_id = self.record.ledger_id
        if add.fate == "stored":
            add.confirmed.set_result(self.confirmed)
            self.confirmed += 1
        else:
            add.confirmed.set_exception(
                LedgerFencedError(f"ledger {ledger_id} is fenced", ledger_id=ledger_id)
            )

    def closes(self) -> bool:
        """Its own writer closes it at what it confirmed; False when another client closed it elsewhere."""
        if self.closed and len(self.entries) != self.confirmed:
            return False
        self.closed = True
        del self.entries[self.confirmed :]
        return True


def step_ledger(number: int, owner: int) -> StepLedger:
    """A new ledger."""
    record = new_ledger(
        LedgerId(number),
        ENSEMBLE,
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"",
        custom={FORMAT_KEY: FORMAT_BATCH1},
    )
    return StepLedger(record, owner, closed=owner == SINK)


@dataclass(slots=True, eq=False)
class HandleRequest:
    """One thing that a handle asked of its client.

    Attributes:
        kind: `create`, `recover`, `close` or `delete`.
        done: carried out, and not answered yet: a recovery's fence.
    """

    kind: str
    ledger_id: int
    future: asyncio.Future[Any]
    done: bool = False

    @property
    def work(self) -> tuple[Any, ...]:
        """As the explorer's handle has it."""
        if self.kind == "create":
            return ("create",)
        return ("recovered" if self.done else self.kind, self.ledger_id)


class StepWriter:
    """A ledger's writer."""

    def __init__(self, client: StepClient, ledger: StepLedger) -> None:
        self._client, self._ledger = client, ledger
        self.ledger_id = ledger.record.ledger_id
        self.metadata = ledger.record

    @property
    def length(self) -> int:
        """Bytes of what is confirmed."""
        return sum(map(len, self._ledger.entries[: self._ledger.confirmed]))

    def append_nowait(self, payload: bytes) -> asyncio.Future[int]:
        """An entry on its way."""
        add = PendingAdd(bytes(payload), asyncio.get_running_loop().create_future())
        self._ledger.adds.append(add)
        return add.confirmed

    async def drain(self) -> None:
        """There is always room."""

    async def close(self, *, at: str = WRITE_QUORUM) -> None:
        """Ask for it. Ledgers of these worlds guarantee no more than their ack quorum."""
        assert at == WRITE_QUORUM, "what is not guaranteed cannot be waived"
        if not await self._client.ask("close", self.ledger_id):
            msg = f"ledger {self.ledger_id} was closed elsewhere"
            raise LedgerClosedError(msg, ledger_id=self.ledger_id)

    async def flushed(self) -> tuple[Hole, ...]:
        """No bookie of a stepped ledger lacks anything."""
        return ()

    async def abandon(self) -> None:
        """Nothing more lands of what is on its way."""
        for add in self._ledger.adds:
            add.confirmed.cancel()
        self._ledger.adds.clear()


class StepReader:
    """A ledger's reader: what was there when it was opened."""

    def __init__(self, ledger: StepLedger) -> None:
        self.metadata = ledger.record
        self.ledger_id = ledger.record.ledger_id
        self.closed = ledger.closed
        self._entries = list(ledger.entries if ledger.closed else ledger.entries[: ledger.confirmed])
        self.last_add_confirmed = len(self._entries) - 1
        self.length = sum(map(len, self._entries))

    async def read(self, first: int, last: int) -> AsyncGenerator[Entry, None]:
        """The entries first..last."""
        for number in range(first, last + 1):
            lac = EntryId(self.last_add_confirmed)
            yield Entry(self.ledger_id, EntryId(number), lac, self.length, self._entries[number])

    async def read_runs(self, first: int, last: int) -> AsyncGenerator[Entries, None]:
        """The same at once."""
        yield Entries.of(self.ledger_id, [entry async for entry in self.read(first, last)])


class StepClient:
    """One handle's client.

    Args:
        ledgers: of the whole world, by number from 1.
        store: its metadata.
        chance: its chance.

    Attributes:
        requests: those that wait, oldest first.
    """

    def __init__(self, ledgers: list[StepLedger], store: MetadataStore, chance: RandomSource) -> None:
        self.ledgers, self.store, self.chance = ledgers, store, chance
        self.clock = StepClock()
        self.config = ClientConfig()
        self.open_writers = OpenWriters()
        self.requests: list[HandleRequest] = []

    async def ask(self, kind: str, ledger_id: int = 0) -> Any:
        """Wait until the schedule has answered."""
        request = HandleRequest(kind, ledger_id, asyncio.get_running_loop().create_future())
        self.requests.append(request)
        try:
            return await request.future
        finally:
            if request in self.requests:
                self.requests.remove(request)

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Its record; that it is deleted is found when the schedule deletes it."""
        return self.ledgers[ledger_id - 1].record

    async def create_ledger(self, **_: Any) -> StepWriter:
        """A new ledger."""
        writer: StepWriter = await self.ask("create")
        return writer

    async def open_ledger(self, ledger_id: int, _: bytes, *, recover: bool = False) -> StepReader:
        """A reader; with `recover` once the ledger is fenced and closed."""
        ledger = self.ledgers[ledger_id - 1]
        there = await self.ask("recover", ledger_id) if recover else not ledger.deleted
        if not there:
            raise _deleted(ledger_id)
        return StepReader(ledger)

    async def delete_ledger(self, ledger_id: int, *, fence: bool) -> None:
        """Delete it, or find it deleted."""
        assert not fence
        if not await self.ask("delete", ledger_id):
            raise _deleted(ledger_id)


def _deleted(ledger_id: int) -> NoSuchLedgerError:
    return NoSuchLedgerError(f"there is no ledger {ledger_id}", ledger_id=ledger_id)
