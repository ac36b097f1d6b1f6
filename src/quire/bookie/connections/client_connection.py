"""What all clients' connections have in common, whatever they speak: when they are read, and how responses leave.

A client that does not read its responses is not read either, and cut off after a while; so is one that leaves a frame
unfinished. What cannot be understood closes the connection with one log line.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from quire.bookie.config import BookieConfig
from quire.bookie.connections.admission import Admission
from quire.bookie.connections.polls import Polls
from quire.bookie.connections.response_back_pressure import ResponseBackPressure
from quire.bookie.identity.lease import IdentityLease
from quire.bookie.ledgers.digest_types import DigestTypes
from quire.bookie.ledgers.ledgers import Ledgers
from quire.bookie.ledgers.unknown_ledgers import RECORD_WAITS_MAX, WaitingClient
from quire.bookie.low_priority import LowPriorityQueue
from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError, StorageError
from quire.core.ids import BookieId
from quire.env.interfaces import Clock
from quire.net.connection_states import OPEN, ConnectionState
from quire.net.framing import FrameProtocol
from quire.net.receive_memory import ReceiveBudget, Scratch
from quire.net.security.settings import BookieKeys
from quire.net.security.tls import explain
from quire.storage.ledger_storage import LedgerStorage
from quire.wire import native
from quire.wire.addresses import address_of
from quire.wire.entry import Buffer
from quire.wire.frame_limits import OPTION
from quire.wire.native_info import InfoQuestion
from quire.wire.native_requests import plain_add
from quire.wire.plain_adds import SHORT_BYTES_MAX, AddRequest, PlainAdd

WRITE_BUFFER_BYTES = 256 * 1024
WRITE_BUFFER_LOW_BYTES = 192 * 1024
WAITING_BYTES_MAX = 1024 * 1024
"""While the identity lease is pending, a connection with more requests that wait is not read."""


class Serving(Protocol):
    """What connections need of their bookie; `BookieServer`, which stands above, is one."""

    bookie_id: BookieId
    cluster_instance: str
    boot: int
    config: BookieConfig
    clock: Clock
    keys: BookieKeys | None
    scratch: Scratch
    receive_budget: ReceiveBudget
    back_pressure: ResponseBackPressure
    admission: Admission[ClientConnection]
    low_priority: LowPriorityQueue
    ledgers: Ledgers
    storage: LedgerStorage
    digest_types: DigestTypes
    lease: IdentityLease
    reads_paused: bool

    def connected(self, connection: ClientConnection) -> bool:
        """A client came; False when there are too many already."""

    def disconnected(self, connection: ClientConnection) -> None:
        """A client has disconnected."""

    def ended(self, text: str, *args: object) -> None:
        """One line for a connection that is refused, or ends because of what its client did."""

    def put(self, connection: ClientConnection) -> None:
        """A connection has put entries."""

    def answering(self, connection: ClientConnection) -> None:
        """A connection has responses to send."""

    def admitted(self, size: int) -> None:
        """So many bytes are on their way to the disk."""

    def settled(self, size: int, *, low_priority: bool = False) -> None:
        """So many bytes are there, or failed."""

    def answer_for(self, error: StorageError) -> Answer:
        """The response to an add that could not be stored."""

    def answer_info(self, question: InfoQuestion, callback: Callable[[dict[str, Any]], None]) -> None:
        """Hand over what the bookie says of itself, at once or when that is found."""


class ClientConnection(FrameProtocol, WaitingClient):
    """A client's connection. Subclasses say what its requests are in `has_requests` and `_work`.

    Attributes:
        requests: what waits in our own protocol; short frames that look like adds are `bytes`.
        added: runs were handed to storage, which is to be flushed.
        terms: the client announced that its requests may have terms.
    """

    short_kind = int(native.Kind.ADD)
    terms = False

    def __init__(
        self, server: Serving, frame_bytes_max: int, state: ConnectionState, *, in_chunks: bool = False
    ) -> None:
        super().__init__(server.scratch, server.receive_budget, frame_bytes_max, state, in_chunks=in_chunks)
        self.server = self._server = server
        self._ledgers = server.ledgers
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self.requests: deque[memoryview | bytes] = deque()
        self.added = False
        self._stored: list[PlainAdd] = []
        self._peer = "?"
        self.polls = Polls(server.ledgers)
        self.not_read_since: float | None = None
        self.secure = False
        self._logged = False
        self._opening_timer: asyncio.TimerHandle | None = None
        self._kept: list[Buffer] = []
        self._waiting: list[Callable[[], None]] = []
        self._retries: deque[Callable[[], object]] = deque()
        self.waiting_bytes = 0
        self.is_newcomer = True

    def _serve_retries(self) -> None:
        """Serve the requests that had to wait for their client to read, as long as it does."""
        limit = self._server.config.answer_bytes_max
        while self._retries and self.not_read_since is None and not self._server.reads_paused:
            if self.record_waits >= RECORD_WAITS_MAX:
                break
            if self._out_bytes >= limit:
                self.send_answers()
            else:
                self._retries.popleft()()

    # --- for subclasses ------------------------------------------------------------------------------------------

    def has_requests(self) -> bool:
        """Whether requests wait that have come whole."""
        return bool(self.requests or self._retries)

    def drop_requests(self) -> None:
        """The client has disconnected: drop its requests."""
        raise NotImplementedError

    def _work(self) -> None:
        """Serve the requests that have arrived, as long as their responses have somewhere to go."""
        raise NotImplementedError

    # --- the connection ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        # A peer that has disconnected already has no address any more, and only a socket's has a port.
        if peer := transport.get_extra_info("peername"):
            self._peer = address_of(*peer[:2]) if len(peer) > 1 else str(peer)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES, low=WRITE_BUFFER_LOW_BYTES)
        if not self._server.connected(self):
            self.transport.abort()
        keys = self._server.keys
        if keys is not None and (keys.asks_names or not keys.allow_plain):
            self._opening_timer = asyncio.get_running_loop().call_later(
                self._server.config.opening_seconds, self._not_opened
            )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.opened()
        in_handshake = self._upgrading is not None and not self.secure
        if exc is not None and not self._logged and (in_handshake or isinstance(exc, ssl.SSLError)):
            self._server.ended("closing the connection of %s: %s", self._peer, explain(exc))
        self.drop_requests()
        self.polls.drop()
        self._out.clear()
        self._kept.clear()
        self._waiting.clear()
        self._retries.clear()
        self._server.back_pressure.done(self)
        self._server.low_priority.dropped(self)
        self._server.disconnected(self)

    # --- before its first request --------------------------------------------------------------------------------

    def opened(self) -> None:
        """The client has done what was asked of it, or has disconnected."""
        if self._opening_timer is not None:
            self._opening_timer.cancel()
            self._opening_timer = None

    def _not_opened(self) -> None:
        self._opening_timer = None
        if self.transport is not None:
            self._server.ended(
                "closing the connection of %s: %s", self._peer, "the client did not authenticate in time"
            )
            self._logged = True
            self.transport.abort()

    def has_asked(self) -> None:
        """The client has shown who it is, where that is asked, and makes its first request."""
        self.is_newcomer = False
        self._server.admission.has_asked(self)

    def make_room(self) -> None:
        """There are too many that have asked nothing, and this is the oldest of them."""
        self._server.ended(
            "closing the connection of %s: it has sent no request, and the connection limit is reached",
            self._peer,
        )
        self._logged = True
        if self.transport is not None:
            self.transport.abort()

    def take_tls(self) -> None:
        """The client was asked to begin TLS: its handshake comes next."""
        keys = self._server.keys
        assert keys is not None
        self.begin_tls(keys.context(), server_side=True, seconds=self._server.config.opening_seconds)

    def secured(self, transport: asyncio.Transport) -> None:
        super().secured(transport)
        self.secure = True
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES, low=WRITE_BUFFER_LOW_BYTES)
        if self._server.reads_paused:
            transport.pause_reading()

    def refused(self, why: str) -> None:
        """One line in the log about a client that is not served."""
        self._server.ended("refused %s: %s", self._peer, why)

    def refused_long(self, what: str, size: int) -> None:
        """One line in the log about a request that is longer than a frame may be; its client goes on."""
        self._server.ended(
            "refused %s of %s: its frame has %d bytes, the limit is %d (%s); split it, or raise the limit here and "
            "at the client",
            what, self._peer, size, self._frame_bytes_max, OPTION,
        )  # fmt: skip

    def no_request(self, size: int, why: str) -> MalformedFrameError:
        """What is wrong with a frame above the limit that cannot be refused alone."""
        msg = f"a frame of {size} bytes, the limit is {self._frame_bytes_max} ({OPTION}), cannot be answered: {why}"
        return MalformedFrameError(msg)

    # --- its end, and when it is read ------------------------------------------------------------------------------

    def broken(self, error: MalformedFrameError) -> None:
        self._server.ended("closing the connection of %s: %s", self._peer, error.message)

    def pause_writing(self) -> None:
        self.not_read_since = asyncio.get_running_loop().time()
        if self.transport is not None:
            self.transport.pause_reading()
            self._server.back_pressure.wait(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.not_read_since = None
        self._server.back_pressure.done(self)
        self._work()
        self.resume_reading()

    def is_congested(self) -> bool:
        """Whether the client has more to read already than is good: what it did not wait for can wait."""
        return self.not_read_since is not None or self._out_bytes >= self._server.config.answer_bytes_max

    def unless_congested(
        self, retry: Callable[[], object], callback: Callable[[Answer], None]
    ) -> Callable[[Answer], None]:
        """What to call when the event that a response waited for has happened: `callback`, if the client reads.

        Else `retry` serves the request, after those that wait, when it does: by then nothing is to be waited for.
        """

        def happened(answer: Answer) -> None:
            if not self.is_congested():
                callback(answer)
            elif self.transport is not None:
                self._retries.append(retry)
                asyncio.get_running_loop().call_soon(self.chunk_done)

        return happened

    def pause_reads(self) -> None:
        """Read no more for now: too much is on its way to the disk. A handshake goes on, up to `secured`."""
        if self.transport is not None and (self.secure or not self.upgrading):
            self.transport.pause_reading()

    def release(self) -> None:
        """There is room again."""
        self._work()
        self.resume_reading()

    def resume_reading(self) -> None:
        if self.transport is None or self.not_read_since is not None or self.waits or self.has_requests():
            return
        if not self._server.reads_paused:
            self.transport.resume_reading()

    def chunk_done(self) -> None:
        self._work()
        if self.has_requests() and self.transport is not None:
            self.transport.pause_reading()

    # --- while the identity lease is pending ------------------------------------------------------------------------

    def later(self, call: Callable[[], None], size: int = 0) -> None:
        """What is to be done when the identity lease is pending no more; `size` bytes stay in memory until then."""
        self._waiting.append(call)
        self.waiting_bytes += size

    def unless_deferred(self, callback: Callable[[Answer], None]) -> Callable[[Answer], None]:
        """What to call when something that an answer waited for has happened: `callback`, at the latest once nothing is deferred."""

        def happened(answer: Answer) -> None:
            if self._server.lease.pending:
                self.later(partial(callback, answer))
            else:
                callback(answer)

        return happened

    def defer_responses(self) -> None:
        """Keep the responses that are ready: they were made before it was known that this process did not run."""
        self.encode_stored()
        self._kept += self._out
        self._out, self._out_bytes = [], 0

    def send_deferred(self) -> None:
        """The identity lease is pending no more: send what was deferred, serve what waited, in its order."""
        if self.transport is None:
            return
        self._out[:0], self._kept = self._kept, []
        self._out_bytes = sum(map(len, self._out))
        waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
        if self._out:
            self._server.answering(self)
        for call in waiting:
            call()
        self.chunk_done()
        self.resume_reading()

    # --- responses -----------------------------------------------------------------------------------------------

    def has_ready(self, size: int) -> None:
        """Responses of about so many bytes are ready, which `encode_stored` encodes."""
        if not self._out_bytes:
            self._server.answering(self)
        self._out_bytes += size

    def send_answers(self) -> None:
        """Write all responses that are ready, in one go."""
        self.encode_stored()
        self._server.lease.look()
        out, self._out = self._out, []
        self._out_bytes = 0
        if not out or self.transport is None:
            return
        if self.secure:
            # Each buffer would be a TLS record of its own, with a header, a tag and a call of the library.
            self.transport.write(b"".join(out))
        else:
            self.transport.writelines(out)

    # --- short adds of our own protocol ------------------------------------------------------------------------------
    # Those that came together are served and answered together. Each is judged and stored in one step, in the order in
    # which they came. All other requests see the adds before them stored.

    def serve_frame(self, frame: memoryview) -> None:
        """Serve one request, where they come one by one."""
        raise NotImplementedError

    def answer_to(self, request: AddRequest, answer: Answer) -> None:
        """Answer an add that is not stored."""
        raise NotImplementedError

    def stored_alone(self, tag: Any, error: StorageError | None) -> None:
        """A run is durable, or failed, and has a response of its own."""
        raise NotImplementedError

    def take_short(self, data: memoryview, at: int) -> int:
        if self.state is OPEN:
            end, requests = len(data), self.requests
            while end - at >= native.REQUEST_BYTES and data[at + 4] == self.short_kind:
                size = 4 + int.from_bytes(data[at : at + 4], "big")
                if size > SHORT_BYTES_MAX or size > end - at:
                    break
                requests.append(bytes(data[at : at + size]))
                at += size
        return at

    def serve_adds(self, count_max: int) -> int:
        """Serve the next requests, so many at most, as long as they look like short adds; returns how many."""
        requests, server, count = self.requests, self._server, 0
        add_run, admitted, pending = self._ledgers.add, server.admitted, server.lease.pending
        terms = self.terms
        while count < count_max and requests and isinstance(frame := requests[0], bytes):
            requests.popleft()
            count += 1
            add = None if pending else plain_add(frame, terms=terms)
            if add is None:
                self.serve_frame(memoryview(frame))
            elif (answer := add_run(add, add, self, add)) is Answer.OK:
                self.added = True
                admitted(len(add.body))
            else:
                self.answer_to(add, answer)
            if server.reads_paused or self.record_waits >= RECORD_WAITS_MAX:
                break
        return count

    def stored(self, tag: Any, error: StorageError | None) -> None:
        """A run is durable: a plain add is answered with the others of this turn."""
        if error is not None or type(tag) is not PlainAdd or self._server.lease.pending:
            self.stored_alone(tag, error)
            return
        if not self._out_bytes:
            self._server.answering(self)
        self._out_bytes += native.ANSWER_BYTES
        self._stored.append(tag)

    def encode_stored(self) -> None:
        """Encode the responses to what is stored: before another response, or when they leave."""
        if not self._stored:
            return
        stored, self._stored = self._stored, []
        server = self._server
        server.settled(sum(len(add.body) for add in stored))
        followed = self._ledgers.followers.followed
        said = (
            (add.number, add.ledger_id, add.term, native.FOLLOWED if add.ledger_id in followed else 0)
            for add in stored
        )
        self._out.append(native.encode_added(said, server.storage.journal.durable_lsn))
