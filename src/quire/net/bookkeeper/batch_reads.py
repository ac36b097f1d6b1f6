"""Whether a bookie takes V2's BATCH_READ: bookies before 4.17 end the connection instead, with all that is asked on it.

Source: docs/formats/bookkeeper-protocol.md, "V2"; BookKeeper source, `BookieProtocol`: BATCH_READ_ENTRY since 4.17.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from quire.core.answers import Answer
from quire.core.ids import ID_MAX, BookieId
from quire.core.ledger.metadata import DigestType
from quire.net.bookkeeper.v2_codec import V2Codec
from quire.net.channel import Channel
from quire.net.channel_codec import ChannelContext
from quire.net.security.settings import ClientKeys
from quire.net.security.signing_in import Opening
from quire.wire.entry import EntryDigest
from quire.wire.requests import ReadRange
from quire.wire.responses import ReadReply

PROBE_SECONDS: Final = 5.0


class _NoLedger(NamedTuple):
    """A ledger that no bookie has, so that no ledger's entries depend on what the bookie makes of the question."""

    ledger_id: int = ID_MAX
    key: bytes = b""
    token: int = 0
    digest: EntryDigest = EntryDigest(DigestType.DUMMY, b"")


class BatchReads:
    """What is known of one bookie. It is asked when a range is wanted, on a connection of its own and without a fence.

    An answer is a yes, whatever it says; a connection that the bookie closes is a no; silence is neither.

    Args:
        bookie: which.
        context: what the client's connections share.
        connect: begins to connect a channel to the bookie.
    """

    def __init__(
        self, bookie: BookieId, context: ChannelContext, connect: Callable[[Channel], object]
    ) -> None:
        self._bookie = bookie
        self._context = context
        self._connect = connect
        self._taken: bool | None = None
        self._probe: _Probe | None = None

    def begin_over(self) -> None:
        """A new connection is made: a bookie that took none may be a newer one by now."""
        if self._taken is False:
            self._taken = None

    def usable(self) -> bool:
        """Whether a range may be asked for by BATCH_READ; where that is not known, later ranges may be."""
        if self._taken is None and self._probe is None:
            self._probe = _Probe(self._bookie, self._context, self._concluded)
            self._connect(self._probe.channel)
        return bool(self._taken)

    def lost(self) -> None:
        """A connection ended while a batch was outstanding."""
        self._taken = None

    def _concluded(self, taken: bool | None) -> None:
        self._probe = None
        if taken is not None:
            self._taken = taken


class _Always:
    """The probe itself does send a batch."""

    def usable(self) -> bool:
        return True

    def lost(self) -> None:
        pass


class _ProbeCodec(V2Codec):
    """Knows whether the connection was made, so that the question has left."""

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context, make_v3=lambda: self.channel, batches=_Always())
        self.has_met = False

    def opening(self, keys: ClientKeys | None) -> Opening | None:
        self.has_met = True
        return super().opening(keys)


class _Probe:
    """One batch read that finds out whether a bookie knows batch reads."""

    def __init__(
        self, meant: BookieId, context: ChannelContext, concluded: Callable[[bool | None], None]
    ) -> None:
        self._codec = _ProbeCodec(context)
        self._concluded = concluded
        self._is_late = False
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(PROBE_SECONDS, self._too_late)
        self.channel = Channel(meant, context, self._codec, lambda *_: None)
        pending = ReadRange(_NoLedger(), 0, 1, 1)
        self.channel.send(pending, self, None, deadline=loop.time() + PROBE_SECONDS)

    def _too_late(self) -> None:
        self._is_late = True
        self.channel.close()

    def answered(self, tag: object, response: ReadReply) -> None:  # noqa: ARG002 - one request, no tag
        """The bookie has answered, or the connection has ended."""
        self._timer.cancel()
        if response.answer is not Answer.UNREACHABLE:
            taken: bool | None = True
        else:
            taken = None if self._is_late or not self._codec.has_met else False
        self._concluded(taken)
        self.channel.close()
