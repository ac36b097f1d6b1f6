"""Dialogues of a bookie with a writer and a repairer, whose low-priority requests wait for the writer's.

Source: docs/protocol/repair.md, "Giving way".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from quire.core.answers import Answer
from quire.env.yielding import LIMITS
from quire.wire import native, native_bodies
from quire.wire.native import Flag, Kind
from quire.wire.run import checksum
from support.hostile_worlds import ACCESS, GOOD
from support.native_peer import Peer, add

FIRST = 10
"""Both ledgers hold ten entries."""
COPY = Flag.RECOVERY | Flag.LOW_PRIORITY
LARGE = LIMITS.others_bytes + 1
MS = 1_000_000


def read(number: int, flags: int = Flag.LOW_PRIORITY, first: int = 0, last: int = 9) -> bytes:
    body = native_bodies.encode_body(native_bodies.ReadBody(first, last, 1 << 20, native_bodies.ANY_TERM))
    ids: dict[str, Any] = {"ledger_id": ACCESS.ledger_id, "key": ACCESS.key, "flags": flags}
    return native.encode_request(Kind.READ, number, len(body), checksum(body), **ids) + body


@pytest.fixture
def writer() -> Iterator[Peer]:
    one = Peer()
    yield one
    machine = one.bookie.server.low_priority.machine
    machine.check()
    assert machine.in_flight == 0, "what was begun is settled"
    assert one.bookie.server._pending_bytes == 0
    assert one.bookie.server.storage.failure is None


@pytest.fixture
def repairer(writer: Peer) -> Peer:
    return Peer(writer.bookie)


def low_priority(peer: Peer) -> dict[str, int]:
    info: dict[str, int] = peer.bookie.server.info()["background"]
    return info


def test_beside_nothing_else_it_is_served_as_it_comes(repairer: Peer) -> None:
    repairer.bookie.pass_time(2_000 * MS)  # the ten entries came before that
    repairer.send([add(FIRST, flags=COPY, size=LARGE), read(2)], wait=False)
    assert repairer.bookie.server.ledgers.entries_added == 21
    assert low_priority(repairer)["in_flight_bytes"] > 0
    repairer.wait()
    assert sorted(repairer.told()) == [(2, Answer.OK), (FIRST, Answer.OK)]


def test_while_much_of_others_is_in_flight_it_waits_and_comes_after_it(writer: Peer, repairer: Peer) -> None:
    writer.send([add(FIRST, ledger=GOOD, size=LARGE)], wait=False)
    repairer.send([add(FIRST, flags=COPY), read(2), read(3, Flag.NONE)], wait=False)
    repairer.bookie.pass_time(50 * MS)
    assert low_priority(repairer)["waiting"] == 2
    assert repairer.told() == [(3, Answer.OK)], "what is not of low priority waits for nothing"
    repairer.wait()
    assert writer.told() == [(FIRST, Answer.OK)]
    assert sorted(repairer.told()) == [(2, Answer.OK), (3, Answer.OK), (FIRST, Answer.OK)]
    assert repairer.holds() == list(range(11))
    assert low_priority(repairer) == {"waiting": 0, "waiting_bytes": 0, "in_flight_bytes": 0}


def test_beside_others_one_is_served_in_a_turn_of_the_loop(writer: Peer, repairer: Peer) -> None:
    writer.send([add(FIRST, ledger=GOOD)], wait=False)
    repairer.send([read(number) for number in range(5)], wait=False)
    assert repairer.told() == []
    left = []
    while waiting := low_priority(repairer)["waiting"]:
        left.append(waiting)
        timeline = repairer.bookie.timeline
        served = timeline.run(
            lambda seen=waiting: low_priority(repairer)["waiting"] < seen,  # type: ignore[misc]
            until_ns=timeline.now_ns + MS,
            events_max=100,
        )
        assert served
    assert left == [5, 4, 3, 2, 1]
    writer.wait()
    assert [number for number, _ in repairer.told()] == [0, 1, 2, 3, 4]


def test_a_disk_that_is_busy_all_the_time_slows_it_down_and_does_not_stop_it(
    writer: Peer, repairer: Peer
) -> None:
    writer.send([add(FIRST, ledger=GOOD, size=LARGE)], wait=False)
    repairer.send([read(number) for number in range(3)], wait=False)
    answered = []
    for _ in range(35):
        repairer.bookie.pass_time(10 * MS)
        answered.append(len(repairer.told()))
    assert [answered.index(count) for count in (1, 2, 3)] == [10, 20, 30]
    writer.wait()


def test_what_waits_is_bounded_and_refused_as_too_busy(writer: Peer, repairer: Peer) -> None:
    writer.send([add(FIRST, ledger=GOOD, size=LARGE)], wait=False)
    count = LIMITS.waiting_bytes // (1 << 19)
    repairer.send([add(FIRST + number, flags=COPY, size=1 << 19) for number in range(count + 2)], wait=False)
    assert low_priority(repairer)["waiting_bytes"] <= LIMITS.waiting_bytes
    repairer.bookie.pass_time(MS)
    refused = [number for number, answer in repairer.told() if answer is Answer.TOO_BUSY]
    assert refused == [FIRST + count - 1, FIRST + count, FIRST + count + 1]
    for _ in range(3 * count):
        repairer.wait()
    assert repairer.holds() == list(range(FIRST + count - 1))


def test_a_client_that_is_gone_leaves_nothing_that_waits(writer: Peer, repairer: Peer) -> None:
    other = Peer(writer.bookie)
    writer.send([add(FIRST, ledger=GOOD, size=LARGE)], wait=False)
    repairer.send([read(1), read(2)], wait=False)
    other.send([read(1)], wait=False)
    repairer.send([read(3)], wait=False)
    repairer.bookie.inside(lambda: repairer.line.owner.connection_lost(None))
    assert low_priority(other)["waiting"] == 1
    writer.wait()
    assert other.told() == [(1, Answer.OK)]
    assert repairer.told() == []


def test_a_fence_of_low_priority_waits_for_nothing_either(writer: Peer, repairer: Peer) -> None:
    writer.send([add(FIRST, ledger=GOOD, size=LARGE)], wait=False)
    repairer.send([read(1, Flag.LOW_PRIORITY | Flag.FENCE | Flag.RECOVERY)])
    assert repairer.told() == [(1, Answer.OK)]


def test_a_request_that_makes_no_sense_is_refused_after_its_wait(writer: Peer, repairer: Peer) -> None:
    writer.send([add(FIRST, ledger=GOOD, size=LARGE)], wait=False)
    body = native_bodies.encode_body(native_bodies.ReadBody(0, 0, 1, native_bodies.ANY_TERM))[:-1]
    cut = native.encode_request(
        Kind.READ,
        7,
        len(body),
        checksum(body),
        ledger_id=ACCESS.ledger_id,
        flags=Flag.LOW_PRIORITY,
        key=ACCESS.key,
    )
    repairer.send([cut + body, read(8)], wait=False)
    writer.wait()
    assert repairer.told() == [(7, Answer.BAD_REQUEST), (8, Answer.OK)]


def test_what_waited_when_the_bookie_lost_its_registration_waits_for_that_too(
    writer: Peer, repairer: Peer
) -> None:
    server = writer.bookie.server
    writer.send([add(FIRST, ledger=GOOD, size=LARGE)], wait=False)
    repairer.send([add(FIRST, flags=COPY)], wait=False)
    server.lease.pending = True  # and nothing is asked of the store that would end it
    writer.bookie.pass_time(150 * MS)
    assert low_priority(repairer)["waiting"] == 0
    assert server.ledgers.entries_added == 21, "only the writer's"
    writer.bookie.inside(server.lease._release)
    for _ in range(3):
        writer.wait()
    assert repairer.told() == [(FIRST, Answer.OK)]
    assert writer.told() == [(FIRST, Answer.OK)]


def test_a_bookie_says_how_long_adds_take_without_low_priority_ones(writer: Peer, repairer: Peer) -> None:
    writer.bookie.pass_time(10_000 * MS)
    assert writer.bookie.server.info()["add_p99_us"] is None
    repairer.send([add(FIRST, flags=COPY)])
    assert writer.bookie.server.info()["add_p99_us"] is None
    writer.send([add(FIRST, ledger=GOOD, size=LARGE)], wait=False)
    writer.bookie.pass_time(20 * MS)
    writer.wait()
    assert writer.bookie.server.info()["add_p99_us"] in range(20_000, 25_000)
    writer.bookie.pass_time(10_000 * MS)
    assert writer.bookie.server.info()["add_p99_us"] is None
