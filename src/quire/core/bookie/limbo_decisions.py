"""What a bookie that may have lost records answers about a ledger, until the ledger's record says more.

1. About a ledger that it does not know, and may have lost, nothing is conclusive (`of_unknown`); one that becomes known
   so long begins in limbo (`machine`).
2. Its search through all records puts those in limbo that it may have held (`enters_limbo`).
3. A normal add to a ledger whose fence may be lost waits until the ledger's record was read. The record settles the
   fence or does not (`settles`, `settled`); then what waits is decided in its order, and where the fence is still unknown
   another bookie takes the run (`once_read`).

Source: docs/protocol/bookie.md, "Limbo"; docs/decisions/013-doubt-is-no-fence.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine, LedgerFacts
from quire.core.bookie.limbo import Limbo
from quire.core.bookie.rules import RULES, BookieRules
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata

SETTLED_MAX: Final = 1 << 16
"""The newest settled ledgers are kept; one that was dropped costs another read of its record."""


class LimboDecisions:
    """One bookie's judgement of what it may have lost.

    Args:
        lsn: of the record of the newest loss.
        nameless: some loss could not be named: the fence of any ledger may be among it.
        settled: ledgers whose records showed, since the last loss, that no fence of theirs was lost.
        rules: the protocol's rules (`core/rules.py`).
    """

    __slots__ = ("_lsn", "_rules", "_settled", "nameless")

    def __init__(
        self, lsn: int, *, nameless: bool, settled: Iterable[int] = (), rules: BookieRules = RULES
    ) -> None:
        self.nameless = nameless
        self._lsn = lsn
        self._settled = dict.fromkeys(settled)
        self._rules = rules

    def machine(
        self,
        ledger_id: int,
        facts: LedgerFacts | None,
        *,
        searching: bool,
        kind: type[BookieLedgerMachine] = BookieLedgerMachine,
    ) -> BookieLedgerMachine:
        """The machine of a ledger.

        Args:
            facts: what is known of it; None: nothing, and a request for it came.
            searching: whether it may be among what was lost, if it is not known.
            kind: the machine's class.
        """
        known = facts is not None
        if facts is None:
            # It was never there, if the bookie has looked for what it may have lost; until then it cannot say.
            limbo = Limbo(self._lsn) if searching else None
            facts = LedgerFacts(ledger_id, limbo=limbo)
        asked = ledger_id in self._settled
        return kind(facts, known=known, lost=self.nameless, asked=asked, rules=self._rules)

    def of_unknown(self, *, searching: bool, failing: bool = False) -> Answer:
        """The response about a ledger that is not known: UNKNOWN or NO_LEDGER.

        Args:
            searching: whether it may be among what was lost.
            failing: the disk fails.
        """
        return Answer.UNKNOWN if failing or searching else Answer.NO_LEDGER

    def enters_limbo(self, record: LedgerMetadata, bookie: BookieId) -> bool:
        """Whether the search puts a ledger in limbo that this bookie does not know."""
        return self._rules.may_have_held(record, bookie)

    def settles(self, record: LedgerMetadata, bookie: BookieId) -> bool:
        """Whether a ledger's record, read after the loss, shows that no fence was lost; a stream's always has its term."""
        return self._rules.record_settles_fence(record, bookie)

    def settled(self, ledger_id: int, machine: BookieLedgerMachine | None, term: int = 0) -> None:
        """A ledger's record settled its fence, or a stream's its term.

        Args:
            machine: the ledger's, if it is known here; else the first request for it is compared with the record.
            term: a stream's in its record.
        """
        while len(self._settled) >= SETTLED_MAX:
            del self._settled[next(iter(self._settled))]
        self._settled[ledger_id] = None
        if machine is not None:
            machine.record_read(term)

    def has_settled(self, ledger_id: int) -> bool:
        """Whether its record settled a ledger's fence since the last loss."""
        return ledger_id in self._settled


def once_read(answer: Answer) -> Answer:
    """What a run gets whose ledger's record was read for it: where that did not settle it, another bookie takes the run."""
    return Answer.READ_ONLY if answer is Answer.UNKNOWN else answer
