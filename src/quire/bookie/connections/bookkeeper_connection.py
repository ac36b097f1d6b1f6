"""One client that speaks BookKeeper's protocols, V2 or V3: its requests become those that our own clients send.

A connection begins in V3; the first frame that is no V3 request makes it a V2 connection for good, as at a Java
bookie. Adds are collected (`bookkeeper_adds`), everything else sees what was added before it.

Source: `docs/formats/bookkeeper-protocol.md`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from quire.bookie.connections.bookkeeper_adds import AddCollector, Adder, AddGroup
from quire.bookie.connections.bookkeeper_lookup import Lookup, as_request
from quire.bookie.connections.bookkeeper_v3 import V3Requests
from quire.bookie.connections.client_connection import ClientConnection, Serving
from quire.bookie.connections.opening import BookKeeperHandshake
from quire.bookie.ledgers.unknown_ledgers import RECORD_WAITS_MAX
from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError, StorageError
from quire.net.connection_states import AUTHENTICATING, OPEN, SHUT
from quire.wire import add_columns, bookkeeper, too_long, v2, v3
from quire.wire.entry import Buffer
from quire.wire.native import Flag, Kind

_V2_ADD_BYTES_MIN: Final = v2.ADD_ENTRY_AT + v2.IDS.size


class BookKeeperConnection(ClientConnection):
    """A client's connection, from its first frame to its end."""

    too_long_head_bytes = too_long.HEAD_BYTES

    def __init__(self, server: Serving) -> None:
        state = OPEN if server.keys is None else AUTHENTICATING
        super().__init__(server, server.config.frame_limits.bookkeeper, state, in_chunks=True)
        self._is_v2 = False
        self._chunks: deque[tuple[Buffer, Sequence[int]]] = deque()
        self._lookup = Lookup(server.ledgers)
        self._adds = AddCollector(server.ledgers, server.digest_types, self)
        self._v3 = V3Requests(
            self,
            self._lookup,
            self.answer,
        )
        self._showing = False
        self._handshake = BookKeeperHandshake(self, self, server.keys) if server.keys is not None else None

    # --- before its first request --------------------------------------------------------------------------------

    def let_in(self) -> None:
        """The client has done all that is asked: from now on its requests are served."""
        self.enter(OPEN)
        self._handshake = None
        self.opened()

    def secured(self, transport: asyncio.Transport) -> None:
        super().secured(transport)
        if self._handshake is not None:
            self._handshake.secured()

    def shut(self) -> None:
        """End the connection; what it sent after its last request counts for nothing."""
        self._chunks.clear()
        self.enter(SHUT)
        if self.transport is not None:
            self.transport.close()

    # --- receiving -------------------------------------------------------------------------------------------------

    def take_over(self, start: memoryview) -> None:
        """The connection's first bytes, which another protocol object received."""
        try:
            self._split(start)
        except MalformedFrameError as error:
            self._fail(error)
            return
        self.chunk_done()

    def frames_received(self, data: Buffer, starts: Sequence[int]) -> None:
        if self.state is not SHUT:
            self._chunks.append((data, starts))

    def frame_too_long(self, head: memoryview, size: int) -> None:
        if self.state is SHUT:
            return  # a refused client is not served
        add = too_long.long_add(head)
        if add is None or (add.is_v3 and self._is_v2):
            raise self.no_request(size, "the frame does not begin as an add")
        if self._handshake is not None:
            raise self.no_request(size, "the client has not authenticated")
        ledger_id, entry_id = add.ledger_id, add.entry_id
        self.refused_long(f"the add of entry {entry_id} of ledger {ledger_id}", size)
        if add.is_v3:
            ids = [v3.number(add.txn_id)], [v3.number(entry_id)]
            self.answer([v3.encode_add_answers(bookkeeper.v3_code(Answer.BAD_REQUEST), ledger_id, *ids)])
        else:
            code = bookkeeper.v2_code(Answer.BAD_REQUEST)
            self.answer([v2.encode_add_answer(code, ledger_id, entry_id, add.version)])

    def has_requests(self) -> bool:
        return bool(self._chunks or self._retries)

    def drop_requests(self) -> None:
        self._chunks.clear()

    # --- requests --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self.added = False
        if self.is_newcomer and self._chunks and self._handshake is None:
            self.has_asked()
        try:
            while self._chunks and self._may_serve():
                data, starts = self._chunks.popleft()
                pending = self._server.lease.pending and self._handshake is None
                if pending:
                    served = self._serve_what_is_here(data, starts)
                else:
                    served = (self._handshake or self).serve(data, starts)
                if served < len(starts):
                    self._chunks.appendleft((data, starts[served:]))
                    if pending:
                        break
                self._flush_adds()
        except MalformedFrameError as error:
            self._flush_adds()
            self._chunks.clear()
            self._fail(error)
        if self._retries and not self._server.lease.pending:
            self._serve_retries()
        self._lookup.clear()
        if self.added:
            self._server.put(self)

    def _may_serve(self) -> bool:
        waits = self.not_read_since is not None or self.record_waits >= RECORD_WAITS_MAX
        return not waits and not self._server.reads_paused

    def serve(self, data: Buffer, starts: Sequence[int]) -> int:
        """Serve frames until their responses have nowhere to go; returns how many were served."""
        if isinstance(starts, range) and len(starts) >= add_columns.COLUMNS_MIN:
            take = add_columns.take_v2 if self._is_v2 else add_columns.take_v3
            adds = take(data, starts)
            if adds is not None:
                self._adds.add_all(adds)
                return len(starts)
        limit = self._server.config.answer_bytes_max
        for served, at in enumerate(starts, 1):
            if not self._is_v2:
                self._serve_v3(data, at)
            else:
                self._serve_v2(data, at)
            if self._out_bytes >= limit:
                self.send_answers()
            if self.not_read_since is not None or self.record_waits >= RECORD_WAITS_MAX:
                return served
        return len(starts)

    def _serve_what_is_here(self, data: Buffer, starts: Sequence[int]) -> int:
        """While the identity lease is pending: reads of entries that are here, up to the first other request, which waits."""
        for served, at in enumerate(starts):
            if self.not_read_since is not None or not self._shows(data, at):
                return served
            self._showing = True
            try:
                (self._serve_v2 if self._is_v2 else self._serve_v3)(data, at)
            finally:
                self._showing = False
        return len(starts)

    def _shows(self, data: Buffer, at: int) -> bool:
        if not self._is_v2:
            if v3.take_add(data, at) is not None:
                return False
            try:
                request = v3.decode_request(_frame(data, at))
            except MalformedFrameError:
                self._is_v2 = data[at + 4] != v3.FIRST_BYTE
                return self._is_v2 and self._shows(data, at)
            if not v3.is_plain_read(request):
                return False
            ledger_id, entry_id = request.readRequest.ledgerId, request.readRequest.entryId
        else:
            _, opcode, flags = v2.split_packet_header(v2.HEAD.unpack_from(data, at)[1])
            if opcode != v2.Op.READ or flags & v2.V2Flag.DO_FENCING:
                return False
            asked = v2.decode_request(_frame(data, at))
            if not isinstance(asked, v2.ReadRequest):
                return False
            ledger_id, entry_id = asked.ledger_id, asked[3]
        if ledger_id < 0 or entry_id < bookkeeper.LAST_ENTRY:
            return True
        self._lookup.clear()
        return self._lookup.entry(ledger_id, entry_id)[0] is Answer.OK

    def _flush_adds(self) -> None:
        admitted, refused = self._adds.flush()
        if admitted:
            self.added = True
            self._server.admitted(admitted)
            self._lookup.clear()
        for group, answer in refused:
            self.answer([group.answers(answer)])

    def stored(self, tag: Any, error: StorageError | None) -> None:
        """A group of adds is durable: now the responses may leave."""
        group: AddGroup = tag  # as `AddCollector` gave it
        self._server.settled(group.body_bytes)
        self.answer([group.answers(Answer.OK if error is None else self._server.answer_for(error))])

    # --- V3 ----------------------------------------------------------------------------------------------------------

    def _serve_v3(self, data: Buffer, at: int) -> None:
        add = v3.take_add(data, at)
        if add is not None:
            adder = Adder(add.ledger_id, add.key, add.recovery, None)
            answer = self._adds.add(adder, add.entry_id, add.body, add.txn_id)
            if answer is not Answer.OK:
                status = bookkeeper.v3_code(answer)
                ids = [v3.number(add.txn_id)], [v3.number(add.entry_id)]
                self.answer([v3.encode_add_answers(status, add.ledger_id, *ids)])
            return
        try:
            request = v3.decode_request(_frame(data, at))
        except MalformedFrameError:
            if data[at + 4] == v3.FIRST_BYTE:
                raise
            self._is_v2 = True
            self._serve_v2(data, at)
            return
        self._flush_adds()
        self._v3.serve(request, self._adds)

    # --- V2 ----------------------------------------------------------------------------------------------------------

    def _serve_v2(self, data: Buffer, at: int) -> None:
        size, header = v2.HEAD.unpack_from(data, at)
        version, opcode, flags = v2.split_packet_header(header)
        if opcode == v2.Op.ADD and version <= v2.VERSION and size + 4 >= _V2_ADD_BYTES_MIN:
            entry_at = at + v2.ADD_ENTRY_AT
            ledger_id, entry_id = v2.IDS.unpack_from(data, entry_at)
            key = bytes(data[at + 8 : entry_at])
            adder = Adder(ledger_id, key, bool(flags & v2.V2Flag.RECOVERY_ADD), version)
            answer = self._adds.add(adder, entry_id, data[entry_at : at + 4 + size])
            if answer is not Answer.OK:
                code = bookkeeper.v2_code(answer)
                self.answer([v2.encode_add_answer(code, ledger_id, entry_id, version)])
            return
        self._flush_adds()
        request = v2.decode_request(_frame(data, at))
        if isinstance(request, v2.AuthPacket):
            self.answer([v2.encode_auth(bookkeeper.AUTH_DISABLED, b"", version=version)])
        elif version > v2.VERSION:
            self._answer_v2(request, bookkeeper.BAD_VERSION[0])
        elif isinstance(request, v2.AddRequest):
            self._answer_v2(request, bookkeeper.v2_code(Answer.BAD_REQUEST))
        elif flags & v2.V2Flag.DO_FENCING and request.ledger_id >= 0:
            self._fence_v2(request)
        else:
            self._read_v2(request, Answer.OK)

    def _fence_v2(self, request: v2.ReadRequest | v2.BatchReadRequest) -> None:
        asked = as_request(Kind.READ, request.ledger_id, key=request.key, flags=Flag.FENCE)

        def fenced(answer: Answer) -> None:
            self._read_v2(request, answer)
            self._lookup.clear()

        answer_to = self.unless_congested(partial(self._fence_v2, request), fenced)
        callback = self._ledgers.unknown_ledgers.without_deleted(request.ledger_id, answer_to, self)
        self._ledgers.fence(asked, callback, self)

    def _read_v2(self, request: v2.ReadRequest | v2.BatchReadRequest, answer: Answer) -> None:
        if self.transport is None:
            return
        ledger_id, first = request.ledger_id, request[3]
        if ledger_id < 0 or first < bookkeeper.LAST_ENTRY:
            answer = Answer.BAD_REQUEST
        if answer is not Answer.OK:
            self._answer_v2(request, bookkeeper.v2_code(answer))
        elif isinstance(request, v2.ReadRequest):
            answer, entry, _ = self._lookup.entry(ledger_id, first)
            code = bookkeeper.v2_code(answer)
            self.answer(v2.encode_read_answer(code, ledger_id, first, entry, request.version))
        else:
            limit = min(request.bytes_max, self._batch_bytes_max())
            if first == bookkeeper.LAST_ENTRY:
                answer, entry, _ = self._lookup.entry(ledger_id, first)
                entries = [entry] if answer is Answer.OK else []
            else:
                answer, entries = self._lookup.entries(ledger_id, first, request.count_max, limit)
            code = bookkeeper.v2_code(answer)
            self.answer(
                v2.encode_batch_read_answer(
                    code, ledger_id, first, request.request_id, entries, request.version
                )
            )

    def _batch_bytes_max(self) -> int:
        """The longest answer to a batch read: what fits into a frame, or less while others' answers are not read."""
        back_pressure, config = self._server.back_pressure, self._server.config
        plenty = back_pressure.answer_bytes_max >= config.read_bytes_max
        return self._frame_bytes_max if plenty else back_pressure.answer_bytes_max

    def _answer_v2(self, request: v2.AddRequest | v2.ReadRequest | v2.BatchReadRequest, code: int) -> None:
        """A response that brings nothing but its code."""
        version = request.version
        if isinstance(request, v2.AddRequest):
            self.answer([v2.encode_add_answer(code, request.ledger_id, request.entry_id, version)])
        elif isinstance(request, v2.ReadRequest):
            self.answer(v2.encode_read_answer(code, request.ledger_id, request.entry_id, b"", version))
        else:
            ids = (request.ledger_id, request.first, request.request_id)
            self.answer(v2.encode_batch_read_answer(code, *ids, (), version))

    # --- responses ---------------------------------------------------------------------------------------------------

    def answer(self, parts: list[Buffer]) -> None:
        """Buffers of responses, to be written with the others of this turn."""
        if self.transport is None:
            return
        if self._server.lease.pending and not self._showing and self._handshake is None:
            self._kept += parts
            return
        if not self._out:
            self._server.answering(self)
        self._out += parts
        self._out_bytes += sum(map(len, parts))


def _frame(data: Buffer, at: int) -> memoryview:
    """One whole frame out of a chunk."""
    return memoryview(data)[at : at + 4 + int.from_bytes(data[at : at + 4], "big")]
