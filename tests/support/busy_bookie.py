"""Bookies of ours that answer "too many requests" above a limit, as Java's do, in V2 and V3."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from quire.core.answers import Answer
from quire.wire import bookkeeper, v2, v3
from quire.wire.proto import bookkeeper_protocol_pb2 as pb
from support.java_peers import free_port
from support.small_cluster import SmallCluster

ADDS, READS, URGENT = "adds", "reads", "urgent"
TOO_BUSY = bookkeeper.v2_code(Answer.TOO_BUSY), bookkeeper.v3_code(Answer.TOO_BUSY)


class BusyBookie:
    """Stands before a bookie of ours, and lets so many requests of a kind through at one time, of all clients together.

    Attributes:
        limits: how many, for adds, reads, and what has a high priority.
        most: how many of each kind were there at one time.
        refused: how many were answered "too many requests".
        closes: it ends every connection at the first request.
        sync_seconds: how long an add takes, as where a bookie waits for its disk.
        held: how many adds took so long.
        behind: where the bookie is.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.behind = 0
        self.limits = dict.fromkeys((ADDS, READS, URGENT), 1 << 30)
        self.closes = False
        self.sync_seconds = 0.0
        self.held = 0
        self.most: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._there: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def close(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._tasks)
        for writer in self._writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.behind)
        self._writers += writer, back
        under_way: dict[object, list[str]] = {}
        self._tasks.append(asyncio.ensure_future(self._answers(there, writer, under_way)))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(size, "big"))
                if self.closes:
                    break
                found = _request_of(frame)
                if found is not None:
                    kind, name, refusal = found
                    if self._there[kind] >= self.limits[kind]:
                        self.refused[kind] += 1
                        writer.write(refusal)
                        continue
                    self._there[kind] += 1
                    self.most[kind] = max(self.most[kind], self._there[kind])
                    under_way.setdefault(name, []).append(kind)
                back.write(size + frame)
        back.close()
        writer.close()

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, under_way: dict[object, list[str]]
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(size, "big"))
                kinds = under_way.get(_name_of_answer(frame))
                kind = kinds.pop(0) if kinds else None
                pass_on = partial(self._pass_on, kind, writer, size + frame)
                if self.sync_seconds and kind == ADDS:
                    self.held += 1
                    asyncio.get_running_loop().call_later(self.sync_seconds, pass_on)
                else:
                    pass_on()
        for kinds in under_way.values():
            self._there.subtract(kinds)
        writer.close()

    def _pass_on(self, kind: str | None, writer: asyncio.StreamWriter, answer: bytes) -> None:
        if kind is not None:
            self._there[kind] -= 1
        if not writer.is_closing():
            writer.write(answer)


def _request_of(frame: bytes) -> tuple[str, object, bytes] | None:
    """The kind of an add or a read, how its response names it, and the response that it is too much."""
    if frame[0] == v2.VERSION:
        request = v2.decode_request(len(frame).to_bytes(4, "big") + frame)
        urgent = bool(frame[3] & v2.V2Flag.HIGH_PRIORITY)
        if isinstance(request, v2.AddRequest):
            ledger_id, entry_id = (
                int.from_bytes(request.entry[at : at + 8], "big", signed=True) for at in (0, 8)
            )
            refusal = v2.encode_add_answer(TOO_BUSY[0], ledger_id, entry_id)
            return URGENT if urgent else ADDS, (v2.Op.ADD, ledger_id, entry_id), bytes(refusal)
        if isinstance(request, v2.BatchReadRequest):
            number = request.request_id
            answer = v2.encode_batch_read_answer(TOO_BUSY[0], request.ledger_id, request.first, number)
            return URGENT if urgent else READS, (v2.Op.BATCH_READ, number), b"".join(answer)
        if isinstance(request, v2.ReadRequest):
            fences = bool(frame[3] & v2.V2Flag.DO_FENCING)
            answer = v2.encode_read_answer(TOO_BUSY[0], request.ledger_id, request.entry_id)
            name = (v2.Op.READ, request.ledger_id, request.entry_id)
            return URGENT if urgent or fences else READS, name, b"".join(answer)
        return None
    message = pb.Request.FromString(frame)
    header = message.header
    if header.operation not in {pb.ADD_ENTRY, pb.READ_ENTRY}:
        return None
    urgent = bool(header.priority) or v3.has_flag(message.readRequest, v3.FENCE_LEDGER)
    busy = v3.response(header, TOO_BUSY[1])
    body = busy.addResponse if header.operation == pb.ADD_ENTRY else busy.readResponse
    asked = message.addRequest if header.operation == pb.ADD_ENTRY else message.readRequest
    body.status, body.ledgerId, body.entryId = TOO_BUSY[1], asked.ledgerId, asked.entryId
    kind = URGENT if urgent else ADDS if header.operation == pb.ADD_ENTRY else READS
    return kind, header.txnId, v3.frame_of(busy)


def _name_of_answer(frame: bytes) -> object:
    if frame[0] == v2.VERSION:
        answer = v2.decode_answer(len(frame).to_bytes(4, "big") + frame)
        if isinstance(answer, v2.AddAnswer):
            return v2.Op.ADD, answer.ledger_id, answer.entry_id
        if isinstance(answer, v2.BatchReadAnswer):
            return v2.Op.BATCH_READ, answer.request_id
        return (v2.Op.READ, answer.ledger_id, answer.entry_id) if isinstance(answer, v2.ReadAnswer) else None
    return pb.Response.FromString(frame).header.txnId


@asynccontextmanager
async def busy_cluster(
    directory: Path, count: int = 3
) -> AsyncIterator[tuple[SmallCluster, list[BusyBookie]]]:
    """`async with busy_cluster(tmp_path) as (cluster, bookies)`."""
    cluster = SmallCluster(directory)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(cluster.close)
        busy = [BusyBookie(free_port()) for _ in range(count)]
        for number, one in enumerate(busy):
            await stack.enter_async_context(await asyncio.start_server(one.serve, "127.0.0.1", one.port))
            server = await cluster.start_bookie(f"b{number}", advertise=("127.0.0.1", one.port))
            one.behind = server.address[1]
            stack.push_async_callback(one.close)
        yield cluster, busy
