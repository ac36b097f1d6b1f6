"""What a bookie answered, or why it did not: data, never an exception.

Only a conclusive "not here" of a bookie is a negative. Everything else stays unknown.

Source: BookKeeper protocol, "Closing a ledger as a reader"; Vanlightly's guide, "Recovery Phase 2".
"""

from __future__ import annotations

from enum import IntEnum


class Answer(IntEnum):
    """One answer to one request. The numbers are on the wire: never renumber."""

    OK = 0
    NO_ENTRY = 1
    """Conclusive: this bookie does not hold the entry and, if the read fenced, never will."""
    NO_LEDGER = 2
    """Conclusive: this bookie does not know the ledger; to a reader the same as NO_ENTRY."""
    FENCED = 3
    """The add was refused because a recoverer came first. For the writer its outcome is unknown."""
    UNAUTHORISED = 4
    READ_ONLY = 5
    """This bookie takes no new entries at the moment; what it holds stays readable."""
    UNKNOWN = 6
    """Inconclusive: limbo, a damaged record, another incarnation. Never a negative."""
    DAMAGED_IN_TRANSIT = 7
    """The body did not match its checksum on arrival; nothing was stored, sending again is right."""
    TOO_BUSY = 8
    ERROR = 9
    """The bookie failed to do it (disk error). Never a negative."""
    BAD_REQUEST = 10
    INVALID_TERM = 11
    WRONG_TOKEN = 12
    """The ledger's token differs: this id was used before by another ledger."""
    WRONG_BOOKIE = 13
    """Another bookie or another cluster was meant."""
    TIMED_OUT = 14
    """Made by the client: no answer in time. It may or may not have happened."""
    UNREACHABLE = 15
    """Made by the client: no connection, or it broke before the response."""
    BAD_DIGEST = 16
    """Made by the client: the entry came, but its digest or identity is wrong."""
    DELETED = 17
    """The ledger was deleted, and the bookie refuses to bring it back; or it has no record, as if it never was."""
    DAMAGED = 18
    """The entry was stored here and its bytes do not match their checksum. Never a negative: to whatever decides it is
    UNKNOWN, and only distinguishes a damaged copy from an outage."""


NEGATIVES = frozenset({Answer.NO_ENTRY, Answer.NO_LEDGER})
"""The responses that count as "not here" in a verdict. No other response does."""
