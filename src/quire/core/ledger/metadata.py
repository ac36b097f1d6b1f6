"""A ledger's record in the metadata store, and the only ways it may change.

The record of a stream is such a record with terms (`terms.py`); it does not end with a writer, but is taken over.
A record is immutable; a transition returns a new one or raises. Which client may make which transition, and what
it does when its compare-and-swap is lost, is the business of the machines. Bytes: `wire/ledger_metadata.py`, and for streams
`wire/stream_metadata.py`.

Source: BookKeeper protocol, "Ledgers", "Ensembles", "Closing a ledger as a writer", "Closing a ledger as a reader".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from typing import Final, overload

from quire.core.errors import CorruptMetadataError, MisuseError
from quire.core.ids import ID_MAX, NO_ENTRY, BookieId, EntryId, LedgerId, Term
from quire.core.ledger import quorum
from quire.core.ledger.guarantee import GUARANTEED, given_up, is_unkept, kept
from quire.core.ledger.terms import IDENTIFIERS, NO_TERM, Ranges, StreamMode, TermRange, Terms, origin_of

NEWEST_FORMAT: Final = 3
"""The stored format of new ledgers' records; that of BookKeeper 4.9 and later."""

TOKEN_KEY = "quire.token"  # noqa: S105 - the name of a field, not a secret
"""Custom metadata: 8 random bytes drawn at creation. The same id used again for another ledger has another token."""
FORMAT_KEY = "quire.format"
"""Custom metadata: what the entries are; absent = opaque bytes, b"batch1" = batch entries of a log."""


class LedgerState(IntEnum):
    """Numbers as in BookKeeper's stored format."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(IntEnum):
    """Numbers as in BookKeeper's stored format."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


@dataclass(frozen=True, slots=True)
class Fragment:
    """The entries from `first_entry` up to the next fragment's first, on one ensemble."""

    first_entry: EntryId
    ensemble: tuple[BookieId, ...]


class StoredFragments(Sequence[Fragment]):
    """Fragments that stay as they were stored until one is looked at, since few of a long ledger's ever are.

    The first look checks all first entries, each look its fragment: none that breaks a rule is ever handed out. Equal
    to the tuple of the same fragments; a copy is that tuple.

    Args:
        ledger_id: whose they are.
        ensemble_size: how many bookies each must have.
        count: how many there are.
        read_first_entries: gives all first entries, in the order of the fragments.
        read_fragment: gives the fragment with an index from 0 to `count` - 1.
    """

    __slots__ = (
        "_count",
        "_ensemble_size",
        "_first_entries",
        "_ledger_id",
        "_read_first_entries",
        "_read_fragment",
    )

    def __init__(
        self,
        ledger_id: LedgerId,
        ensemble_size: int,
        count: int,
        read_first_entries: Callable[[], list[int]],
        read_fragment: Callable[[int], Fragment],
    ) -> None:
        self._ledger_id = ledger_id
        self._ensemble_size = ensemble_size
        self._count = count
        self._read_first_entries = read_first_entries
        self._read_fragment = read_fragment
        self._first_entries: Sequence[int] = ()

    @property
    def first_entries(self) -> Sequence[int]:
        """All first entries, ascending.

        Raises:
            CorruptMetadataError: they break a rule.
        """
        if not self._first_entries:
            found = self._read_first_entries()
            _check_first_entries(self._ledger_id, found)
            self._first_entries = found
        return self._first_entries

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Fragment: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Fragment, ...]: ...
    def __getitem__(self, index: int | slice) -> Fragment | tuple[Fragment, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(self._count)[index])
        position = range(self._count)[index]
        first_entry, fragment = self.first_entries[position], self._read_fragment(position)
        if fragment.first_entry != first_entry:
            what = f"fragment {position} starts at {fragment.first_entry} and at {first_entry}"
            raise _corrupt(self._ledger_id, what)
        _check_ensemble(self._ledger_id, self._ensemble_size, fragment)
        return fragment

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredFragments | tuple) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[type, tuple[tuple[Fragment, ...]]]:
        return tuple, (tuple(self),)


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """One ledger's record.

    `fragments` is a tuple, or `StoredFragments` in the record of a closed ledger with many that was read.
    `last_entry` is `NO_ENTRY` unless CLOSED (and on an empty closed ledger). `length` is the payload bytes of a
    CLOSED ledger, else 0. `custom` is sorted by key. `creation_token` is BookKeeper's cToken: random at creation,
    0 after any update. `format_version` is the stored format that was found (3 for new ledgers). `terms`: of a
    stream, None for an ordinary ledger.
    """

    ledger_id: LedgerId
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest_type: DigestType
    password: bytes
    state: LedgerState
    fragments: Sequence[Fragment]
    last_entry: EntryId = NO_ENTRY
    length: int = 0
    created_ms: int | None = None
    custom: tuple[tuple[str, bytes], ...] = ()
    creation_token: int = 0
    format_version: int = NEWEST_FORMAT
    has_password: bool = True
    """False on records that store neither password nor digest type (format 1): the opener brings both."""
    terms: Terms | None = None

    # --- questions ---------------------------------------------------------------------------------------------

    def fragment_index(self, entry_id: int) -> int:
        """The index of the fragment that holds an entry: the one with the greatest first id <= `entry_id`."""
        if isinstance(self.fragments, StoredFragments):
            return max(0, bisect_right(self.fragments.first_entries, entry_id) - 1)
        return max(0, bisect_right(self.fragments, entry_id, key=lambda fragment: fragment.first_entry) - 1)

    def ensemble_of(self, entry_id: int) -> tuple[BookieId, ...]:
        """The ensemble that stores an entry."""
        return self.fragments[self.fragment_index(entry_id)].ensemble

    def last_entry_of_fragment(self, index: int) -> int | None:
        """The last id of a fragment; None for the last fragment of a ledger that is not closed."""
        if index + 1 < len(self.fragments):
            return self.fragments[index + 1].first_entry - 1
        return self.last_entry if self.state is LedgerState.CLOSED else None

    @property
    def decided_through(self) -> int:
        """The last entry of which it is decided whether it belongs to the ledger; `NO_ENTRY` where none is."""
        return self.last_entry if self.state is LedgerState.CLOSED else self.last_fragment.first_entry - 1

    @property
    def entry_bytes(self) -> float:
        """Mean payload of an entry; 0 where the record does not say it, since the ledger is empty or not closed."""
        return self.length / (self.last_entry + 1) if self.last_entry != NO_ENTRY else 0.0

    @property
    def last_fragment(self) -> Fragment:
        """The fragment that takes new entries while the ledger is open."""
        return self.fragments[-1]

    def custom_value(self, key: str) -> bytes | None:
        """One value of the custom metadata, or None."""
        return dict(self.custom).get(key)

    @property
    def token(self) -> int:
        """The ledger token as an unsigned 64-bit number; 0 where the ledger has none (made by Java)."""
        return int.from_bytes(self.custom_value(TOKEN_KEY) or b"", "big")

    @property
    def term(self) -> Term:
        """The term of the last take-over that began; 0 of an ordinary ledger."""
        return NO_TERM if self.terms is None else self.terms.term

    @property
    def ranges(self) -> tuple[TermRange, ...]:
        """Which term wrote which entries; empty of an ordinary ledger."""
        return () if self.terms is None else self.terms.ranges

    def origin_of(self, entry_id: int) -> Term:
        """The term that an entry was first written in; 0 of an ordinary ledger."""
        return NO_TERM if self.terms is None else origin_of(entry_id, self.terms.ranges)

    @property
    def only_fences(self) -> bool:
        """Whether it is a stream whose terms only fence: an entry is named by its id alone."""
        return self.terms is not None and self.terms.mode is StreamMode.FENCING

    @property
    def guaranteed(self) -> bool:
        """Whether the write quorum is guaranteed: every entry of the closed ledger is on its whole write set."""
        return GUARANTEED in self.custom

    @property
    def has_pending_replication(self) -> bool:
        """Whether entries of this closed ledger may be below a write quorum that is guaranteed, or was."""
        return self.last_entry != NO_ENTRY and is_unkept(self.custom)

    # --- transitions -------------------------------------------------------------------------------------------

    def without_guarantee(self) -> LedgerMetadata:
        """The record once a client has waived the guaranteed write quorum; any other record is as it was."""
        return replace(self, custom=given_up(self.custom), creation_token=0)

    def with_ensemble(self, first_entry: int, ensemble: Sequence[BookieId]) -> LedgerMetadata:
        """The record after an ensemble change that starts at `first_entry`.

        The last fragment is replaced when it starts there, else a fragment is appended. OPEN while a writer makes
        the change; a recoverer calls it on the record that it is about to close.

        Raises:
            MisuseError: the change would start before the last fragment, or the record is CLOSED.

        Source: BookKeeper protocol, "Writing to the ledger": "starting from the first message that has not been
        acknowledged to the client".
        """
        last = self.last_fragment
        if self.state is LedgerState.CLOSED:
            msg = f"ledger {self.ledger_id} is closed: no fragment can be added"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        if first_entry < last.first_entry:
            msg = f"ledger {self.ledger_id}: a fragment at {first_entry} would start before the last, {last.first_entry}"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        fragment = Fragment(EntryId(first_entry), tuple(ensemble))
        kept = self.fragments[:-1] if first_entry == last.first_entry else self.fragments
        return replace(self, fragments=(*kept, fragment), creation_token=0).checked()

    def with_replaced(
        self, index: int, first_entry: int, changes: Mapping[BookieId, BookieId]
    ) -> LedgerMetadata:
        """The record once other bookies hold what some of a decided fragment's should.

        First ids, number of fragments, state and last entry stay.

        Args:
            index: of the fragment.
            first_entry: where it begins, as the caller knows it.
            changes: by the bookie that goes, the one that takes its slot.

        Raises:
            MisuseError: the fragment moved or is not decided, a bookie that goes is not in it, or one would be in it
                twice.

        Source: docs/protocol/repair.md, "Publishing".
        """
        if not 0 <= index < len(self.fragments) or self.fragments[index].first_entry != first_entry:
            msg = f"ledger {self.ledger_id} has no fragment {index} that begins at {first_entry}: read the record again"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        if self.last_entry_of_fragment(index) is None:
            msg = f"ledger {self.ledger_id}: its last fragment, from {first_entry}, is not decided and changes with its writer only"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        before = self.fragments[index].ensemble
        after = tuple(changes.get(bookie, bookie) for bookie in before)
        if missing := sorted(set(changes) - set(before)):
            msg = f"ledger {self.ledger_id}: fragment {first_entry} does not name {', '.join(missing)}"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        if len(set(after)) < len(after):
            msg = f"ledger {self.ledger_id}: fragment {first_entry} would name a bookie twice: {', '.join(after)}"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        fragments = list(self.fragments)
        fragments[index] = Fragment(EntryId(first_entry), after)
        return replace(self, fragments=tuple(fragments), creation_token=0).checked()

    def in_recovery(self) -> LedgerMetadata:
        """The record once a recoverer has announced itself. From OPEN only.

        Source: BookKeeper protocol: "we first update the state in the metadata to IN_RECOVERY".
        """
        if self.terms is not None:
            msg = f"{self.ledger_id} is a stream: it is taken over, not recovered"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        if self.state is not LedgerState.OPEN:
            msg = f"ledger {self.ledger_id} is {self.state.name}, not OPEN: it cannot change to IN_RECOVERY"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        return replace(self, state=LedgerState.IN_RECOVERY, creation_token=0)

    def taken_over(self, term: int, owner: int) -> LedgerMetadata:
        """The record of a stream once a take-over has announced itself. From OPEN or IN_RECOVERY.

        Args:
            term: of the take-over: the next one.
            owner: 64 random bits of this take-over.

        Raises:
            MisuseError: it is no stream, or closed.

        Source: Vanlightly's unbounded ledgers: "it increments the ledger term both in metadata and across the bookies of the last
        fragment".
        """
        if self.terms is None:
            msg = f"ledger {self.ledger_id} is no stream: it is recovered, not taken over"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        if self.state is LedgerState.CLOSED:
            msg = f"stream {self.ledger_id} is closed at entry {self.last_entry}: it cannot be taken over"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        terms = replace(self.terms, term=Term(term), owner=owner)
        return replace(self, state=LedgerState.IN_RECOVERY, terms=terms, creation_token=0).checked()

    def opened(self, last_entry: int, fragments: Sequence[Fragment], also: Ranges = ()) -> LedgerMetadata:
        """The record of a stream once a take-over is done: its term writes from `last_entry` + 1 on.

        Args:
            last_entry: the last entry that the take-over recovered, `NO_ENTRY` if there is none.
            fragments: all of them, with the ensembles that the take-over used (kept local until now).
            also: as of `Terms.opened`.

        Raises:
            MisuseError: no take-over is under way.

        Source: Vanlightly's unbounded ledgers, "Terms are also entry identifiers": "The metadata would need to include the entry
        range of each term".
        """
        if self.terms is None or self.state is not LedgerState.IN_RECOVERY:
            msg = f"ledger {self.ledger_id} is no stream that is being taken over: it cannot be opened"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        terms = self.terms.opened(last_entry, also)
        done = replace(
            self, state=LedgerState.OPEN, fragments=tuple(fragments), terms=terms, creation_token=0
        )
        return done.checked()

    def closed(self, last_entry: int, length: int) -> LedgerMetadata:
        """The record once the ledger is closed for ever.

        Args:
            last_entry: the last entry, `NO_ENTRY` for an empty ledger.
            length: payload bytes of entries 0..last_entry.

        Raises:
            MisuseError: it is closed already.
        """
        if self.state is LedgerState.CLOSED:
            msg = f"ledger {self.ledger_id} is closed at entry {self.last_entry}, and a closed ledger's end never changes"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        custom = kept(self.custom) if self.guaranteed else self.custom
        done = replace(self, custom=custom, last_entry=EntryId(last_entry), length=length, creation_token=0)
        return replace(done, state=LedgerState.CLOSED).checked()

    def checked(self) -> LedgerMetadata:
        """This record, if it is a possible one. `StoredFragments` are checked when they are looked at.

        Raises:
            CorruptMetadataError: saying which rule it breaks.
        """
        try:
            quorum.check_quorums(self.ensemble_size, self.write_quorum, self.ack_quorum)
        except MisuseError as error:
            raise _corrupt(self.ledger_id, str(error)) from error
        if not self.fragments:
            raise _corrupt(self.ledger_id, "it has no fragment")
        if not isinstance(self.fragments, StoredFragments):
            firsts = [int(fragment.first_entry) for fragment in self.fragments]
            _check_first_entries(self.ledger_id, firsts, self.terms)
            for fragment in self.fragments:
                _check_ensemble(self.ledger_id, self.ensemble_size, fragment)
        if self.state is LedgerState.CLOSED:
            if self.last_entry < NO_ENTRY or self.length < 0:
                raise _corrupt(self.ledger_id, f"it ends at {self.last_entry} with length {self.length}")
        elif self.last_entry != NO_ENTRY:
            raise _corrupt(self.ledger_id, "it is not closed and has a last entry")
        if self.terms is not None:
            self._check_terms(self.terms)
        return self

    def _check_terms(self, terms: Terms) -> None:
        if (wrong := terms.wrong()) is not None:
            raise _corrupt(self.ledger_id, wrong)
        if self.last_fragment.first_entry > ID_MAX:
            raise _corrupt(self.ledger_id, f"its last fragment starts at {self.last_fragment.first_entry}")
        for name, number in (
            ("id", self.ledger_id),
            ("length", self.length),
            ("time of creation", self.created_ms or 0),
            ("creation token", self.creation_token),
        ):
            if not 0 <= number <= ID_MAX:
                raise _corrupt(self.ledger_id, f"its {name} is {number}, and goes from 0 to {ID_MAX}")
        if [key for key, _ in self.custom] != sorted({key for key, _ in self.custom}):
            raise _corrupt(self.ledger_id, "its custom metadata is not in the order of the keys, each once")
        if self.state is not LedgerState.CLOSED:
            if self.length:
                raise _corrupt(self.ledger_id, f"it is not closed and has length {self.length}")
        elif (
            not max(NO_ENTRY, terms.start - 1) <= self.last_entry <= ID_MAX
            or self.length < terms.first_length
        ):
            raise _corrupt(
                self.ledger_id,
                f"it ends at {self.last_entry} with length {self.length}, and starts at {terms.start} with length"
                f" {terms.first_length}",
            )


def _check_first_entries(ledger_id: LedgerId, first_entries: list[int], terms: Terms | None = None) -> None:
    start = 0 if terms is None else terms.start
    if not 0 <= first_entries[0] <= start:
        bound = "0" if terms is None else f"at or before its start, {start}"
        raise _corrupt(ledger_id, f"its first fragment starts at {first_entries[0]}, not {bound}")
    if len(set(first_entries)) < len(first_entries) or first_entries != sorted(first_entries):
        previous, first = next((a, b) for a, b in pairwise(first_entries) if b <= a)
        raise _corrupt(ledger_id, f"fragment {first} does not come after {previous}")


def _check_ensemble(ledger_id: LedgerId, ensemble_size: int, fragment: Fragment) -> None:
    ensemble = fragment.ensemble
    if len(ensemble) != ensemble_size:
        what = f"fragment {fragment.first_entry} has {len(ensemble)} bookies, not {ensemble_size}"
        raise _corrupt(ledger_id, what)
    if len(set(ensemble)) != len(ensemble):
        raise _corrupt(ledger_id, f"fragment {fragment.first_entry} names a bookie twice")


def _corrupt(ledger_id: LedgerId, what: str) -> CorruptMetadataError:
    msg = f"the record of ledger {ledger_id} is not a possible one: {what}"
    return CorruptMetadataError(msg, ledger_id=ledger_id)


def new_ledger(
    ledger_id: LedgerId,
    ensemble: Sequence[BookieId],
    *,
    write_quorum: int,
    ack_quorum: int,
    digest_type: DigestType,
    password: bytes,
    custom: Mapping[str, bytes] | None = None,
    created_ms: int | None = None,
    creation_token: int = 0,
    format_version: int = NEWEST_FORMAT,
) -> LedgerMetadata:
    """The record of a ledger that is about to be created: OPEN, one fragment at 0.

    Raises:
        InvalidQuorumError: unless E >= Qw >= Qa >= 1.
    """
    quorum.check_quorums(len(ensemble), write_quorum, ack_quorum)
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=len(ensemble),
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        digest_type=digest_type,
        password=password,
        state=LedgerState.OPEN,
        fragments=(Fragment(EntryId(0), tuple(ensemble)),),
        custom=tuple(sorted((custom or {}).items())),
        created_ms=created_ms,
        creation_token=creation_token,
        format_version=format_version,
    ).checked()


def new_stream(ledger: LedgerMetadata, owner: int, mode: StreamMode = IDENTIFIERS) -> LedgerMetadata:
    """The record of a stream that is about to be created: that of a new ledger, in term 1.

    Args:
        ledger: as `new_ledger` makes it.
        owner: 64 random bits of who creates it, and so of its first writer.
        mode: how a writer is kept out, for ever.
    """
    return replace(ledger, terms=Terms(Term(1), (TermRange(Term(1), EntryId(0)),), owner, mode)).checked()
