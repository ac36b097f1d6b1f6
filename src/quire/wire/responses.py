"""Responses of a bookie, as clients take them: one type for each kind of request, whatever the protocol.

What the network does to a request is a response too: its `answer` is TIMED_OUT or UNREACHABLE.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY
from quire.core.ledger.stripes import HeldInterval
from quire.wire.native_bodies import WHOLE_LIST
from quire.wire.run import RunLocation, RunView


class AddReply(NamedTuple):
    """The response to a run. `followed`: a reader waits there for the ledger's LAC, so its writer should send it."""

    answer: Answer
    followed: bool = False


class PlainReply(NamedTuple):
    """The response to a request that asks for nothing but to be done."""

    answer: Answer


class LacsReply(NamedTuple):
    """The response to the LACs of many ledgers. `refused`: (ledger id, answer) of those that were not taken."""

    answer: Answer
    refused: Sequence[tuple[int, Answer]]


class EntryListReply(NamedTuple):
    """A page of the intervals that a bookie holds. `following`: the first id of the next page, or `WHOLE_LIST`."""

    answer: Answer
    intervals: Sequence[HeldInterval] = ()
    following: int = WHOLE_LIST


class InfoReply(NamedTuple):
    """What a bookie says of itself or of a ledger; empty unless the answer is OK."""

    answer: Answer
    info: dict[str, Any]


class AuthReply(NamedTuple):
    """One step of an authentication; `token` is the bookie's."""

    answer: Answer
    token: bytes = b""


@dataclass(slots=True)
class ReadReply:
    """One bookie's response about a range of entries; `wire.native_bodies.RangeAnswer` says what is conclusive.

    `locations` holds runs that are still to be read where they lie; the callers of `BookieClient` find none.
    `damaged`: those of `unknown` that were stored there and do not verify; this names them, and decides nothing.
    """

    answer: Answer
    runs: list[RunView] = field(default_factory=list)
    conclusive_through: int = NO_ENTRY
    unknown: list[tuple[int, int]] = field(default_factory=list)
    lac: int = NO_ENTRY
    locations: list[RunLocation] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)
    lac_term: int = 0


@dataclass(slots=True)
class LacReply:
    """What one bookie said about how far a ledger is confirmed.

    `lac` is a hint without a digest; `explicit_lac` and `evidence` (an entry) carry theirs. `lac_term`: of the writer
    that sent the LAC; `lafr`: the last entry known to be on its full write quorum.
    """

    answer: Answer
    lac: int = NO_ENTRY
    explicit_lac: bytes = b""
    evidence: bytes = b""
    lac_term: int = 0
    lafr: int = NO_ENTRY
