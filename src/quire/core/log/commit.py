"""Commits one batch of a sink to its logs: closed ledgers and the query's sink position in one write, once.

The machine reads the heads, decides for each log what the batch still has to do there, and asks for one
compare-and-swap of all heads together, which also requires that every ledger it lists still exists. A response that is
lost is settled by reading again: the sink position, or the ledgers themselves, show it. So a batch is in a log once or not at
all, and a collector of its ledgers can prove, in the deletion itself, that they are not listed. It must not
know stores or Spark; the driver is `log/committing.py`.

    IDLE -> READING -> (LOOKING) -> (FENCING) -> STORING -> ENDED
               ^                                    |
               +------------------------------------+   conflict, or unknown

Source: docs/spark-sink.md, "Exactly once: how"; docs/decisions/016-open-items-are-recovered.md;
docs/decisions/017-leader-epoch.md; docs/decisions/024-adoption.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias

from quire.core.errors import MisuseError
from quire.core.ids import LedgerId
from quire.core.log.cas import HeadCas
from quire.core.log.effects import RecoverLedger
from quire.core.log.fencing import Fencing
from quire.core.log.fingerprints import Fingerprint
from quire.core.log.list import (
    DEFAULT_LAYOUT,
    Adoption,
    ItemState,
    Leader,
    LedgerSummary,
    LogHead,
    LogItem,
    LogPage,
    PageLayout,
    PageNamer,
    SinkPosition,
    paged,
)
from quire.core.log.rules import RULES
from quire.core.log.sink_positions import (
    POSITION_RULES,
    PositionRules,
    Standing,
    lags,
    standing,
    with_position,
)
from quire.core.state_table import StateTable


class OnReset(Enum):
    """What a batch does whose checkpoint is not the one that the log's sink position was made with."""

    ERROR = "error"
    CONTINUE = "continue"
    """It is appended: its rows may come twice."""
    SKIP = "skip"
    """It is dropped if its number is not above the sink position's."""


class CommitStatus(Enum):
    """Where a commit is."""

    IDLE = "idle"
    READING = "reading"
    LOOKING = "looking"
    FENCING = "fencing"
    STORING = "storing"
    ENDED = "ended"


COMMIT: Final = StateTable(
    CommitStatus,
    {
        "start": "idle > reading",
        "heads_read": "reading > looking fencing storing ended",
        "looked": "looking > looking fencing storing ended",
        "recovered": "fencing > fencing storing ended",
        "recovery_failed": "fencing > reading ended",
        "stored": "storing > ended",
        "conflicted": "storing > reading",
        "unknown": "storing > reading ended",
        "ledger_missing": "storing > reading",
    },
    refused=frozenset({"start"}),
)
"""Which input does what in which status."""


class CommitOutcome(Enum):
    """How a commit ended."""

    COMMITTED = "committed"
    ALREADY = "already"
    NO_SUCH_LOG = "no_such_log"
    LEADER_LIVES = "leader_lives"
    LEADER_GONE = "leader_gone"
    WAS_RESET = "was_reset"
    IS_BEHIND = "is_behind"
    OTHER_HISTORY = "other_history"
    MARK_DAMAGED = "mark_damaged"
    LEDGER_GONE = "ledger_gone"
    RECOVERY_FAILED = "recovery_failed"
    REFUSED = "refused"


class _Way(Enum):
    """What one of a commit's logs still needs. TAKE: its open ledgers are recovered, its leader is deposed."""

    NOTHING = "nothing"
    REPLAYED = "replayed"
    APPEND = "append"
    ADOPT = "adopt"
    TAKE = "take"
    POSITION = "position"
    """Only the sink position moves."""


_REFUSED = {
    Standing.WAS_RESET: CommitOutcome.WAS_RESET,
    Standing.BEHIND: CommitOutcome.IS_BEHIND,
    Standing.OTHER_HISTORY: CommitOutcome.OTHER_HISTORY,
    Standing.DAMAGED: CommitOutcome.MARK_DAMAGED,
}


@dataclass(frozen=True, slots=True)
class Part:
    """What a batch brings to one log: closed ledgers, in the order in which their records shall stand.

    Attributes:
        fingerprint: what the log's sink position keeps of the batch; None when it is not known.
    """

    log_id: bytes
    items: tuple[LogItem, ...]
    fingerprint: Fingerprint | None = None


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """The batch of a sink that is committed: the closed ledgers of one writer.

    Attributes:
        parts: one for each log, in the order of their names.
        query_id: whose batch it is; "" for a write that is never repeated under the same number.
        batch_id: its number; how it stands to the log's sink position says `core/log/sink_positions.py`.
        incarnation: of a named transaction, the checkpoint that counts its batches.
        named: a named transaction: its sink position moves even where it has no rows, since nothing else shows that it was
            there.
        on_reset: what to do when the log's sink position belongs to another checkpoint or another history of this one.
        truncate: take everything that was in the logs before out of them, in the same compare-and-swap.
        takeover: recover what a leader left open, or depose one that is there.
        place: give adopted ledgers their offsets, even if the batch brings nothing.
        now_ms: wall time, noted in the sink positions.
    """

    parts: tuple[Part, ...]
    query_id: str = ""
    batch_id: int = 0
    incarnation: str = ""
    on_reset: OnReset = OnReset.ERROR
    truncate: bool = False
    takeover: bool = False
    place: bool = False
    now_ms: int = 0
    named: bool = False


@dataclass(frozen=True, slots=True)
class FoundHead:
    """One log's record as it is now; None when there is no such log.

    Attributes:
        leader_alive: whether the leader that the head names still stands in the election: advice.
        own: what the caller's checkpoint has of the batch with the sink position's number; None when it has nothing, or when
            that is the batch being committed.
    """

    head: LogHead | None
    version: int = -1
    leader_alive: bool = True
    own: Fingerprint | None = None


# --- effects --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadHeads:
    """Read all heads; answer `heads_read`, in the order of the parts."""


@dataclass(frozen=True, slots=True)
class LookForLedger:
    """Look through all that a head names for a ledger; answer `looked`."""

    index: int
    head: LogHead
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class HeadChange:
    """One head's new value at `version`; its pages are stored before."""

    head: LogHead
    version: int
    pages: tuple[LogPage, ...]


@dataclass(frozen=True, slots=True)
class CasHeads:
    """Replace all heads by compare-and-swap, or none, if these ledgers still are what their items say.

    Answer `stored`, `conflicted`, `unknown` or `ledger_missing`.
    """

    changes: tuple[HeadChange, ...]
    required: tuple[LogItem, ...]


@dataclass(frozen=True, slots=True)
class DeleteUnlisted:
    """Delete these ledgers of a log, each only if its list, at that moment, does not name it. No answer."""

    log_id: bytes
    items: tuple[LogItem, ...]


@dataclass(frozen=True, slots=True)
class CommitEnded:
    """The commit has ended.

    Attributes:
        index: of the part that decided, -1 if none did.
        position: of a batch that was refused for it, the log's sink position; `own` is what it was compared with.
    """

    outcome: CommitOutcome
    index: int = -1
    detail: str = ""
    position: SinkPosition | None = None
    own: Fingerprint | None = None


CommitEffect: TypeAlias = ReadHeads | LookForLedger | RecoverLedger | CasHeads | DeleteUnlisted | CommitEnded


# --- rules ----------------------------------------------------------------------------------------------------


def read_again_after_unknown() -> bool:
    """A lost response is neither a yes nor a no."""
    return True


def requires_ledgers() -> bool:
    """What is listed exists: the compare-and-swap fails when a ledger was deleted meanwhile."""
    return True


def may_place_now(head: LogHead) -> bool:
    """Closed ledgers join the list only where no item is open."""
    return not head.open_items


@dataclass(frozen=True, slots=True)
class CommitRules:
    """The rules that a commit works by; only tests pass changed ones."""

    positions: PositionRules = POSITION_RULES
    read_again_after_unknown: Callable[[], bool] = read_again_after_unknown
    requires_ledgers: Callable[[], bool] = requires_ledgers
    may_place_now: Callable[[LogHead], bool] = may_place_now


COMMIT_RULES = CommitRules()


# --- the machine ----------------------------------------------------------------------------------------------


class CommitMachine:
    """One commit of one batch. Use a new machine for the next try.

    Args:
        batch: what is committed.
        name_page: the name of a page, from its content.
        layout: when items move to pages.
        rules: the protocol's rules (`core/rules.py`).
    """

    __slots__ = (
        "_batch",
        "_cas",
        "_fencing",
        "_layout",
        "_listed",
        "_missing",
        "_name_page",
        "_rules",
        "_ways",
        "by_number",
        "ended",
        "out",
        "status",
    )

    def __init__(
        self,
        batch: CommitBatch,
        *,
        name_page: PageNamer,
        layout: PageLayout = DEFAULT_LAYOUT,
        rules: CommitRules = COMMIT_RULES,
    ) -> None:
        self._batch = batch
        self._name_page = name_page
        self._layout = layout
        self._rules = rules
        self.status = CommitStatus.IDLE
        self.out: list[CommitEffect] = []
        self.ended: CommitEnded | None = None
        self.by_number: list[int] = []
        """Parts whose sink position could be compared by its number alone, as the heads were read last."""
        self._cas: HeadCas[tuple[FoundHead, ...], tuple[int, ...]] = HeadCas((), ())
        self._ways: list[_Way] = []
        self._listed: dict[int, bool] = {}
        """What `looked` answered since the heads were read last."""
        self._fencing = Fencing()
        self._missing = False

    @property
    def _found(self) -> tuple[FoundHead, ...]:
        """The heads as they were read last."""
        assert self._cas.value is not None
        return self._cas.value

    @property
    def may_be_in(self) -> bool:
        """Whether a compare-and-swap was asked for: from then on the batch may be in."""
        return self._cas.wanted is not None

    def _to(self, status: CommitStatus) -> None:
        self.status = COMMIT.moved[self.status, status]

    def start(self) -> None:
        """Begin. Effects: ReadHeads."""
        assert COMMIT.acts["start"][self.status]
        self._read()

    def _read(self) -> None:
        self._to(CommitStatus.READING)
        self._cas.read()
        self.out.append(ReadHeads())

    def heads_read(self, found: Sequence[FoundHead]) -> None:
        """The heads as they are now, one for each part.

        Effects:
            CasHeads; before it LookForLedger or RecoverLedger where the heads alone do not decide or a leader left
            ledgers open; CommitEnded when nothing is left to do, or it must not be done.
        """
        if not COMMIT.acts["heads_read"][self.status]:
            return
        self._cas.found(tuple(found), tuple(each.version for each in found))
        self._listed.clear()
        for index, part in enumerate(self._batch.parts):
            head = self._found[index].head
            if head is None or head.is_being_deleted:
                self._end(CommitEnded(CommitOutcome.NO_SUCH_LOG, index))
                return
            if self._must_look(head, part):
                self._to(CommitStatus.LOOKING)
                self.out.append(LookForLedger(index, head, part.items[0].ledger_id))
        if self.status is CommitStatus.READING:
            self._decide()

    def _must_look(self, head: LogHead, part: Part) -> bool:
        """A write without a sink position, whose compare-and-swap may have happened, is looked for beyond the head."""
        return (
            self.may_be_in
            and not self._batch.query_id
            and bool(part.items)
            and not _is_listed(head, part.items[0].ledger_id)
        )

    def looked(self, index: int, *, listed: bool) -> None:
        """Whether a log names the batch's first ledger anywhere."""
        if not COMMIT.acts["looked"][self.status]:
            return
        self._listed[index] = listed
        heads = [found.head for found in self._found]
        asked = [
            number
            for number, part in enumerate(self._batch.parts)
            if (head := heads[number]) is not None and self._must_look(head, part)
        ]
        if all(number in self._listed for number in asked):
            self._decide()

    # --- deciding ----------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        self._ways, self.by_number = [], []
        for index in range(len(self._batch.parts)):
            way = self._way(index)
            if isinstance(way, CommitEnded):
                self._end(replace(way, index=index))
                return
            self._ways.append(way)
        if self._missing and any(way not in {_Way.NOTHING, _Way.REPLAYED} for way in self._ways):
            self._end(CommitEnded(CommitOutcome.LEDGER_GONE))
        else:
            self._fence()

    def _way(self, index: int) -> _Way | CommitEnded:
        batch, part, found = self._batch, self._batch.parts[index], self._found[index]
        head = found.head
        assert head is not None
        if part.items and (_is_listed(head, part.items[0].ledger_id) or self._listed.get(index)):
            return _Way.NOTHING
        position = head.sink_position(batch.query_id) if batch.query_id else None
        stands, own = self._standing(position, index)
        if stands is Standing.REPLAY:
            return _Way.REPLAYED
        if stands is not Standing.NEW and batch.on_reset is OnReset.ERROR:
            return CommitEnded(_REFUSED[stands], index, position=position, own=own)
        if batch.on_reset is OnReset.SKIP and position is not None and batch.batch_id <= position.batch_id:
            return _Way.REPLAYED
        if part.items or batch.truncate or (batch.place and head.adoptions):
            return self._where(found, head)
        moves = batch.named or (position is not None and lags(batch.batch_id, position))
        return _Way.POSITION if moves and batch.query_id else _Way.NOTHING

    def _standing(self, position: SinkPosition | None, index: int) -> tuple[Standing, Fingerprint | None]:
        """How the batch stands to a log's sink position, and what of its own side was compared."""
        batch, found, part = self._batch, self._found[index], self._batch.parts[index]
        own = part.fingerprint if position is None or position.batch_id == batch.batch_id else found.own
        rules = self._rules.positions
        stands = standing(position, batch.batch_id, batch.incarnation, own, rules)
        # A named transaction is compared with nothing but itself.
        compared = stands is Standing.REPLAY or (stands is Standing.NEW and not batch.named)
        if (
            position is not None
            and compared
            and rules.is_same_batch(rules.fingerprint_of(position), own) is not True
        ):
            self.by_number.append(index)
        return stands, own

    def _where(self, found: FoundHead, head: LogHead) -> _Way | CommitEnded:
        """How a batch gets into a log, by who leads it."""
        batch, leader = self._batch, head.leader
        led = bool(leader.holder) or bool(head.open_items)
        if not led:
            return _Way.APPEND
        if batch.takeover:
            return _Way.TAKE
        who = f"host {leader.host or leader.holder}, term {leader.epoch}"
        if not (leader.holder and found.leader_alive):
            return CommitEnded(CommitOutcome.LEADER_GONE, detail=who)
        if not leader.adopts or batch.truncate:
            return CommitEnded(CommitOutcome.LEADER_LIVES, detail=who)
        return _Way.APPEND if self._rules.may_place_now(head) else _Way.ADOPT

    # --- takeover ----------------------------------------------------------------------------------------------

    def _fence(self) -> None:
        """Fence what an opener of the log would fence."""
        self._to(CommitStatus.FENCING)
        taken = zip(self._ways, self._found, strict=True)
        heads = [found.head for way, found in taken if way is _Way.TAKE and found.head is not None]
        items = self._fencing.begin(heads, RULES)
        self.out += [RecoverLedger(item) for item in items]
        if not items:
            self._store_heads()

    def recovered(self, ledger_id: LedgerId, summary: LedgerSummary) -> None:
        """A ledger is closed for good. Effects: CasHeads after the last one."""
        awaited = COMMIT.acts["recovered"][self.status] and ledger_id in self._fencing.waiting
        if awaited and self._fencing.done(ledger_id, summary):
            self._store_heads()

    def recovery_failed(self, ledger_id: LedgerId, *, deleted: bool, detail: str) -> None:
        """A ledger could not be closed; one that is deleted was truncated away since the head was read."""
        if not COMMIT.acts["recovery_failed"][self.status] or ledger_id not in self._fencing.waiting:
            return
        if self._fencing.failed(deleted=deleted, version=self._cas.version):
            self._read()
        else:
            self._end(CommitEnded(CommitOutcome.RECOVERY_FAILED, detail=f"ledger {ledger_id}: {detail}"))

    # --- the compare-and-swap ----------------------------------------------------------------------------------

    def _store_heads(self) -> None:
        changes: list[HeadChange] = []
        required: list[LogItem] = []
        for way, part, found in zip(self._ways, self._batch.parts, self._found, strict=True):
            if way in {_Way.NOTHING, _Way.REPLAYED}:
                continue
            assert found.head is not None
            try:
                head = self._changed(found.head, part, way)
            except MisuseError as error:
                self._end(CommitEnded(CommitOutcome.REFUSED, detail=error.message))
                return
            head, pages = paged(head, self._layout, self._name_page)
            changes.append(HeadChange(head, found.version, pages))
            required += part.items
        if not changes:
            self._finish()
            return
        self._to(CommitStatus.STORING)
        self._cas.write(())  # what is to be written is in the effect
        self.out.append(CasHeads(tuple(changes), tuple(required) if self._rules.requires_ledgers() else ()))

    def _changed(self, head: LogHead, part: Part, way: _Way) -> LogHead:
        """The head with the batch in it."""
        batch = self._batch
        if way is _Way.TAKE:
            head = self._fencing.completed(head)
            head = head.with_leader(Leader(head.leader.epoch + 1))
        if way is _Way.POSITION:
            pass
        elif way is _Way.ADOPT:
            adoption = Adoption(part.items, batch.query_id, batch.batch_id)
            head = replace(head, adoptions=(*head.adoptions, adoption) if part.items else head.adoptions)
        else:
            head = head.with_adoptions_placed()
            if batch.truncate:
                head = head.with_truncation(head.closed_end, head.closed_end, batch.now_ms)
            head = _with_closed(head, part.items)
        if batch.query_id:
            position = SinkPosition(
                batch.query_id,
                batch.batch_id,
                batch.now_ms,
                batch.incarnation,
                fingerprint=part.fingerprint,
            )
            head = with_position(head, position)
        return replace(head, generation=head.generation + 1)

    def stored(self) -> None:
        """The compare-and-swap is done. Effects: CommitEnded."""
        if COMMIT.acts["stored"][self.status]:
            self._cas.written(())
            self._finish(committed=True)

    def conflicted(self) -> None:
        """Another client changed a head first; or this commit did, and the response was lost. Effects: ReadHeads."""
        if COMMIT.acts["conflicted"][self.status]:
            self._read()

    def unknown(self) -> None:
        """The outcome of the compare-and-swap is unknown. Like a conflict: read again."""
        if not COMMIT.acts["unknown"][self.status]:
            return
        if self._rules.read_again_after_unknown():
            self._read()
        else:
            self._end(CommitEnded(CommitOutcome.REFUSED, detail="the store did not answer"))

    def ledger_missing(self) -> None:
        """A ledger of the batch is deleted. Effects: ReadHeads, once more: the batch may be in, and trimmed since."""
        if COMMIT.acts["ledger_missing"][self.status]:
            self._missing = True
            self._read()

    def _finish(self, *, committed: bool = False) -> None:
        for way, part in zip(self._ways, self._batch.parts, strict=True):
            if way is _Way.REPLAYED and part.items:
                self.out.append(DeleteUnlisted(part.log_id, part.items))
        mine = committed or any(
            way is _Way.NOTHING and part.items
            for way, part in zip(self._ways, self._batch.parts, strict=True)
        )
        replayed = _Way.REPLAYED in self._ways
        self._end(CommitEnded(CommitOutcome.COMMITTED if mine or not replayed else CommitOutcome.ALREADY))

    def _end(self, ended: CommitEnded) -> None:
        self._to(CommitStatus.ENDED)
        self.ended = ended
        self.out.append(ended)

    def check(self) -> None:
        """Assert what must hold between inputs."""
        for effect in self.out:
            if not isinstance(effect, CasHeads):
                continue
            for change in effect.changes:
                change.head.checked()
                position = change.head.sink_position(self._batch.query_id)
                assert not self._batch.query_id or (position and position.batch_id == self._batch.batch_id), (
                    "the sink position moves with the ledgers"
                )
        assert (self.status is CommitStatus.ENDED) == (self.ended is not None), "it ends once"


def _is_listed(head: LogHead, ledger_id: LedgerId) -> bool:
    """Whether the head itself names a ledger; its pages may."""
    if head.item(ledger_id) is not None:
        return True
    adopted = (item for adoption in head.adoptions for item in adoption.items)
    leaving = (item for intent in head.intents for item in intent.items)
    return any(item.ledger_id == ledger_id for item in (*adopted, *leaving))


def _with_closed(head: LogHead, items: Sequence[LogItem]) -> LogHead:
    """The list with closed ledgers at its end: their records get their offsets here."""
    for item in items:
        end = head.closed_end
        placed = replace(item, first_offset=end, next_offset=end + item.count, state=ItemState.CLOSED)
        head = head.with_item(placed)
    return head
