"""What a bookie finds out about a ledger for who asks: entries for a read, facts for INFO."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine
from quire.core.ledger.shares import HeldInterval
from quire.storage.holding import RangeHeld
from quire.wire.entry import Buffer
from quire.wire.native_bodies import WHOLE_LIST
from quire.wire.run import RunPlace


@dataclass(slots=True)
class Found:
    """The result of a read; the response may leave now."""

    answer: Answer
    runs: list[Buffer]
    vouched_through: int
    unknown: list[tuple[int, int]]
    lac: int
    places: Sequence[RunPlace] = ()
    damaged: Sequence[tuple[int, int]] = ()
    lac_term: int = 0


def found_of(held: RangeHeld, machine: BookieLedgerMachine, first: int, *, failing: bool) -> Found:
    """The result of a read from an id on.

    Args:
        held: what the disk has of it.
        machine: the ledger's.
        first: the first id that was asked for.
        failing: the disk fails.
    """
    conclusive = machine.conclusive_through(first, held.vouched_through, failing=failing)
    tells = bool(held.unknown) and machine.tells_damage()
    facts = machine.facts
    return Found(
        Answer.OK,
        list(held.runs),
        conclusive,
        list(held.unknown) if tells else [],
        facts.lac,
        held.places,
        held.damaged if tells else (),
        facts.lac_term,
    )


def ledger_info(machine: BookieLedgerMachine, last_entry: int, *, damaged: bool) -> dict[str, Any]:
    """What INFO reports of a ledger.

    Args:
        machine: the ledger's.
        last_entry: the highest entry that is here, -1 if none is.
        damaged: some entry that is here is known to be damaged.
    """
    facts = machine.facts
    doubt = facts.doubt
    return {
        "ledger_id": facts.ledger_id,
        "fenced": facts.fenced,
        "fence_known": facts.fenced or machine.fence_known,
        "limbo": facts.limbo,
        "doubt_lsn": None if doubt is None else doubt.lsn,
        "doubt_below": None if doubt is None or doubt.covers_all else doubt.below,
        "doubt_ranges": [] if doubt is None else [list(pair) for pair in doubt.ranges],
        "term": facts.term,
        "lac": facts.lac,
        "last_entry": last_entry,
        "damaged": damaged,
        "deleted": bool(facts.deleted_until_ms),
    }


def page_of(held: Iterable[HeldInterval], intervals_max: int) -> tuple[list[HeldInterval], int]:
    """The first of some intervals, and the first id of the next ones, or `WHOLE_LIST`.

    A page does not end between intervals with equal first ids: the next one would not get beyond them.
    """
    page: list[HeldInterval] = []
    for interval in held:
        if len(page) >= intervals_max and interval.first > page[-1].first:
            return page, interval.first
        page.append(interval)
    return page, WHOLE_LIST
