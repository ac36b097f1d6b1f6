"""What the record of a ledger says of a guaranteed write quorum: that it is, that it was waived, that it was kept.

Source: docs/protocol/write-quorum.md.
"""

from __future__ import annotations

from typing import Final, TypeAlias

Custom: TypeAlias = tuple[tuple[str, bytes], ...]
"""The custom metadata of a record."""
GUARANTEE_KEY, WRITE_QUORUM, ACK_QUORUM = "quire.guarantee", "write_quorum", "ack_quorum"
"""Custom metadata: which quorum every entry of a closed ledger is on, and the two that there are. Absent: the ack quorum."""
GUARANTEED, GIVEN_UP = (GUARANTEE_KEY, WRITE_QUORUM.encode()), (GUARANTEE_KEY, ACK_QUORUM.encode())
"""The write quorum is guaranteed; it was, and who closed the ledger gave that up."""
KEPT: Final = ("quire.guarantee.kept", WRITE_QUORUM.encode())
"""With `GUARANTEED` in a closed record: the client that closed it knew the guarantee, or a repair kept it afterwards."""


def given_up(custom: Custom) -> Custom:
    """The metadata once a client has waived the guarantee; any other is as it was."""
    return tuple(GIVEN_UP if item == GUARANTEED else item for item in custom)


def kept(custom: Custom) -> Custom:
    """The metadata of a closed record once every entry is known to be on its write quorum."""
    return tuple(sorted(dict([*custom, GUARANTEED, KEPT]).items()))


def is_unkept(custom: Custom) -> bool:
    """Whether a closed record does not say that a write quorum is kept which is guaranteed, or was.

    The guarantee was waived, or the client that closed the ledger did not know it, such as a Java client.
    """
    return GIVEN_UP in custom or (GUARANTEED in custom and KEPT not in custom)
