"""Where a new ledger goes: which bookies there are, and which of the cluster's bookies are away.

Source: docs/decisions/004-absent-slots.md.
"""

from __future__ import annotations

from collections.abc import Collection

from quire.client.bookies import BookieClient
from quire.core.ids import BookieId
from quire.core.placement import Placement, RandomSource, Shape, place_ledger
from quire.core.quorum import check_min_present, check_quorums
from quire.core.rules import RULES, Rules


def shape_of(
    ensemble_size: int, write_quorum: int, ack_quorum: int, min_present: int | None, usual: int | None = None
) -> Shape:
    """What a ledger asks of the cluster.

    Args:
        ensemble_size: E, like `write_quorum` Qw and `ack_quorum` Qa.
        min_present: how many of its bookies must be there when it is created; None takes the usual number.
        usual: the client's own minimum, as far as Qa and E allow; None: Qa.

    Raises:
        InvalidQuorumError: unless E >= Qw >= Qa >= 1 and E >= `min_present` >= Qa.
    """
    check_quorums(ensemble_size, write_quorum, ack_quorum)
    if min_present is None:
        min_present = min(max(ack_quorum, usual or 0), ensemble_size)
    check_min_present(min_present, ensemble_size, ack_quorum)
    return Shape(ensemble_size, write_quorum, ack_quorum, min_present)


async def place(
    shape: Shape,
    bookies: BookieClient,
    chance: RandomSource,
    quarantined: Collection[BookieId],
    rules: Rules = RULES,
) -> Placement:
    """The bookies of a new ledger. With fewer than E writable ones the store is asked, and what it says counts.

    Raises:
        NotEnoughBookiesError: too few are there, or no other bookie of the cluster is known for an absent slot.
    """
    away: list[BookieId] = []
    if len(bookies.writable()) < shape.ensemble_size:
        away = await bookies.away()
    return place_ledger(shape, bookies.writable(), away, chance, quarantined=quarantined, rules=rules)
