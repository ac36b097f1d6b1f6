"""Where a new ledger goes: which bookies there are, and which of the cluster's bookies are away.

Source: docs/decisions/004-absent-slots.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from quire.client.bookies import BookieClient
from quire.core.answers import Answer
from quire.core.conditions import READ_ONLY
from quire.core.errors import NotEnoughBookiesError
from quire.core.ids import BookieId
from quire.core.placement import Placement, RandomSource, Shape, place_ledger
from quire.core.quorum import check_min_present, check_quorums
from quire.core.rules import RULES, Rules

WHY_TIMEOUT_MS: Final = 1000
"""So long a read-only bookie may take to say why."""
WHY_CHARACTERS_MAX: Final = 300


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
    try:
        return place_ledger(shape, bookies.writable(), away, chance, quarantined=quarantined, rules=rules)
    except NotEnoughBookiesError as error:
        if not (read_only := bookies.read_only()):
            raise
        reasons = await asyncio.gather(*(_why_read_only(bookies, bookie) for bookie in read_only))
        named = ", ".join(f"{bookie} ({why})" for bookie, why in zip(read_only, reasons, strict=True))
        msg = f"{error.message}. Read-only: {named}"
        raise NotEnoughBookiesError(msg, **error.ids) from error


async def _why_read_only(bookies: BookieClient, bookie: BookieId) -> str:
    """What a bookie says of why it takes no new entries, as far as it is text."""
    answer, says = await bookies.info(bookie, timeout_ms=WHY_TIMEOUT_MS)
    if answer is not Answer.OK:
        return f"it does not say why: {answer.name.lower()}"
    told = says.get("conditions")
    for one in told if isinstance(told, list) else ():
        if isinstance(one, dict) and one.get("kind") == READ_ONLY and isinstance(one.get("what"), str):
            return "".join(char if char.isprintable() else "?" for char in one["what"][:WHY_CHARACTERS_MAX])
    return "it does not say why"
