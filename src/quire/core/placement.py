"""Which bookies get a ledger's entries: new ensembles, replacements, and a grudge against those that just failed.

Chance and time are arguments. A quarantined bookie is avoided, never refused: a doubtful bookie is better than none
where the alternative is to fail.

Source: protocol document (001), "Ensembles": "E bookies are chosen for the entries of that ledger".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from quire.core.errors import NotEnoughBookiesError
from quire.core.ids import BookieId


class Chance(Protocol):
    """Where choices come from; `random.Random` and `random.SystemRandom` have this shape."""

    def getrandbits(self, k: int, /) -> int:
        """A number of `k` random bits."""


def _below(chance: Chance, stop: int) -> int:
    """A number from 0 to `stop` - 1, each as likely as the others."""
    bits = stop.bit_length()
    while (drawn := chance.getrandbits(bits)) >= stop:
        pass
    return drawn


def _draw(chance: Chance, bookies: Sequence[BookieId], count: int) -> list[BookieId]:
    """Up to `count` different bookies in random order."""
    left = list(bookies)
    return [left.pop(_below(chance, len(left))) for _ in range(min(count, len(left)))]


def choose_ensemble(
    writable: Sequence[BookieId],
    ensemble_size: int,
    chance: Chance,
    *,
    quarantined: Collection[BookieId] = (),
) -> tuple[BookieId, ...]:
    """The ensemble of a new ledger; quarantined bookies only where there are not enough others.

    Raises:
        NotEnoughBookiesError: fewer than `ensemble_size` bookies take entries.
    """
    if len(writable) < ensemble_size:
        msg = (
            f"an ensemble of {ensemble_size} needs as many writable bookies, there are {len(writable)}: "
            f"{', '.join(writable) or 'none'}; start bookies or ask for a smaller ensemble"
        )
        raise NotEnoughBookiesError(msg)
    chosen = _draw(chance, [bookie for bookie in writable if bookie not in quarantined], ensemble_size)
    doubtful = [bookie for bookie in writable if bookie in quarantined]
    chosen += _draw(chance, doubtful, ensemble_size - len(chosen))
    return tuple(_draw(chance, chosen, ensemble_size))


def choose_replacements(
    slots: Sequence[int],
    ensemble: Sequence[BookieId],
    writable: Sequence[BookieId],
    chance: Chance,
    *,
    failed: Collection[BookieId] = (),
    quarantined: Collection[BookieId] = (),
    required: bool = False,
) -> dict[int, BookieId]:
    """Bookies for slots that need one, as far as there are any.

    Args:
        slots: the slots to fill.
        ensemble: the ensemble now; none of its bookies is chosen.
        writable: the bookies that take new entries.
        chance: draws among equals.
        failed: never chosen.
        quarantined: chosen only with `required`.
        required: leaving a slot empty would end the writer.

    Returns:
        Slot to bookie; slots that are missing found none.
    """
    free = [bookie for bookie in writable if bookie not in ensemble and bookie not in failed]
    chosen = _draw(chance, [bookie for bookie in free if bookie not in quarantined], len(slots))
    if required:
        chosen += _draw(
            chance, [bookie for bookie in free if bookie in quarantined], len(slots) - len(chosen)
        )
    return dict(zip(slots, chosen, strict=False))


class Quarantine:
    """The bookies that failed lately, each with the time when that is forgotten.

    Args:
        quarantine_ms: how long a failure is remembered.
    """

    __slots__ = ("_quarantine_ms", "_until_ms")

    def __init__(self, quarantine_ms: int) -> None:
        self._quarantine_ms = quarantine_ms
        self._until_ms: dict[BookieId, int] = {}

    def failed(self, bookie: BookieId, now_ms: int) -> None:
        """A bookie failed at this time."""
        self._until_ms[bookie] = now_ms + self._quarantine_ms

    def forgive(self, bookie: BookieId) -> None:
        """A bookie answers again."""
        self._until_ms.pop(bookie, None)

    def bookies(self, now_ms: int) -> tuple[BookieId, ...]:
        """The bookies to avoid at this time; forgets those whose time is over."""
        self._until_ms = {bookie: until for bookie, until in self._until_ms.items() if until > now_ms}
        return tuple(self._until_ms)
