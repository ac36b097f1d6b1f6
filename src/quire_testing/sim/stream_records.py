"""What a world sees of its streams' records, and what bookies hold of a stream: terms, ranges, entries at their ack quorum.

Source: docs/protocol/streams.md; docs/simulation.md, "The world".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.quorum import write_set
from quire.core.ledger.terms import ANY_ORIGIN
from quire.core.transcript import record_text
from quire.wire.entry import EntryDigest
from quire.wire.run import RunView
from quire_testing.explorer.parts import repaired_only
from quire_testing.history import History, entry_hash
from quire_testing.sim.programs import SimBookie

STORE: Final = "the store"
READ_BYTES: Final = 1 << 20


def illegal_stream_change(before: LedgerMetadata, after: LedgerMetadata) -> str:
    """Why a stream's record may not follow another; empty if it may."""
    name = f"stream {after.ledger_id}"
    old, new = before.terms, after.terms
    assert old is not None
    assert new is not None
    opens = before.state is LedgerState.IN_RECOVERY and after.state is LedgerState.OPEN
    if new.term < old.term:
        return f"U4: {name} was in term {old.term} and is in term {new.term}"
    if before.state is LedgerState.CLOSED:
        same = replace(after, custom=before.custom) == before
        return (
            ""
            if same or repaired_only(before, replace(after, custom=before.custom))
            else f"U4: {name} was closed and is {record_text(after)}"
        )
    if new.term > old.term:
        announced = after.state is LedgerState.IN_RECOVERY and (new.ranges, after.fragments) == (
            old.ranges,
            before.fragments,
        )
        return "" if announced else f"U4: {name} came to term {new.term} as {record_text(after)}"
    if new.owner != old.owner:
        return f"U5: {name} has two owners in term {new.term}"
    more = len(new.ranges) - len(old.ranges)
    too_many = more > opens and not (
        opens and after.only_fences
    )  # the no-ops of terms that were never opened have some
    if new.ranges[: len(old.ranges)] != old.ranges or too_many:
        return f"U2: {name} had {record_text(before)} and has {record_text(after)}"
    if opens and new.ranges[-1].term != new.term:
        return f"U5: {name} was opened in term {new.ranges[-1].term} by a client of term {new.term}"
    if before.state is LedgerState.OPEN and after.state is LedgerState.IN_RECOVERY:
        return f"U4: {name} was open in term {new.term} and is in recovery in it"
    starts = [int(one.first_entry) for one in after.fragments]
    if starts[0] != 0 or any(one >= other for one, other in pairwise(starts)):
        return f"I6: {name} has fragments from {starts}"
    return ""


def note_stream(history: History, before: LedgerMetadata | None, record: LedgerMetadata) -> None:
    """A take-over is done: in the order of the store, whenever its client hears of it. Its no-op, if it has one, is acknowledged."""
    known, stream_id = 0 if before is None else len(before.ranges), int(record.ledger_id)
    for term, first in record.ranges[known:]:
        history.invoke(STORE, "takeover", ledger=stream_id, term=int(term)).ok(first=int(first))
        if record.only_fences and before is not None:
            no_op = history.invoke(STORE, "append", ledger=stream_id, term=int(term), hashes=entry_hash(b""))
            no_op.ok(first=int(first))


def lacks_ack_quorum(record: LedgerMetadata, bookies: Mapping[str, SimBookie], first: int) -> str:
    """U8: which entry below the last range, from `first` on, is on fewer than Qa bookies; empty if none is.

    A bookie that is down counts as if it had them.
    """
    held = {name: _held(bookie, int(record.ledger_id)) for name, bookie in bookies.items()}
    for entry in range(first, record.ranges[-1].first_entry):
        value, ensemble = (entry, int(record.origin_of(entry))), record.ensemble_of(entry)
        slots = write_set(entry, record.ensemble_size, record.write_quorum)
        some = [held[ensemble[slot].partition(".")[0]] for slot in slots]
        copies = sum(values is None or value in values for values in some)
        if copies < record.ack_quorum:
            return f"U8: entry {entry} of term {value[1]} is on {copies} bookies where a later term begins"
    return ""


def _held(bookie: SimBookie, stream_id: int) -> set[tuple[int, int]] | None:
    """The entries of a stream that a bookie has, with their origin terms; None while it is down."""
    server = bookie.server
    if not bookie.up or server is None or server.storage.failure is not None:
        return None
    return {
        (entry, each.origin_term)
        for each in server.storage.held_from(stream_id, 0)
        for entry in range(each.first, each.last + 1)
        if each.stripes >> entry % each.period & 1
    }


def entries_of(server: Any, record: LedgerMetadata) -> Iterator[tuple[int, bytes]]:
    """The entries of a stream that a bookie's storage has under the terms that the ranges name, ascending."""
    digest, stream_id = EntryDigest(record.digest_type, record.password), int(record.ledger_id)
    held = list(server.storage.held_from(stream_id, 0))
    last_of_all = max((each.last for each in held), default=-1)
    spans = [*(after.first_entry - 1 for after in record.ranges[1:]), last_of_all]
    for (term, first), last in zip(record.ranges, spans, strict=True):
        at = int(first)
        while at <= last:
            found = {}
            for body in server.storage.read(stream_id, at, last, READ_BYTES, origin_term=term).runs:
                for entry_id, entry in RunView.parse(body).entries():
                    if at <= entry_id <= last:
                        found[entry_id] = bytes(
                            digest.open_with_term(entry, stream_id, entry_id).entry.payload
                        )
            yield from sorted(found.items())
            if not found:
                break
            at = max(found) + 1


def held_by_id(server: Any, record: LedgerMetadata, own: str) -> str:
    """U2: which entry of a bookie's stripes is another one than the ranges name, where an id alone names it; empty if none is."""
    stream_id = int(record.ledger_id)
    for entry in range(record.last_entry + 1):
        ensemble = record.ensemble_of(entry)
        slots = write_set(entry, record.ensemble_size, record.write_quorum)
        if own not in {ensemble[slot] for slot in slots}:
            continue
        found = server.storage.read(stream_id, entry, entry, 1, origin_term=ANY_ORIGIN).runs
        for run in map(RunView.parse, found):
            if entry in run.ids() and run.origin_term != record.origin_of(entry):
                return f"U2: {own} has entry {entry} of term {run.origin_term}, it is of term {record.origin_of(entry)}"
    return ""
