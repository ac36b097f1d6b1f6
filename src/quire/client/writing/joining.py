"""Who comes into a fragment of a stream whose terms only fence, truncates first: it may have been there before.

Source: docs/protocol/streams.md, "Terms that only fence"; docs/decisions/039-join-after-truncation.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger.effects import ChooseReplacements

log = logging.getLogger(__name__)

TRUNCATION_TIMEOUT_MS: Final = 2_000
"""How long a bookie that is to join may take; nothing is confirmed meanwhile."""


async def truncated_first(
    effect: ChooseReplacements,
    choose: Callable[[ChooseReplacements], tuple[dict[int, BookieId], bool]],
    access: LedgerAccess,
    bookies: BookieClient,
) -> dict[int, BookieId]:
    """A bookie for each slot that can have one, which has truncated if it has to; another where one did not.

    Args:
        effect: which slots, and from which entry on they truncate.
        choose: a choice of bookies, and whether one of them is quarantined.
        access: the writer's, with its term.
        bookies: the connections.
    """
    if effect.truncated_from == NO_ENTRY:
        return choose(effect)[0]
    found: dict[int, BookieId] = {}
    while left := tuple(slot for slot in effect.slots if slot not in found):
        ensemble = tuple(found.get(slot, bookie) for slot, bookie in enumerate(effect.ensemble))
        chosen = list(choose(replace(effect, slots=left, ensemble=ensemble))[0].items())
        if not chosen:
            break
        first = effect.truncated_from
        answers = await asyncio.gather(
            *(
                bookies.truncate(bookie, access, first, timeout_ms=TRUNCATION_TIMEOUT_MS)
                for _, bookie in chosen
            )
        )
        for (slot, bookie), answer in zip(chosen, answers, strict=True):
            if answer is Answer.OK:
                found[slot] = bookie
                continue
            log.info("stream %d: bookie %s did not truncate: %s", access.ledger_id, bookie, answer.name)
            effect = replace(effect, failed=(*effect.failed, bookie))
    return found
