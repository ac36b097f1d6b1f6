"""Explicit LACs of many ledgers in one frame: known at once, on the disk some seconds later or at a stop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quire.bookie.ledgers import explicit_lacs
from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.wire.native_bodies import LacItem
from support.many_lacs import write_lacs
from unit.bookie.test_bookie_server import World, access


async def tell(at: World, lacs: Sequence[tuple[LedgerAccess, int]]) -> None:
    items = [
        LacItem(who.ledger_id, who.token, lac, 0, int(who.digest.digest_type), who.key) for who, lac in lacs
    ]
    assert await write_lacs(at.client, at.bookie, items) == (Answer.OK, [])


async def lac_of(at: World, who: LedgerAccess) -> tuple[int, int]:
    """(the LAC, that of the explicit LAC body, which anybody can check)."""
    reply = await at.client.read_lac(at.bookie, who)
    return reply.lac, who.digest.open_lac_body(
        reply.explicit_lac, who.ledger_id
    ) if reply.explicit_lac else -2


async def test_an_explicit_lac_is_known_at_once_and_survives_a_clean_stop(at: World) -> None:
    whos = [access(1), access(2)]
    for who in whos:
        assert await at.add(who, [0, 1]) is Answer.OK
    await tell(at, [(who, 1) for who in whos])
    assert [await lac_of(at, who) for who in whos] == [(1, 1), (1, 1)]
    await at.restart(clean=True)
    assert [await lac_of(at, who) for who in whos] == [(1, 1), (1, 1)]


async def test_it_is_on_the_disk_once_it_was_the_newest_for_some_seconds(at: World) -> None:
    whos = [access(1), access(2)]
    for who in whos:
        assert await at.add(who, [0, 1]) is Answer.OK
    await tell(at, [(who, 1) for who in whos])
    ledgers = at.server.ledgers
    for _ in range(explicit_lacs.SWEEPS_UNSAVED - 1):
        ledgers.settle_lacs()
    assert await at.add(whos[1], [2], lac=1) is Answer.OK
    assert not ledgers._unsaved_lacs
    ledgers.settle_lacs()
    assert list(ledgers._unsaved_lacs) == [1], "the other's next header says as much"
    ledgers.flush()
    await at.server.storage.drain()
    await at.restart(clean=False)
    assert await lac_of(at, whos[0]) == (1, 1)
    assert (await lac_of(at, whos[1]))[0] == 1


async def test_so_many_wait_and_not_more(at: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explicit_lacs, "WAITING_MAX", 3)
    whos = [access(ledger_id) for ledger_id in range(1, 8)]
    for who in whos:
        assert await at.add(who, [0]) is Answer.OK
    await tell(at, [(who, 0) for who in whos])
    at.server.ledgers.settle_lacs()
    assert sorted(at.server.ledgers._unsaved_lacs) == [1, 2, 3, 4]


async def test_a_lower_lac_changes_nothing(at: World) -> None:
    who = access(1)
    assert await at.add(who, [0, 1, 2]) is Answer.OK
    await tell(at, [(who, 2)])
    await tell(at, [(who, 1)])
    assert await lac_of(at, who) == (2, 2)
    assert await at.add(who, [3], lac=1) is Answer.OK, "sent again, with its first header"
    assert await lac_of(at, who) == (2, 2)


async def test_a_frame_wakes_whoever_waits(at: World) -> None:
    who = access(1)
    assert await at.add(who, [0, 1]) is Answer.OK
    woken: list[bool] = []
    assert at.server.ledgers.poll(1, 0, 60.0, lambda: woken.append(True)) is not None
    await tell(at, [(who, 1)])
    assert woken == [True]
