"""What a description says of a log while its writer is between two ledgers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from quire.client.config import ClientConfig
from quire.client.lac_sending import LacFrames
from quire.core.log_list import LogItem
from quire.log.heads import LogHeads
from quire.log.ledgers import LogLedgers
from quire.wire.batch import encode_batch
from support.log_cluster import World, in_world, numbers


def test_the_ledger_behind_one_whose_end_is_not_known_has_no_offsets_yet(tmp_path: Path) -> None:
    """A roll stopped between its switch and its close: the last add confirmed of the first ledger lags behind."""

    async def work(at: World) -> None:
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
                values = numbers(entry * 3, entry * 3 + 3)
                await writer.append(encode_batch(values, base_ms=1, records_before=entry * 3))
        await heads.write(head, version)
        # Six records are confirmed in each, three are known to be: the second ledger's first offset is 6, not 3.
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

    in_world(tmp_path, work)
