"""Watches of one client: one stream for all of them, resumed where it broke.

Each watch keeps the revision after the last event. A new stream begins there, so that a lost connection
loses no change; where the server has compacted that far, or was set back in time (a restored
backup), the watcher gets `reread_all`.

Source: etcd v3 API, "Watch".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc.aio

from quire.core.errors import RefusedError
from quire.metadata.etcd.connection import RETRY_DELAY_S, WATCH, EtcdConnection
from quire.wire.proto.etcd_pb2 import (
    Event,
    WatchCancelRequest,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)

_LOG: Final = logging.getLogger(__name__)

OnEvents = Callable[[Iterable[Event], bool], None]


class WatchedRange:
    """A range of keys that is watched.

    Args:
        number: the watch's name on the stream.
        key: the first key.
        end: the first key after it; empty for one key.
        on_events: called with the events, and whether others may be missing.
        on_failed: called when the stream has ended for good.
    """

    __slots__ = (
        "end",
        "ended",
        "failure",
        "key",
        "next_revision",
        "number",
        "on_events",
        "on_failed",
        "stands",
    )

    def __init__(
        self, number: int, key: bytes, end: bytes, on_events: OnEvents, on_failed: Callable[[Exception], None]
    ) -> None:
        self.number = number
        self.key = key
        self.end = end
        self.on_events = on_events
        self.on_failed = on_failed
        self.next_revision = 0
        self.stands = asyncio.Event()
        self.ended = False
        self.failure: Exception | None = None


class EtcdWatches:
    """The watches of one client.

    Args:
        connection: where the stream goes.
    """

    def __init__(self, connection: EtcdConnection) -> None:
        self._connection = connection
        self._places: dict[int, WatchedRange] = {}
        self._last = 0
        self._task: asyncio.Task[None] | None = None
        self._call: Any = None
        self._asked: set[int] = set()
        self._unanswered: list[int] = []
        self._anew: set[asyncio.Task[None]] = set()
        self._writes: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()

    async def add(
        self, key: bytes, end: bytes, on_events: OnEvents, on_failed: Callable[[Exception], None]
    ) -> WatchedRange:
        """Watch a range; when this returns no later change is missed.

        Raises:
            StoreAwayError: the store did not respond.
            RefusedError: it refuses.
        """
        self._connection.check()
        self._last += 1
        place = WatchedRange(self._last, key, end, on_events, on_failed)
        self._places[place.number] = place
        try:
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run(), name="etcd watches")
            await self._ask(place)
            async with asyncio.timeout(self._connection.timeout_s):
                await place.stands.wait()
        except TimeoutError:
            self.drop(place)
            raise await self._connection.away() from None
        except BaseException:
            self.drop(place)
            raise
        if place.failure is not None:
            raise place.failure
        return place

    async def remove(self, place: WatchedRange) -> None:
        """End a watch."""
        writing = self.drop(place)
        if writing is not None:
            await asyncio.shield(writing)

    def drop(self, place: WatchedRange) -> asyncio.Task[None] | None:
        """End a watch; the task that notifies the server, if it has to be notified."""
        place.ended = True
        if self._places.pop(place.number, None) is None or place.number not in self._asked:
            return None
        return self._write_end_of(place)

    def close(self) -> None:
        """End the stream, without a notification."""
        self._places.clear()
        for task in (self._task, *self._anew, *self._writes):
            if task is not None:
                task.cancel()

    # --- the stream --------------------------------------------------------------------------------------------------

    async def _ask(self, place: WatchedRange) -> None:
        if self._call is None or place.number in self._asked:
            return
        self._asked.add(place.number)
        self._unanswered.append(place.number)
        request = WatchCreateRequest(
            key=place.key, range_end=place.end, start_revision=place.next_revision, watch_id=place.number
        )
        await asyncio.shield(self._write(WatchRequest(create_request=request)))

    def _write_end_of(self, place: WatchedRange) -> asyncio.Task[None]:
        return self._write(WatchRequest(cancel_request=WatchCancelRequest(watch_id=place.number)))

    def _write(self, request: WatchRequest) -> asyncio.Task[None]:
        """Write in a task of its own: gRPC ends the stream, which is that of all watches, with a write that is cancelled."""
        work = self._write_in_turn(self._call, request)
        writing = asyncio.get_running_loop().create_task(work, name="etcd watch request")
        self._writes.add(writing)
        writing.add_done_callback(self._writes.discard)
        return writing

    async def _write_in_turn(self, call: Any, request: WatchRequest) -> None:
        async with self._writing:
            if call is None or call is not self._call:
                return
            try:
                await call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                call.cancel()  # its reader notices

    async def _run(self) -> None:
        while True:
            server = await self._connection.connected()
            call = await self._begin(server)
            if call is not None:
                try:
                    await self._follow(call)
                except grpc.aio.AioRpcError as error:
                    self._lost(error)
                finally:
                    self._call = None
                    call.cancel()
                self._connection.pass_over(server)
            await asyncio.sleep(RETRY_DELAY_S)

    async def _begin(self, server: Any) -> Any:
        try:
            return await self._connection.stream(server, WATCH)
        except grpc.aio.AioRpcError as error:
            self._lost(error)
            return None

    async def _follow(self, call: Any) -> None:
        self._asked.clear()
        self._unanswered.clear()
        self._call = call
        asking = asyncio.get_running_loop().create_task(self._ask_all(), name="etcd watches again")
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                if response.canceled and self._connection.forget_token(response.cancel_reason):
                    return  # the next stream has another token
                self._take(response)
        finally:
            asking.cancel()

    async def _ask_all(self) -> None:
        for place in list(self._places.values()):
            await self._ask(place)

    def _lost(self, error: grpc.aio.AioRpcError) -> None:
        self._connection.forget_token(error.details())
        if self._connection.is_refusal(error) and error.code() is not grpc.StatusCode.UNAUTHENTICATED:
            for place in list(self._places.values()):
                self._fail(place, self._connection.refused(error))
        else:
            _LOG.info("resuming the watches of etcd at %s: %s", self._connection.hosts, error.details())

    # --- what it says ------------------------------------------------------------------------------------------------

    def _take(self, response: WatchResponse) -> None:
        number = response.watch_id
        if response.created and self._unanswered:
            # In the order of the requests; a refusal may have no number.
            asked = self._unanswered.pop(0)
            number = asked if number < 0 else number
        place = self._places.get(number)
        if place is None:
            return
        revision = response.header.revision
        if response.canceled:
            self._canceled(place, response)
            return
        if response.created:
            if place.next_revision > revision + 1:
                _LOG.warning(
                    "etcd at %s went back to an earlier revision; all keys are read again",
                    self._connection.hosts,
                )
                self._begin_anew(place)
                return
            place.next_revision = place.next_revision or revision + 1
            place.stands.set()
        if response.events:
            place.next_revision = response.events[-1].kv.mod_revision + 1
            place.on_events(response.events, False)

    def _canceled(self, place: WatchedRange, response: WatchResponse) -> None:
        if response.compact_revision:
            self._begin_anew(place)
            return
        reason = response.cancel_reason or "without a reason"
        self._fail(place, RefusedError(f"etcd at {self._connection.hosts} ended a watch: {reason}"))

    def _begin_anew(self, place: WatchedRange) -> None:
        """Watch from now on, under another number, and give the watcher `reread_all` once that stands."""
        del self._places[place.number]
        task = asyncio.get_running_loop().create_task(self._again(place), name="etcd watch again")
        self._anew.add(task)
        task.add_done_callback(self._anew.discard)

    async def _again(self, place: WatchedRange) -> None:
        if place.number in self._asked:
            await asyncio.shield(self._write_end_of(place))
        if place.ended:
            return
        self._last += 1
        place.number, place.next_revision = self._last, 0
        place.stands.clear()
        self._places[place.number] = place
        await self._ask(place)
        await place.stands.wait()
        place.on_events((), True)

    def _fail(self, place: WatchedRange, failure: Exception) -> None:
        self._places.pop(place.number, None)
        place.failure = failure
        place.stands.set()
        place.on_failed(failure)
