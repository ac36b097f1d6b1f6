"""Bundles: the runs of one request are judged in one step, stored together, and answered part by part."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quire.core.answers import Answer
from support.hostile_worlds import GOOD
from support.native_peer import Peer, add, bundle_of, parts_of

FIRST = 10
"""Both ledgers hold ten entries."""


@pytest.fixture
def peer() -> Iterator[Peer]:
    one = Peer()
    yield one
    assert one.bookie.server._pending_bytes == 0, "what was admitted is settled"


def test_a_bundle_of_two_ledgers_has_one_response_with_one_part_and_one_group(peer: Peer) -> None:
    journal = peer.bookie.server.storage._journal
    groups = journal.groups_written
    peer.send([bundle_of([add(FIRST), add(FIRST, ledger=GOOD)])])
    assert parts_of(peer.answers(), count=2) == [(0, 2, Answer.OK, 0)]
    assert peer.line.writes == 1
    assert journal.groups_written == groups + 1
    assert peer.holds() == peer.holds(GOOD) == list(range(FIRST + 1))
