"""The bookies as a client sees them: who is there, and one connection to each.

Every request is answered exactly once with an `Answer`; nothing here raises for what a bookie or the network does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from asyncio import _get_running_loop
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from quire.client.access import LedgerAccess
from quire.client.bookies import short_circuit
from quire.client.bookies.channels import Channels
from quire.client.bookies.sweeping import Sweep
from quire.client.config import RECEIVE_BUDGET_BYTES
from quire.core.answers import Answer
from quire.core.errors import QuireError
from quire.core.ids import ID_MAX, BookieId
from quire.core.ledger.stripes import HeldInterval
from quire.core.ledger.terms import NO_TERM
from quire.core.settings import doubled
from quire.env.home import check_home
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.metadata.store import Versioned
from quire.net.channel import Channel
from quire.net.keepalive import keep_alive
from quire.net.security.settings import ClientKeys, ClientSecurity
from quire.wire.bookie_service_info import DIRECTORY_PROPERTY
from quire.wire.frame_limits import FrameLimits
from quire.wire.native_bodies import ANY_TERM, WHOLE_LIST
from quire.wire.native_hello import LACS
from quire.wire.native_info import InfoQuestion, SpaceTask
from quire.wire.requests import (
    AddRun,
    AskInfo,
    BookieRequest,
    ClearLimbo,
    ListEntries,
    LongPoll,
    ReadLac,
    ReadRange,
    Truncate,
    WriteLac,
    WriteLacs,
)
from quire.wire.responses import AddReply, LacReply, PlainReply, ReadReply

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS = 10_000
LISTED_MAX: Final = 1 << 19
"""Intervals of one ledger that are listed; more are an error, so that memory stays bounded."""
RETRY_SECONDS = 0.2
RETRY_SECONDS_MAX = 2.0
CONNECT_SECONDS = 5
"""How long a connection may take to be made: a packet that is lost on the way is sent again after 1 and 3 s."""
POLL_GRACE_MS = 500
"""How much later than asked for the response to a long poll may come."""


R = TypeVar("R")


class Orphans(NamedTuple):
    """A page of the ledgers that a bookie keeps without a record, ascending.

    Attributes:
        unknown: there is no proof that they were deleted.
        due: they would be deleted if the bookie's collection were not stopped.
        through: the page covers all ids up to this; `ID_MAX` on the last one.
    """

    unknown: list[int]
    due: list[int]
    through: int


class Reply(Generic[R]):
    """Turns one channel response into a future's result."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    def answered(self, tag: object, response: R) -> None:  # noqa: ARG002 - one request, no tag
        """What the channel says."""
        if not self.future.done():
            self.future.set_result(response)


@dataclass(slots=True)
class Peer:
    """One bookie: its channel now, when it may be tried again, and what is wrong between it and this client.

    Attributes:
        trouble: why the last connection that was not opened ended; empty if one was.
        refused: because one side does not take the other, which no waiting will change.
    """

    channel: Channel | None = None
    retry_at: float = 0.0
    failures: int = 0
    trouble: str = ""
    refused: bool = False
    connecting: asyncio.Task[None] | None = None

    @property
    def blocked_because(self) -> str:
        """The trouble, while no connection is open."""
        return self.trouble if self.channel is None or not self.channel.was_ready else ""


class Follower(Protocol):
    """Who wants to know when other bookies take entries; writers stand above."""

    def bookies_changed(self) -> None:
        """The list is another one."""


class AddRequester:
    """A sender of runs, which gets a response to each. Its unsent frames can be dropped together.

    Attributes:
        followed: whether the last response said that a reader waits there for the LAC; unset before the first.
    """

    __slots__ = ("followed",)

    followed: bool

    def answered(self, tag: object, response: AddReply) -> None:
        """What the channel says."""
        answer, self.followed = response
        self.add_answered(tag, answer)

    def add_answered(self, tag: object, answer: Answer) -> None:
        """The response to the run with this tag."""
        raise NotImplementedError


class BookieClient:
    """Connections to the bookies of one cluster, made on first use and again after a loss.

    Args:
        registry: where bookies register.
        cluster_instance: the cluster that bookies must belong to.
        receive_budget_bytes: memory for unfinished responses.
        protocol, protocol_of: the wire protocol, in general and by address; see `ClientConfig`.
        frame_bytes_max: longest frame; see there.
        security: TLS, and who this client is.
        short_circuit_reads: read long runs out of the files of bookies on this machine.

    Attributes:
        registry: where bookies register, asked anew each time.
        without_lists: bookies that answer reads and have never answered what they hold of a ledger.
        followers: called with other bookies.
        on_return: called with a bookie that has restarted.

    Raises:
        MisuseError: a file that `security` names is missing or is not what it should be.
    """

    def __init__(
        self,
        registry: BookieRegistry,
        cluster_instance: str,
        *,
        receive_budget_bytes: int = RECEIVE_BUDGET_BYTES,
        frame_bytes_max: int | None = None,
        protocol: str = "auto",
        protocol_of: Sequence[tuple[str, str]] = (),
        security: ClientSecurity | None = None,
        short_circuit_reads: bool = True,
    ) -> None:
        self._short_circuit_reads = short_circuit_reads
        self._channels = Channels(
            cluster_instance,
            receive_budget_bytes,
            protocol,
            protocol_of,
            limits=FrameLimits.of(frame_bytes_max),
            keys=None if security is None else ClientKeys.of(security),
            connect=self._connect,
        )
        self.registry = registry
        self._peers: dict[BookieId, Peer] = {}
        self._known: dict[BookieId, BookieInfo] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # from its start on
        self._watch: asyncio.Task[None] | None = None
        self._sweep = Sweep(self._open_channels)
        self._closed = False
        self.followers: dict[Follower, None] = {}
        self.without_lists: set[BookieId] = set()
        self.on_return: Callable[[BookieId], None] = lambda _: None

    # --- who is there ----------------------------------------------------------------------------------------------

    async def bookies(self) -> dict[BookieId, BookieInfo]:
        """Every registered bookie, writable or read-only, read now."""
        before = self._known
        found = await self.registry.available()
        # What the watch has brought meanwhile may be newer.
        self._take(before | found if self._known is before else found | self._known)
        return found

    def check_home(self) -> None:
        """Refuse a call from another event loop than the client's: MisuseError."""
        if self._loop is not None:
            check_home("this client", self._loop)

    async def start(self) -> None:
        """Begin to follow registrations; returns when the first list is there."""
        if self._watch is None:
            self._loop = asyncio.get_running_loop()
            self._take(await self.registry.available())
            self._watch = asyncio.get_running_loop().create_task(self._follow(), name="bookie registrations")

    def writable(self, needs: Collection[str] = ()) -> list[BookieId]:
        """The bookies that take new entries, by the last list seen, in a fixed order.

        `needs`: the features that a stream's must have. Others would store its entries, and collect them as those of a ledger
        without a record.
        """
        return sorted(
            bookie for bookie, info in self._known.items() if info.writable and self._is_able(info, needs)
        )

    def unable(self, needs: Collection[str]) -> list[BookieId]:
        """The registered bookies that can hold no such stream: their programs do not know how, or this client's protocol."""
        return sorted(bookie for bookie, info in self._known.items() if not self._is_able(info, needs))

    def _is_able(self, info: BookieInfo, needs: Collection[str]) -> bool:
        return not needs or ({*needs} <= {*info.features} and self._channels.speaks_native(info))

    def read_only(self, needs: Collection[str] = ()) -> list[BookieId]:
        """The bookies that are registered and take no new entries; `needs`: as in `writable`."""
        return sorted(
            bookie for bookie, info in self._known.items() if not info.writable and self._is_able(info, needs)
        )

    def is_writable(self, bookie: BookieId) -> bool:
        """Whether a bookie is in the last list seen, and takes new entries."""
        info = self._known.get(bookie)
        return info is not None and info.writable

    def is_registered(self, bookie: BookieId) -> bool:
        """Whether a bookie is in the last list seen, writable or read-only."""
        return bookie in self._known

    async def members(self) -> dict[BookieId, Versioned]:
        """The cookies of the cluster's bookies, whether they are there or not."""
        return await self.registry.list_cookies()

    async def away(self) -> list[BookieId]:
        """The cluster's bookies of which there is a cookie and no registration, both read now, in a fixed order."""
        registered = {*await self.bookies(), *self.writable()}
        return sorted((await self.members()).keys() - registered)

    def speaks_native(self, bookie: BookieId) -> bool:
        """Whether a bookie gets our own protocol, as far as its registration was seen."""
        return self._channels.speaks_native(self._known.get(bookie))

    def _directory_of(self, bookie: BookieId) -> str:
        """The directory that a bookie registered for short-circuit reads; "" while none is known."""
        info = self._known.get(bookie)
        if info is None:
            return ""
        return short_circuit.registered_directory(info.properties.get(DIRECTORY_PROPERTY, ""))

    def _take(self, known: dict[BookieId, BookieInfo]) -> None:
        """A newer list: a bookie that came back, or moved, may be tried at once.

        `on_return` is called with a bookie that registers again after an absence: it has restarted. Followers are notified
        when others take entries than before.
        """
        before = {bookie for bookie, info in self._known.items() if info.writable}
        for bookie, info in known.items():
            if self._watch is not None and bookie not in self._known:
                self.without_lists.discard(bookie)
                self.on_return(bookie)
            peer = self._peers.get(bookie)
            if peer is not None and info != self._known.get(bookie):
                peer.retry_at, peer.failures = 0.0, 0
        self._known = known
        if before != {bookie for bookie, info in known.items() if info.writable}:
            for follower in list(self.followers):
                follower.bookies_changed()

    def follow(self, follower: Follower) -> None:
        """Tell somebody when the list of bookies that take entries is another one, until `unfollow`."""
        self.followers[follower] = None

    def unfollow(self, follower: Follower) -> None:
        """Tell them no more; again is allowed."""
        self.followers.pop(follower, None)

    async def _follow(self) -> None:
        while not self._closed:
            try:
                async with self.registry.watch() as changes:
                    async for _ in changes:
                        self._take(await self.registry.available())
            except QuireError as error:
                log.warning("the watch on the list of bookies failed: %s", error)
                await asyncio.sleep(RETRY_SECONDS_MAX)

    # --- adds --------------------------------------------------------------------------------------------------------

    def add_run(
        self,
        bookie: BookieId,
        run: AddRun,
        requester: AddRequester,
        tag: object,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> bool:
        """Send a run; `requester.add_answered(tag, answer)` is called exactly once, in a later loop turn.

        The same object for several bookies is made a frame of once.

        Returns:
            Whether nothing of it waits here; else it counts in `unsent_bytes` until it was passed to the transport.
        """
        peer = self._peers.get(bookie)
        channel = peer.channel if peer is not None and peer.channel is not None else self._channel(bookie)
        loop = asyncio.get_running_loop()
        if channel is None:
            loop.call_soon(requester.add_answered, tag, Answer.UNREACHABLE)
            return True
        # `Channel.send` without its call, which each run would pay for each bookie.
        return channel.codec.send(run, requester, tag, loop.time() + timeout_ms / 1000)

    def drop(self, bookie: BookieId, requester: AddRequester) -> None:
        """Drop this writer's requests to a bookie: unsent ones stay unsent, and no response is delivered."""
        channel = self._channel_now(bookie)
        if channel is not None:
            channel.drop(requester)

    def unsent_bytes(self, bookie: BookieId, requester: AddRequester) -> int:
        """Bytes of this writer's runs that wait for a bookie's connection to take them."""
        channel = self._channel_now(bookie)
        return 0 if channel is None else channel.unsent_bytes(requester)

    @property
    def anything_unsent(self) -> bool:
        """Whether anything of anybody waits for a connection to take it."""
        return any(channel.anything_unsent for channel in self._open_channels())

    def entries_answered(self, bookie: BookieId) -> int:
        """How many single entries a bookie of V2 or V3 has answered on its connection; 0 for one of our own protocol."""
        channel = self._channel_now(bookie)
        return 0 if channel is None else sum(machine.answered for machine in channel.codec.paced)

    def all_sent(self, bookie: BookieId, requester: AddRequester) -> bool:
        """Whether all of this writer's runs to a bookie have left this process."""
        channel = self._channel_now(bookie)
        return channel is None or not (channel.unsent_bytes(requester) or channel.buffered_bytes)

    def forget(self, requester: AddRequester) -> None:
        """A writer has ended: drop all that it sent, everywhere."""
        for channel in self._open_channels():
            channel.drop(requester)

    def _channel_now(self, bookie: BookieId) -> Channel | None:
        """The connection to a bookie, if there is one; `_channel` makes one."""
        peer = self._peers.get(bookie)
        return peer.channel if peer is not None else None

    def _open_channels(self) -> list[Channel]:
        return [peer.channel for peer in self._peers.values() if peer.channel is not None]

    # --- reads and the rest ------------------------------------------------------------------------------------------

    async def read(
        self,
        bookie: BookieId,
        access: LedgerAccess,
        first: int,
        last: int,
        bytes_max: int,
        *,
        fence: bool = False,
        recovery: bool = False,
        low_priority: bool = False,
        origin_term: int = ANY_TERM,
        term: int = 0,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> ReadReply:
        """Entries first..last, as far as `bytes_max` goes (one entry at least).

        Of a stream only those of `origin_term` are meant; with `fence` the bookie takes the sender's `term`.
        """
        request = ReadRange(
            access, first, last, bytes_max, origin_term, fence, recovery, low_priority=low_priority, term=term
        )
        channel = self._channel(bookie)
        ordinary = not (fence or recovery or low_priority)
        directory = self._directory_of(bookie) if ordinary and self._short_circuit_reads else ""
        if directory and channel is not None and channel.colocated:
            reply = await self._request(bookie, request._replace(locations=True), timeout_ms)
            memory = self._channels.frame
            if not reply.locations or await short_circuit.read_locations(
                channel, reply, directory, bytes_max, memory, timeout_ms
            ):
                return reply
        return await self._request(bookie, request, timeout_ms)

    async def long_poll(
        self,
        bookie: BookieId,
        access: LedgerAccess,
        previous_lac: int,
        first: int,
        last: int,
        bytes_max: int,
        wait_ms: int,
        *,
        origin_term: int = 0,
    ) -> ReadReply:
        """Wait until the bookie's LAC passes `previous_lac`, then what it has of first..min(last, LAC).

        Of a stream only entries of `origin_term` are meant.
        """
        request = LongPoll(access, previous_lac, first, last, bytes_max, wait_ms, origin_term)
        return await self._request(bookie, request, wait_ms + POLL_GRACE_MS)

    async def read_lac(
        self,
        bookie: BookieId,
        access: LedgerAccess,
        *,
        fence: bool = False,
        term: int = 0,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> LacReply:
        """How far the ledger is confirmed, as this bookie knows.

        With `fence` it takes no more normal adds; of a stream none of a lower term than `term`.
        """
        return await self._request(bookie, ReadLac(access, fence, term), timeout_ms)

    def write_lac(
        self,
        bookie: BookieId,
        access: LedgerAccess,
        lac: int,
        *,
        term: int = 0,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> asyncio.Future[PlainReply]:
        """Send a bookie the ledger's LAC, of a stream with the sender's term.

        The response need not be awaited, and safety does not depend on it.
        """
        request = WriteLac(access, lac, access.digest.lac_body(access.ledger_id, lac), term)
        return self._ask(bookie, request, timeout_ms)[0].future

    def takes_lacs(self, bookie: BookieId) -> bool:
        """Whether a bookie is connected now and takes the LACs of many ledgers in one frame."""
        return bool(self.channels_with(LACS, (bookie,)))

    def channels_with(self, feature: int, bookies: Sequence[BookieId]) -> Sequence[Channel]:
        """The connections to these bookies, if all are open now and every bookie said that it does this; else none."""
        channels = []
        for bookie in bookies:
            peer = self._peers.get(bookie)
            channel = peer.channel if peer is not None else None
            if channel is None or not channel.was_ready or not channel.features & feature:
                return ()
            channels.append(channel)
        return channels

    def tell_lacs(self, bookie: BookieId, items: Sequence[bytes], *, timeout_ms: int) -> None:
        """Send encoded items of a WRITE_LACS, `LACS_MAX` at most. The response is not awaited."""
        self._ask(bookie, WriteLacs(items), timeout_ms)

    async def _request(self, bookie: BookieId, request: BookieRequest[R], timeout_ms: int) -> R:
        """The response."""
        reply, channel = self._ask(bookie, request, timeout_ms)
        try:
            return await reply.future
        except asyncio.CancelledError:
            if channel is not None:
                channel.drop(reply)
            raise

    def _ask(
        self, bookie: BookieId, request: BookieRequest[R], timeout_ms: int
    ) -> tuple[Reply[R], Channel | None]:
        """Send a request; the reply's future gets its response. The channel is where to drop it."""
        if _get_running_loop() is not self._loop:
            self.check_home()
        channel = self._channel(bookie)
        reply: Reply[R] = Reply()
        if channel is None:
            reply.future.set_result(request.refused(Answer.UNREACHABLE))
        else:
            channel.send(request, reply, None, deadline=asyncio.get_running_loop().time() + timeout_ms / 1000)
        return reply, channel

    # --- questions of tools -----------------------------------------------------------------------------------

    async def probe(self, bookies: Iterable[BookieId], *, timeout_ms: int) -> dict[BookieId, Answer]:
        """What each of these bookies answers to a question for its state."""
        asked = list(bookies)
        replies = await asyncio.gather(*(self.info(bookie, timeout_ms=timeout_ms) for bookie in asked))
        return {bookie: answer for bookie, (answer, _) in zip(asked, replies, strict=True)}

    async def list_entries(
        self, bookie: BookieId, access: LedgerAccess, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> tuple[Answer, list[HeldInterval]]:
        """The intervals that a bookie holds of a ledger, ascending; `timeout_ms` is for each page of them."""
        intervals: list[HeldInterval] = []
        following = 0
        while following != WHOLE_LIST:
            answer, page, following = await self._request(bookie, ListEntries(access, following), timeout_ms)
            if answer is not Answer.OK:
                return answer, []
            intervals += page
            if len(intervals) > LISTED_MAX:
                log.warning(
                    "ignoring the list of entries of bookie %s: the entries of ledger %d form more than %d intervals, "
                    "which is the limit of a list",
                    bookie, access.ledger_id, LISTED_MAX,
                )  # fmt: skip
                return Answer.ERROR, []
        return Answer.OK, intervals

    async def truncate(
        self,
        bookie: BookieId,
        access: LedgerAccess,
        first: int,
        last: int = ID_MAX,
        kept: int = NO_TERM,
        *,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> Answer:
        """Have a bookie drop a stream's entries first..last of terms below the sender's, or of any but `kept`."""
        request = Truncate(access, first, last, kept, access.term)
        return (await self._request(bookie, request, timeout_ms)).answer

    async def info(
        self, bookie: BookieId, access: LedgerAccess | None = None, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> tuple[Answer, dict[str, Any]]:
        """What a bookie says of itself, or of one ledger (`fenced`, `limbo`, `lac`, `last_entry`, …)."""
        return await self._request(bookie, AskInfo(access), timeout_ms)

    async def orphans(
        self, bookie: BookieId, after: int = -1, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> tuple[Answer, Orphans | None]:
        """A page of the ledgers that it keeps without a record, above an id; None if its version has no such page."""
        answer, info = await self._request(
            bookie, AskInfo(question=InfoQuestion(orphans_after=after)), timeout_ms
        )
        try:
            reported = info.get("orphans")
            if reported is None:
                return answer, None
            unknown, due = ([int(one) for one in reported[kind]] for kind in ("unknown", "due"))
            through = int(reported["through"])
            return (answer, Orphans(unknown, due, through)) if through > after else (Answer.ERROR, None)
        except (AttributeError, KeyError, TypeError, ValueError):
            return Answer.ERROR, None

    async def space(
        self, bookie: BookieId, task: SpaceTask, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> tuple[Answer, dict[str, Any]]:
        """What holds its disk space (`space`) after a task, what that freed (`came_back`), and any `failure`.

        BAD_REQUEST where its version cannot say.
        """
        question = InfoQuestion(space=task)
        answer, info = await self._request(bookie, AskInfo(question=question), timeout_ms)
        # A Java bookie responds with the size of its disk, whatever was asked.
        return (Answer.BAD_REQUEST, {}) if answer is Answer.OK and "came_back" not in info else (answer, info)

    async def clear_limbo(
        self, bookie: BookieId, access: LedgerAccess, lsn: int, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> Answer:
        """End a ledger's limbo on a bookie: it holds again all entries that it should.

        Args:
            lsn: of the limbo that this ends, as INFO reported it before the entries were restored (`doubt_lsn`). If
                there was another loss since then, the response is BAD_REQUEST.
        """
        return (await self._request(bookie, ClearLimbo(access, lsn), timeout_ms)).answer

    # --- connections -------------------------------------------------------------------------------------------------

    def _channel(self, bookie: BookieId) -> Channel | None:
        """The bookie's channel, being made if there was none; None while it must not be tried again yet."""
        peer = self._peers.get(bookie)
        if peer is None:
            peer = self._peers[bookie] = Peer()
        if peer.channel is not None:
            return peer.channel
        loop = asyncio.get_running_loop()
        if self._closed or loop.time() < peer.retry_at:
            return None
        peer.channel = self._channels.make(bookie, self._known.get(bookie), self._channel_ended)
        peer.connecting = loop.create_task(self._connect(bookie, peer.channel), name=f"connect to {bookie}")
        self._sweep.start()
        return peer.channel

    async def _connect(self, bookie: BookieId, channel: Channel) -> None:
        try:
            info = self._known.get(bookie)
            if info is None:
                info = (await self.bookies()).get(bookie)
            if info is None:
                channel.end("the bookie is not registered")
                return
            channel.host = info.host
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, _ = await loop.create_connection(lambda: channel, info.host, info.port)
            keep_alive(transport)
        except TimeoutError:
            channel.end(f"the bookie did not respond within {CONNECT_SECONDS} s")
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits for the connection is told
            channel.end(str(error))

    def _channel_ended(self, channel: Channel, reason: str) -> None:
        peer = self._peers[channel.meant]
        if peer.channel is not channel:
            return
        peer.channel = None
        if channel.was_refused or channel.was_cut_off:
            peer.refused = channel.was_refused
            if peer.trouble != reason:
                peer.trouble = reason
                log.warning("no connection to bookie %s: %s", channel.meant, reason)
        elif channel.was_ready:
            peer.failures, peer.trouble, peer.refused = 0, "", False
        pause = doubled(RETRY_SECONDS, RETRY_SECONDS_MAX, peer.failures)
        peer.failures += 1
        peer.retry_at = asyncio.get_running_loop().time() + pause
        if not self._closed:
            log.info("connection to bookie %s ended: %s", channel.meant, reason)

    def are_refused(self, bookies: Iterable[BookieId]) -> bool:
        """Whether none of these bookies accepts a connection from this client, which no waiting will change."""
        peers = [self._peers.get(bookie) for bookie in bookies]
        return all(peer is not None and peer.refused and peer.blocked_because for peer in peers)

    def are_in_trouble(self, bookies: Iterable[BookieId]) -> bool:
        """Whether connections to each of these bookies ended before they were open, for whichever reason."""
        peers = [self._peers.get(bookie) for bookie in bookies]
        return all(peer is not None and peer.blocked_because for peer in peers)

    def troubles(self) -> str:
        """The bookies to which no connection can be opened and why, as the end of a sentence; usually empty."""
        reasons: dict[str, list[str]] = {}
        for bookie, peer in self._peers.items():
            reasons.setdefault(peer.blocked_because, []).append(bookie)
        return "".join(f" ({', '.join(names)}: {why})" for why, names in reasons.items() if why)

    async def close(self) -> None:
        """End all connections; outstanding requests complete with UNREACHABLE."""
        self._closed = True
        self._sweep.stop()
        connecting = (peer.connecting for peer in self._peers.values())
        tasks = [task for task in (self._watch, *connecting, *self._channels.connecting) if task]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, QuireError):
                await task
        for channel in self._open_channels():
            channel.close()
