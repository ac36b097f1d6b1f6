"""Where a new ledger goes: which bookies take entries, and which of the cluster's bookies are read-only or away.

Source: docs/decisions/004-absent-slots.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

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
_SILENT: Final = frozenset({Answer.TIMED_OUT, Answer.UNREACHABLE})


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
    needs: Collection[str] = (),
) -> Placement:
    """The bookies of a new ledger. With fewer than E writable ones the store is asked, and what it says counts.

    Args:
        shape: what the ledger asks for.
        bookies: the connections.
        chance: draws among equals.
        quarantined: chosen only where there are not enough others.
        rules: the rules about absent slots; tests and the explorer (docs/decisions/006-explorer.md) replace them.
        needs: the features that a stream's bookies must have.

    Raises:
        NotEnoughBookiesError: too few are there, or no other bookie of the cluster is known for an absent slot.
    """
    away: list[BookieId] = []
    read_only: list[BookieId] = []
    reasons: dict[BookieId, _Reason] = {}
    if (lacking := shape.ensemble_size - len(bookies.writable(needs))) > 0:
        away, read_only = await bookies.away(), bookies.read_only(needs)
        if needs:  # an id that is an address may be that of a Java bookie, which could not hold the stream when it is back
            away = [bookie for bookie in away if ":" not in bookie]
        if read_only and len(read_only) + len(away) > lacking:  # otherwise there is nothing to choose
            reasons = await _why_read_only(bookies, read_only)
    failed = [bookie for bookie, reason in reasons.items() if reason.failed]
    try:
        return place_ledger(
            shape,
            bookies.writable(needs),
            away,
            chance,
            read_only=read_only,
            failed=failed,
            quarantined=quarantined,
            rules=rules,
        )
    except NotEnoughBookiesError as error:
        if not read_only:
            raise
        reasons = reasons or await _why_read_only(bookies, read_only)
        named = ", ".join(f"{bookie} ({reason.text})" for bookie, reason in reasons.items())
        msg = f"{error.message}. Read-only: {named}"
        raise NotEnoughBookiesError(msg, **error.ids) from error


class _Reason(NamedTuple):
    """Why a bookie takes no new entries, as far as it says so; and whether it may not respond to a recovery either."""

    text: str
    failed: bool


async def _why_read_only(bookies: BookieClient, read_only: Sequence[BookieId]) -> dict[BookieId, _Reason]:
    replies = await asyncio.gather(*(bookies.info(bookie, timeout_ms=WHY_TIMEOUT_MS) for bookie in read_only))
    return {bookie: _reason(*reply) for bookie, reply in zip(read_only, replies, strict=True)}


def _reason(answer: Answer, says: dict[str, Any]) -> _Reason:
    if answer is not Answer.OK:
        # Java's bookies do not know the request, and respond to all others.
        return _Reason(f"it does not say why: {answer.name.lower()}", answer in _SILENT)
    failed, conditions = bool(says.get("failure")), says.get("conditions")
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, dict) and one.get("kind") == READ_ONLY and isinstance(one.get("what"), str):
            text = "".join(char if char.isprintable() else "?" for char in one["what"][:WHY_CHARACTERS_MAX])
            return _Reason(text, failed)
    return _Reason("it does not say why", failed)
