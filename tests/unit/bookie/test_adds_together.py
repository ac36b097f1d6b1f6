"""Adds that come together are stored and answered together; each other request stands between them as it was sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY
from quire.wire import native, native_bodies
from quire.wire.native import Flag, Kind
from quire.wire.native_requests import plain_add
from quire.wire.plain_adds import SHORT_BYTES_MAX
from quire.wire.run import checksum
from quire_testing.sim.loop import SECOND
from support.hostile_worlds import ACCESS, GOOD
from support.native_peer import Peer, add

FIRST = 10
"""Both ledgers hold ten entries."""


def fencing_read(number: int, first: int, last: int) -> bytes:
    body = native_bodies.encode_body(native_bodies.ReadBody(first, last, 1 << 20, native_bodies.ANY_TERM))
    head = native.encode_request(
        Kind.READ,
        number,
        len(body),
        checksum(body),
        ledger_id=ACCESS.ledger_id,
        flags=Flag.FENCE | Flag.RECOVERY,
        key=ACCESS.key,
    )
    return head + body


@pytest.fixture
def peer() -> Iterator[Peer]:
    one = Peer()
    yield one
    assert one.bookie.server.storage.failure is None
    assert one.bookie.server._pending_bytes == 0, "what was admitted is settled"


def test_a_chunk_of_adds_of_two_ledgers_is_answered_in_one_write_and_one_group(peer: Peer) -> None:
    groups = peer.bookie.server.storage.journal.groups_written
    frames = [add(FIRST + at // 2, ledger=(ACCESS, GOOD)[at % 2], number=at + 1) for at in range(40)]
    peer.send([b"".join(frames)])
    assert peer.told() == [(number, Answer.OK) for number in range(1, 41)]
    assert peer.line.writes == 1
    assert peer.bookie.server.storage.journal.groups_written == groups + 1
    assert peer.holds() == peer.holds(GOOD) == list(range(FIRST + 20))


def test_a_short_add_is_answered_as_a_long_one_and_as_one_with_a_flag(peer: Peer) -> None:
    """Three ways of the same request: short, with memory of its own, and with a flag that says nothing new."""
    sizes = (20, SHORT_BYTES_MAX, 20)
    flags = (0, 0, Flag.HIGH_PRIORITY)
    frames = [add(FIRST + at, size=sizes[at], flags=flags[at], number=7) for at in range(3)]
    assert [plain_add(frame) is not None and len(frame) <= SHORT_BYTES_MAX for frame in frames] == [
        True,
        False,
        False,
    ]
    for frame in frames:
        peer.send([frame])
    one, *others = peer.answers()
    for other in others:
        other.durable_lsn = one.durable_lsn
        assert other == one


def test_a_fence_stands_between_the_adds_before_it_and_those_behind_it(peer: Peer) -> None:
    chunk = [add(FIRST), add(FIRST + 1), fencing_read(99, FIRST, FIRST + 5), add(FIRST + 2), add(FIRST + 3)]
    peer.send([b"".join(chunk)])
    assert sorted(peer.told()) == [
        (FIRST, Answer.OK),
        (FIRST + 1, Answer.OK),
        (FIRST + 2, Answer.FENCED),
        (FIRST + 3, Answer.FENCED),
        (99, Answer.OK),
    ]
    assert seen_by_the_fence(peer) == [FIRST, FIRST + 1]
    assert peer.holds() == list(range(FIRST + 2))


def seen_by_the_fence(peer: Peer) -> list[int]:
    [answer] = [one for one in peer.answers() if one.number == 99]
    found = native_bodies.decode_entries(answer.body)
    return [entry_id for run in found.runs for entry_id in run.ids()]


def test_adds_that_are_judged_when_collected_are_caught(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: adds are judged as they come and stored at the end, so the fence between them misses some."""
    server, late = peer.bookie.server, []

    def judged_when_collected(request: Any, run: Any, callback: Any, tag: Any) -> Answer:
        machine = server.ledgers._machine(request.ledger_id)
        if machine.facts.fenced:
            return Answer.FENCED
        late.append((run, request, callback, tag))
        return Answer.OK

    monkeypatch.setattr(server.ledgers, "add", judged_when_collected)
    chunk = [add(FIRST), add(FIRST + 1), fencing_read(99, FIRST, FIRST + 5), add(FIRST + 2)]
    peer.send([b"".join(chunk)], wait=False)
    for run, request, callback, tag in late:
        server.storage.put_run(
            run, request.body_crc, lac=NO_ENTRY, token=0, recovery=False, callback=callback, tag=tag
        )
    peer.bookie.inside(server.ledgers.flush)
    peer.wait()
    acknowledged = [number for number, answer in peer.told() if answer is Answer.OK and number != 99]
    assert acknowledged == [FIRST, FIRST + 1]
    assert seen_by_the_fence(peer) != acknowledged, "an acknowledged entry that the recoverer did not see"


def test_a_damaged_frame_costs_its_own_answer_only(peer: Peer) -> None:
    damaged = bytearray(add(FIRST + 1))
    damaged[-1] ^= 1
    other_ledger = add(FIRST + 1, number=50)
    wrong = native.encode_request(
        Kind.ADD, 50, len(other_ledger) - native.REQUEST_BYTES, checksum(other_ledger[native.REQUEST_BYTES :]),
        ledger_id=GOOD.ledger_id, digest_type=3, key=GOOD.key, lac=FIRST,
    ) + other_ledger[native.REQUEST_BYTES :]  # fmt: skip
    chunk = [add(FIRST), bytes(damaged), wrong, add(FIRST + 1, number=60), add(FIRST + 2)]
    peer.send([b"".join(chunk)])
    assert sorted(peer.told()) == [
        (FIRST, Answer.OK),
        (FIRST + 1, Answer.DAMAGED_IN_TRANSIT),
        (FIRST + 2, Answer.OK),
        (50, Answer.BAD_REQUEST),
        (60, Answer.OK),
    ]
    assert peer.holds() == list(range(FIRST + 3))


def test_a_peer_that_sends_a_byte_at_a_time_gets_the_same_answers(peer: Peer) -> None:
    frames = b"".join(add(FIRST + at) for at in range(4)) + fencing_read(99, FIRST, FIRST) + add(FIRST + 4)
    peer.send([bytes([one]) for one in frames])
    assert sorted(peer.told()) == [*((FIRST + at, Answer.OK) for at in range(4)), (FIRST + 4, Answer.FENCED), (99, Answer.OK)]  # fmt: skip
    assert seen_by_the_fence(peer) == [FIRST]


def test_a_connection_that_ends_in_the_middle_of_a_write_stores_what_came_whole_once(peer: Peer) -> None:
    frames = [add(FIRST + at) for at in range(6)]
    sent = b"".join(frames)
    peer.send([sent[: -len(frames[-1]) // 2]], wait=False)
    peer.bookie.inside(lambda: peer.line.owner.connection_lost(None))
    peer.wait()
    assert peer.holds() == list(range(FIRST + 5))
    assert peer.told() == [(FIRST + at, Answer.OK) for at in range(5)], "each once; the cut one is unknown"


def test_a_peer_with_a_window_of_zero_is_answered_when_it_reads_again(peer: Peer) -> None:
    owner = peer.line.owner
    peer.bookie.inside(owner.pause_writing)
    peer.send([b"".join(add(FIRST + at) for at in range(5))])
    assert peer.told() == []
    assert peer.holds() == list(range(FIRST)), "it is not served while it does not read"
    peer.bookie.inside(owner.resume_writing)
    peer.wait()
    assert peer.told() == [(FIRST + at, Answer.OK) for at in range(5)]


def test_what_was_taken_counts_at_once_against_what_may_be_on_its_way(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = peer.bookie.server
    frames = [add(FIRST + at) for at in range(30)]
    body = len(frames[0]) - native.REQUEST_BYTES
    most, admitted = 0, server.admitted

    def seen(size: int) -> None:
        nonlocal most
        admitted(size)
        most = max(most, server._pending_bytes)

    monkeypatch.setattr(server, "admitted", seen)
    object.__setattr__(server.config, "pending_bytes_max", 4 * body)
    peer.send([b"".join(frames)])
    for _ in range(10):
        peer.wait()
    assert most == 5 * body
    assert peer.told() == [(FIRST + at, Answer.OK) for at in range(30)]


def test_a_bookie_stops_under_adds_that_do_not_end(peer: Peer) -> None:
    """While a group is on its way to the disk the next adds have come: there is always something to write."""
    bookie, sent = peer.bookie, FIRST
    peer.send([add(sent, size=100_000)], wait=False)
    stopping = bookie.loop.spawn(bookie.server.stop())
    while not stopping.done() and sent < FIRST + 20:
        sent += 1
        bookie.pass_time(SECOND // 10)
        peer.send([add(sent, size=100_000)], wait=False)
        if bookie.worker.jobs:
            bookie.inside(bookie.worker.step)
    assert stopping.done()
    told = dict(peer.told())
    taken = [number for number, answer in told.items() if answer is Answer.OK]
    assert taken == list(range(FIRST, FIRST + len(taken)))
    assert set(told.values()) == {Answer.OK, Answer.READ_ONLY}
