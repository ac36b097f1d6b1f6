"""A bare connection to a bookie that adds entries of chosen sizes and reads them back, in each of the protocols."""

from __future__ import annotations

import asyncio
from typing import Self

from quire.core.answers import Answer
from quire.core.ledger.metadata import DigestType
from quire.wire import bookkeeper, native, native_bodies, native_hello, v2, v3
from quire.wire.entry import EntryDigest, master_key
from quire.wire.run import checksum, encode_run

KEY = master_key(b"pw")
DIGEST = EntryDigest(DigestType.CRC32C, b"pw")
PROTOCOLS = ("v2", "v3", "native")


class WireAdds:
    """One connection; `async with` it. Every add is an entry of one ledger, sent as it stands."""

    def __init__(self, port: int, protocol: str, ledger_id: int = 7) -> None:
        self._port, self.protocol, self._ledger_id = port, protocol, ledger_id
        self.digest = DIGEST
        self.asked = 0

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 26)
        if self.protocol == "native":
            self.writer.write(native_hello.encode_hello(native_hello.Hello("", "")))
            head = await self.reader.readexactly(len(native_hello.MAGIC) + 4)
            await self.reader.readexactly(int.from_bytes(head[-4:], "big") + 4)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def entry(self, entry_id: int, size: int) -> bytes:
        """An entry of this many bytes, its header and digest included."""
        payload = bytes([entry_id + 1]) * (size - self.digest.overhead)
        return self.digest.seal(self._ledger_id, entry_id, -1, 0, [payload])[0] + payload

    def frame(self, entry_id: int, frame_bytes: int, *, recovery: bool = False) -> bytes:
        """An add whose frame has this many bytes, its length field included."""
        self.asked += 1
        size = frame_bytes - 200
        while True:
            frame = self._frame(entry_id, self.entry(entry_id, size), recovery=recovery)
            if len(frame) == frame_bytes:
                return frame
            size += frame_bytes - len(frame)

    def _frame(self, entry_id: int, entry: bytes, *, recovery: bool) -> bytes:
        if self.protocol == "v2":
            return b"".join(v2.encode_add(KEY, entry, v2.V2Flag.RECOVERY_ADD if recovery else 0))
        if self.protocol == "v3":
            parts = v3.encode_add(self.asked, self._ledger_id, entry_id, KEY, entry, recovery=recovery)
            return b"".join(parts)
        body = encode_run(
            self._ledger_id, entry_id, entry_id, [entry], [len(entry)], digest_type=DigestType.CRC32C
        )
        flags = native.Flag.RECOVERY if recovery else 0
        head = native.encode_request(
            native.Kind.ADD, self.asked, len(body), checksum(body), ledger_id=self._ledger_id, key=KEY,
            digest_type=DigestType.CRC32C, flags=flags,
        )  # fmt: skip
        return head + body

    async def answer(self) -> tuple[Answer, int]:
        """(what the next answer to an add says, the entry or the request's number)."""
        frame = await self._next()
        if self.protocol == "v2":
            said = v2.decode_answer(frame)
            assert isinstance(said, v2.AddAnswer)
            return bookkeeper.v2_answer(said.code), said.entry_id
        if self.protocol == "v3":
            message = v3.decode_response(frame)
            return bookkeeper.v3_answer(v3.status_of(message)), message.addResponse.entryId
        answer = native.decode_answer(memoryview(frame))
        return answer.answer, answer.number

    def read_request(self, first: int, *, last: int | None = None, fencing: bool = False) -> bytes:
        """A read of one entry, or of our own protocol up to another one, all of it that an answer may hold."""
        self.asked += 1
        key = KEY if fencing else b""
        if self.protocol == "v2":
            return v2.encode_read(self._ledger_id, first, v2.V2Flag.DO_FENCING if fencing else 0, key)
        if self.protocol == "v3":
            flag = v3.FENCE_LEDGER if fencing else None
            return v3.encode_read(self.asked, self._ledger_id, first, key=key, flag=flag)
        body = native_bodies.encode_body(
            native_bodies.ReadBody(first, first if last is None else last, 1 if last is None else 1 << 30)
        )
        head = native.encode_request(
            native.Kind.READ, self.asked, len(body), checksum(body), ledger_id=self._ledger_id, key=key,
            flags=native.Flag.FENCE if fencing else 0,
        )  # fmt: skip
        return head + body

    async def read(self, entry_id: int, *, fencing: bool = False) -> bytes:
        """An entry as the bookie gives it."""
        self.writer.write(self.read_request(entry_id, fencing=fencing))
        if self.protocol == "v2":
            said = v2.decode_answer(await self._next())
            assert isinstance(said, v2.ReadAnswer)
            return bytes(said.entry)
        if self.protocol == "v3":
            return v3.decode_response(await self._next()).readResponse.body
        answer = native.decode_answer(memoryview(await self._next()))
        run = native_bodies.decode_entries(answer.body).runs[0]
        return bytes(run.entry(run.position(entry_id)))

    async def _next(self) -> bytes:
        head = await self.reader.readexactly(4)
        return head + await self.reader.readexactly(int.from_bytes(head, "big"))
