"""Where a new ledger goes: which bookies there are, and which of the cluster's bookies are away.

Source: docs/decisions/004-absent-slots.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final

from quire.client.bookies.bookies import BookieClient
from quire.core.answers import Answer
from quire.core.bookie.conditions import READ_ONLY
from quire.core.errors import MisuseError, NotEnoughBookiesError
from quire.core.ids import BookieId
from quire.core.ledger.guarantee import ACK_QUORUM, GUARANTEE_KEY, WRITE_QUORUM
from quire.core.ledger.placement import Placement, RandomSource, Shape, place_ledger
from quire.core.ledger.quorum import check_min_present, check_quorums
from quire.core.ledger.rules import RULES, LedgerRules

log = logging.getLogger(__name__)

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


def guarantee_of(
    guarantee: str | None, shape: Shape, custom: Collection[str], ledger_format: int
) -> str | None:
    """The guarantee of a new ledger, as its record has it; None if it has none, or needs none.

    Args:
        guarantee: what its creator asked for.
        shape: E, Qw, Qa, and how many bookies must be there.
        custom: the keys of its creator's own metadata.
        ledger_format: the stored format of new records.

    Raises:
        MisuseError: there is no such guarantee, a bookie may be away, the record cannot hold it, or it stands in the
            custom metadata by hand.
    """
    if GUARANTEE_KEY in custom:
        msg = f"the custom metadata {GUARANTEE_KEY!r} is the argument `guarantee`"
        raise MisuseError(msg)
    if guarantee is None:
        return None
    if guarantee != WRITE_QUORUM:
        msg = f"the guarantee of a ledger is {WRITE_QUORUM!r} or None, not {guarantee!r}"
        raise MisuseError(msg)
    if shape.min_present < shape.ensemble_size:
        msg = (
            f"a guaranteed write quorum needs all {shape.ensemble_size} bookies at the creation, and {shape.min_present} "
            "were to be enough: leave `min_present` out"
        )
        raise MisuseError(msg)
    if ledger_format == 1:
        msg = "a record of format 1 cannot hold a guaranteed write quorum: create the ledger in a store of format 2 or 3"
        raise MisuseError(msg)
    if shape.write_quorum == shape.ack_quorum:
        log.warning(
            "a guaranteed write quorum has no effect where Qa = Qw = %d: every entry is on it before it is confirmed",
            shape.ack_quorum,
        )
        return None
    return guarantee


def check_custom(custom: Mapping[str, object]) -> None:
    """Refuse metadata of a creator's own that a record cannot hold.

    Raises:
        MisuseError: a value is not bytes.
    """
    for key, value in custom.items():
        if not isinstance(value, bytes):
            msg = f"the custom metadata {key!r} must be bytes, not {type(value).__name__}"
            raise MisuseError(msg)


def gives_guarantee_up(at: str, what: str) -> bool:
    """Whether a ledger is closed at its ack quorum, where it guarantees its write quorum.

    Raises:
        MisuseError: `at` is neither "write_quorum" nor "ack_quorum"; `what` begins the sentence.
    """
    if at not in {WRITE_QUORUM, ACK_QUORUM}:
        msg = f"{what} at {WRITE_QUORUM!r} or at {ACK_QUORUM!r}, not at {at!r}"
        raise MisuseError(msg)
    return at == ACK_QUORUM


async def place(
    shape: Shape,
    bookies: BookieClient,
    chance: RandomSource,
    quarantined: Collection[BookieId],
    rules: LedgerRules = RULES,
) -> Placement:
    """The bookies of a new ledger. With fewer than E writable ones the store is asked, and what it says counts.

    `rules`: the rules about absent slots; tests and the explorer (docs/decisions/006-explorer.md) replace them.

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
    conditions = says.get("conditions")
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, dict) and one.get("kind") == READ_ONLY and isinstance(one.get("what"), str):
            return "".join(char if char.isprintable() else "?" for char in one["what"][:WHY_CHARACTERS_MAX])
    return "it does not say why"
