"""Asks every bookie of an entry's write set for its copy, to distinguish a lost entry from an unreachable one.

A failed read only shows that no bookie served the entry. Here each bookie gets a request for this entry, and the
ledger's record is read before and after: while copies move, a bookie whose copies were moved away proves nothing.
Nothing is changed.

Source: `docs/formats/native-protocol.md`, "Answers"; `core/ledger/losses.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.client.reading.copy_check import CopyCheck
from quire.core.answers import Answer
from quire.core.errors import NoSuchLedgerError
from quire.core.ids import BookieId
from quire.core.ledger.losses import proves_loss
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.quorum import write_set
from quire.core.ledger.stripes import bookie_stripes
from quire.metadata.records import RecordStore

_ROUNDS_MAX = 3
"""So often the record may change while bookies are asked."""
_STEP_MAX = 1024
"""Entries that one round of questions is about, at most."""


@dataclass(frozen=True, slots=True)
class LostEntries:
    """What the bookies say of an entry that could not be read, and of those after it.

    Attributes:
        first: the entry.
        last: `first..last` are proven lost, one by one; `first - 1`: not even the first is.
        answers: the response of each bookie of the first one's write set; OK: it has a good copy.
    """

    first: int
    last: int
    answers: tuple[tuple[BookieId, Answer], ...]

    @property
    def are_proven(self) -> bool:
        """Whether at least the first entry is lost."""
        return self.last >= self.first

    @property
    def said(self) -> str:
        """The responses, as text."""
        return ", ".join(f"{bookie} {answer.name}" for bookie, answer in self.answers)


async def lost_entries(
    ledgers: RecordStore,
    bookies: BookieClient,
    ledger_id: int,
    first: int,
    last: int,
    *,
    token: int,
    timeout_ms: int,
) -> LostEntries:
    """How many entries from one on are proven lost.

    Args:
        ledgers: where the record is.
        bookies: the connections.
        ledger_id: the ledger.
        first: the entry that could not be read; confirmed.
        last: how far to look; confirmed.
        token: the ledger's; another ledger with its id is not the one that is meant.
        timeout_ms: how long a bookie may take.

    Raises:
        NoSuchLedgerError: the ledger is deleted altogether.
    """
    found = LostEntries(first, first - 1, ())
    record, version = await ledgers.read(ledger_id)
    for _ in range(_ROUNDS_MAX):
        if record.token != token:
            msg = f"ledger {ledger_id} was deleted; another ledger has its id now"
            raise NoSuchLedgerError(msg, ledger_id=ledger_id)
        found = await _look(record, first, last, bookies, timeout_ms)
        before = version
        record, version = await ledgers.read(ledger_id)
        if version == before:
            return found
    return LostEntries(first, first - 1, found.answers)


async def _look(
    record: LedgerMetadata, first: int, last: int, bookies: BookieClient, timeout_ms: int
) -> LostEntries:
    """Ask for ever more entries at once, up to the first one that is not proven lost."""
    parts = [part for part in bookie_stripes(record, last) if part.first <= first <= part.last]
    last = min([last, *(part.last for part in parts)])
    check = CopyCheck(bookies, LedgerAccess.of(record), 1, timeout_ms)
    said: tuple[tuple[BookieId, Answer], ...] = ()
    at, step = first, 1
    while parts and at <= last:
        following = min(last + 1, at + step)
        copies = await check.window(parts, at, following - 1)
        for entry in range(at, following):
            slots = write_set(entry, record.ensemble_size, record.write_quorum)
            each = [(bookie, copies[bookie].answer_of(entry)) for bookie in (parts[s].bookie for s in slots)]
            answers = [(b, Answer.DAMAGED if a is Answer.BAD_DIGEST else a) for b, a in each]
            said = said or tuple(answers)
            if not proves_loss([answer for _, answer in answers], record.write_quorum):
                return LostEntries(first, entry - 1, said)
        at, step = following, min(2 * step, _STEP_MAX)
    return LostEntries(first, at - 1, said)
