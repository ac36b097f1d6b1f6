"""The end of a recovery where bookies lost what they had: a slow one is waited for, a LAC is not overruled silently."""

from __future__ import annotations

import asyncio

import pytest

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.core.answers import Answer
from quire.core.errors import MisuseError, RecoveryInconclusiveError
from quire.core.ledger.metadata import LedgerState
from quire.wire.native_bodies import LacItem
from support.many_lacs import write_lacs
from unit.client.test_reading import put, texts
from unit.client.test_recovering import unfinished


async def test_the_one_bookie_that_still_has_the_entries_may_be_slow(monkeypatch, cluster) -> None:
    client = await cluster.client(ClientConfig(silent_wait_ms=60_000))
    record = await unfinished(client, cluster)
    *denying, slow = record.fragments[0].ensemble
    await put(client, slow, record, 0, texts(5))
    left, denied = {*denying}, asyncio.Event()
    read = BookieClient.read

    async def in_order(self, bookie, *args, **options):
        if bookie == slow:
            await denied.wait()
        reply = await read(self, bookie, *args, **options)
        left.discard(bookie)
        if not left:
            # In a later turn: the machine has been told both denials by then.
            asyncio.get_running_loop().call_later(0.01, denied.set)
        return reply

    monkeypatch.setattr(BookieClient, "read", in_order)
    report = await client.recover_ledger(record.ledger_id)
    assert report.record.last_entry == 4
    assert report.recovered == 5


async def test_nobody_waits_for_a_bookie_without_a_registration(monkeypatch, cluster) -> None:
    client = await cluster.client(ClientConfig(silent_wait_ms=3_600_000))
    record = await unfinished(client, cluster)
    gone = record.fragments[0].ensemble[2]
    for name in ("read", "read_lac"):
        ask = getattr(BookieClient, name)

        async def never(self, bookie, *args, ask=ask, **options):
            if bookie == gone:
                await asyncio.Event().wait()
            return await ask(self, bookie, *args, **options)

        monkeypatch.setattr(BookieClient, name, never)
    monkeypatch.setattr(client.bookies, "is_registered", lambda bookie: bookie != gone)
    report = await client.recover_ledger(record.ledger_id)
    assert report.record.last_entry == -1


async def test_a_lac_that_contradicts_the_entries_decides_nothing_until_a_person_does(
    cluster, client
) -> None:
    record = await unfinished(client, cluster)
    access = LedgerAccess.of(record)
    told, *others = record.fragments[0].ensemble
    for bookie in (told, *others):
        await put(client, bookie, record, 0, texts(3))
    item = LacItem(record.ledger_id, access.token, 7, 0, int(access.digest.digest_type), access.key)
    assert await write_lacs(client.bookies, told, [item]) == (Answer.OK, [])
    with pytest.raises(RecoveryInconclusiveError, match=f"--ignore-lac {told}") as caught:
        await client.recover_ledger(record.ledger_id)
    assert caught.value.ids["bookies"] == (told,)
    assert caught.value.ids["entry_id"] in (3, 7), "read forward from below the LAC, or from it"
    assert (await client.ledger_metadata(record.ledger_id)).state is LedgerState.IN_RECOVERY
    with pytest.raises(MisuseError, match=r"nowhere:1 is not in the ensemble of the last fragment"):
        await client.recover_ledger(record.ledger_id, ignored_lacs=["nowhere:1"])
    report = await client.recover_ledger(record.ledger_id, ignored_lacs=[told])
    assert report.record.last_entry == 2
    reader = await client.open_ledger(record.ledger_id)
    assert [bytes(entry.payload) async for entry in reader.read()] == texts(3)
