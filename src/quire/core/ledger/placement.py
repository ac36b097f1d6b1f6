"""Which bookies get a ledger's entries: new ensembles, replacements, and the quarantine of those that just failed.

Chance and time are arguments. A quarantined bookie is avoided, never refused: such a bookie is better than none
where the alternative is to fail.

Source: BookKeeper protocol, "Ensembles": "E bookies are chosen for the entries of that ledger".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from quire.core.errors import NotEnoughBookiesError
from quire.core.ids import BookieId
from quire.core.ledger import quorum
from quire.core.ledger.rules import RULES, LedgerRules


class RandomSource(Protocol):
    """Where choices come from; `random.Random` and `random.SystemRandom` have this shape."""

    def getrandbits(self, k: int, /) -> int:
        """A number of `k` random bits."""


def _below(chance: RandomSource, stop: int) -> int:
    """A number from 0 to `stop` - 1, each as likely as the others."""
    bits = stop.bit_length()
    while (drawn := chance.getrandbits(bits)) >= stop:
        pass
    return drawn


def _draw(chance: RandomSource, bookies: Sequence[BookieId], count: int) -> list[BookieId]:
    """Up to `count` different bookies in random order."""
    left = list(bookies)
    return [left.pop(_below(chance, len(left))) for _ in range(min(count, len(left)))]


def choose_ensemble(
    writable: Sequence[BookieId],
    ensemble_size: int,
    chance: RandomSource,
    *,
    quarantined: Collection[BookieId] = (),
) -> tuple[BookieId, ...]:
    """The ensemble of a new ledger, of at least so many bookies; quarantined ones only where there are not enough others."""
    chosen = _draw(chance, [bookie for bookie in writable if bookie not in quarantined], ensemble_size)
    last_resort = [bookie for bookie in writable if bookie in quarantined]
    chosen += _draw(chance, last_resort, ensemble_size - len(chosen))
    return tuple(_draw(chance, chosen, ensemble_size))


class Shape(NamedTuple):
    """What a new ledger asks of the cluster.

    Attributes:
        ensemble_size: E, like `write_quorum` Qw and `ack_quorum` Qa.
        min_present: how many bookies of the ensemble must take entries when the ledger is created.
    """

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    min_present: int


class Placement(NamedTuple):
    """Where a new ledger's entries go.

    Attributes:
        ensemble: E different bookies, by slot.
        absent: the slots whose bookie is away or read-only.
    """

    ensemble: tuple[BookieId, ...]
    absent: tuple[int, ...] = ()


def slots_for_absent(ensemble_size: int, count: int) -> list[tuple[int, ...]]:
    """Every way to spread absent slots as evenly as can be: no write set has more of them than it must.

    Where every slot stores every entry (E = Qw) it makes no difference which slots they are.
    """
    even = [index * ensemble_size // count for index in range(count)]
    turned = (tuple(sorted((slot + by) % ensemble_size for slot in even)) for by in range(ensemble_size))
    return list(dict.fromkeys(turned))


def place_ledger(
    shape: Shape,
    writable: Sequence[BookieId],
    away: Sequence[BookieId],
    chance: RandomSource,
    *,
    read_only: Sequence[BookieId] = (),
    failed: Sequence[BookieId] = (),
    quarantined: Collection[BookieId] = (),
    rules: LedgerRules = RULES,
) -> Placement:
    """The ensemble of a new ledger: E bookies that take entries or, with fewer, all of these and some that take none now.

    A read-only bookie is preferred for an absent slot to one that is away: it responds, so its fence and its "no such entry"
    count in a recovery.

    Args:
        shape: what the ledger asks for.
        writable: the bookies that take new entries.
        away: bookies of the cluster that are not registered now; like the next two looked at only if `writable` are too few.
        chance: draws among equals.
        read_only: registered bookies that take no new entries.
        failed: those of them that come last, because their disk failed or they do not respond.
        quarantined: chosen only where there are not enough others.
        rules: the protocol's rules (`core/rules.py`); `may_create` says with how few a ledger begins.

    Raises:
        NotEnoughBookiesError: too few are there, or no known bookie could take an absent slot; it names them.

    Source: docs/decisions/004-absent-slots.md.
    """
    size = shape.ensemble_size
    if len(writable) >= size:
        return Placement(choose_ensemble(writable, size, chance, quarantined=quarantined))
    ways = slots_for_absent(size, size - len(writable))
    absent = ways[_below(chance, len(ways))]
    present = sum(1 << slot for slot in range(size) if slot not in absent)
    masks = quorum.write_set_masks(size, shape.write_quorum)
    if not rules.may_create(present, masks, shape.ack_quorum, shape.min_present):
        raise NotEnoughBookiesError(_too_few(shape, writable, away))
    if len(away) + len(read_only) < len(absent):
        raise NotEnoughBookiesError(_nobody_for_slots(shape, writable, away))
    usable = [bookie for bookie in read_only if bookie not in failed]
    others = [one for group in (usable, away, failed) for one in _draw(chance, group, len(absent))]
    writable_left = _draw(chance, writable, len(writable))
    return Placement(
        tuple((others if slot in absent else writable_left).pop(0) for slot in range(size)), absent
    )


def _too_few(shape: Shape, writable: Sequence[BookieId], away: Sequence[BookieId]) -> str:
    least = shape.min_present
    size, write_quorum, ack_quorum, _ = shape
    return (
        f"a ledger with E={size} Qw={write_quorum} Qa={ack_quorum} needs at least {least} of its "
        f"{size} bookies, and {ack_quorum} of every write set, at its creation; {len(writable)} are "
        f"writable: {', '.join(writable) or 'none'} (not registered: {', '.join(away) or 'none'}); "
        "start bookies, or request a smaller `ensemble_size` or `min_present`"
    )


def _nobody_for_slots(shape: Shape, writable: Sequence[BookieId], away: Sequence[BookieId]) -> str:
    return (
        f"an ensemble of {shape.ensemble_size} needs as many known bookies; {len(writable)} are "
        f"writable: {', '.join(writable) or 'none'}, and {len(away)} with a cookie are not "
        f"registered: {', '.join(away) or 'none'}; start or add bookies, or request a smaller `ensemble_size`"
    )


def choose_replacements(
    slots: Sequence[int],
    ensemble: Sequence[BookieId],
    writable: Sequence[BookieId],
    chance: RandomSource,
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
    """The bookies that failed lately, each with the end of its quarantine.

    Args:
        quarantine_ms: how long a failure counts.
    """

    __slots__ = ("_quarantine_ms", "_until_ms")

    def __init__(self, quarantine_ms: int) -> None:
        self._quarantine_ms = quarantine_ms
        self._until_ms: dict[BookieId, int] = {}

    def failed(self, bookie: BookieId, now_ms: int) -> None:
        """A bookie failed at this time."""
        self._until_ms[bookie] = now_ms + self._quarantine_ms

    def clear(self, bookie: BookieId) -> None:
        """A bookie answers again."""
        self._until_ms.pop(bookie, None)

    def bookies(self, now_ms: int) -> tuple[BookieId, ...]:
        """The bookies to avoid at this time; drops those whose time is over."""
        self._until_ms = {bookie: until for bookie, until in self._until_ms.items() if until > now_ms}
        return tuple(self._until_ms)
