"""Java bookies with DbLedgerStorage never answer what they hold of a ledger: each is asked once, then entries are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import quire
from interop.test_java_busy import LEDGER, SETTINGS
from quire.client.access import LedgerAccess
from quire.client.repairing.replica_lists import replica_list
from quire.client.repairing.scrubbing import ReplicaCheck
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger.replica import Replica
from quire.core.ledger.stripes import bookie_stripes
from support.java_peers import PATIENT, PATIENT_CLIENT, own_peers

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800), pytest.mark.slow]

LEDGERS, ENTRIES = 20, 30


@pytest.mark.parametrize("protocol", ["v2", "v3"])
async def test_an_audit_and_a_repair_ask_for_one_list_and_read_the_rest(
    tmp_path: Path, protocol: str
) -> None:
    with own_peers(tmp_path / "java", 3, SETTINGS["dbledgerstorage"]) as peers:
        uri = peers.uri
        async with quire.connect(uri + PATIENT, replace(PATIENT_CLIENT, protocol=protocol)) as client:
            asked: list[BookieId] = []
            honest = client.bookies.list_entries

            async def counted(bookie: BookieId, access: LedgerAccess, *, timeout_ms: int) -> object:
                asked.append(bookie)
                return await honest(bookie, access, timeout_ms=timeout_ms)

            client.bookies.list_entries = counted  # type: ignore[assignment]
            for number in range(LEDGERS):
                writer = await client.create_ledger(**LEDGER)
                await writer.append_many([b"%d" % entry for entry in range(ENTRIES)])
                await writer.close()
                record = await client.ledger_metadata(writer.ledger_id)
                for part in bookie_stripes(record):
                    if number % 2:
                        check = ReplicaCheck(client.bookies, record, 5_000)
                        assert await check.audit(part.bookie, [part]) == []
                    else:
                        access = LedgerAccess.of(record)
                        told = await replica_list(
                            client.bookies, part.bookie, record, access, timeout_ms=5_000
                        )
                        assert told.answer is Answer.OK
                        assert not Replica(told, 1).lacks(0, 0, ENTRIES - 1)
            assert sorted(asked) == sorted(peers.bookies())
