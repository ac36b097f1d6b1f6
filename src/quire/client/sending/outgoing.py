"""What a writer has handed over and still holds: runs on their way, and the bookies that they are on their way to.

A run counts against the window until it is settled (confirmed or failed) and, for every slot, sent or dropped: so a bookie
that stops reading cannot make memory grow past it. Until it is confirmed it lies in its bundle (`bundles.py`), or is held
here: a run that travels alone, or of which more is to be known. It must know neither the protocol nor metadata.

A run is sealed (its headers and digests are made) once, by `RunSealer`: one body for all slots, or one for each when
the ledger is striped. `ByteWindow` is the bound on the bytes that one writer holds, and the queue of those who wait for
room.

Source: BookKeeper protocol, "Write Quorums"; `docs/formats/run.md`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import compress, cycle
from typing import Final

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.client.sending.bundles import (
    RUN_BYTES_MAX,
    Bundle,
    Futures,
    HeldRun,
    LoopTurn,
    RunWriter,
    SealedRun,
    SlotConnection,
    Way,
)
from quire.core.errors import QuireError
from quire.core.ids import NO_ENTRY, BookieId, LedgerId
from quire.core.ledger.effects import SendRun
from quire.core.ledger.flush import UnacknowledgedCopies
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.quorum import stripes_of_slot
from quire.core.ledger.writer_state import Run
from quire.env.interfaces import Clock
from quire.wire.entry import HEADER_BYTES, TERM_HEADER_BYTES, EntryDigest
from quire.wire.requests import AddRun
from quire.wire.run import SCHEME_PLAIN, SCHEME_TERMS, checksum, encode_run, seal_plain_run

TABLE_BYTES: Final = 4
"""What an entry costs in a run's table."""


class RunSealer:
    """Seals the runs of ledgers with one digest and one pair of quorums, or of a stream in one term; see `sealer_of`.

    Attributes:
        striped: E > Qw, so that each slot has stripes of its own.
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
        "_seal",
        "_stripes",
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
        self._stripes = tuple(stripes_of_slot(slot, size, write_quorum) for slot in range(size))
        self.striped = size > write_quorum
        self._plain = not (self.striped or term) and digest.digest_type is DigestType.CRC32C
        self.entry_overhead = self._overhead + TABLE_BYTES
        self.copies = write_quorum if self.striped else 1

    def seal(
        self, ledger_id: LedgerId, first: int, lac: int, length_before: int, payloads: list[bytes]
    ) -> Sequence[SealedRun | None]:
        """The bodies of a run with consecutive ids.

        Args:
            ledger_id: whose.
            first: the first entry's id.
            lac: the LAC of all headers.
            length_before: payload bytes of the ledger before the first entry.
            payloads: the entries' payloads, in order.

        Returns:
            One for each slot, None where the slot stores nothing of the run; one for all slots when not striped.
        """
        if self._plain:
            body = seal_plain_run(ledger_id, first, lac, length_before, payloads)
            return ((body, checksum(body)),)
        headers = self._seal(ledger_id, first, lac, length_before, payloads)
        if not self.striped:
            return [self._seal_run(ledger_id, first, first + len(payloads) - 1, headers, payloads, 1, 1)]
        count, size = len(payloads), self._ensemble_size
        bodies: list[SealedRun | None] = []
        for stripes in self._stripes:
            pattern = [stripes >> (first + offset) % size & 1 for offset in range(size)]
            ends = (*range(min(count, size)), *range(max(0, count - size), count))
            mine = [offset for offset in ends if pattern[offset % size]]
            bodies.append(
                self._seal_run(
                    ledger_id,
                    first + mine[0],
                    first + mine[-1],
                    list(compress(headers, cycle(pattern))),
                    list(compress(payloads, cycle(pattern))),
                    size,
                    stripes,
                )
                if mine
                else None
            )
        return bodies

    def _seal_run(
        self,
        ledger_id: LedgerId,
        first: int,
        last: int,
        headers: Sequence[bytes],
        payloads: Sequence[bytes],
        period: int,
        stripes: int,
    ) -> SealedRun:
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
            stripes=stripes,
            origin_term=self._term,
            scheme=SCHEME_TERMS if self._term else SCHEME_PLAIN,
        )
        return body, checksum(body)


@lru_cache(maxsize=256)
def sealer_of(digest: EntryDigest, size: int, write_quorum: int, term: int = 0) -> RunSealer:
    """Shared by all ledgers with this digest and these quorums."""
    return RunSealer(digest, size, write_quorum, term)


class _Waiter:
    """A caller that waits for room; `granted` from the grant until its task runs again."""

    __slots__ = ("cost", "future", "granted")

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.granted = False


_NOBODY: Final[deque[_Waiter]] = deque()
"""Shared by all windows without waiters. Never changed."""


class ByteWindow:
    """Counts bytes against a limit; something larger than the limit is let in alone.

    Attributes:
        used_bytes: what is held or reserved now.
        limit_bytes: how much may be.
        waiters: who waits, first come first served; read only, by the hot path. A waiter with a grant stays in it until
            its task runs, so that no later caller overtakes it.

    Args:
        limit_bytes: how much may be held.
    """

    __slots__ = ("limit_bytes", "used_bytes", "waiters")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.waiters = _NOBODY

    def reserve(self, cost: int) -> bool:
        """Take room if there is any now and no caller waits for it."""
        if self.waiters or not self._fits(cost):
            return False
        self.used_bytes += cost
        return True

    async def room(self, cost: int) -> None:
        """Take room, waiting for it in the order of the calls.

        Raises:
            QuireError: why the writer ended meanwhile.
        """
        if self.reserve(cost):
            return
        waiter = _Waiter(cost)
        if self.waiters is _NOBODY:
            self.waiters = deque()
        self.waiters.append(waiter)
        try:
            await waiter.future
        except asyncio.CancelledError:
            self._leave(waiter)
            self.give_back(cost if waiter.granted else 0)
            raise
        self._leave(waiter)
        if self.waiters and not self.waiters[0].granted:
            self.give_back(0)  # who came after the granted ones may have room, too

    def give_back(self, cost: int) -> None:
        """Free room, and let those in who fit now, in the order in which they came."""
        self.used_bytes -= cost
        for waiter in self.waiters:
            if waiter.granted or waiter.future.done():
                continue
            if not self._fits(waiter.cost):
                break
            self.used_bytes += waiter.cost
            waiter.granted = True
            waiter.future.set_result(None)

    def end(self, error: QuireError) -> None:
        """Refuse all waiters and later callers."""
        waiters, self.waiters = self.waiters, _NOBODY
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)

    def _leave(self, waiter: _Waiter) -> None:
        if waiter in self.waiters:  # not after the end
            self.waiters.remove(waiter)

    def _fits(self, cost: int) -> bool:
        return self.used_bytes + cost <= self.limit_bytes or not self.used_bytes


class HeldRuns(dict[int, HeldRun]):
    """The runs that a writer holds, by their numbers, ascending. Between them are those that were confirmed in bundles."""

    __slots__ = ("_oldest", "_unconfirmed", "_unsettled")

    def __init__(self) -> None:
        # oldest <= unsettled (may be sent again) <= unconfirmed (callers wait for it)
        self._oldest = self._unsettled = self._unconfirmed = 0

    def put(self, run: HeldRun) -> None:
        """Hold a run, the newest one."""
        if run.number - 1 not in self:  # the one before it was confirmed in its bundle, and so all before it
            self._unsettled = self._unconfirmed = run.number
        self[run.number] = run

    def confirm(self, last: int, *, keep: bool) -> None:
        """Complete the futures of all runs up to an entry; with `keep` they are held for resending until `leave`."""
        first = number = self._unconfirmed
        while (run := self.get(number)) is not None and run.last <= last:
            for entry_id, future in enumerate(run.futures, run.first):
                if future is not None and not future.done():
                    future.set_result(entry_id)
            run.futures = ()
            run.settled = not keep
            number += 1
        self._unconfirmed = number
        if not keep and self._unsettled == first:
            self._unsettled = number

    def leave(self, last: int) -> None:
        """The confirmed runs up to an entry are not sent again."""
        while self._unsettled < self._unconfirmed and self[self._unsettled].last <= last:
            self[self._unsettled].settled = True
            self._unsettled += 1

    def settle(self, following: int) -> None:
        """Nothing is sent again; `following` is the number that the next run would have."""
        for run in self.values():
            run.settled = True
        self._unsettled = self._unconfirmed = following

    def drop(self, has_left: Callable[[HeldRun], bool]) -> int:
        """Hold no more what is settled, and has left for every slot; returns what it cost."""
        freed = 0
        while self:
            run = self.get(self._oldest)
            if run is None:
                self._oldest = next(iter(self))
                continue
            if not (run.settled and has_left(run)):
                break
            freed += run.cost
            del self[self._oldest]
            self._oldest += 1
        if not self:
            self.clear()  # an emptied dict keeps its table
        return freed

    @property
    def waiting(self) -> Iterator[tuple[int, asyncio.Future[int]]]:
        """(entry id, future) of all callers that still wait."""
        for run in self.values():
            yield from run.waiting()


class Outgoing:
    """The runs and connections of one writer.

    Args:
        access: id, master key, token and digest sent with every request for this ledger.
        bookies: the connections.
        window: what the held runs count against.
        config: sizes and times.
        ensemble: the bookies at the start.
        writer: receives each bookie's response to each run.
        clock: monotonic time.
        turn: its end, and the lanes of bundles.
        bundled_quorum: the ack quorum of a ledger whose runs may travel in bundles; 0 of others.

    Attributes:
        access, writer: see above.
        bundled_quorum: see above.
        retired: nothing more is sent.
    """

    __slots__ = (
        "_bookies",
        "_bundle",
        "_bundled_bytes",
        "_clock",
        "_config",
        "_connections",
        "_ensemble",
        "_held",
        "_in_bundles",
        "_looked_ms",
        "_sent",
        "_turn",
        "_way",
        "_window",
        "access",
        "bundled_quorum",
        "explicit_lac",
        "retired",
        "writer",
    )

    def __init__(
        self,
        access: LedgerAccess,
        bookies: BookieClient,
        window: ByteWindow,
        config: ClientConfig,
        ensemble: tuple[BookieId, ...],
        writer: RunWriter,
        clock: Clock,
        turn: LoopTurn,
        bundled_quorum: int,
    ) -> None:
        self.access = access
        self._bookies = bookies
        self._window = window
        self._config = config
        self._ensemble = ensemble
        self.writer = writer
        self._clock = clock
        self._turn = turn
        self._connections: tuple[SlotConnection, ...] = ()
        self.bundled_quorum = bundled_quorum
        self._way: Way | None = None
        self._bundle: Bundle | None = None  # that the last run of those went with
        self.retired = False
        self.explicit_lac: int = NO_ENTRY  # all bookies, while nothing is known of single ones
        self._bundled_bytes = 0  # of all runs that ever were in bundles
        self._looked_ms = 0  # when it was last looked for slow connections
        self._in_bundles = 0  # unconfirmed runs that lie in bundles: all are later than those that are held
        self._held = HeldRuns()
        self._sent = -1  # the last run that was sent for the first time

    @property
    def sends_alone(self) -> bool:
        """Whether something is held, or not acknowledged by a bookie, that does not travel in a bundle."""
        return any(run.bundle is None or not run.bundle.together for run in self._held.values()) or any(
            connection.unacked and not connection.retired for connection in self._connections
        )

    @property
    def is_unacknowledged(self) -> bool:
        """Whether a bookie has not acknowledged something that it was sent."""
        bundle = self._bundle
        return (bundle is not None and bundle.together and not bundle.is_complete) or any(
            connection.unacked and not connection.retired for connection in self._connections
        )

    # --- runs --------------------------------------------------------------------------------------------------------

    def add(
        self, number: int, run: Run, bodies: Sequence[SealedRun | None], futures: Futures, cost: int
    ) -> None:
        """Hold a new run of a ledger whose runs travel alone, which `send` is to give to bookies.

        Its cost is already in the window.
        """
        self.hold(HeldRun(number, run, bodies, futures, cost))

    def send(self, effect: SendRun) -> None:
        """Give a run to the bookies at some slots, each its stripes."""
        if effect.run <= self._sent:
            self.leave_bundles()
        else:
            self._sent = effect.run
        self._send(self._held[effect.run], effect.slots, effect.lac, effect.lafr)

    def send_new(
        self,
        number: int,
        run: Run,
        sealed: SealedRun,
        futures: Futures,
        cost: int,
        slots: tuple[int, ...],
    ) -> None:
        """Give a new run to the bookies at some slots, with those of other ledgers at the end of the turn if it may.

        For ledgers whose runs have the same body for all slots, and may travel in bundles.
        """
        self._sent = number
        bundle = self._bundle
        if bundle is not None and bundle.is_open:
            bundle.leave()  # what is sent now does not overtake the ledger's last run
        if self._connections and self._in_bundles:
            self._hold_all()
        if slots and len(sealed[0]) <= RUN_BYTES_MAX:
            way = self._way
            if way is None or way.sent_to != slots:
                self.leave_bundles()
                way = self._way = self._turn.way(self._ensemble, slots, self.bundled_quorum)
            lane = way.lane
            bundle = lane.open
            if bundle is None or not bundle.put(self, number, run, sealed, futures, cost, way):
                bundle = lane.next_bundle()
                if bundle is not None:
                    bundle.put(self, number, run, sealed, futures, cost, way)
            if bundle is not None:
                self._bundle = bundle
                self._in_bundles += 1
                self._bundled_bytes += len(sealed[0])
                if self._connections:  # what single bookies answer may matter
                    bundle.hold()
                return
        self._hold_all()
        self.hold(HeldRun(number, run, (sealed,), futures, cost))
        self._send(self._held[number], slots, run[2])

    def send_alone(self, number: int, slots: Sequence[int]) -> None:
        """Send a run that is held as a plain ADD: its bundle had no other."""
        held = self._held[number]
        held.bundle = None
        for sealed in held.bodies:
            assert sealed is not None  # one, for all slots
            self._bundled_bytes -= len(sealed[0])
        self._send(held, slots, held.lac)

    def _send(self, held: HeldRun, slots: Sequence[int], lac: int, lafr: int = NO_ENTRY) -> None:
        access, bookies, timeout_ms = self.access, self._bookies, self._config.add_timeout_ms
        connections, bodies = self._connections or self._make_connections(), held.bodies
        run, entries, shared = held.number, (held.first, held.last), len(bodies) == 1
        request: AddRun | None = None
        for slot in slots:
            if request is None or not shared:
                sealed = bodies[0 if shared else slot]
                assert sealed is not None
                body, body_crc = sealed
                request = AddRun(access, body, body_crc, lac, term=access.term, lafr=lafr)
            connection = connections[slot]
            connection.sent_bytes += len(body)
            connection.sent_runs += 1
            connection.unacked[run] = entries
            if not connection.retired and not bookies.add_run(
                connection.bookie, request, connection, run, timeout_ms
            ):
                held.marks = (*held.marks, (connection, connection.sent_bytes))
        self.writer.look_after()

    # --- runs in bundles ---------------------------------------------------------------------------------------------

    def confirm_bundled(
        self, slots: int, ensemble: tuple[BookieId, ...], number: int, run: Run, futures: Futures, cost: int
    ) -> bool:
        """Confirm a run in its bundle, if that is all that its acknowledgements mean.

        If not, it is held from now on: its bundle may be over before it is confirmed, since an ensemble change is under way,
        or an earlier run lacks its quorum.
        """
        if self._connections or not self.writer.confirm_head(slots, ensemble, number):
            self._hold_all()
            return False
        self._in_bundles -= 1
        if isinstance(futures, list):
            for entry_id, future in enumerate(futures, run[0]):
                if future is not None and not future.done():
                    future.set_result(entry_id)
        elif futures is not None and not futures.done():
            futures.set_result(run[0])
        window = self._window
        if window.waiters:
            window.give_back(cost)
        else:
            window.used_bytes -= cost
        self.writer.head_confirmed()
        return True

    def hold(self, run: HeldRun) -> None:
        """Hold a run that lay in its bundle, or travels alone: all that are held were sent before it."""
        if run.bundle is not None:
            self._in_bundles -= 1
        self._held.put(run)

    def _hold_all(self) -> None:
        """Hold every run that lies in a bundle: something is to be done about one of them."""
        if self._in_bundles:
            assert self._way is not None
            self._way.lane.hold_of(self)

    def on_its_own(
        self, number: int, run: Run, way: Way, lacking: Sequence[bool]
    ) -> Sequence[SlotConnection]:
        """A run's bundle is dissolved: note which bookies of the lane have not stored it, and look after them.

        Returns:
            Its bookies, in the lane's order.
        """
        found, (first, last, _, _) = [], run
        connections = self._connections or self._make_connections()
        for slot, lacks in zip(way.slots, lacking, strict=True):
            connection = connections[slot]
            connection.sent_runs += 1
            if lacks:
                connection.unacked[number] = (first, last)
            else:
                connection.answers += 1
            found.append(connection)
        self.writer.look_after()
        return found

    def leave_bundles(self) -> None:
        """Something happens to this ledger alone: what its bookies answer reaches it run by run from now on."""
        if self._bundle is not None:
            bundle, self._bundle = self._bundle, None
            bundle.lane.dissolve(bundle)

    def copied(self, number: int, size: int) -> None:
        """So many bytes of a run are in memory once more until its frame has left: it costs them too."""
        self._window.used_bytes += size
        if (held := self._held.get(number)) is not None:
            held.cost += size

    def give_up_bundles(self, bookie: BookieId) -> None:
        """A bookie does not keep up: frames with runs of this writer that it has not taken leave its queue, for all."""
        self._hold_all()
        for run in list(self._held.values()):
            if run.bundle is not None:
                run.bundle.give_up(bookie)

    def _bytes_in_bundles(self, bookie: BookieId) -> int:
        """Bytes of this writer's runs in bundles that a bookie's connection has not taken."""
        self._hold_all()
        return sum(
            len(sealed[0])
            for run in self._held.values()
            if run.bundle is not None and run.bundle.waits_for(bookie)
            for sealed in run.bodies
            if sealed is not None
        )

    def confirm(self, last: int, *, keep: bool) -> None:
        """Complete the futures of all runs up to an entry; with `keep` they are held for resending until `leave`."""
        if self._in_bundles:
            self._hold_all()
        self._held.confirm(last, keep=keep)
        self.release()

    def leave(self, last: int) -> None:
        """The confirmed runs up to an entry are not sent again."""
        self._held.leave(last)
        self.release()

    def futures(self) -> list[asyncio.Future[int]]:
        """Those of all unconfirmed runs."""
        self._hold_all()
        return [future for _, future in self._held.waiting]

    def fail(self, error: Callable[[int], BaseException]) -> None:
        """Fail the futures of all unconfirmed runs; `error` makes the exception for an entry."""
        self._hold_all()
        for entry_id, future in self._held.waiting:
            future.set_exception(error(entry_id))
        self.settle_all()

    def settle_all(self) -> None:
        """Nothing is sent again."""
        self._hold_all()
        self._held.settle(self._sent + 1)
        self.release()

    def release(self) -> None:
        """Take runs out of the window that are settled and, for every slot, sent or dropped."""
        freed = self._held.drop(self._has_left)
        if freed or self._window.waiters:
            self._window.give_back(freed)

    def _has_left(self, run: HeldRun) -> bool:
        if run.bundle is not None and not run.bundle.is_taken:
            return False
        for connection, mark in run.marks:
            if connection.written_bytes < mark and not self._was_sent(connection, mark):
                return False
        return True

    def _was_sent(self, connection: SlotConnection, mark: int) -> bool:
        if connection.retired:
            return True
        connection.written_bytes = connection.sent_bytes - self._bookies.unsent_bytes(
            connection.bookie, connection
        )
        return connection.written_bytes >= mark

    # --- connections -------------------------------------------------------------------------------------------------

    @property
    def connections(self) -> tuple[SlotConnection, ...]:
        """The bookies at all slots."""
        return self._connections or self._make_connections()

    def connection_at(self, slot: int) -> SlotConnection:
        """The bookie at a slot."""
        return self.connections[slot]

    @property
    def all_sent(self) -> bool:
        """Whether bookies were sent all that they have not acknowledged: it reaches them also if this process ends."""
        self.leave_bundles()
        bookies = self._bookies
        return all(
            bookies.all_sent(connection.bookie, connection) and not self._bytes_in_bundles(connection.bookie)
            for connection in self._connections
            if connection.unacked and not connection.retired
        )

    @property
    def lags(self) -> bool:
        """Whether the same acknowledgement of a bookie has been outstanding since the last check."""
        if self._bundle is not None and not self._bundle.is_open:
            self.leave_bundles()
        return any(
            connection.oldest in connection.unacked
            for connection in self._connections
            if not connection.retired
        )

    def unacknowledged(
        self, now_ms: int, timeout_ms_of: Callable[[BookieId], int]
    ) -> list[UnacknowledgedCopies]:
        """What bookies were sent and have not acknowledged; `timeout_ms_of` says how long one may be silent."""
        self.leave_bundles()
        for connection in self._connections:
            self.moves(connection, now_ms)
        return [
            UnacknowledgedCopies(
                connection.slot,
                connection.bookie,
                connection.unacked,
                connection.oldest_ms if next(iter(connection.unacked)) == connection.oldest else now_ms,
                timeout_ms_of(connection.bookie),
            )
            for connection in self._connections
            if connection.unacked and not connection.retired
        ]

    def moves(self, connection: SlotConnection, now_ms: int) -> bool:
        """Whether a bookie that takes entries one by one has answered some since the last call."""
        before = connection.entries_answered
        connection.entries_answered = self._bookies.entries_answered(connection.bookie)
        if connection.entries_answered == before:
            return False
        connection.oldest_ms = now_ms  # another entry is the oldest that is outstanding
        return True

    def rest(self) -> None:
        """Drop the connections if they hold no state: no bookie failed, and every request has its response."""
        if not self.sends_alone and not any(
            connection.retired or connection.answers < connection.sent_runs
            for connection in self._connections
        ):
            self._connections = ()

    def _make_connections(self) -> tuple[SlotConnection, ...]:
        now_ms = self._clock.now_ms()
        self._connections = tuple(
            SlotConnection(self.writer, slot, bookie, now_ms) for slot, bookie in enumerate(self._ensemble)
        )
        for connection in self._connections:
            connection.explicit_lac = self.explicit_lac
        return self._connections

    @property
    def has_places(self) -> bool:
        """Whether anything is known of single bookies; nothing is while all runs travel in bundles."""
        return bool(self._connections)

    def bookies_without_lac(
        self, lac: int, slots: Sequence[int], takes: Callable[[BookieId], bool]
    ) -> tuple[BookieId, ...]:
        """The bookies at some slots that were not sent this LAC: those that take it in a frame of many are sent it now."""
        if self._connections:
            found = [self._connections[slot] for slot in slots]
            found = [
                each for each in found if each.explicit_lac != lac and not each.retired and takes(each.bookie)
            ]
            for connection in found:
                connection.explicit_lac = lac
            return tuple([connection.bookie for connection in found])
        if self.explicit_lac == lac:
            return ()
        self.explicit_lac = lac
        return self._ensemble  # no bookie has failed, or is absent

    def retire(self, slot: int) -> None:
        """The bookie at a slot gets nothing more, and its responses are ignored."""
        self.leave_bundles()
        connection = self.connection_at(slot)
        if not connection.retired:
            connection.retired = True
            self._bookies.drop(connection.bookie, connection)
            self._bookies.forget(connection)

    def retire_all(self) -> None:
        """The writer is done."""
        self._hold_all()  # an open bundle drops what is retired
        self.retired = True
        self.leave_bundles()
        for connection in self._connections:
            if connection.answers < connection.sent_runs:
                self.retire(connection.slot)
            connection.retired = True
        self.release()

    def renew(self, slot: int, bookie: BookieId) -> None:
        """A bookie takes a slot, or comes back to it."""
        self.retire(slot)
        fresh = SlotConnection(self.writer, slot, bookie, self._clock.now_ms())
        self._connections = (*self._connections[:slot], fresh, *self._connections[slot + 1 :])
        self._way = None
        self._ensemble = tuple(connection.bookie for connection in self._connections)

    def slow_places(self) -> list[SlotConnection]:
        """Connections with too many unsent bytes and no sign of life, while another moves.

        Without this a stopped bookie would fill the window and stall the writer until its add timeout. When no bookie
        makes progress, none is at fault: then it is this side.
        """
        config, window, now_ms = self._config, self._window, self._clock.now_ms()
        # Nothing is known of the time in which it did not look: all begin anew.
        anew = now_ms - self._looked_ms > config.slow_after_ms
        self._looked_ms = now_ms
        slow: list[SlotConnection] = []
        moving = False
        for connection in self.connections:
            if connection.retired:
                continue
            oldest = next(iter(connection.unacked), None)
            if oldest != connection.oldest:
                connection.oldest, connection.oldest_ms = oldest, now_ms
            unsent = self._bookies.unsent_bytes(connection.bookie, connection) + self._bytes_in_bundles(
                connection.bookie
            )
            passed = connection.sent_bytes + self._bundled_bytes
            seen = (
                passed - unsent + connection.answers
            )  # what was sent and what was answered only rise: the sum moves if one does
            if anew or not unsent or seen != connection.seen or self.moves(connection, now_ms):
                connection.seen, connection.moved_ms = seen, now_ms
                moving = True
            elif now_ms - connection.moved_ms >= config.slow_after_ms and (
                unsent >= config.slot_unsent_bytes_max or 2 * window.used_bytes >= window.limit_bytes
            ):
                slow.append(connection)
        return slow if moving else []
