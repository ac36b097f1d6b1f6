"""A bookie of a stream in a replay: the program that ships, seen as the explorer sees its bookies.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes"; docs/protocol/streams.md.
"""

from __future__ import annotations

from dataclasses import replace

from quire.core.ledger.terms import ANY_ORIGIN
from quire.wire.run import RunView
from quire_testing.explorer.bookies import KEY, LEDGER
from quire_testing.explorer.snapshot import frozen
from quire_testing.explorer.stream_bookies import StreamBookie, Value
from quire_testing.replay.bookies import Bookie


class StreamBookieProgram(Bookie):
    """A bookie of a stream.

    Attributes:
        only_fences: an id has one entry, the one that was put last.
    """

    only_fences = False

    def lose_disk(self) -> None:
        """All is lost but whose it was; it starts again."""
        self.crash(wiped=True, named=True)

    def stream_view(self) -> StreamBookie:
        """Its state as the explorer's."""
        machine, server = self.machine, self.server
        values = self._by_id() if self.only_fences else self._by_name()
        facts = None if machine is None else frozen(replace(machine.facts, key=KEY))
        asked = server.ledgers.limbo.has_settled(LEDGER)
        return StreamBookie(facts, values, asked, self.losses, fault=self.fault)

    def _by_name(self) -> tuple[Value, ...]:
        """What a read of an id and an origin term finds."""
        return tuple(
            sorted(
                (entry, each.origin_term)
                for each in self.server.storage.held_from(LEDGER, 0)
                for entry in range(each.first, each.last + 1)
                if each.stripes >> entry % each.period & 1
            )
        )

    def _by_id(self) -> tuple[Value, ...]:
        """What a read of an id alone finds."""
        values = []
        for entry in sorted({entry for entry, _ in self._by_name()}):
            found = self.server.storage.read(LEDGER, entry, entry, 1, origin_term=ANY_ORIGIN)
            values += [(entry, RunView.parse(body).origin_term) for body in found.runs]
        return tuple(values)
