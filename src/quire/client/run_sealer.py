"""From payloads to run bodies: sealed once, one body for all slots, or a share for each when the ledger is striped.

Source: protocol document (001), "Write Quorums"; `docs/formats/run.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import compress, cycle
from typing import TypeAlias

from quire.client.access import LedgerAccess
from quire.core.ledger_metadata import LedgerMetadata
from quire.core.quorum import residues_of_slot
from quire.wire.run import checksum, encode_run

Share: TypeAlias = tuple[bytes, int]
"""A run body and its checksum."""

TABLE_BYTES = 4
"""What an entry costs in a run's table."""


@lru_cache(maxsize=256)
def _residues_of_slots(size: int, write_quorum: int) -> tuple[int, ...]:
    """Of each slot, shared by all ledgers with such quorums."""
    return tuple(residues_of_slot(slot, size, write_quorum) for slot in range(size))


class RunSealer:
    """Seals the runs of one ledger.

    Attributes:
        striped: E > Qw, so that each slot has a share of its own.
        entry_overhead: bytes that an entry costs besides its payload.
        copies: how often a payload is held in memory for sending.

    Args:
        access: the ledger's digest and id.
        record: its quorums.
    """

    __slots__ = ("_access", "_ensemble_size", "_residues", "copies", "entry_overhead", "striped")

    def __init__(self, access: LedgerAccess, record: LedgerMetadata) -> None:
        size, write_quorum = record.ensemble_size, record.write_quorum
        self._access = access
        self._ensemble_size = size
        self._residues = _residues_of_slots(size, write_quorum)
        self.striped = size > write_quorum
        self.entry_overhead = access.digest.overhead + TABLE_BYTES
        self.copies = write_quorum if self.striped else 1

    def seal(self, first: int, lac: int, length_before: int, payloads: list[bytes]) -> list[Share | None]:
        """The bodies of a run with consecutive ids.

        Args:
            first: the first entry's id.
            lac: the LAC of all headers.
            length_before: payload bytes of the ledger before the first entry.
            payloads: the entries' payloads, in order.

        Returns:
            A share for each slot, None where the slot stores nothing of the run; one for all when not striped.
        """
        headers = self._access.digest.seal(self._access.ledger_id, first, lac, length_before, payloads)
        if not self.striped:
            return [self._share(first, first + len(payloads) - 1, headers, payloads, 1, 1)]
        count, size = len(payloads), self._ensemble_size
        shares: list[Share | None] = []
        for residues in self._residues:
            pattern = [residues >> (first + offset) % size & 1 for offset in range(size)]
            ends = (*range(min(count, size)), *range(max(0, count - size), count))
            mine = [offset for offset in ends if pattern[offset % size]]
            shares.append(
                self._share(
                    first + mine[0],
                    first + mine[-1],
                    list(compress(headers, cycle(pattern))),
                    list(compress(payloads, cycle(pattern))),
                    size,
                    residues,
                )
                if mine
                else None
            )
        return shares

    def _share(
        self,
        first: int,
        last: int,
        headers: Sequence[bytes],
        payloads: Sequence[bytes],
        period: int,
        residues: int,
    ) -> Share:
        entries = [b""] * (2 * len(payloads))
        entries[::2] = headers
        entries[1::2] = payloads
        overhead = self._access.digest.overhead
        body = encode_run(
            self._access.ledger_id,
            first,
            last,
            entries,
            [overhead + size for size in map(len, payloads)],
            digest_type=self._access.digest.digest_type,
            period=period,
            residues=residues,
        )
        return body, checksum(body)
