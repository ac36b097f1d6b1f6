"""When an open ledger of which a bookie is lost may be recovered, which fences its writer if that lives.

A living writer replaces a lost bookie by itself, as soon as there is another one: an idle one too, after a wait.
So a ledger is recovered only after a bookie of its last ensemble was away, and the same other bookie could have taken the
slot, for longer than that. In a cluster of three with one bookie away nothing is recovered: no writer could help it.

The time is counted by who asks, look by look, at most a tick each. It begins anew with another process.

Source: docs/protocol/audit.md, "Open ledgers"; docs/decisions/034-who-may-recover-an-open-ledger.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.repair.elapsed_time import ElapsedTime
from quire.core.repair.rules import RULES, RepairRules


@dataclass(frozen=True, slots=True)
class GraceLimits:
    """How long an open ledger is left to its writer.

    Attributes:
        grace_s: how long a spare must have been there; at least twice `idle_wait_s` counts.
        idle_wait_s: the longest wait of an idle writer before it looks for a spare.
        tick_s: the most that one look adds.
    """

    grace_s: int = 60
    idle_wait_s: int = 30
    tick_s: int = 10


GRACE: Final = GraceLimits()


class OpenLastFragments:
    """What one process has seen of bookies since it began to look.

    Args:
        limits: how long a ledger is left to its writer.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.
    """

    __slots__ = ("_away_s", "_elapsed", "_limits", "_rules", "_writable_s")

    def __init__(self, limits: GraceLimits = GRACE, rules: RepairRules = RULES) -> None:
        self._limits, self._rules = limits, rules
        self._elapsed = ElapsedTime(limits.tick_s, rules)
        self._away_s: dict[BookieId, int] = {}
        self._writable_s: dict[BookieId, int] = {}

    def looked(self, registered: Mapping[BookieId, bool], known: Collection[BookieId], now_ms: int) -> None:
        """The bookies that are registered, whether each takes entries, and all that the cluster has, at a time."""
        added_s = self._elapsed.add(now_ms)
        away = [each for each in known if self._rules.is_gone(known=True, registered=each in registered)]
        writable = [bookie for bookie, takes_entries in registered.items() if takes_entries]
        self._away_s = _lengthened(self._away_s, away, added_s)
        self._writable_s = _lengthened(self._writable_s, writable, added_s)

    def may_recover(self, record: LedgerMetadata) -> bool:
        """Whether a ledger may be recovered: it is not closed, and its writer had its time.

        That is as long as a bookie of its last ensemble was away while the same other one could have taken the slot. A
        stream has no end that a recovery could find: who writes it next takes out the lost bookie.
        """
        seen_s = self._seen_s(record)
        return (
            record.terms is None
            and record.state is not LedgerState.CLOSED
            and self._rules.may_recover_open(
                names_gone=seen_s is not None,
                spare_s=seen_s or 0,
                grace_s=self._limits.grace_s,
                idle_wait_s=self._limits.idle_wait_s,
            )
        )

    def wait_s(self, record: LedgerMetadata) -> int | None:
        """How many more seconds its writer has, if all stays as it is; None: for ever, since it could do nothing.

        Only a writer moves a stream on, so it has no bound either.

        Only for when to look again: `may_recover` decides.
        """
        seen_s = self._seen_s(record)
        ensemble = record.last_fragment.ensemble
        if (
            record.terms is not None
            or seen_s is None
            or all(bookie in ensemble for bookie in self._writable_s)
        ):
            return None
        return max(0, max(self._limits.grace_s, 2 * self._limits.idle_wait_s) - seen_s)

    def _seen_s(self, record: LedgerMetadata) -> int | None:
        """How long a bookie of the last ensemble was away while one spare was there; None: none is away."""
        ensemble = record.last_fragment.ensemble
        away_s = max((self._away_s[bookie] for bookie in ensemble if bookie in self._away_s), default=None)
        spare_s = max((s for bookie, s in self._writable_s.items() if bookie not in ensemble), default=0)
        return None if away_s is None else min(away_s, spare_s)


def _lengthened(
    before: Mapping[BookieId, int], now: Collection[BookieId], added_s: int
) -> dict[BookieId, int]:
    """How long each has been as it is; who was not so at the last look begins at 0."""
    return {bookie: before[bookie] + added_s if bookie in before else 0 for bookie in now}
