"""What a description of a log and a read say while its writer is between two ledgers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quire.client.config import ClientConfig
from quire.client.sending.lac_sending import LacFrames
from quire.client.writing.writer import LedgerWriter
from quire.core.errors import PastEndError
from quire.core.ids import BookieId
from quire.core.log.list import LogItem
from quire.log.heads import LogHeads
from quire.log.ledgers import LogLedgers
from quire.log.log import Log
from quire.wire.batch import encode_batch
from quire.wire.responses import ReadReply
from support.log_cluster import World, numbers, values


async def between_two_ledgers(at: World) -> tuple[Log, list[LedgerWriter]]:
    """A log whose list calls two ledgers open; six records are confirmed in each, three are known to be."""
    silent = ClientConfig(explicit_lac_after_ms=3_600_000, lac_after_ms=3_600_000)
    lacs = LacFrames(at.client.bookies, silent)
    at.client.context = replace(at.client.context, config=silent, lacs=lacs)
    log = await at.made()
    heads, ledgers = LogHeads(at.store), LogLedgers(at.client)
    log_id = await heads.find("orders")
    assert log_id is not None
    found = await heads.read(log_id)
    assert found is not None
    head, version = found
    writers = [await ledgers.create(head, "a writer") for _ in range(2)]
    for writer in writers:
        head = head.with_item(LogItem(writer.ledger_id, writer.metadata.token))
        for entry in range(2):
            some = numbers(entry * 3, entry * 3 + 3)
            await writer.append(encode_batch(some, base_ms=1, records_before=entry * 3))
    await heads.write(head, version)
    return log, writers


async def test_the_ledger_behind_one_whose_end_is_not_known_has_no_offsets_yet(at: World) -> None:
    """A roll stopped between its switch and its close: the last add confirmed of the first ledger lags behind."""
    log, writers = await between_two_ledgers(at)
    # The second ledger's first offset is 6, not 3.
    about = await log.describe()
    assert [(item.first_offset, item.next_offset) for item in about.items] == [(0, 3), (3, 3)]
    assert about.end_offset == 3
    await writers[0].close()
    about = await log.describe()
    assert [(item.first_offset, item.next_offset) for item in about.items] == [(0, 6), (6, 9)]
    await writers[1].close()
    assert (await log.describe()).end_offset == 12
    assert await log.complete_items() == 2
    assert [item.first_offset for item in (await log.describe(since=6)).items] == [6]


@pytest.mark.parametrize("look", ["describe", "read", "truncate"])
async def test_a_ledger_that_is_closed_while_it_is_looked_at_moves_none_behind_it(
    at: World, look: str
) -> None:
    """No bookie serves its entry at first, so its record is read again: it has more entries by then."""
    log, writers = await between_two_ledgers(at)
    serve = at.client.bookies.read
    asked: list[BookieId] = []

    async def closed_meanwhile(bookie: BookieId, *args: Any, **options: Any) -> ReadReply:
        asked.append(bookie)
        if len(asked) > 3:
            return await serve(bookie, *args, **options)
        if len(asked) == 3:
            await writers[0].close()
        return await serve(BookieId("nobody:1"), *args, **options)

    at.client.bookies.read = closed_meanwhile  # type: ignore[method-assign]
    if look == "describe":
        items = (await log.describe()).items
        assert [(item.first_offset, item.next_offset) for item in items] == [(0, 3), (3, 3)]
    elif look == "read":
        assert [(one.offset, one.value) async for one in log.read()] == list(enumerate(numbers(0, 3)))
    else:
        with pytest.raises(PastEndError, match="ends at offset 3"):
            await log.truncate(before=5)
    assert await values(log, 3, 9) == [*numbers(3, 6), *numbers(0, 3)]
