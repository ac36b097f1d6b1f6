"""One client's connection to a bookie: frames in, decisions by `Ledgers`, responses out in one write per turn.

A client that speaks something else is handed to a `BookKeeperConnection` with its first bytes.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from quire.bookie.connections.bookkeeper_connection import BookKeeperConnection
from quire.bookie.connections.bundle_requests import BundledRows, BundleRequests
from quire.bookie.connections.client_connection import WAITING_BYTES_MAX, ClientConnection, Serving
from quire.bookie.connections.opening import NativeHandshake
from quire.bookie.ledgers.unknown_ledgers import RECORD_WAITS_MAX, Fetched
from quire.core.answers import Answer
from quire.core.errors import AuthenticationError, MalformedFrameError, StorageError
from quire.core.ids import NO_ENTRY
from quire.net.connection_states import AUTHENTICATING, FIRST, HELLO, OPEN, SECURING, SHUT
from quire.net.ends import has_one_address
from quire.net.keepalive import keep_alive
from quire.net.security.sasl import PLUGIN
from quire.storage.slices import Slice
from quire.wire import native, native_bodies, native_hello, native_info
from quire.wire.entry import Buffer
from quire.wire.native import Flag, Kind, Request
from quire.wire.native_bodies import Asked, LongPollBody, ReadBody, asked_of
from quire.wire.native_info import InfoQuestion
from quire.wire.plain_adds import AddRequest
from quire.wire.run import RunView

BOOKKEEPER_FIRST_BYTES = 0x80
"""A length of V2 or V3 begins with a byte below this, a hello does not."""
_YIELDING = frozenset({Kind.ADD, Kind.READ})
_FLAGS = Flag.LOW_PRIORITY | Flag.FENCE
_SHOWING = frozenset({Kind.READ, Kind.READ_LAC, Kind.LONG_POLL, Kind.INFO})
REQUESTS_A_LOOK = 64
"""So many requests are served between two looks at the clock."""
TURN_NS = 10_000_000
"""With requests left after this long, the other connections have their turn."""
_BUNDLE = bytes([Kind.ADD_BUNDLE])
READ_BYTES = 1024
"""What a read that waits may keep in memory, about."""


class Connection(ClientConnection):
    """A client's connection, from its hello to its end."""

    too_long_head_bytes = native.REQUEST_BYTES

    def __init__(self, server: Serving) -> None:
        super().__init__(server, server.config.frame_limits.native, FIRST)
        self._deferred: list[memoryview] = []
        self._colocated = False
        self._handshake: NativeHandshake | None = None
        self._bundles = BundleRequests(self)

    # --- the connection ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        keep_alive(transport)
        # The opening is to come soon, as the rest of a frame is.
        self.partial_since = asyncio.get_running_loop().time()

    def is_taken_over(self, start: memoryview) -> bool:
        """A client without a hello speaks V2 or V3."""
        if start[0] >= BOOKKEEPER_FIRST_BYTES or self.transport is None:
            self.enter(HELLO)
            return False
        self.enter(SHUT)
        transport, self.transport = self.transport, None
        self.opened()  # the protocol's own connection has its own clock
        other = BookKeeperConnection(self._server)
        self._budget.leave(self)
        self._server.disconnected(self)
        transport.set_protocol(other)
        other.connection_made(transport)
        other.take_over(start)
        return True

    def hello_received(self, body: memoryview) -> None:
        hello = native_hello.decode_hello(body)
        server = self._server
        answer, message, features = Answer.OK, "", 0
        if self._handshake is None and server.keys is not None:
            self._handshake = NativeHandshake(self, server.keys)
        if self._handshake is not None:
            if self._handshake.starts_tls(hello):
                version = native_hello.version_with(hello) or native_hello.VERSION_MIN
                self._greet(
                    native_hello.HelloAnswer(version, Answer.OK, "", "", features=native_hello.START_TLS)
                )
                self.enter(SECURING)
                self.take_tls()
                return
            message, features = self._handshake.judge(hello)
        version = native_hello.version_with(hello)
        self.terms = bool(hello.features & native_hello.TERMS)
        if message:
            answer = Answer.UNAUTHORISED
        elif not version:
            answer, message = Answer.BAD_REQUEST, native_hello.refusal(hello)
        elif hello.auth_scheme not in {"", PLUGIN}:
            answer = Answer.UNAUTHORISED
            message = f"auth scheme {native_hello.shown(hello.auth_scheme)} is unknown to this bookie"
        elif hello.bookie_id and hello.bookie_id != server.bookie_id:
            answer = Answer.WRONG_BOOKIE
            message = f"this is bookie {server.bookie_id}, not {native_hello.shown(hello.bookie_id)}"
        elif hello.cluster_instance and hello.cluster_instance != server.cluster_instance:
            answer = Answer.WRONG_BOOKIE
            meant = native_hello.shown(hello.cluster_instance)
            message = f"bookie {server.bookie_id} is of cluster {server.cluster_instance}, not {meant}"
        version = version if answer is Answer.OK else 0
        features |= native_hello.OFFERED
        self._colocated = self._is_colocated()
        if self._colocated:
            features |= native_hello.COLOCATED
        ids = ("", "") if answer is Answer.UNAUTHORISED else (server.bookie_id, server.cluster_instance)
        features = features if version else 0
        self._greet(native_hello.HelloAnswer(version, answer, *ids, message, features, server.boot))
        if version == 0:
            self.refused(message)
            self._shut()
        elif features & native_hello.AUTHENTICATE:
            self.enter(AUTHENTICATING)
        else:
            self.enter(OPEN)
            self.opened()

    def _is_colocated(self) -> bool:
        """Whether the client is on this machine, and may read the files of this bookie as far as the system lets it."""
        return bool(self._server.config.offered_directory) and has_one_address(self.transport)

    def _greet(self, answer: native_hello.HelloAnswer) -> None:
        assert self.transport is not None
        self.transport.write(native_hello.encode_hello_answer(answer))

    def _authenticate(self, frame: memoryview) -> None:
        """A request of a client that has not shown yet who it is: a step towards that, or nothing at all."""
        request = native.decode_request(frame)
        if request.kind is not Kind.AUTH or not request.is_intact():
            msg = "the client sent a request before it authenticated"
            raise MalformedFrameError(msg)
        assert self._handshake is not None
        try:
            token = self._handshake.step(bytes(request.body))
        except AuthenticationError as error:
            self.refused(error.message)
            self.answer(request, Answer.UNAUTHORISED, term=0)
            self.send_answers()
            self._shut()
            return
        self.answer(request, Answer.OK, term=0, body=(token,))
        if self._handshake.known:
            self.enter(OPEN)
            self.opened()

    def _shut(self) -> None:
        """End the connection; what it sent after its last request counts for nothing."""
        self.drop_requests()
        self.enter(SHUT)
        if self.transport is not None:
            self.transport.close()

    # --- requests ------------------------------------------------------------------------------------------------

    def frame_received(self, frame: memoryview) -> None:
        if self.state is not SHUT:
            self.requests.append(frame)

    def frame_too_long(self, head: memoryview, size: int) -> None:
        if self.state is SHUT:
            return  # a refused client is not served
        try:
            request = native.decode_request(head[: native.REQUEST_BYTES])
        except MalformedFrameError as error:
            raise self.no_request(size, error.message) from None
        if self.state is AUTHENTICATING:
            raise self.no_request(size, "the client has not authenticated")
        self.refused_long(f"request {request.number} ({request.kind.name})", size)
        self.answer(request, Answer.BAD_REQUEST)

    def drop_requests(self) -> None:
        self.requests.clear()
        self._deferred.clear()

    def send_deferred(self) -> None:
        self.requests.extendleft(reversed(self._deferred))
        self._deferred.clear()
        super().send_deferred()

    def _work(self) -> None:
        requests, self.added = self.requests, False
        if self.is_newcomer and requests and self.state is OPEN:
            self.has_asked()
        limit = self._server.config.answer_bytes_max
        turn = Slice(self._server.clock, TURN_NS) if len(requests) > REQUESTS_A_LOOK else None
        left = REQUESTS_A_LOOK
        try:
            while requests and self.not_read_since is None and not self._server.reads_paused:
                if self.waiting_bytes > WAITING_BYTES_MAX or self.record_waits >= RECORD_WAITS_MAX:
                    break
                if self.state is not OPEN:
                    self._authenticate(memoryview(requests.popleft()))
                    left -= 1
                elif isinstance(requests[0], bytes):
                    left -= self.serve_adds(left)
                else:
                    frame = requests.popleft()
                    if frame[4:5] == _BUNDLE:  # it is many requests
                        left, turn = 1, turn or Slice(self._server.clock, TURN_NS)
                    self.serve_frame(memoryview(frame))
                    left -= 1
                if self._out_bytes >= limit:
                    self.send_answers()
                if not left:
                    if turn is not None and turn.over and requests:
                        asyncio.get_running_loop().call_soon(self._next_turn)
                        break
                    left = REQUESTS_A_LOOK
        except MalformedFrameError as error:
            requests.clear()
            self._fail(error)
        if self._retries:
            self._serve_retries()
        if self.added:
            self._server.put(self)

    def _next_turn(self) -> None:
        """Others had theirs: serve what is left."""
        if self.transport is not None:
            self._work()
            self.resume_reading()

    def serve_frame(self, frame: memoryview) -> None:
        """Serve one request. A damaged one is refused here, whatever its kind."""
        request, problem = native.receive_request(frame, terms=self.terms)
        if problem is not Answer.OK:
            self.answer(request, problem)
        elif self._server.lease.pending and _must_wait(request):
            self._deferred.append(frame)
            self.waiting_bytes += len(frame)
        elif request.kind is Kind.ADD_BUNDLE:
            self._bundles.serve(request, frame)
        else:
            try:
                is_bare = request.ledger_id >= 0 and request.kind in native_bodies.BARE
                asked = request.kind if is_bare else asked_of(request, terms=self.terms)
                if request.flags & _FLAGS == Flag.LOW_PRIORITY and request.kind in _YIELDING:
                    self._server.low_priority.come(self, request, asked, frame)
                else:
                    self.serve(request, asked)
            except MalformedFrameError:
                # The frame is intact: an impossible request gets an error, and the client may go on.
                self.answer(request, Answer.BAD_REQUEST)

    def serve(self, request: Request, asked: Asked) -> bool:
        """Serve a request; returns whether it is a run on its way to the disk, or one that waits for its ledger's record."""
        ledgers = self._ledgers
        match asked:
            case RunView():
                return self._add(request, asked)
            case ReadBody() if not request.flags & Flag.FENCE:
                self._entries(request, asked, Answer.OK)
            case ReadBody():
                self._after_fence(request, asked, partial(self._entries, request, asked))
            case Kind.READ_LAC:
                self._after_fence(request, asked, partial(self._last_confirmed, request))
            case LongPollBody():
                self._long_poll(request, asked)
            case Kind.WRITE_LAC:
                self._write_lac(request)
            case native_bodies.LacsBody(items):
                refused = native_bodies.encode_refused_lacs(ledgers.explicit_lacs.take(items))
                self.answer(request, Answer.OK, term=0, body=[refused])
            case native_bodies.ClearLimboBody(lsn):
                ledgers.clear_limbo(request, lsn, self.unless_deferred(partial(self.answer, request)))
            case native_bodies.TruncateBody():
                ledgers.truncate(asked, request, self.unless_deferred(partial(self.answer, request)), self)
            case native_bodies.ListBody():
                held = native_bodies.encode_held(*ledgers.held_page(request.ledger_id, *asked))
                is_pending = ledgers.is_pending_deletion(request.ledger_id)
                self.answer(request, Answer.UNKNOWN if is_pending else Answer.OK, body=[held])
            case InfoQuestion():
                self._server.answer_info(asked, partial(self._tell, request))
            case _:
                self._ledger_info(request)
        return False

    def must_wait(self, request: Request) -> bool:
        """Whether something is to be waited for before a request is served."""
        return self.not_read_since is not None or (self._server.lease.pending and _must_wait(request))

    def _add(self, request: Request, run: RunView) -> bool:
        answer = self._ledgers.add(request, run, self, request)
        if answer is Answer.OK:
            self.added = True
            self._server.admitted(len(request.body))
            return True
        self.answer(request, answer)
        return False

    def stored_alone(self, tag: Any, error: StorageError | None) -> None:
        if type(tag) is BundledRows:
            self._bundles.stored(tag, error)
            return
        request: AddRequest = tag  # as `serve` or `serve_adds` gave it
        self._server.settled(len(request.body), low_priority=request.flags & _FLAGS == Flag.LOW_PRIORITY)
        if self._server.lease.pending:
            self.later(partial(self._answer_add, request, error), len(request.body))
        else:
            self._answer_add(request, error)

    def encode_stored(self) -> None:
        super().encode_stored()
        if self._bundles.answered:
            self._out += self._bundles.encode()

    def answer_to(self, request: AddRequest, answer: Answer) -> None:
        self.answer(request, answer)

    def _answer_add(self, request: AddRequest, error: StorageError | None) -> None:
        if error is None:
            flags = native.FOLLOWED if request.ledger_id in self._ledgers.followers.followed else 0
            self.answer(request, Answer.OK, flags=flags, term=request.term)
        else:
            self.answer(request, self._server.answer_for(error))

    def _after_fence(self, request: Request, asked: Asked, look: Callable[[Answer], None]) -> None:
        """Answer a READ or READ_LAC, once its fence is durable if it asks for one."""
        if request.flags & Flag.FENCE:
            look = self.unless_congested(partial(self.serve, request, asked), look)
            self._ledgers.fence(request, self.unless_deferred(look), self)
        else:
            look(Answer.OK)

    def _entries(self, request: Request, asked: ReadBody, answer: Answer) -> None:
        first, last, bytes_max, term = asked
        if answer is not Answer.OK:
            self.answer(request, answer)
            return
        room = min(bytes_max, self._server.back_pressure.answer_bytes_max)
        located = self._colocated and bool(request.flags & Flag.LOCATIONS)
        origin_term = native_bodies.ORIGINS.get(term, term)
        found = self._ledgers.read(request, first, last, room, origin_term=origin_term, located=located)
        if self._server.lease.pending:
            if found.answer is not Answer.OK or not (found.runs or found.locations):
                self.later(partial(self._entries, request, asked, answer), READ_BYTES)
                return
            found.conclusive_through = first - 1  # what is not here, others must say
        if found.answer is not Answer.OK:
            self.answer(request, found.answer, lac=found.lac)
            return
        body = [
            native_bodies.encode_read_fields(
                found.conclusive_through, found.unknown, found.damaged, found.lac_term
            )
        ]
        if found.locations:
            body.append(native_bodies.encode_locations(found.locations))
        flags = native.LOCATED if found.locations else 0
        runs = native_bodies.encode_runs(found.runs)
        self.answer(request, Answer.OK, flags=flags, lac=found.lac, body=body, runs=runs)

    def _last_confirmed(self, request: Request, answer: Answer) -> None:
        if answer is not Answer.OK:
            self.answer(request, answer)
            return
        answer, lac, explicit, evidence = self._ledgers.last_confirmed(request)
        if self._server.lease.pending and answer is not Answer.OK:
            self.later(partial(self._last_confirmed, request, Answer.OK), READ_BYTES)
            return
        body: Sequence[Buffer] = ()
        if answer is Answer.OK:
            lac_term, lafr = self._ledgers.confirmed_in(request.ledger_id)
            body = native_bodies.encode_lac_body(explicit, evidence, lac_term, lafr)
        self.answer(request, answer, lac=lac, body=body)

    def _long_poll(self, request: Request, asked: LongPollBody) -> None:
        previous, first, last, bytes_max, wait_ms, term = asked

        def wake() -> None:
            lac = self._ledgers.lac(request.ledger_id)
            if lac is not None and (min(last, lac) < first or self.is_congested()):
                lac_term, _ = self._ledgers.confirmed_in(request.ledger_id)
                body = native_bodies.encode_read_fields(first - 1, (), (), lac_term)
                self.answer(request, Answer.OK, lac=lac, body=(body,))
            else:
                through = first if lac is None else min(last, lac)
                self._entries(request, ReadBody(first, through, bytes_max, term), Answer.OK)

        wait = min(wait_ms / 1000, self._server.config.long_poll_seconds_max)
        if not self.polls.wait(request.ledger_id, previous, wait, wake):
            self.answer(request, Answer.TOO_BUSY)

    def _tell(self, request: Request, info: dict[str, Any]) -> None:
        self.answer(request, Answer.OK, body=[native_info.encode_info(info)])

    def _write_lac(self, request: Request, fetched: Fetched = None) -> None:
        if request.term:
            # It may raise the term, which is durable before any response.
            callback = self.unless_deferred(lambda answer: self.answer(request, answer))
            self._ledgers.set_explicit_lac(request, callback, self)
            return
        answer, retry = self._ledgers.explicit_lac(request, fetched), partial(self._write_lac, request)
        unknown = answer is Answer.UNKNOWN
        if not (unknown and self._ledgers.unknown_ledgers.waits(request.ledger_id, retry, self, fetched)):
            self.answer(request, answer)

    def _ledger_info(self, request: Request) -> None:
        info = self._ledgers.info(request.ledger_id)
        if info is None:
            self.answer(request, self._ledgers.read(request, 0, 0, 1).answer)
            return
        self.answer(request, Answer.OK, lac=info["lac"], body=[native_info.encode_info(info)])

    # --- responses -----------------------------------------------------------------------------------------------

    def answer(
        self,
        request: AddRequest,
        answer: Answer,
        *,
        flags: int = 0,
        term: int | None = None,
        lac: int = NO_ENTRY,
        body: Sequence[Buffer] = (),
        runs: Sequence[Buffer] = (),
    ) -> None:
        """Answer a request; `term`: the bookie's for the ledger, where the caller knows it already."""
        if self._stored or self._bundles.answered:
            self.encode_stored()
        if self.transport is None:
            return
        parts = native.encode_answer(
            request.kind,
            answer,
            request.number,
            flags=flags,
            ledger_id=request.ledger_id,
            term=self._ledgers.term(request.ledger_id) if term is None else term,
            lac=lac,
            durable_lsn=self._server.storage.journal.durable_lsn,
            body=body,
            runs=runs,
        )
        if not self._out:
            self._server.answering(self)
        self._out += parts
        self._out_bytes += sum(map(len, parts))


def _must_wait(request: Request) -> bool:
    """Whether a request waits while the identity lease is pending: all do but those that may show what is here."""
    if request.flags & Flag.FENCE or request.kind not in _SHOWING:
        return True
    return request.kind is Kind.INFO and request.ledger_id >= 0
