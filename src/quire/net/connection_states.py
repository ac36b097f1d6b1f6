"""The states of a connection to a bookie, the same at both ends and in every protocol, and which follows which.

Source: `docs/formats/native-protocol.md`, `docs/security.md`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class ConnectionState(Enum):
    """What comes next on a connection."""

    FIRST = "the first bytes, which say what the client speaks"
    HELLO = "a hello, or the response to it"
    SECURING = "a TLS handshake, and a hello after it"
    AUTHENTICATING = "what shows who the client is"
    UNPROVEN = "the first response, which shows that the bookie takes this client"
    OPEN = "requests, or responses to them"
    SHUT = "nothing that counts"


FIRST: Final[ConnectionState] = ConnectionState.FIRST
HELLO: Final[ConnectionState] = ConnectionState.HELLO
SECURING: Final[ConnectionState] = ConnectionState.SECURING
AUTHENTICATING: Final[ConnectionState] = ConnectionState.AUTHENTICATING
UNPROVEN: Final[ConnectionState] = ConnectionState.UNPROVEN
OPEN: Final[ConnectionState] = ConnectionState.OPEN
SHUT: Final[ConnectionState] = ConnectionState.SHUT

FOLLOWS: Final[dict[ConnectionState, frozenset[ConnectionState]]] = {
    FIRST: frozenset({HELLO, SHUT}),
    HELLO: frozenset({SECURING, AUTHENTICATING, OPEN, SHUT}),
    SECURING: frozenset({HELLO, SHUT}),
    AUTHENTICATING: frozenset({UNPROVEN, OPEN, SHUT}),
    UNPROVEN: frozenset({OPEN, SHUT}),
    OPEN: frozenset({SHUT}),
    SHUT: frozenset({SHUT}),
}
"""Which states may follow a state. V2 and V3 have no hello: their connections begin with AUTHENTICATING, or later."""
