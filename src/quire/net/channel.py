"""One connection to one bookie: requests out, responses back, each answered exactly once.

What the bookie says is an `Answer`; what the network does to a request is one too (TIMED_OUT, UNREACHABLE), so no
caller ever waits for ever or mistakes silence for a "no". Frames wait here, not in the transport, once its buffer is
full: so they can be forgotten when their ledger gives the bookie up.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

from crc32c import crc32c

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId
from quire.net.client_channel import AnswerSink, ChannelContext, ClientChannel, Shape, made_here, unreachable
from quire.net.ends import has_one_address
from quire.net.opening import WANTS_A_NAME, NativeOpening
from quire.net.security import ClientKeys
from quire.wire import native, native_hello
from quire.wire.entry import Buffer

log = logging.getLogger(__name__)

SIGN_OF_LIFE = 0
"""The number of a request whose response has no content. No other open request has it."""
_Outstanding = tuple[AnswerSink, object, float]


class Channel(ClientChannel):
    """A connection in our own protocol.

    Args:
        meant: the bookie that must be at the other end.
        cluster_instance: the cluster it must belong to; "" = any.
        context, ended: see `ClientChannel`.

    Attributes:
        version: what the hello settled, 0 before; responses are laid out as it says.
        features: what the bookie said that it can do.
        boot: the bookie's boot number, 0 where it announces none.
        beside: the bookie offers its files, and both ends of the connection have one address, as this side sees them;
            who finds that the files are not readable unsets it.
        place_misses: how many responses in a row named places whose bytes did not verify.
    """

    def __init__(
        self,
        meant: BookieId,
        cluster_instance: str,
        context: ChannelContext,
        ended: Callable[[Channel, str], None],
    ) -> None:
        longest = context.limits.native
        super().__init__(meant, context, ended, sent_bytes_max=longest, taken_bytes_max=longest)
        self._body_bytes_max = longest - native.REQUEST_BYTES
        self._cluster_instance = cluster_instance
        self._opening: NativeOpening | None = None
        self.version = 0
        self.features = 0
        self.boot = 0
        self.beside = False
        self.place_misses = 0
        self._next_number = 1
        self._outstanding: dict[int, _Outstanding] = {}

    # --- sending -------------------------------------------------------------------------------------------------

    def send(
        self,
        kind: native.Kind,
        body: Sequence[Buffer],
        sink: AnswerSink,
        tag: object,
        *,
        deadline: float,
        body_crc: int | None = None,
        ledger_id: int = -1,
        digest_type: int = 0,
        flags: int = 0,
        token: int = 0,
        key: bytes = b"",
        term: int = 0,
        lac: int = NO_ENTRY,
    ) -> bool:
        """Send a request; `sink.answered(tag, …)` is called once, in a later loop turn.

        One that no frame holds is not sent, and completes with BAD_REQUEST.

        Args:
            body: the body's buffers, kept by reference until sent.
            deadline: loop time after which the response is TIMED_OUT.
            body_crc: the body's checksum where the caller has it already.

        Returns:
            Whether it has gone to the transport; else it waits here and counts as unsent.
        """
        size = sum(map(len, body))
        if size > self._body_bytes_max:
            self._refuse_to_send(size + native.REQUEST_BYTES, sink, tag)
            return True
        number = self._next_number
        self._next_number = number + 1 & 0xFFFFFFFF or 1
        if body_crc is None:
            body_crc = 0
            for part in body:
                body_crc = crc32c(part, body_crc)
        header = native.encode_request(
            kind,
            number,
            size,
            body_crc,
            ledger_id=ledger_id,
            digest_type=digest_type,
            flags=flags,
            token=token,
            key=key,
            term=term,
            lac=lac,
        )
        self._outstanding[number] = (sink, tag, deadline)
        parts = [header, *body]
        if self._ready and not self._paused and not self._waiting:
            assert self.transport is not None
            self.transport.writelines(parts)
            return True
        self._wait((number, parts, size + len(header), sink))
        return False

    def ask(
        self,
        kind: native.Kind,
        shape: Shape,
        sink: AnswerSink,
        tag: object,
        *,
        deadline: float,
        **header: Any,
    ) -> None:
        """Send a request whose body depends on what the bookie speaks; the rest as in `send`.

        A bookie that cannot do it is not asked: the response is BAD_REQUEST, made here.
        """
        number = self._next_number
        self._next_number = number + 1 & 0xFFFFFFFF or 1

        def make() -> list[Buffer] | None:
            body = shape(self.version, self.features)
            if body is None:
                return None
            return [native.encode_request(kind, number, len(body), crc32c(body), **header), body]

        self._outstanding[number] = (sink, tag, deadline)
        self._wait((number, make, native.REQUEST_BYTES, sink))
        self._send_waiting()

    def drop(self, sink: AnswerSink) -> None:
        """Forget this sink's requests: those not sent never will be, and no response reaches it any more."""
        self._no_longer_waits(sink)
        for number in [number for number, (owner, _, _) in self._outstanding.items() if owner is sink]:
            self._silence.given_up(int(1000 * self._outstanding.pop(number)[2]))

    def _late(self, now: float) -> Sequence[int]:
        return [number for number, (_, _, deadline) in self._outstanding.items() if deadline <= now]

    def _timed_out(self, request: int) -> None:
        # A response may make its owner drop the rest of what it asked.
        outstanding = self._outstanding.pop(request, None)
        if outstanding is not None:
            outstanding[0].answered(outstanding[1], made_here(Answer.TIMED_OUT))

    def _ask_for_a_sign(self) -> None:
        """Ask what every bookie answers at once, however slow its disk is: the LAC of a ledger that cannot be."""
        if self._ready and not self._paused:
            assert self.transport is not None
            self.transport.write(
                native.encode_request(native.Kind.READ_LAC, SIGN_OF_LIFE, 0, 0, ledger_id=-1)
            )

    # --- the connection ------------------------------------------------------------------------------------------

    def _say_first(self) -> None:
        if self._keys is None:
            self.write_hello(self.hello())
        else:
            self._opening = NativeOpening(self, self._keys)

    def hello_received(self, body: memoryview) -> None:
        hello = native_hello.decode_hello_answer(body)
        if hello.version and not hello.features & native_hello.START_TLS and hello.bookie_id != self.meant:
            self._give_up(hello.message or f"the bookie at this address is {hello.bookie_id}")
            return
        if hello.version > native_hello.VERSION:
            self.refuse(
                f"the bookie responds in version {hello.version} of the native protocol, and this "
                f"client offered {native_hello.VERSION_MIN}..{native_hello.VERSION}: upgrade this "
                "client"
            )
            return
        self.version, self.features, self.boot = hello.version, hello.features, hello.boot
        if self._opening is not None and self._opening.takes(hello):
            return
        if hello.answer is Answer.UNAUTHORISED:
            self.refuse(hello.message or WANTS_A_NAME)
        elif hello.version == 0:
            self._give_up(hello.message or "the bookie refused the connection")
        else:
            self.beside = bool(hello.features & native_hello.BESIDE) and has_one_address(self.transport)
            self.opened()

    # --- for the opening -------------------------------------------------------------------------------------------

    def hello(self, auth_scheme: str = "") -> native_hello.Hello:
        """Who is meant, and how this client can say who it is."""
        return native_hello.Hello(
            self._cluster_instance, self.meant, features=native_hello.OFFERED, auth_scheme=auth_scheme
        )

    def write_hello(self, hello: native_hello.Hello) -> None:
        """Say hello."""
        assert self.transport is not None
        self.transport.write(native_hello.encode_hello(hello))

    def begin_over(self, keys: ClientKeys) -> None:
        """Begin TLS; the hello that counts comes after it."""
        self._greeted = False
        super().begin_over(keys)

    def ask_at_once(self, kind: native.Kind, body: bytes, sink: AnswerSink) -> None:
        """Send a request of the opening, before all others; its number is 0."""
        assert self.transport is not None
        self._outstanding[0] = (sink, None, math.inf)
        self.transport.write(native.encode_request(kind, 0, len(body), crc32c(body)) + body)

    def opened(self) -> None:
        self.was_ready = True
        super().opened()

    # --- what comes ------------------------------------------------------------------------------------------------

    def frame_received(self, frame: memoryview) -> None:
        answer = native.decode_answer(frame)
        outstanding = self._outstanding.pop(answer.number, None)
        if outstanding is not None:
            outstanding[0].answered(outstanding[1], answer)

    def end(self, reason: str) -> None:
        if self.closed:
            return
        outstanding, self._outstanding = self._outstanding, {}
        self._over(reason)
        for sink, tag, _ in outstanding.values():
            sink.answered(tag, unreachable)

    def _send_waiting(self) -> None:
        while self._waiting and not self._paused and self._ready:
            number, parts, _, _ = self._next_waiting()
            made = parts if isinstance(parts, list) else parts()
            if made is None:
                self._refuse_here(number)
                continue
            assert self.transport is not None
            self.transport.writelines(made)

    def _refuse_here(self, number: int) -> None:
        """The bookie cannot do what was to be asked."""
        sink, tag, _ = self._outstanding.pop(number)
        asyncio.get_running_loop().call_soon(sink.answered, tag, made_here(Answer.BAD_REQUEST))
