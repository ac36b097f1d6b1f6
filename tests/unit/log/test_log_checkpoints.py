"""Batches whose checkpoint was put back or copied meet the sink positions of a real log; and sink positions that are old or damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from quire.core.errors import (
    CheckpointWentBackError,
    DamagedMarkError,
    TransactionResetError,
    TransactionRowsError,
)
from quire.core.log.commit import CommitBatch, OnReset, Part
from quire.core.log.fingerprints import Fingerprint, RowSum, of_input, of_rows
from quire.core.log.list import LogHead, LogItem, LogSettings, SinkPosition
from quire.core.log.sink_positions import POSITION_LAG_MAX
from quire.log.collecting import LogCollector
from quire.log.committing import Committed, LogCommitter
from quire.log.heads import LogHeads
from quire.log.staging import StagedBy, stage
from quire.wire.batch import encode_batch
from quire.wire.log_records import decode_head, encode_head
from quire.wire.proto import quire_log_pb2 as pb
from support.log_cluster import World, values

Checkpoint = Mapping[int, str]
"""The end of the input of each batch, as far as the files are there."""


async def head_of(at: World) -> tuple[LogHead, int]:
    heads = LogHeads(at.store)
    log_id = await heads.find("orders")
    assert log_id is not None
    found = await heads.read(log_id)
    assert found is not None
    return found


async def staged(at: World, *rows: str, by: StagedBy | None = None) -> tuple[LogItem, ...]:
    if not rows:
        return ()
    head, _ = await head_of(at)
    ledger = await stage(at.client, head.log_id, LogSettings(), by or StagedBy("q", 0))
    await ledger.append(encode_batch([row.encode() for row in rows], base_ms=5))
    return (await ledger.close(len(rows), 5, 5),)


def fingerprint(checkpoint: Checkpoint, number: int) -> Fingerprint | None:
    return of_input(number, [checkpoint[number]]) if number in checkpoint else None


async def stream(at: World, checkpoint: Checkpoint, number: int, *rows: str, **batch: Any) -> Committed:
    """Commit a batch of a stream as the sink does."""

    async def own(asked: int) -> Fingerprint | None:
        return fingerprint(checkpoint, asked)

    head, _ = await head_of(at)
    part = Part(head.log_id, await staged(at, *rows), fingerprint(checkpoint, number))
    return await LogCommitter(
        at.client, ["orders"], CommitBatch((part,), "q", number, **batch), own=own
    ).commit()


async def named(at: World, number: int, *rows: str, **batch: Any) -> Committed:
    """Commit a named transaction as the sink does."""
    head, _ = await head_of(at)
    total = RowSum(len(rows), sum(map(hash_of, rows)), 0)
    part = Part(head.log_id, await staged(at, *rows), of_rows(number, total))
    wanted = CommitBatch((part,), batch.pop("query_id", "app:etl"), number, named=True, **batch)
    return await LogCommitter(at.client, ["orders"], wanted).commit()


def hash_of(row: str) -> int:
    return int.from_bytes(row.encode(), "big")


async def position_of(at: World) -> SinkPosition:
    [position] = (await head_of(at))[0].sink_positions
    return position


async def put_position(at: World, position: SinkPosition) -> None:
    head, version = await head_of(at)
    await LogHeads(at.store).write(replace(head, sink_positions=(position,)), version)


async def test_a_stream_goes_on_replays_and_is_refused_when_its_checkpoint_went_back(at: World) -> None:
    log = await at.made()
    whole = {0: "a", 1: "b", 2: "c"}
    for number in range(2):
        done = await stream(at, whole, number, f"r{number}")
        assert (done.already, done.by_number) == (False, ())
    assert (await stream(at, whole, 1, "r1")).already
    before = await at.ledgers()
    with pytest.raises(
        CheckpointWentBackError,
        match=r"log 'orders': batch 1 of this query is in the log, made of another input \(\w{12}\) than the "
        r"checkpoint's file offsets/1 says \(\w{12}\); the checkpoint is at batch 1\.",
    ):
        await stream(at, {0: "a", 1: "x"}, 1, "lost")
    # Also one whose numbers are higher, and one that has no rows at all.
    for rows in ([], ["twice"]):
        with pytest.raises(CheckpointWentBackError, match="the checkpoint is at batch 7"):
            await stream(at, {0: "a", 1: "x", 7: "y"}, 7, *rows)
    with pytest.raises(
        CheckpointWentBackError,
        match=r"the checkpoint is at batch 0, and batch 1 of its query is in the log\. A whole checkpoint repeats",
    ):
        await stream(at, whole, 0, "r0")
    assert await values(log) == [b"r0", b"r1"]
    assert set(before) <= set(await at.ledgers())
    await stream(at, whole, 2, "r2")
    assert await values(log) == [b"r0", b"r1", b"r2"]


async def test_a_user_may_append_or_skip_and_the_stream_goes_on_from_there(at: World) -> None:
    log = await at.made()
    for number in range(3):
        await stream(at, {0: "a", 1: "b", 2: "c"}, number, f"r{number}")
    back = {0: "a", 1: "x", 2: "y", 3: "z"}
    assert (await stream(at, back, 1, "dropped", on_reset=OnReset.SKIP)).already
    assert (await stream(at, back, 2, "dropped", on_reset=OnReset.SKIP)).already
    assert not (await stream(at, back, 3, "r3", on_reset=OnReset.SKIP)).already
    again = {0: "a", 1: "p", 2: "q"}
    assert not (await stream(at, again, 1, "s1", on_reset=OnReset.CONTINUE)).already
    # A repetition is one with consent as well, and then none is needed.
    assert (await stream(at, again, 1, "s1", on_reset=OnReset.CONTINUE)).already
    assert not (await stream(at, again, 2, "s2")).already
    assert await values(log) == [b"r0", b"r1", b"r2", b"r3", b"s1", b"s2"]


async def test_without_a_file_or_with_an_older_mark_numbers_are_compared_and_that_is_told(at: World) -> None:
    log = await at.made()
    whole = {0: "a", 1: "b", 2: "c", 3: "d"}
    assert (await stream(at, whole, 0, "r0")).by_number == ()
    assert (await stream(at, {1: "b"}, 1, "r1")).by_number == ("orders",)  # the file of batch 0 is gone
    assert (await stream(at, {}, 1, "r1")).by_number == ("orders",)
    # A sink position of the version before: no fingerprint. Then one of it over a newer one: the fingerprint is that of the
    # batch before, carried along.
    await put_position(at, SinkPosition("q", 1))
    assert (await stream(at, {1: "other"}, 1, "r1")).by_number == ("orders",)
    done = await stream(at, whole, 2, "r2")
    assert (done.already, done.by_number) == (False, ("orders",))
    kept = (await position_of(at)).fingerprint
    assert kept == of_input(2, ["c"])
    await put_position(at, SinkPosition("q", 3, fingerprint=kept))
    assert (await stream(at, {2: "other", 3: "other"}, 3, "r3")).by_number == ("orders",)
    assert (await stream(at, whole, 4, "r4")).by_number == ("orders",)
    with pytest.raises(CheckpointWentBackError, match="batch 4 of its query is in the log"):
        await stream(at, {}, 3, "r3")
    assert await values(log) == [b"r0", b"r1", b"r2", b"r4"]


def test_an_older_program_carries_the_fingerprint_over_as_a_field_that_it_does_not_know() -> None:
    head = LogHead(
        b"\x01" * 16, sink_positions=(SinkPosition("q", 4, fingerprint=of_input(4, ["a"], ["f"])),)
    )
    record = pb.LogHead.FromString(encode_head(head))
    # It knows four fields of a sink position, and writes the others back.
    record.marks[0].batch_id = 5
    [position] = decode_head(record.SerializeToString(), head.log_id).sink_positions
    assert (position.batch_id, position.fingerprint) == (5, of_input(4, ["a"], ["f"]))
    # And so does this one with fields of a later version.
    record.marks[0].fingerprint.MergeFromString(b"\x98\x06\x07")
    assert pb.LogHead.FromString(encode_head(decode_head(record.SerializeToString(), head.log_id))) == record


async def test_a_damaged_mark_refuses_its_query_alone_and_tells_the_ways_on(at: World) -> None:
    log = await at.made()
    await stream(at, {0: "a"}, 0, "r0")
    await put_position(at, SinkPosition("q", 0, fingerprint=Fingerprint(0, b"torn")))
    for number in (0, 1):
        with pytest.raises(
            DamagedMarkError,
            match=r"log 'orders': the sink position of query 'q' at batch 0 is damaged: .* whether batch \d is in the log\. "
            r"Nothing was written\. Compare .* set onCheckpointReset=append or skip for one run",
        ):
            await stream(at, {0: "a", 1: "b"}, number, "r")
    assert await values(log) == [b"r0"]  # its readers are not concerned
    assert (await stream(at, {0: "a"}, 0, "r0", on_reset=OnReset.SKIP)).already
    assert not (await stream(at, {0: "a", 1: "b"}, 1, "r1", on_reset=OnReset.SKIP)).already
    assert not (await stream(at, {0: "a", 1: "b", 2: "c"}, 2, "r2")).already
    assert await values(log) == [b"r0", b"r1", b"r2"]


async def test_two_writes_under_one_number_are_told_apart_by_their_rows(at: World) -> None:
    log = await at.made()
    assert not (await named(at, 7, "a", "b")).already
    assert (await named(at, 7, "b", "a")).already
    with pytest.raises(
        TransactionRowsError,
        match=r"txnAppId 'etl' has written version 7 into log 'orders' already, with other rows \(2 rows, \w{12}\) than "
        r"these \(1 rows, \w{12}\)\. Nothing was written\. Two writes of one version: give each its own txnPart\. Rows "
        "that are made anew at each run: txnOnReset=skip",
    ):
        await named(at, 7, "c")
    with pytest.raises(
        TransactionResetError, match="has written version 7 into log 'orders'; this is version 6"
    ):
        await named(at, 6, "z")
    assert (await named(at, 7, "made anew", on_reset=OnReset.SKIP)).already
    for part in ("left", "right"):
        query_id = f"app:etl/part={part}"
        assert not (await named(at, 7, part, query_id=query_id)).already
        assert (await named(at, 7, part, query_id=query_id)).already
        with pytest.raises(TransactionRowsError, match=f"txnAppId 'etl', txnPart '{part}' has written"):
            await named(at, 7, "c", query_id=query_id)
    # A write without rows has its number too: what comes under it with rows is another one.
    assert not (await named(at, 8)).already
    assert (await named(at, 8)).already
    with pytest.raises(TransactionRowsError):
        await named(at, 8, "d")
    assert not (await named(at, 8, "d", on_reset=OnReset.CONTINUE)).already
    assert await values(log) == [b"a", b"b", b"left", b"right", b"d"]


async def test_a_named_write_of_the_version_before_is_known_by_its_number_alone(at: World) -> None:
    await at.made()
    await named(at, 7, "a")
    await put_position(at, SinkPosition("app:etl", 7))
    done = await named(at, 7, "b")
    assert (done.already, done.by_number) == (True, ("orders",))
    assert (await named(at, 8, "c")).by_number == ()


async def test_batches_without_rows_move_a_mark_that_lags(at: World) -> None:
    await at.made()
    whole = {number: f"{number}" for number in range(POSITION_LAG_MAX + 2)}
    await stream(at, whole, 0)
    assert not (await head_of(at))[0].sink_positions  # there is nothing to remember yet
    await stream(at, whole, 1, "r1")
    await stream(at, whole, POSITION_LAG_MAX)
    assert (await position_of(at)).batch_id == 1
    _, version = await head_of(at)
    await stream(at, whole, POSITION_LAG_MAX + 1)
    assert (await position_of(at)).fingerprint == fingerprint(whole, POSITION_LAG_MAX + 1)
    assert (await head_of(at))[1] == version + 1


async def test_the_collector_leaves_what_may_still_be_appended_below_the_mark(at: World) -> None:
    log = await at.made()
    for number in range(3):
        await stream(at, {0: "a", 1: "b", 2: "c"}, number, f"r{number}")
    [plain] = await staged(at, "garbage", by=StagedBy("q", 1))
    [item] = await staged(at, "consented", by=StagedBy("q", 1, consents=True))
    await LogCollector(at.client).collect()
    assert plain.ledger_id not in await at.ledgers()
    head, _ = await head_of(at)
    part = Part(head.log_id, (item,), of_input(1, ["x"]))
    batch = CommitBatch((part,), "q", 1, on_reset=OnReset.CONTINUE)
    await LogCommitter(at.client, ["orders"], batch).commit()
    assert (await values(log))[-1] == b"consented"
