"""Checksums of entries over V2 and V3 at four places: before and after the socket to a bookie, and before and after the one back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c

from quire.core.ids import BookieId
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.net.bookkeeper.codec import BookKeeperCodec
from quire.net.channel import Channel
from quire.wire import v2
from quire.wire.entry import Buffer
from quire.wire.proto import bookkeeper_protocol_pb2 as pb
from support.frames_counted import see_frames_sent
from support.tcp_proxy import TcpProxy, tcp_proxy

SENT, ARRIVED, RETURNED, RECEIVED = "sent", "arrived", "returned", "received"
"""By the client, at the proxy, by the bookie, at the client."""


def added_by(frame: bytes) -> Iterator[tuple[int, int, Buffer]]:
    """(ledger, entry, what is to be stored) of an add."""
    if frame[4] == v2.VERSION:
        request = v2.decode_request(frame)
        if isinstance(request, v2.AddRequest):
            yield request.ledger_id, request.entry_id, request.entry
        return
    add = pb.Request.FromString(frame[4:])
    if add.header.operation == pb.ADD_ENTRY:
        yield add.addRequest.ledgerId, add.addRequest.entryId, add.addRequest.body


def read_by(frame: bytes) -> Iterator[tuple[int, int, Buffer]]:
    """(ledger, entry, what was stored) of a response to a read."""
    if frame[4] == v2.VERSION:
        answer = v2.decode_answer(frame)
        if isinstance(answer, v2.ReadAnswer) and answer.entry:
            yield answer.ledger_id, answer.entry_id, answer.entry
        elif isinstance(answer, v2.BatchReadAnswer):
            for number, entry in enumerate(answer.entries):
                yield answer.ledger_id, answer.first + number, entry
        return
    read = pb.Response.FromString(frame[4:])
    if read.header.operation == pb.READ_ENTRY and read.readResponse.body:
        yield read.readResponse.ledgerId, read.readResponse.entryId, read.readResponse.body


class Checksums:
    """What was seen of each copy, and where it became another.

    Attributes:
        seen: how many entries at each place.
        changed: for each pair of places the copies (bookie, ledger, entry) that were another one at the second.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.changed: dict[tuple[str, str], list[tuple[BookieId, int, int]]] = {}
        self._at: dict[tuple[str, BookieId, int, int], int] = {}

    def note(
        self, place: str, before: str, bookie: BookieId, entries: Iterator[tuple[int, int, Buffer]]
    ) -> None:
        """Entries at a place; each must be what it was at the place before."""
        for ledger_id, entry_id, body in entries:
            checksum = crc32c(body)
            self.seen[place] += 1
            self._at[place, bookie, ledger_id, entry_id] = checksum
            if before and self._at.get((before, bookie, ledger_id, entry_id)) != checksum:
                self.changed.setdefault((before, place), []).append((bookie, ledger_id, entry_id))


class ChecksumProxy(TcpProxy):
    """Passes whole frames on, and notes the entries in them."""

    bookie: BookieId
    checksums: Checksums

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = await reader.readexactly(4)
                frame = size + await reader.readexactly(int.from_bytes(size, "big"))
                if direction == "to_server":
                    self.checksums.note(ARRIVED, SENT, self.bookie, added_by(frame))
                else:
                    self.checksums.note(RETURNED, ARRIVED, self.bookie, read_by(frame))
                writer.write(frame)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def with_checksums(bookies: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Checksums]:
    """Every client of this process reaches these bookies, `host:port` each, through a proxy of its own."""
    checksums, proxies = Checksums(), dict[BookieId, ChecksumProxy]()
    available, frames_received = BookieRegistry.available, BookKeeperCodec.frames_received

    async def behind_proxies(registry: BookieRegistry) -> dict[BookieId, BookieInfo]:
        found = await available(registry)
        return {
            bookie: replace(info, host="127.0.0.1", port=proxies[bookie].port)
            for bookie, info in found.items()
        }

    def received(codec: BookKeeperCodec, data: Buffer, starts: Sequence[int]) -> None:
        for at in starts:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            checksums.note(RECEIVED, RETURNED, codec.channel.meant, read_by(bytes(data[at:end])))
        frames_received(codec, data, starts)

    def sent(channel: Channel, frames: Sequence[bytes]) -> None:
        for frame in frames:
            checksums.note(SENT, "", channel.meant, added_by(frame))

    async with _all_proxies(bookies) as opened:
        for bookie, proxy in opened.items():
            proxy.bookie, proxy.checksums = bookie, checksums
            proxies[bookie] = proxy
        with monkeypatch.context() as patched:
            patched.setattr(BookieRegistry, "available", behind_proxies)
            patched.setattr(BookKeeperCodec, "frames_received", received)
            see_frames_sent(patched, sent)
            yield checksums


@asynccontextmanager
async def _all_proxies(bookies: Sequence[str]) -> AsyncIterator[dict[BookieId, Any]]:
    if not bookies:
        yield {}
        return
    host, _, port = bookies[0].rpartition(":")
    async with tcp_proxy(host, int(port), ChecksumProxy) as proxy, _all_proxies(bookies[1:]) as others:
        yield {BookieId(bookies[0]): proxy, **others}
