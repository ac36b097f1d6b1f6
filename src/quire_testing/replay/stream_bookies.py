"""A bookie of a stream in a replay: the program that ships, seen as the explorer sees its bookies.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes"; docs/protocol/streams.md.
"""

from __future__ import annotations

from dataclasses import replace

from quire_testing.explorer.bookies import KEY, LEDGER
from quire_testing.explorer.snapshot import frozen
from quire_testing.explorer.stream_bookies import StreamBookie
from quire_testing.replay.bookies import Bookie


class StreamBookieProgram(Bookie):
    """A bookie of a stream."""

    def lose_disk(self) -> None:
        """All is lost but whose it was; it starts again."""
        self.crash(wiped=True, named=True)

    def stream_view(self) -> StreamBookie:
        """Its state as the explorer's."""
        machine, server = self.machine, self.server
        values = tuple(
            sorted(
                (entry, each.origin_term)
                for each in server.storage.held_from(LEDGER, 0)
                for entry in range(each.first, each.last + 1)
                if each.residues >> entry % each.period & 1
            )
        )
        facts = None if machine is None else frozen(replace(machine.facts, key=KEY))
        asked = server.ledgers.after_loss.has_settled(LEDGER)
        return StreamBookie(facts, values, asked, self.losses, fault=self.fault)
