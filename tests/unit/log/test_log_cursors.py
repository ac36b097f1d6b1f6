"""Named positions in logs: where a reader began, how far it is, who it is, what it holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.core.errors import CorruptMetadataError, MisuseError
from quire.log.cursors import CursorHoldsError, CursorTakenError, CursorUse, LogCursors, cursor_key
from quire.wire.log_cursors import CURSOR_CODEC, Cursor
from support.log_cluster import World, numbers


async def test_a_cursor_holds_where_it_began_and_moves(at: World) -> None:
    log = await at.made()
    async with await log.open_writer() as writer:
        for part in range(4):
            await writer.append_many(numbers(part * 10, part * 10 + 10))
            await writer.roll()
    log_id = (await log.describe()).log_id
    times = iter(range(1_000, 2_000))
    cursors = LogCursors(at.store, lambda: next(times))
    first, second = CursorUse("copy", "one", hold=True), CursorUse("copy", "two")
    began = await cursors.begin(log_id, first, 12)
    assert began == Cursor(log_id, "copy", 12, 12, True, "one", 1000, 1000)
    assert await cursors.begin(log_id, first, 99) == began
    moved = await cursors.move(log_id, first, 25, take=False)
    assert (moved.first_offset, moved.offset, moved.created_ms) == (12, 25, 1000)
    assert moved.moved_ms > 1000
    # What it has not done yet is kept.
    with pytest.raises(CursorHoldsError, match="cursor 'copy' retains records from offset 25 on"):
        await log.truncate(before=30)
    await log.truncate(before=20)
    # Another reader takes it where it is; the former one is told at its next move, and the log is no longer held.
    assert (await cursors.begin(log_id, second, 0)).offset == 25
    with pytest.raises(CursorTakenError, match="taken over by another stream"):
        await cursors.move(log_id, first, 40, take=False)
    assert (await cursors.move(log_id, second, 26, take=False)).offset == 26
    await log.truncate(before=30)
    await cursors.begin(log_id, CursorUse("audit", "three"), 0)
    assert [cursor.name for cursor in await cursors.of(log_id)] == ["audit", "copy"]
    assert await log.cursors() == await cursors.of(log_id)
    assert await log.remove_cursor("audit")
    assert not await cursors.remove(log_id, "audit")
    await at.store.create(f"log-cursors/{log_id}/damaged", b"\xff")
    await log.delete()
    assert await at.store.list("log-cursors/") == []


def test_the_record() -> None:
    cursor = Cursor("00ff", "copy", 1, 2, True, "h", 3, 4)
    record = CURSOR_CODEC.encode(cursor)
    assert CURSOR_CODEC.decode(record, "00ff", "copy") == cursor
    # A field of a later version is carried over.
    later = CURSOR_CODEC.decode(record + b"\xfa\x01\x01x", "00ff", "copy")
    assert CURSOR_CODEC.encode(replace(later, offset=9)).endswith(b"\xfa\x01\x01x")
    for other in (b"\xff", b"", CURSOR_CODEC.encode(replace(cursor, name="other"))):
        with pytest.raises(CorruptMetadataError, match="the record of cursor 'copy' of 00ff"):
            CURSOR_CODEC.decode(other, "00ff", "copy")
    with pytest.raises(MisuseError, match="is not a valid cursor name"):
        cursor_key("00ff", "a/b")
