"""The explorer's world, without what the client's programs do not let happen: counterexamples that they can walk.

A subset, so a way through it is a way through the explorer's world too:

- A writer gets no response of a bookie that it has dropped, nor of any once it closes (`client/sending/outgoing.py` retires
  the connections).
- A connection that breaks fails everything that waits on it at once, before anything else happens to that client;
  answers that were on their way have arrived before.
- A writer that looks for bookies finds what there is before anything else happens.
- Slots get spares in their order, as long as there are any; one that was just seen is not overlooked.
- What was sent to a lost bookie fails together; the sources of a repair's piece do not fall silent, since the
  same repair would ask them no more; a limbo ends when that is on the disk; and nothing rots, since a bookie lists what
  has rotted only until that is read.
- A recoverer cannot write back an entry of which it has no copy (one that was never written shows as a phantom first).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import permutations
from typing import Any

from quire.core.answers import Answer
from quire.core.ids import BookieId, Slot
from quire.core.ledger import effects as e
from quire.core.ledger.writer_state import Status
from quire_testing.explorer.clients import ClientState, LedgerWriterDriver, bookie_name, bookie_number
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.messages import Reply, Request
from quire_testing.explorer.recoverers import RecoveryDriver
from quire_testing.explorer.switches import SHIPPED, Switches
from quire_testing.explorer.tables import Label, Move, State
from quire_testing.explorer.world import LedgerWorld


class RetiringWriterDriver(LedgerWriterDriver):
    """A writer that ignores the bookies that it has dropped, and all once it closes."""

    looks_in_vain = True

    def choices(self, effect: e.ChooseReplacements | e.FindReplacements) -> Iterator[dict[Slot, BookieId]]:
        """As the programs choose."""
        return in_order(self.configuration, effect)

    def heeds(self, client: ClientState, reply: Reply) -> bool:
        """Whether a response can still change anything."""
        return not _retired(client, reply[0]) and super().heeds(client, reply)

    def waits_for(self, client: ClientState, request: Request) -> bool:
        """Whether a response will still be delivered: not after its bookie was dropped, even if it returns."""
        return not _retired(client, request) and super().waits_for(client, request)


def _retired(client: ClientState, request: Request) -> bool:
    machine, slot = client.machine, request[1]
    if machine.status not in (Status.WRITING, Status.CHANGING):
        return True
    return slot not in machine.change.live


class OrderlyRecoveryDriver(RecoveryDriver):
    """A recoverer that chooses as the programs do."""

    def choices(self, effect: e.ChooseReplacements | e.FindReplacements) -> Iterator[dict[Slot, BookieId]]:
        """As the programs choose."""
        return in_order(self.configuration, effect)


def in_order(
    configuration: Configuration, effect: e.ChooseReplacements | e.FindReplacements
) -> Iterator[dict[Slot, BookieId]]:
    """Slots get spares in their order, as long as there are any; with `absent` perhaps none does."""
    failed = effect.failed if isinstance(effect, e.ChooseReplacements) else effect.excluded
    everyone = [bookie_name(number) for number in range(configuration.bookies)]
    spares = [bookie for bookie in everyone if bookie not in effect.ensemble and bookie not in failed]
    slots = [Slot(slot) for slot in effect.slots]
    for some in permutations(spares, min(len(slots), len(spares))):
        yield dict(zip(slots, some, strict=False))
    if spares and configuration.absent:
        yield {}


class ProgramWorld(LedgerWorld):
    """What the programs can do."""

    def __init__(self, configuration: Configuration, switches: Switches = SHIPPED) -> None:
        super().__init__(configuration, switches)
        self.writer_driver = RetiringWriterDriver(configuration)
        self.recovery_driver = OrderlyRecoveryDriver(configuration, switches.rules, switches.recovery)

    def successors(self, state: State) -> list[Move]:
        """Every next step of the programs."""
        moves = super().successors(state)
        failing = [
            self._receiving(index)
            for index in range(self.at.link, self.at.ask)
            if any(answer is Answer.UNREACHABLE for _, answer, _ in self.links.parts[state[index]].replies)
        ]
        if lost := [move for move in moves if self._follows_to_lost(state, move[0])]:
            return lost
        if failing:
            return [move for move in moves if (move[0].actor, move[0].other) in failing]
        found = [move for move in moves if move[0].kind == "found"]
        if found:
            moves = found
        return [move for move in moves if self._possible(state, move[0]) and self._has_copies(state, move)]

    def _has_copies(self, state: State, move: Move) -> bool:
        """Whether everything that a recoverer writes back has come."""
        label, after = move
        if label.kind != "hears read":
            return True
        index = self.at.client + self.names.index(label.actor)
        before, machine = (self.clients.parts[each[index]].machine for each in (state, after))
        new = range(before.lap + 1, min(machine.lap + 1, self.configuration.entries))
        came = re.search(r"has \[([\d, ]*)\]", label.command)
        here = [int(number) for number in came[1].split(",")] if came and came[1] else []
        end = before.end
        return all(entry_id in here or end.votes.positive[entry_id - end.votes.first] for entry_id in new)

    def _follows_to_lost(self, state: State, label: Label) -> bool:
        """Whether a request reaches a bookie that has refused one already, since it is lost."""
        if not label.command.startswith("takes ") or label.other not in self.names or label.actor == "store":
            return False
        bookie = bookie_number(BookieId(label.actor))
        refused = self._replies(state, self.names.index(label.other), bookie)
        return self.bookies.parts[state[bookie]].lost and bool(refused)

    def _receiving(self, index: int) -> tuple[str, str]:
        client, bookie = divmod(index - self.at.link, self.n)
        return self.names[client], f"b{bookie}"

    def _possible(self, state: State, label: Label) -> bool:
        """A connection breaks when its responses have arrived; a bookie dies when all of them have."""
        if label.kind == "found" and self.configuration.absent and "   chosen none" in label.said:
            return False  # a spare that was just seen is not overlooked
        if label.command.startswith("gives up the sources of "):
            return False
        if label.kind == "damage":
            return not self.configuration.repairers
        if label.kind == "clear":
            return self._syncs_at_once(state)
        if label.kind == "loss":
            bookie = bookie_number(BookieId(label.actor))
            return not any(self._replies(state, client, bookie) for client in range(self.count))
        if label.kind == "break":
            client = self.names.index(label.actor)
            bookie = int(label.command.split()[3][1:])
            waits = any(record[2] and record[2][0] == client for record in self._journal(state, bookie))
            return not waits and not self._replies(state, client, bookie)
        if label.kind == "crash":
            bookie = bookie_number(BookieId(label.actor))
            before = self.bookies.parts[state[bookie]]
            if (
                before.journal
                and before.journal[0][0] == "run"
                and before.disk.facts
                and not before.disk.held
            ):
                return False  # the first record of a ledger is in one group with the run that says it
            return not any(self._replies(state, client, bookie) for client in range(self.count))
        return True

    def _replies(self, state: State, client: int, bookie: int) -> tuple[Reply, ...]:
        return self.links.parts[state[self.at.link + client * self.n + bookie]].replies

    def _journal(self, state: State, bookie: int) -> tuple[tuple[Any, ...], ...]:
        return self.bookies.parts[state[bookie]].journal
