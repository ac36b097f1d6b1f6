"""What a bookie has promised so far, and whether a bookie that started on a crash image keeps it.

Promises are folded from the milestones of a recording: what was asked for (it may have happened) and what was answered (it
must have). A bookie's responses are asked for as a reader and a writer would, through `bookie.ledgers`.

Source: BookKeeper protocol, "Closing a ledger as a reader"; `docs/crash-images.md`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from quire.bookie.ledgers.ledgers import Ledgers
from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY
from quire.storage.ledger_storage import LedgerStorage
from quire.wire.native import Kind, Request
from quire.wire.run import RunView

KEY = b"k" * 20
READ_BYTES = 1 << 20


class MilestoneKind(Enum):
    """What a milestone says."""

    BOOKIE = "this is the bookie's id"
    ASKED_ADD = "these entries were sent"
    ADDED = "these entries are acknowledged"
    ASKED_FENCE = "a fence was asked for"
    FENCED = "the fence is acknowledged"
    LAC = "this LAC is durable"
    ASKED_DELETE = "a deletion was asked for"
    DELETED = "the deletion is durable"
    ASKED_DROP = "a drop of these entries was asked for"
    DROPPED = "the drop of these entries is durable"
    ROTTED = "what stores these entries may not verify any more"
    FORGOTTEN = "the tombstone need not refuse anything any more"
    ASKED_TRUNCATE = "a truncation of a stream was asked for"
    TRUNCATED = "the truncation is acknowledged"


@dataclass(frozen=True, slots=True)
class BookieMilestone:
    """A milestone of a bookie's run; `entries` are whole entries as they are stored, `value` a LAC or where a truncation begins.

    Of a stream, `term` is the sender's and `origin_term` the entries'.
    """

    kind: MilestoneKind
    ledger_id: int = -1
    entries: tuple[tuple[int, bytes], ...] = ()
    value: int = NO_ENTRY
    text: str = ""
    term: int = 0
    origin_term: int = 0

    def __str__(self) -> str:
        ids = f" {self.entries[0][0]}..{self.entries[-1][0]}" if self.entries else ""
        return f"ledger {self.ledger_id}: {self.kind.value}{ids}"


@dataclass(slots=True)
class LedgerPromise:
    """What was promised about one ledger; entries by (origin term, id).

    Attributes:
        sent: what was sent since the acknowledged one, that included: an earlier one does not come back.
        added: what was acknowledged last.
        dropped: what was dropped for good.
        rotted: what was acknowledged last where it rotted: it may be unknown, and must not be denied.
        leaving: what a truncation that was asked for takes, by (its first id, its term).
        truncated: what an acknowledged truncation has taken, and no client sent again.
    """

    sent: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    added: dict[tuple[int, int], bytes] = field(default_factory=dict)
    dropped: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    rotted: dict[tuple[int, int], bytes] = field(default_factory=dict)
    leaving: dict[tuple[int, int], set[tuple[int, int]]] = field(default_factory=dict)
    truncated: set[tuple[int, int]] = field(default_factory=set)
    fenced: bool = False
    term: int = 0
    lac: int = NO_ENTRY
    deleting: bool = False
    deleted: bool = False
    forgotten: bool = False

    def send(self, name: tuple[int, int], entry: bytes) -> None:
        """An entry is sent: whatever was asked for before does not take it."""
        self.sent.setdefault(name, []).append(entry)
        self.truncated.discard(name)
        for leaving in self.leaving.values():
            leaving.discard(name)

    def truncate(self, first: int, term: int) -> None:
        """What earlier terms left from an id on is to go."""
        taken = {name for name in self.sent if name[0] < term and name[1] >= first}
        self.leaving.setdefault((first, term), set()).update(taken)
        for name in taken:
            self.added.pop(name, None)
            self.rotted.pop(name, None)


class BrokenPromiseError(AssertionError):
    """A bookie that started on a crash image does not keep what was promised before."""


class Promises:
    """Everything a bookie has said.

    Attributes:
        bookie_id: who it said it is, "" before it has said so.
        ledgers: by id.
    """

    def __init__(self, events: Iterable[BookieMilestone] = ()) -> None:
        self.bookie_id = ""
        self.ledgers: dict[int, LedgerPromise] = {}
        for event in events:
            self.add(event)

    def add(self, event: BookieMilestone) -> None:
        """Take one more milestone."""
        if event.kind is MilestoneKind.BOOKIE:
            self.bookie_id = event.text
            return
        ledger = self.ledgers.setdefault(event.ledger_id, LedgerPromise())
        if ledger.forgotten and event.kind in {MilestoneKind.ASKED_ADD, MilestoneKind.ASKED_FENCE}:
            ledger = self.ledgers[event.ledger_id] = LedgerPromise()  # another ledger with its id
        match event.kind:
            case MilestoneKind.ASKED_ADD:
                for entry_id, entry in event.entries:
                    ledger.send((event.origin_term, entry_id), entry)
            case MilestoneKind.ADDED:
                for entry_id, entry in event.entries:
                    key = event.origin_term, entry_id
                    ledger.added[key] = entry
                    ledger.sent[key] = ledger.sent[key][ledger.sent[key].index(entry) :]
                    ledger.rotted.pop(key, None)
                ledger.lac = max(ledger.lac, event.value)
                ledger.term = max(ledger.term, event.term)
            case MilestoneKind.ASKED_DROP:
                for entry_id, entry in event.entries:
                    key = event.origin_term, entry_id
                    if ledger.added.get(key) == entry:
                        del ledger.added[key]
                        ledger.rotted.pop(key, None)
            case MilestoneKind.DROPPED:
                for entry_id, entry in event.entries:
                    ledger.dropped.setdefault((event.origin_term, entry_id), []).append(entry)
            case MilestoneKind.ROTTED:
                for entry_id, entry in event.entries:
                    key = event.origin_term, entry_id
                    if ledger.added.get(key) == entry:
                        ledger.rotted[key] = ledger.added.pop(key)
            case MilestoneKind.FENCED:
                ledger.fenced = ledger.fenced or not event.term
                ledger.term = max(ledger.term, event.term)
            case MilestoneKind.LAC:
                ledger.lac = max(ledger.lac, event.value)
            case MilestoneKind.ASKED_TRUNCATE:
                ledger.truncate(event.value, event.term)
            case MilestoneKind.TRUNCATED:
                ledger.truncated |= ledger.leaving.pop((event.value, event.term), set())
                ledger.term = max(ledger.term, event.term)
            case MilestoneKind.ASKED_DELETE:
                ledger.deleting = True
            case MilestoneKind.DELETED:
                ledger.deleted = True
            case MilestoneKind.FORGOTTEN:
                ledger.deleted = ledger.forgotten = True
            case _:
                pass

    def check(self, storage: LedgerStorage) -> None:
        """Ask a bookie on this storage for everything.

        Raises:
            BrokenPromiseError: it denies, loses or changes something, or undoes a fence or a deletion.
        """
        if storage.report.damages:
            raise BrokenPromiseError(
                f"a power cut is no damage, but the start says: {storage.report.damages[0]}"
            )
        ledgers = Ledgers(storage, _nothing)
        for ledger_id, promise in self.ledgers.items():
            if promise.deleted:
                _check_deleted(ledgers, ledger_id, promise)
            else:
                _check_ledger(ledgers, ledger_id, promise)
            facts = storage.facts(ledger_id)
            if (
                (promise.added or promise.fenced)
                and not promise.forgotten
                and (facts is None or facts.key != KEY)
            ):
                raise BrokenPromiseError(f"the key of ledger {ledger_id} is forgotten: any client may set it")


def _nothing() -> None:
    """No client waits for this bookie's responses."""


def request(
    kind: Kind,
    ledger_id: int,
    *,
    body: bytes = b"",
    body_crc: int = 0,
    key: bytes = KEY,
    flags: int = 0,
    term: int = 0,
    lac: int = NO_ENTRY,
) -> Request:
    """A request as it would have come from a client."""
    return Request(
        kind=kind, digest_type=0, flags=flags, number=1, deadline_ms=0, ledger_id=ledger_id, token=0, key=key,
        term=term, lac=lac, lafr=NO_ENTRY, body_crc=body_crc, body=memoryview(body),
    )  # fmt: skip


def _check_deleted(ledgers: Ledgers, ledger_id: int, promise: LedgerPromise) -> None:
    info = ledgers.info(ledger_id)
    if (info is None and not promise.forgotten) or (info is not None and not info["deleted"]):
        raise BrokenPromiseError(f"ledger {ledger_id} was deleted and is back")
    if all_entries_of(ledgers, ledger_id, promise)[0]:
        raise BrokenPromiseError(f"entries of the deleted ledger {ledger_id} are back")


def _check_ledger(ledgers: Ledgers, ledger_id: int, promise: LedgerPromise) -> None:
    found, denied, lac = all_entries_of(ledgers, ledger_id, promise)
    info = ledgers.info(ledger_id)
    if promise.deleting and info is not None and info["deleted"]:
        if found:
            raise BrokenPromiseError(f"ledger {ledger_id} is deleted in part")
        return
    for (term, entry_id), entry in found.items():
        if entry not in promise.sent.get((term, entry_id), ()):
            raise BrokenPromiseError(f"entry {entry_id} of ledger {ledger_id} has other bytes than were sent")
        if entry in promise.dropped.get((term, entry_id), ()):
            raise BrokenPromiseError(f"entry {entry_id} of ledger {ledger_id} was dropped and is back")
    for term, entry_id in promise.rotted:
        if (term, entry_id) in denied:
            raise BrokenPromiseError(f"entry {entry_id} of ledger {ledger_id} is damaged and is denied")
    for (term, entry_id), entry in promise.added.items():
        if found.get((term, entry_id)) not in promise.sent[term, entry_id]:
            how = "is denied" if (term, entry_id) in denied else "cannot be read"
            raise BrokenPromiseError(
                f"entry {entry_id} of ledger {ledger_id} was acknowledged and {how} ({len(entry)} bytes)"
            )
    if returned := sorted(promise.truncated & found.keys()):
        term, entry_id = returned[0]
        raise BrokenPromiseError(
            f"entry {entry_id} of ledger {ledger_id} in term {term} was truncated and is back"
        )
    if promise.fenced and (info is None or not info["fenced"]):
        raise BrokenPromiseError(f"the fence of ledger {ledger_id} is lost")
    if promise.term and (info is None or info["term"] < promise.term):
        raise BrokenPromiseError(f"ledger {ledger_id} forgot its term {promise.term}")
    if lac < promise.lac:
        raise BrokenPromiseError(f"the LAC of ledger {ledger_id} is {lac}, and {promise.lac} was reported")


def all_entries_of(
    ledgers: Ledgers, ledger_id: int, promise: LedgerPromise
) -> tuple[dict[tuple[int, int], bytes], set[tuple[int, int]], int]:
    """As `entries_of`, of every origin term of which something was sent; and the LAC."""
    found: dict[tuple[int, int], bytes] = {}
    denied: set[tuple[int, int]] = set()
    last = max((entry_id for _, entry_id in promise.sent), default=-1) + 1
    lac: int = NO_ENTRY
    for term in sorted({term for term, _ in promise.sent} or {promise.term}):
        entries, none, lac = entries_of(ledgers, ledger_id, last, term)
        found |= {(term, entry_id): entry for entry_id, entry in entries.items()}
        denied |= {(term, entry_id) for entry_id in none}
    return found, denied, lac


def entries_of(
    ledgers: Ledgers, ledger_id: int, last: int, origin_term: int = 0
) -> tuple[dict[int, bytes], set[int], int]:
    """What a reader of entries 0..last gets: (entry id to the whole entry, the ids that are denied, the LAC)."""
    found: dict[int, bytes] = {}
    denied: set[int] = set()
    lac: int = NO_ENTRY
    at = 0
    while at <= last:
        answer = ledgers.read(request(Kind.READ, ledger_id), at, last, READ_BYTES, origin_term=origin_term)
        lac = max(lac, answer.lac)
        unknown = {
            entry_id
            for first, end in answer.unknown
            for entry_id in range(max(first, at), min(end, last) + 1)
        }
        got: set[int] = set()
        for body in answer.runs:
            for entry_id, entry in RunView.parse(body).entries():
                if at <= entry_id <= last:
                    found[entry_id] = bytes(entry)
                    got.add(entry_id)
        conclusive = answer.conclusive_through
        if answer.answer in {Answer.OK, Answer.NO_LEDGER}:
            denied |= set(range(at, conclusive + 1)) - got - unknown
        reached = max([conclusive, *got])
        if reached < at:
            break
        at = reached + 1
    return found, denied, lac
