"""The explorer's mutants of bookies, as programs: what a `BookieDriver` with a fix taken out is in production's terms.

Everything else that a mutant replaces (rules, machines, the store's blindness) is handed to the programs as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from quire.bookie.found import Found
from quire.bookie.ledgers import Ledgers
from quire.bookie.lost_ledgers import LostLedgers
from quire.bookie.waiters import NO_ASKER, Asker, Waiter
from quire.core.answers import Answer
from quire.core.bookie_ledger import BookieLedgerMachine, LedgerFacts
from quire.core.ids import LedgerId
from quire.core.ledger_metadata import LedgerState
from quire.metadata.ledgers import LedgerStore
from quire.wire import ledger_metadata, native_bodies, native_hello
from quire.wire.native import Flag, Kind, Request
from quire.wire.run import RunView
from quire_testing.explorer import unfixed as model
from quire_testing.explorer.bookies import BookieDriver
from quire_testing.replay.bookies import BookieProgram, StepLedgers


class ForgetfulBookie(BookieProgram):
    """D3: whatever is missing, it starts as if it had never been up."""

    knows_that_it_served = False


class UndoubtingBookie(BookieProgram):
    """D5: it knows that fences may be lost, and looks for nothing else."""

    def open(self, name: str, ledgers: type[Ledgers], *, served: bool) -> None:
        """What it does not know, it never had."""
        super().open(name, ledgers, served=served)
        states = self.storage._states
        states.suspicion = states.suspicion._replace(unknown=False)
        self.lost.unknown = False


class LostOpenLedgers(LostLedgers):
    """A search that takes closed ledgers for settled."""

    async def _suspect(self, ledger_id: LedgerId, value: bytes) -> None:
        if ledger_metadata.parse(value, ledger_id).state is LedgerState.CLOSED:
            self._ledgers.record_read(ledger_id, settles=True)
        else:
            await super()._suspect(ledger_id, value)


class BookieOfOpenLedgers(BookieProgram):
    """The text of the reference: closed ledgers are taken for settled."""

    def _make_search(self) -> LostLedgers:
        return LostOpenLedgers(self.bookie_id, LedgerStore(self.store), self.storage, self.ledgers)


class LedgersThatLookFirst(StepLedgers):
    """X27: a fencing read finds its response first, and sets the flag in a later step."""

    def fence_then(self, request: Request, then: Callable[[Answer], None], asker: Asker = NO_ASKER) -> None:
        """Look now, fence later, answer then with what was found now."""
        known = self._known(request.ledger_id)
        if request.kind is not Kind.READ or (known is not None and known.facts.fenced):
            super().fence_then(request, then, asker)
            return
        first, last, bytes_max, _ = native_bodies.decode_read(request.body, version=native_hello.VERSION)
        found = super().read(request, first, last, bytes_max)

        def later() -> None:
            super(LedgersThatLookFirst, self).fence_then(request, _ignore)
            self._found = found
            then(Answer.OK)
            self._found = None

        self.halves.append(later)

    def read(self, request: Request, first: int, last: int, bytes_max: int, *, placed: bool = False) -> Found:
        """What was found before the fence, if it was."""
        return self._found or super().read(request, first, last, bytes_max, placed=placed)

    _found: Found | None = None


class LedgersThatCheckFirst(StepLedgers):
    """X28: an add is checked in one step and stored in the next, and a fence may come between."""

    def add(self, request: Request, run: RunView, waiter: Waiter, tag: object) -> Answer:
        """Check a copy of what is known; store it later, whatever has come between."""
        known = self._known(request.ledger_id)
        facts = known.facts.copy() if known is not None else LedgerFacts(request.ledger_id)
        recovery = bool(request.flags & Flag.RECOVERY)
        answer = BookieLedgerMachine(facts, known=True, rules=self._rules).add(
            key=request.key,
            token=request.token,
            digest_type=request.digest_type,
            lac=request.lac,
            recovery=recovery,
        )
        if answer is Answer.OK:
            forced = replace(request, flags=request.flags | Flag.RECOVERY)
            self.halves.append(lambda: super(LedgersThatCheckFirst, self).add(forced, run, waiter, tag))
        return answer


def _ignore(_: Answer) -> None:
    """No client waits for this fence."""


@dataclass(frozen=True, slots=True)
class BookieKind:
    """What a bookie is made of."""

    server: type[BookieProgram] = BookieProgram
    ledgers: type[StepLedgers] = StepLedgers


BOOKIES: Final[dict[type[BookieDriver], BookieKind]] = {
    BookieDriver: BookieKind(),
    model.LostWithoutLimbo: BookieKind(server=ForgetfulBookie),
    model.FenceWithoutLimbo: BookieKind(server=UndoubtingBookie),
    model.LimboOfOpenLedgersOnly: BookieKind(server=BookieOfOpenLedgers),
    model.LooksBeforeItFences: BookieKind(ledgers=LedgersThatLookFirst),
    model.ChecksThenStores: BookieKind(ledgers=LedgersThatCheckFirst),
}
"""By the explorer's class."""


def bookie_kind(driver: type[BookieDriver]) -> BookieKind:
    """The programs that stand for the explorer's bookies."""
    return BOOKIES[driver]
