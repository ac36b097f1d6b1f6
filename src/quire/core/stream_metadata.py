"""The record of a stream: a ledger without an end, which writers take over from each other in terms.

It has everything that a ledger's record has, and the term, the ranges (which term wrote which entries), the start (older
entries were given up), and the owner of the last take-over. The records of ordinary ledgers know nothing of it. Pure; the
bytes are in `wire/stream_metadata.py`. Nothing uses streams yet.

Source: `docs/formats/metadata.md`, "Streams"; BookKeeper protocol, "Ledgers".
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

from quire.core import quorum
from quire.core.errors import CorruptMetadataError, MisuseError
from quire.core.ids import ID_MAX, NO_ENTRY, EntryId, LedgerId, Term
from quire.core.ledger_metadata import DigestType, Fragment, LedgerState

OWNER_MAX: Final = 2**64 - 1


class StreamMode(IntEnum):
    """How a writer is kept out after a take-over."""

    IDENTIFIERS = 1
    """Entries of an earlier term are recognised by their ids: each term begins at an id of its own."""
    FENCING = 2
    """Bookies refuse the earlier term."""


class TermRange(NamedTuple):
    """The entries from `first_entry` up to the next range's first were written in this term."""

    term: Term
    first_entry: EntryId


@dataclass(frozen=True, slots=True)
class StreamMetadata:
    """One stream's record. Fields that a ledger's record has too mean the same there: `core/ledger_metadata.py`.

    Attributes:
        term: of the last take-over that began; above that of the last range until the take-over is done.
        ranges: which term wrote which entries, ascending in both; of a term that wrote nothing the first entry is the
            next one's too. Those wholly before `start` may be gone.
        start: the first entry that is kept.
        first_length: payload bytes of the entries before `start`.
        owner: 64 random bits of the last take-over: they show whether a compare-and-swap whose response was lost was
            one's own.
        mode: how a writer is kept out.
        unknown: fields of later versions.
    """

    stream_id: LedgerId
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest_type: DigestType
    password: bytes
    state: LedgerState
    fragments: tuple[Fragment, ...]
    term: Term
    ranges: tuple[TermRange, ...]
    owner: int
    mode: StreamMode
    start: EntryId = EntryId(0)  # noqa: RUF009 - an int
    first_length: int = 0
    last_entry: EntryId = NO_ENTRY
    length: int = 0
    created_ms: int | None = None
    custom: tuple[tuple[str, bytes], ...] = ()
    creation_token: int = 0
    unknown: bytes = b""

    def term_of(self, entry_id: int) -> Term:
        """The term that wrote an entry.

        Raises:
            MisuseError: it lies before the first range that is known.
        """
        index = bisect_right(self.ranges, entry_id, key=lambda each: each.first_entry)
        if not index:
            msg = f"stream {self.stream_id}: entry {entry_id} lies before the first range, {self.ranges[0].first_entry}"
            raise MisuseError(msg, ledger_id=self.stream_id, entry_id=entry_id)
        return self.ranges[index - 1].term

    def checked(self) -> StreamMetadata:
        """This record, if it is a possible one.

        Raises:
            CorruptMetadataError: saying which rule it breaks.
        """
        try:
            quorum.check_quorums(self.ensemble_size, self.write_quorum, self.ack_quorum)
        except MisuseError as error:
            raise self._corrupt(str(error)) from error
        for name, number, most in (
            ("id", self.stream_id, ID_MAX),
            ("start", self.start, ID_MAX),
            ("first length", self.first_length, ID_MAX),
            ("length", self.length, ID_MAX),
            ("time of creation", self.created_ms or 0, ID_MAX),
            ("creation token", self.creation_token, ID_MAX),
            ("owner", self.owner, OWNER_MAX),
        ):
            if not 0 <= number <= most:
                raise self._corrupt(f"its {name} is {number}, and goes from 0 to {most}")
        self._check_fragments()
        self._check_ranges()
        self._check_end()
        if [key for key, _ in self.custom] != sorted({key for key, _ in self.custom}):
            raise self._corrupt("its custom metadata is not in the order of the keys, each once")
        return self

    def _check_fragments(self) -> None:
        if not self.fragments:
            raise self._corrupt("it has no fragment")
        firsts = [int(fragment.first_entry) for fragment in self.fragments]
        if not 0 <= firsts[0] <= self.start:
            raise self._corrupt(f"its first fragment starts at {firsts[0]}, and it starts at {self.start}")
        for before, after in pairwise(firsts):
            if after <= before:
                raise self._corrupt(f"fragment {after} does not come after {before}")
        if firsts[-1] > ID_MAX:
            raise self._corrupt(f"its last fragment starts at {firsts[-1]}")
        for fragment in self.fragments:
            if not len(fragment.ensemble) == len(set(fragment.ensemble)) == self.ensemble_size:
                what = f"fragment {fragment.first_entry} has not {self.ensemble_size} bookies, each once"
                raise self._corrupt(what)

    def _check_ranges(self) -> None:
        if not self.ranges:
            raise self._corrupt("it has no range")
        first = self.ranges[0]
        if first.term < 1 or not 0 <= first.first_entry <= self.start:
            raise self._corrupt(f"its first range is of term {first.term}, from entry {first.first_entry}")
        for before, after in pairwise(self.ranges):
            if after.term <= before.term or after.first_entry < before.first_entry:
                raise self._corrupt(
                    f"the range of term {after.term} from entry {after.first_entry} does not come after that of term"
                    f" {before.term} from entry {before.first_entry}"
                )
        last = self.ranges[-1]
        if not last.term <= self.term <= ID_MAX or last.first_entry > ID_MAX:
            raise self._corrupt(
                f"it is in term {self.term}, and its last range is of term {last.term}, from entry {last.first_entry}"
            )

    def _check_end(self) -> None:
        if self.state is not LedgerState.CLOSED:
            if self.last_entry != NO_ENTRY or self.length:
                raise self._corrupt(
                    f"it is not closed, and ends at {self.last_entry} with length {self.length}"
                )
        elif (
            not max(NO_ENTRY, self.start - 1) <= self.last_entry <= ID_MAX or self.length < self.first_length
        ):
            raise self._corrupt(
                f"it ends at {self.last_entry} with length {self.length}, and starts at {self.start} with length"
                f" {self.first_length}"
            )

    def _corrupt(self, what: str) -> CorruptMetadataError:
        msg = f"the record of stream {self.stream_id} is not a possible one: {what}"
        return CorruptMetadataError(msg, ledger_id=self.stream_id)
