"""From payloads to run bodies: sealed once, one body for all slots, or a share for each when the ledger is striped.

Source: BookKeeper protocol, "Write Quorums"; `docs/formats/run.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import compress, cycle
from typing import TypeAlias

from quire.core.ids import LedgerId
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.quorum import residues_of_slot
from quire.wire.entry import HEADER_BYTES, TERM_HEADER_BYTES, EntryDigest
from quire.wire.run import SCHEME_PLAIN, SCHEME_TERMS, checksum, encode_run, seal_plain_run

Share: TypeAlias = tuple[bytes, int]
"""A run body and its checksum."""

TABLE_BYTES = 4
"""What an entry costs in a run's table."""


class RunSealer:
    """Seals the runs of ledgers with one digest and one pair of quorums, or of a stream in one term; see `sealer_of`.

    Attributes:
        striped: E > Qw, so that each slot has a share of its own.
        entry_overhead: bytes that an entry costs besides its payload.
        copies: how often a payload is held in memory for sending.

    Args:
        digest: the ledgers' digest.
        size: E.
        write_quorum: Qw.
        term: the writer's, of a stream: that of its entries.
    """

    __slots__ = (
        "_digest_type",
        "_ensemble_size",
        "_overhead",
        "_plain",
        "_residues",
        "_seal",
        "_term",
        "copies",
        "entry_overhead",
        "striped",
    )

    def __init__(self, digest: EntryDigest, size: int, write_quorum: int, term: int = 0) -> None:
        self._digest_type, self._term = digest.digest_type, term
        self._seal = partial(digest.seal_in_term, origin_term=term) if term else digest.seal
        self._overhead = digest.overhead + (TERM_HEADER_BYTES - HEADER_BYTES if term else 0)
        self._ensemble_size = size
        self._residues = tuple(residues_of_slot(slot, size, write_quorum) for slot in range(size))
        self.striped = size > write_quorum
        self._plain = not (self.striped or term) and digest.digest_type is DigestType.CRC32C
        self.entry_overhead = self._overhead + TABLE_BYTES
        self.copies = write_quorum if self.striped else 1

    def seal(
        self, ledger_id: LedgerId, first: int, lac: int, length_before: int, payloads: list[bytes]
    ) -> Sequence[Share | None]:
        """The bodies of a run with consecutive ids.

        Args:
            ledger_id: whose.
            first: the first entry's id.
            lac: the LAC of all headers.
            length_before: payload bytes of the ledger before the first entry.
            payloads: the entries' payloads, in order.

        Returns:
            A share for each slot, None where the slot stores nothing of the run; one for all when not striped.
        """
        if self._plain:
            body = seal_plain_run(ledger_id, first, lac, length_before, payloads)
            return ((body, checksum(body)),)
        headers = self._seal(ledger_id, first, lac, length_before, payloads)
        if not self.striped:
            return [self._share(ledger_id, first, first + len(payloads) - 1, headers, payloads, 1, 1)]
        count, size = len(payloads), self._ensemble_size
        shares: list[Share | None] = []
        for residues in self._residues:
            pattern = [residues >> (first + offset) % size & 1 for offset in range(size)]
            ends = (*range(min(count, size)), *range(max(0, count - size), count))
            mine = [offset for offset in ends if pattern[offset % size]]
            shares.append(
                self._share(
                    ledger_id,
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
        ledger_id: LedgerId,
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
        overhead = self._overhead
        body = encode_run(
            ledger_id,
            first,
            last,
            entries,
            [overhead + size for size in map(len, payloads)],
            digest_type=self._digest_type,
            period=period,
            residues=residues,
            origin_term=self._term,
            scheme=SCHEME_TERMS if self._term else SCHEME_PLAIN,
        )
        return body, checksum(body)


@lru_cache(maxsize=256)
def sealer_of(digest: EntryDigest, size: int, write_quorum: int, term: int = 0) -> RunSealer:
    """Shared by all ledgers with this digest and these quorums."""
    return RunSealer(digest, size, write_quorum, term)
