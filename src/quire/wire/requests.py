"""Requests to a bookie, as clients make them: one type for each kind, whatever the protocol that carries it.

The native protocol's codec is `native_requests.py`; V2 and V3 have one in `net`, since a run is many frames there. A
run of entries is one request.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from quire.core.answers import Answer
from quire.core.ids import ID_MAX, NO_ENTRY
from quire.core.ledger.terms import NO_TERM
from quire.wire.entry import EntryDigest
from quire.wire.native_bodies import ANY_TERM
from quire.wire.native_info import NO_QUESTION, InfoQuestion
from quire.wire.responses import (
    AddReply,
    AuthReply,
    EntryListReply,
    InfoReply,
    LacReply,
    LacsReply,
    PlainReply,
    ReadReply,
)

R_co = TypeVar("R_co", covariant=True)


class RequestLedger(Protocol):
    """The ledger that a request is about, and what shows that its sender may speak of it; clients stand above."""

    @property
    def ledger_id(self) -> int:
        """Its id."""

    @property
    def key(self) -> bytes:
        """The key that its bookies check."""

    @property
    def token(self) -> int:
        """Its token."""

    @property
    def digest(self) -> EntryDigest:
        """The digest of its entries."""


class BookieRequest(Protocol[R_co]):
    """Any request; its response is an `R_co`."""

    @property
    def ledger(self) -> RequestLedger | None:
        """The ledger that it is about, if it is about one."""

    def refused(self, answer: Answer, lac: int = NO_ENTRY) -> R_co:
        """The response that says no more than this answer, and perhaps a LAC."""


AnyRequest: TypeAlias = BookieRequest[Any]


class AddRun(NamedTuple):
    """Store a run.

    Attributes:
        ledger: whose.
        body: the run, as it is stored; kept by reference until it is sent.
        body_crc: its checksum.
        lac: the ledger's LAC.
        recovery: a recovery writes it back.
        low_priority: it may not use the space that is kept for fences and recovery; a bookie that does not know such adds
            gets an ordinary one.
        term: the sender's, of a stream; the run has its own origin term.
        lafr: the ledger's LAFR, `NO_ENTRY` unless it guarantees the write quorum.
    """

    ledger: RequestLedger
    body: bytes
    body_crc: int
    lac: int
    recovery: bool = False
    low_priority: bool = False
    term: int = 0
    lafr: int = NO_ENTRY

    def refused(self, answer: Answer, lac: int = NO_ENTRY) -> AddReply:  # noqa: ARG002 - a run's response has none
        """The response that says no more than this answer."""
        return AddReply(answer)


class ReadRange(NamedTuple):
    """Send entries first..last, as far as `bytes_max` goes (one entry at least).

    Attributes:
        origin_term: only entries of this term are meant; `BY_ID`: of each id the one that was put last.
        fence: the ledger takes no more normal adds, before anything is read.
        recovery: a recovery reads.
        locations: the response may say where in the bookie's files the runs are.
        low_priority: memory need not keep what is read.
        term: the sender's, of a stream: with `fence` the bookie takes it, and refuses lower ones from then on.
    """

    ledger: RequestLedger
    first: int
    last: int
    bytes_max: int
    origin_term: int = ANY_TERM
    fence: bool = False
    recovery: bool = False
    locations: bool = False
    low_priority: bool = False
    term: int = 0

    def refused(self, answer: Answer, lac: int = NO_ENTRY) -> ReadReply:
        """The response that says no more than this answer; without the ledger, that there is none of the entries."""
        through = self.last if answer is Answer.NO_LEDGER else int(NO_ENTRY)
        return ReadReply(answer, conclusive_through=through, lac=lac)


class LongPoll(NamedTuple):
    """Wait until the bookie's LAC passes `previous_lac`, then send what there is of first..min(last, LAC).

    `origin_term`: as for `ReadRange`; 0 for a ledger.
    """

    ledger: RequestLedger
    previous_lac: int
    first: int
    last: int
    bytes_max: int
    wait_ms: int
    origin_term: int = 0

    def refused(self, answer: Answer, lac: int = NO_ENTRY) -> ReadReply:
        """As for `ReadRange`."""
        through = self.last if answer is Answer.NO_LEDGER else int(NO_ENTRY)
        return ReadReply(answer, conclusive_through=through, lac=lac)


class ReadLac(NamedTuple):
    """Say how far the ledger is confirmed; with `fence` it takes no more normal adds, or a stream's bookie takes `term`."""

    ledger: RequestLedger
    fence: bool = False
    term: int = 0

    def refused(self, answer: Answer, lac: int = NO_ENTRY) -> LacReply:  # noqa: ARG002 - it could not be relied on
        """The response that says no more than this answer."""
        return LacReply(answer)


class WriteLac(NamedTuple):
    """Keep a ledger's LAC; `body` is the explicit LAC with its digest. `term`: the sender's, of a stream."""

    ledger: RequestLedger
    lac: int
    body: bytes
    term: int = 0

    def refused(self, answer: Answer, lac: int = NO_ENTRY) -> PlainReply:  # noqa: ARG002 - none
        """The response that says this answer."""
        return PlainReply(answer)


class WriteLacs(NamedTuple):
    """Keep the LACs of many ledgers. `items` are encoded once for all bookies (`native_bodies.encode_lac_item`)."""

    items: Sequence[bytes]
    ledger: None = None

    def refused(self, answer: Answer, lac: int = NO_ENTRY) -> LacsReply:  # noqa: ARG002 - none
        """The response that says no more than this answer."""
        return LacsReply(answer, [])


class ListEntries(NamedTuple):
    """List the intervals of ids that are held of a ledger, from an id on: a page of them."""

    ledger: RequestLedger
    first: int

    def refused(self, answer: Answer, lac: int = NO_ENTRY) -> EntryListReply:  # noqa: ARG002 - none
        """The response that says no more than this answer."""
        return EntryListReply(answer)


class AskInfo(NamedTuple):
    """Say what there is to say of a ledger, or of the bookie.

    Attributes:
        ledger: None asks about the bookie.
        question: asks the bookie for more than it says each time.
    """

    ledger: RequestLedger | None = None
    question: InfoQuestion = NO_QUESTION

    def refused(self, answer: Answer, lac: int = NO_ENTRY) -> InfoReply:  # noqa: ARG002 - none
        """The response that says no more than this answer."""
        return InfoReply(answer, {})


class ClearLimbo(NamedTuple):
    """End a ledger's limbo: the limbo with this LSN."""

    ledger: RequestLedger
    lsn: int

    def refused(self, answer: Answer, lac: int = NO_ENTRY) -> PlainReply:  # noqa: ARG002 - none
        """The response that says this answer."""
        return PlainReply(answer)


class Truncate(NamedTuple):
    """Drop entries first..last of a stream that are of an origin term below the sender's, or of any other than `kept`.

    Attributes:
        kept: the origin term that stays; `NO_TERM`: the sender's, and those above.
        term: the sender's: the bookie takes it, and refuses lower ones from then on.
    """

    ledger: RequestLedger
    first: int
    last: int = ID_MAX
    kept: int = NO_TERM
    term: int = 0

    def refused(self, answer: Answer, lac: int = NO_ENTRY) -> PlainReply:  # noqa: ARG002 - none
        """The response that says this answer."""
        return PlainReply(answer)


class Authenticate(NamedTuple):
    """One step of an authentication, before every other request."""

    token: bytes
    ledger: None = None

    def refused(self, answer: Answer, lac: int = NO_ENTRY) -> AuthReply:  # noqa: ARG002 - none
        """The response that says no more than this answer."""
        return AuthReply(answer)
