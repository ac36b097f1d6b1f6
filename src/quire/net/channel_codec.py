"""What a client's connections share, and what each protocol must be able to say: the codec of a channel.

`channel.py` has our own protocol's, `v2_codec.py` and `v3_codec.py` BookKeeper's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

from quire.net.connection_states import ConnectionState
from quire.net.pacing import PacingMachine
from quire.net.receive_memory import ReceiveBudget, Scratch
from quire.net.run_frames import RunEncoder
from quire.net.security.settings import ClientKeys
from quire.net.security.signing_in import Opening
from quire.wire.entry import Buffer
from quire.wire.frame_limits import FrameLimits
from quire.wire.native_requests import AddEncoder
from quire.wire.requests import AnyRequest


class Requester(Protocol):
    """The sender of a request, which gets its one response."""

    def answered(self, tag: object, response: Any) -> None:
        """The response to the request with this tag, of the type that the request says; the receiver may keep it."""


Waiting: TypeAlias = tuple[Any, Any, int, Requester]
"""A request that waits: its name among all that are outstanding, what is sent, how many bytes, and the requester."""


@dataclass(frozen=True, slots=True)
class ChannelContext:
    """What the connections of one client share.

    Attributes:
        scratch, budget: memory for what is received.
        limits: the longest frames.
        keys: certificates and a password, if there are any.
        encoder, adds: make frames of runs, for BookKeeper's protocols and for ours.
        at_once: each request goes to the transport by itself, not with the others of its loop turn.
    """

    scratch: Scratch
    budget: ReceiveBudget
    limits: FrameLimits = field(default_factory=FrameLimits)
    keys: ClientKeys | None = None
    encoder: RunEncoder = field(default_factory=RunEncoder)
    adds: AddEncoder = field(default_factory=AddEncoder)
    at_once: bool = False


class ChannelCodec(ABC):
    """What one connection says and understands in one protocol, and the requests that are outstanding on it.

    Attributes:
        channel: the connection.
        sent_bytes_max, taken_bytes_max: longest frames of either direction.
        first_state: what comes first on the connection.
        open_state: what comes when nothing is left to be said before the first request.
        in_chunks, short_kind: how frames come; see `FrameProtocol`.
        waiting_bytes: bytes of each requester's requests that wait until the bookie has fewer others.
        paced: what bounds the entries that are in flight, where a bookie takes them one by one.
    """

    channel: Any  # each subclass says `Channel`, which knows codecs
    first_state: ClassVar[ConnectionState]
    open_state: ClassVar[ConnectionState]
    in_chunks: ClassVar[bool]
    short_kind: ClassVar[int] = -1

    def __init__(self, sent_bytes_max: int, taken_bytes_max: int) -> None:
        self.sent_bytes_max = sent_bytes_max
        self.taken_bytes_max = taken_bytes_max
        self.waiting_bytes: dict[Requester, int] = {}
        self.paced: Sequence[PacingMachine] = ()

    @abstractmethod
    def opening(self, keys: ClientKeys | None) -> Opening | None:
        """The connection is made: say what comes first, or open it; None if there are no keys to show."""

    @abstractmethod
    def send(self, request: AnyRequest, requester: Requester, tag: object, deadline: float) -> bool:
        """Send a request; see `Channel.send`."""

    def encode_bundle(self, rows: Sequence[bytes], bodies: Sequence[Buffer]) -> tuple[int, bytes]:
        """The number and the frame of a bundle, for all connections of this client that take such requests."""
        raise NotImplementedError

    def send_bundle(
        self, number: int, frame: bytes, count: int, requester: Requester, tag: object, deadline: float
    ) -> bool:
        """Send a bundle of `count` rows, where the bookie takes such requests.

        `requester.answered(tag, parts)` is called in later loop turns, until each row was in one part.

        Returns:
            As `Channel.send`.
        """
        raise NotImplementedError

    @abstractmethod
    def encoded(self, name: Any) -> Sequence[Buffer]:
        """The buffers of a request that leaves now and has none yet; none for one that the bookie cannot do."""

    @abstractmethod
    def late(self, now: float) -> Sequence[Any]:
        """The names of the requests whose deadline has passed."""

    @abstractmethod
    def timed_out(self, name: Any) -> None:
        """Answer TIMED_OUT to one of these."""

    @abstractmethod
    def drop(self, requester: Requester) -> Sequence[float]:
        """Forget the requests of a requester; their deadlines."""

    @abstractmethod
    def end(self) -> None:
        """The connection is over: answer everything UNREACHABLE."""

    def ask_for_a_sign(self) -> None:  # noqa: B027 - most protocols have no such question
        """Ask what every bookie answers at once, where there is such a question."""

    def hello_received(self, body: memoryview) -> None:
        """The response to a hello."""
        raise NotImplementedError

    def frame_received(self, frame: memoryview) -> None:
        """A frame, where they come one by one."""
        raise NotImplementedError

    def take_short(self, data: memoryview, at: int) -> int:  # noqa: ARG002 - most protocols have no such frames
        """Take short frames out of what was received, see `FrameProtocol`."""
        return at

    def frames_received(self, data: Buffer, starts: Sequence[int]) -> None:
        """Frames, where they come in chunks."""
        raise NotImplementedError
