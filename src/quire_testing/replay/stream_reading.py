"""Readers of a stream in a replay: each reads the record, asks one bookie for its LAC and for entries in real frames.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes"; docs/protocol/streams.md.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

from quire.client.access import LedgerAccess, origin_to_ask
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.records import OF_STREAMS, RecordStore
from quire_testing.explorer.bookies import LEDGER
from quire_testing.explorer.switches import Rules
from quire_testing.replay.bookies import Bookie
from quire_testing.replay.clients import SILENT_MS
from quire_testing.replay.passing import ImpossibleStepError, Passing
from quire_testing.replay.stream_clients import ReadingClient


class StreamReading:
    """What readers do, by the rule that ships or by a mutant's.

    Args:
        passing: answers them at once.
        bookies: of the world.
        rules: the protocol's rules (`core/rules.py`).
        space: the cluster's metadata.
    """

    def __init__(self, passing: Passing, bookies: Sequence[Bookie], rules: Rules, space: MemorySpace) -> None:
        self._passing, self._bookies, self._rules, self._space = passing, bookies, rules, space

    def step(self, reader: ReadingClient, command: str) -> None:
        known = reader.reader
        lac = re.fullmatch(r"hears LAC (\d+) of term (\d+)(, reads the record)?: (b\d+)", command)
        read = re.fullmatch(r"reads (\d+) of term (\d+): (b\d+)", command)
        if command.startswith("opens"):
            reader.opens(self._record(reader))
        elif lac:
            self._hears_lac(reader, lac[4])
        elif read and known.record is not None:
            entry, bookie = int(read[1]), BookieId(read[3])
            origin = origin_to_ask(known.record, entry)
            access = LedgerAccess.of(known.record)
            reply = self._asked(
                reader,
                lambda: reader.bookies.read(
                    bookie, access, entry, entry, 1 << 20, origin_term=origin, timeout_ms=SILENT_MS
                ),
                "look",
            )
            found = [run.origin_term for run in reply.runs if entry in run.ids()]
            if entry > known.lac or not found:
                raise ImpossibleStepError(command)
            reader.reader = known._replace(seen=tuple(sorted({*known.seen, (entry, found[0])})))
        else:
            raise ImpossibleStepError(command)

    def _hears_lac(self, reader: ReadingClient, bookie: str) -> None:
        known = reader.reader
        assert known.record is not None
        access, may_use = LedgerAccess.of(known.record), self._rules.may_use_lac
        reply = self._asked(
            reader, lambda: reader.bookies.read_lac(BookieId(bookie), access, timeout_ms=SILENT_MS), "known"
        )
        record = known.record
        if not may_use(reply.lac_term, record):
            record = self._record(reader)
        if may_use(reply.lac_term, record):
            lac = max(known.lac, access.trusted_lac(reply))
            reader.reader = known._replace(lac=lac, record=record)

    def _asked(self, reader: ReadingClient, ask: Callable[[], Any], kind: str) -> Any:
        """What one bookie answers, at once."""
        task: asyncio.Task[Any] = reader.act(lambda: reader.loop.create_task(ask()))
        self._passing.answer(reader, (kind,), self._bookies)
        return task.result()

    def _record(self, reader: ReadingClient) -> LedgerMetadata:
        plain_store = RecordStore(MemoryStore(self._space), OF_STREAMS)
        reading = reader.act(lambda: reader.loop.create_task(plain_store.read(LEDGER)))
        record: LedgerMetadata = reading.result()[0]
        return record
