"""What gives bytes of a disk back while requests go on: segments in which nothing lives, sparse ones, old tombstones.

The caller sets the pace: all of it is done in slices, and the caller pauses between two.

Source: docs/protocol/collection.md, "A pass"; docs/operations.md, "How space comes back".
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

from quire.storage.journal import Journal
from quire.storage.reclaiming.compaction import Compactor, sparse_share
from quire.storage.reclaiming.measuring import LedgerRange, SpaceMeter
from quire.storage.reclaiming.reclaim import Reclaimer
from quire.storage.reclaiming.tombstones import TombstoneShrinker
from quire.storage.slices import Result, run_through
from quire.storage.space_reasons import Reason
from quire.storage.states import DUE_MS, States


class Housekeeping:
    """A storage's own; nothing is begun once it is closed.

    Args:
        reclaimer: gives segments back.
        compactor: relocates what lives in sparse ones.
        shrinker: of tombstones.
        meter: says what holds the space.
        states: the ledgers.
        journal: knows whether the disk is full.
    """

    def __init__(
        self,
        reclaimer: Reclaimer,
        compactor: Compactor,
        shrinker: TombstoneShrinker,
        meter: SpaceMeter,
        states: States,
        journal: Journal,
    ) -> None:
        self.reclaimer = reclaimer
        self.compactor = compactor
        self._shrinker = shrinker
        self._meter = meter
        self._states = states
        self._journal = journal

    @property
    def closed(self) -> bool:
        """The storage was closed."""
        return self.reclaimer.closed

    def close(self) -> None:
        """Begin nothing more."""
        self.reclaimer.closed = True

    def set_pace(
        self, rest: Callable[[float, int], float], later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        """Set how the space of files is freed: without this, as fast as the disk can.

        Args:
            rest: how many seconds to rest after so many that a part took while so many files waited.
            later: calls something after so many seconds.
        """
        self.reclaimer.rest, self.reclaimer.later = rest, later

    def reclaim(self) -> int:
        """Retire segments in which nothing lives; their files are used again. Returns how many this call retires.

        It holds the loop for as long as that takes; see `reclaim_slices`.
        """
        return 0 if self.closed else run_through(self.reclaimer.steps(patient=False))

    def reclaim_slices(self) -> Generator[None, None, int]:
        """What `reclaim` does, in slices: the caller pauses at each `yield`, and may put anything meanwhile."""
        return (yield from self._while_open(self.reclaimer.steps(patient=True), 0))

    def compact_slices(
        self, free_share: float, room: int | None = None, is_over: Callable[[], bool] = lambda: False
    ) -> Generator[None, None, int]:
        """Relocate what lives in sparse segments, so that `reclaim_slices` can give them back, in slices.

        Args:
            free_share: of the disk, 0 to 1: with much free nothing is relocated.
            room: about so many bytes are relocated at most, or one segment's; the caller gives back, and calls again.
            is_over: whether to end at the next pause; what was relocated stays so.

        Returns:
            Of how many segments all was relocated.
        """
        steps = self.compactor.steps(self._left(free_share), room, is_over)
        return (yield from self._while_open(steps, 0))

    def sparse_share(self, free_share: float) -> float:
        """How much of a segment may live for `compact_slices` to take it; 0: it takes none."""
        return sparse_share(self._left(free_share))

    def _left(self, free_share: float) -> float:
        return 0.0 if self._journal.full else free_share

    @property
    def file_bytes(self) -> int:
        """The size of all the segments' files, of which `space_slices` says what holds it."""
        return self._meter.file_bytes(self.reclaimer.returning)

    def space_slices(
        self, among_live: Mapping[Reason, Iterable[LedgerRange]]
    ) -> Generator[None, None, dict[Reason, int]]:
        """What holds the bytes of the segments' files, in slices.

        Args:
            among_live: entries that live here and are to go, or may have to.

        Returns:
            Bytes by reason; nothing if the storage is closed meanwhile.
        """
        reclaimer = self.reclaimer
        steps = self._meter.steps(among_live, self.compactor.stays, reclaimer.returning, reclaimer.pinned)
        nothing: dict[Reason, int] = {}
        return (yield from self._while_open(steps, nothing))

    @property
    def first_tombstone_ms(self) -> int:
        """When the first tombstone may shrink, by the wall clock; 0: there is none."""
        return min(self._states.due, default=0) * DUE_MS

    def shrink_tombstones(self, wall_ms: int) -> Iterator[list[int]]:
        """Shrink the tombstones whose time has passed, in slices: the caller pauses at each `yield`.

        A deleted ledger refuses nothing from then on; its entries stay dead, and what kept them so goes with them.

        Args:
            wall_ms: the wall clock.

        Yields:
            The ledgers of a slice, for other tables of deleted ledgers. On a full or failed disk it ends early,
            and a later call goes on.
        """
        for ledger_ids in self._shrinker.steps(wall_ms):
            yield ledger_ids
            if self.closed:
                return

    def _while_open(
        self, steps: Generator[None, None, Result], otherwise: Result
    ) -> Generator[None, None, Result]:
        """Take steps until they end, or the storage is closed; returns what they do, or what is said for that case."""
        while not self.closed:
            try:
                next(steps)
            except StopIteration as end:
                result: Result = end.value
                return result
            yield
        return otherwise
