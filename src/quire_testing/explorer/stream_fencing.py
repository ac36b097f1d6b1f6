"""What must hold in a stream's world where terms only fence: an entry is named by its id alone.

Source: docs/protocol/streams.md, "Terms that only fence"; docs/counterexamples.md, "What must hold".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.quorum import write_set
from quire_testing.explorer.clients import bookie_name, bookie_number
from quire_testing.explorer.stream_bookies import StreamBookie, Value
from quire_testing.explorer.stream_clients import StreamClient
from quire_testing.explorer.stream_parts import StreamReader

Found: TypeAlias = tuple[str, str]


def members_of(record: LedgerMetadata, entry: int) -> list[int]:
    """The bookies of an entry's write set, in the record's fragment, by number."""
    ensemble = record.ensemble_of(entry)
    slots = write_set(entry, record.ensemble_size, record.write_quorum)
    return [bookie_number(ensemble[slot]) for slot in slots]


def copies_of(members: Sequence[int], bookies: Sequence[StreamBookie], value: Value) -> int:
    """How many bookies of its write set hold an entry."""
    return sum(value in bookies[number].entries for number in members)


def fencing_faults(
    record: LedgerMetadata,
    bookies: Sequence[StreamBookie],
    clients: Sequence[StreamClient],
    readers: Sequence[StreamReader],
) -> list[Found]:
    """What is wrong about entries and about what was read, by the invariants' names."""
    acked = [value for client in clients for value in client.acked]
    lost = any(bookie.losses for bookie in bookies)
    found = [*_of_acknowledged(record, bookies, acked, lost=lost)]
    if record.state is LedgerState.OPEN:
        found += _of_the_last_fragment(record, bookies)
        if not lost:
            found += _of_what_is_kept(record, bookies)
    return [*found, *_of_readers(acked, readers)]


def _of_acknowledged(
    record: LedgerMetadata, bookies: Sequence[StreamBookie], acked: list[Value], *, lost: bool
) -> Iterator[Found]:
    of_id: dict[int, int] = {}
    for entry, origin in acked:
        if of_id.setdefault(entry, origin) != origin:
            yield "U1", f"{entry} was acknowledged in term {of_id[entry]} and in term {origin}"
        members = members_of(record, entry)
        for number in members:
            for other, term in bookies[number].entries:
                if other == entry and term != origin:
                    name = bookie_name(number)
                    yield (
                        "U2",
                        f"{entry} was acknowledged in term {origin}, and {name} holds that of term {term}",
                    )
        copies = copies_of(members, bookies, (entry, origin))
        if copies < (1 if lost else record.ack_quorum):
            yield "U3", f"{entry} of term {origin} was acknowledged, and is on {copies} bookies"


def _of_the_last_fragment(record: LedgerMetadata, bookies: Sequence[StreamBookie]) -> Iterator[Found]:
    """U6: every bookie of the last fragment knows the term, and has nothing of an older one from its first id on.

    A bookie that joined a later fragment of the term has truncated from that fragment's first id on.
    """
    opened = record.ranges[-1]
    first = max(opened.first_entry, record.last_fragment.first_entry)
    for name in record.last_fragment.ensemble if opened.term > 1 else ():
        bookie = bookies[bookie_number(name)]
        if bookie.known.term < opened.term and not bookie.losses:
            yield "U6", f"term {opened.term} is open, and {name} is in term {bookie.known.term}"
        for entry, origin in bookie.entries:
            if entry >= first and origin < opened.term:
                yield ("U6", f"term {opened.term} is open, {name} holds {entry} of term {origin}")


def _of_what_is_kept(record: LedgerMetadata, bookies: Sequence[StreamBookie]) -> Iterator[Found]:
    """U8: each id below the last term's is on Qa bookies. U7: of each writer what is kept is a prefix of what it wrote."""
    begins: dict[int, int] = {int(each.term): int(each.first_entry) for each in record.ranges}
    before = 0
    for entry in range(record.ranges[-1].first_entry):
        held: Counter[int] = Counter()
        for number in members_of(record, entry):
            held.update(origin for other, origin in bookies[number].entries if other == entry)
        origin, copies = max(held.items(), key=lambda each: (each[1], each[0]), default=(0, 0))
        if copies < record.ack_quorum:
            yield "U8", f"{entry} is on {copies} bookies"
        if begins.get(origin, entry) < entry and before != origin:
            yield "U7", f"{entry} of term {origin} is kept, and the one before it is not"
        before = origin


def _of_readers(acked: list[Value], readers: Sequence[StreamReader]) -> Iterator[Found]:
    right, seen = dict(acked), dict[int, int]()
    for entry, origin in sorted({value for reader in readers for value in reader.seen}):
        if seen.setdefault(entry, origin) != origin:
            yield "I11", f"{entry} was read of term {seen[entry]} and of term {origin}"
        if right.get(entry, origin) != origin:
            yield "I11", f"{entry} of term {origin} was read, that of term {right[entry]} acknowledged"
