"""Unbounded ledgers as clients have them: who takes over, and what becomes of the one before. Each test cites a sentence.

Source: Vanlightly's unbounded ledgers.
"""

from __future__ import annotations

import pytest

from quire.core.errors import TermSupersededError
from support.small_cluster import SmallCluster
from support.stream_modes import BOTH


class Advice:
    """An election that always says yes, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def campaign(self) -> None:
        """It leads."""
        self.asked += 1


@BOTH
async def test_the_election_is_outside_and_several_clients_write_over_a_ledgers_life(
    mode: str, cluster: SmallCluster
) -> None:
    """ "it is assumed there is leader election for clients external to the protocol" and it is asked before a take-over;
    "When a client receives an InvalidTerm response it should disengage", and
    "allow writes from multiple clients over their lifetime" is what remains to see: the entries of both are read.
    """
    old, new = [(await cluster.client()).unbounded_ledger("s", mode=mode) for _ in range(2)]
    await old.create()
    first = await old.open_writer()
    await first.append(b"of term 2")
    advice = Advice()
    second = await new.open_writer(advice)
    assert (advice.asked, first.term, second.term) == (1, 2, 3)
    with pytest.raises(TermSupersededError) as refused:
        await first.append(b"too late")
    assert await old.resolve(refused.value) is False
    await second.append(b"of term 3")
    await new.close()
    assert [bytes(entry.payload) async for entry in old.read()] == [b"of term 2", b"of term 3"]
