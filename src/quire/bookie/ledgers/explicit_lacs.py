"""The LACs of many ledgers out of one frame: taken at once, journaled once they have been the newest for a while.

A writer that continues sends a higher LAC in the header of its next entry, and it is durable with that entry. So a LAC
that came by itself waits here first, in bounded memory: most never cost a record. A stop saves them; a crash loses
them, and safety does not depend on them.

Source: `docs/formats/native-protocol.md`, WRITE_LACS; Vanlightly's guide, "Last Add Confirmed (LAC)".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Final

from quire.bookie.ledgers.followers import Followers
from quire.bookie.ledgers.lac_bodies import key_of, lac_body_of, plain_lac_body
from quire.bookie.ledgers.unknown_ledgers import Fetched, UnknownLedgers
from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine
from quire.wire.native_bodies import LacFields, LacItem

SWEEPS_UNSAVED: Final = 5
"""A LAC is saved at the so many-th call of `settled` after it came."""
WAITING_MAX: Final = 16_384
"""So many wait here; the oldest of more are saved at the next call of `settled`."""


class ExplicitLacs(dict[int, int]):
    """The ledgers of which memory knows a higher LAC than the disk: what one bookie received and has not journaled.

    Each has the number of calls of `settled` before its LAC came, about in their order: one that came again keeps its
    place. A ledger leaves when a header on its way to the disk says as much, or when it is deleted.

    Args:
        machines: the ledgers that are in memory.
        followers: who waits for a LAC.
        explicit_lac: takes, or refuses, what is not like what its ledger's machine knows: ledger id, body, key, token,
            digest type, term, what the ledger's record says.
        is_unsaved: whether a new one was taken, which is to wait here.
        unknown_ledgers: decides on requests for ledgers that are not known here.
    """

    __slots__ = (
        "_explicit_lac",
        "_followers",
        "_is_unsaved",
        "_machines",
        "_sweeps",
        "_unknown_ledgers",
    )

    def __init__(
        self,
        machines: Mapping[int, BookieLedgerMachine],
        followers: Followers,
        explicit_lac: Callable[[int, bytes, bytes, int, int, int, Fetched], Answer],
        is_unsaved: Callable[[int], bool],
        unknown_ledgers: UnknownLedgers,
    ) -> None:
        super().__init__()
        self._machines = machines
        self._followers = followers
        self._explicit_lac = explicit_lac
        self._is_unsaved = is_unsaved
        self._unknown_ledgers = unknown_ledgers
        self._sweeps = 0

    def take(self, items: Iterable[LacFields]) -> list[tuple[int, Answer]]:
        """Take the LACs of a frame.

        Returns:
            (ledger id, answer) of those that were refused.
        """
        refused: list[tuple[int, Answer]] = []
        machine_of, sweeps = self._machines.get, self._sweeps
        followers, waited = self._followers, self._followers.waited
        for item in items:
            ledger_id, token, lac, term, digest_type, key, body = item
            machine = machine_of(ledger_id)
            if (
                machine is None
                or body
                or not machine.explicit_lac_without_body(lac, key, token, digest_type, term)
            ):
                answer = self._take_one(LacItem._make(item))
                if answer is not Answer.OK:
                    refused.append((ledger_id, answer))
                continue
            self[ledger_id] = sweeps
            if ledger_id in waited:
                followers.tell(ledger_id, machine.facts.lac)
        return refused

    def _take_one(self, item: LacItem, fetched: Fetched = None) -> Answer:
        body = lac_body_of(item)
        if body is None:
            return Answer.BAD_REQUEST
        answer = self._explicit_lac(
            item.ledger_id, body, key_of(item), item.token, item.digest_type, item.term, fetched
        )
        if answer is Answer.UNKNOWN and self._unknown_ledgers.waits(
            item.ledger_id, partial(self._take_one, item), None, fetched
        ):
            return Answer.OK  # a hint: whether it is taken then, its writer need not know
        if self._is_unsaved(item.ledger_id):
            self[item.ledger_id] = self._sweeps
        return answer

    def complete(self, machine: BookieLedgerMachine) -> None:
        """Make the explicit LAC body that a frame of many did not bring for a ledger, before it is read or journaled."""
        facts = machine.facts
        if not facts.explicit_lac:
            facts.explicit_lac = plain_lac_body(facts.ledger_id, facts.lac, facts.digest_type)

    def settled(self) -> list[BookieLedgerMachine]:
        """Those whose LAC has been the newest for some seconds, complete, to be journaled. Called once a second."""
        self._sweeps += 1
        until = self._sweeps - SWEEPS_UNSAVED
        taken = [ledger_id for ledger_id, _ in takewhile(lambda one: one[1] <= until, self.items())]
        more = len(self) - WAITING_MAX
        if more > len(taken):
            taken = list(islice(self, more))
        return self._taken(taken)

    def all(self) -> list[BookieLedgerMachine]:
        """All of them, complete, to be journaled."""
        return self._taken(list(self))

    def _taken(self, ledger_ids: Sequence[int]) -> list[BookieLedgerMachine]:
        taken = []
        for ledger_id in ledger_ids:
            machine = self._machines.get(ledger_id)
            if machine is not None:
                self.complete(machine)
                taken.append(machine)
            del self[ledger_id]
        return taken
