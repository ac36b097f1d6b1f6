"""What is remembered of an operation between its invocation and its response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Asked:
    """One operation under way.

    Args:
        process: who asked.
        kind: what.
        facts: the fields of the invocation.
        place: of the invocation.
        acked: the highest entry, or offset, that was acknowledged when it was asked; -1 if none.
        lac: the highest LAC that the process had seen then.
        data: the hashes of an append, as bytes.
    """

    process: str
    kind: str
    facts: dict[str, Any]
    place: int
    acked: int = -1
    lac: int = -1
    data: bytes = b""
