"""A real bookie keeps no machine for a quiet ledger, and nobody can tell."""

from __future__ import annotations

import pytest

from quire.bookie.ledgers import ledgers as bookie_ledgers
from quire.core.answers import Answer
from quire.wire import native
from quire.wire.entry import master_key
from quire.wire.native import Kind
from support.waiting import until_async
from unit.bookie.test_bookie_server import World, access


async def test_quiet_ledgers_have_no_machine_and_are_still_who_they_were(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie_ledgers, "MACHINES_KEPT", 2)
    monkeypatch.setattr(bookie_ledgers, "MACHINES_AT_ONCE", 1)
    fenced, told = access(1), access(2)
    for who in (fenced, told):
        assert await at.add(who, [0, 1]) is Answer.OK
    assert (await at.client.read_lac(at.bookie, fenced, fence=True)).answer is Answer.OK
    await at.client.write_lac(at.bookie, told, 1)
    for ledger_id in range(3, 20):
        assert await at.add(access(ledger_id), [0]) is Answer.OK
    await at.server.storage.drain()
    ledgers = at.server.ledgers
    ledgers._forget_machines(100)
    assert len(ledgers._machines) <= 2
    # As machines come, the longest kept ones go: few are looked at for each.
    for ledger_id in range(3, 20):
        assert await at.add(access(ledger_id), [1]) is Answer.OK
        await at.server.storage.drain()
        assert len(ledgers._machines) <= 4
    assert len(ledgers._evidence) <= 2
    assert await at.add(fenced, [2], lac=1) is Answer.FENCED
    assert await at.add(access(2, password=b"wrong"), [2]) is Answer.UNAUTHORISED
    lac = await at.client.read_lac(at.bookie, told)
    assert told.digest.open_lac_body(lac.explicit_lac, 2) == 1
    assert told.digest.open(lac.evidence, 2, 1).last_add_confirmed == -1
    assert await at.add(told, [2], lac=1) is Answer.OK


async def test_a_machine_whose_fence_is_on_its_way_is_kept(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie_ledgers, "MACHINES_KEPT", 1)
    monkeypatch.setattr(bookie_ledgers, "MACHINES_AT_ONCE", 1)
    assert await at.add(access(1), [0]) is Answer.OK
    ledgers, answers = at.server.ledgers, []
    key = master_key(b"secret")
    request = native.Request(Kind.READ_LAC, 3, 0, 1, 0, 1, 77, key, 0, -1, -1, 0, memoryview(b""))
    ledgers.fence(request, answers.append)
    machine = ledgers._machines[1]
    for ledger_id in range(2, 9):
        ledgers._machine(ledger_id)
    ledgers._forget_machines(100)
    assert ledgers._machines[1] is machine
    assert not answers, "nothing is durable in this turn"
    await at.server.storage.drain()
    assert answers == [Answer.OK]
    ledgers._forget_machines(100)
    assert 1 not in ledgers._machines


async def test_many_explicit_lacs_wait_for_nobody_elses_group(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie_ledgers, "LACS_UNSAVED_MAX", 2)
    whos = [access(1), access(2)]
    for who in whos:
        assert await at.add(who, [0]) is Answer.OK
    for who in whos:
        await at.client.write_lac(at.bookie, who, 0)
    await until_async(lambda: not at.server.ledgers._unsaved_lacs)
    await at.server.storage.drain()
    await at.restart(clean=False)
    for who in whos:
        assert (await at.client.read_lac(at.bookie, who)).lac == 0
