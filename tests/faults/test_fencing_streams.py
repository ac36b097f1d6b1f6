"""Streams whose terms only fence, with real processes: take-overs, and what a stopped bookie does to one in either mode."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import cluster, payload
from faults.test_streams import KINDS, STREAM, Namespace, Record, Rounds, many_take_overs, namespaces
from support.stream_modes import BOTH
from support.waiting import until_async

__all__ = ["namespaces"]
pytestmark = [pytest.mark.faults, pytest.mark.timeout(7200)]


async def test_take_overs_where_terms_fence(tmp_path: Path, chance: random.Random, record: Record) -> None:
    figures = await many_take_overs(tmp_path, 4, ["stop", "kill"], chance, None, "fencing")
    assert figures["resolved"] > 0, figures
    record("fencing_take_overs", figures)


@pytest.mark.slow
async def test_a_thousand_take_overs_where_terms_fence(
    tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record, namespaces: list[Namespace]
) -> None:
    figures = await many_take_overs(tmp_path, rounds(1000, 12), KINDS, chance, namespaces, "fencing")
    assert figures["resolved"] > 0, figures
    record("fencing_take_overs_in_namespaces", figures)


async def with_a_stopped_bookie(directory: Path, mode: str, bookies: int, count: int) -> dict[str, Any]:
    """Seconds from the last acknowledgement to the next writer's first, with one of three bookies stopped before."""
    took: list[float] = []
    async with cluster(directory, bookies) as local, quire.connect(local.uri) as client:
        for number in range(count):
            stream = client.unbounded_ledger(f"{STREAM}-{number}", mode=mode)
            await stream.create()
            async with await stream.open_writer() as writer:
                await asyncio.gather(*(writer.append(payload(0, each)) for each in range(100)))
            last = (await stream.show()).last_fragment.ensemble[-1]
            (stopped,) = (
                each.process for each in local.bookies if each.process and last.startswith(each.name)
            )
            stopped.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            try:
                opening = asyncio.create_task(stream.open_writer())
                if bookies == 3 and mode == "fencing":

                    async def waits() -> bool:
                        return {*await stream.waits_for()} == {last}  # noqa: B023 - awaited in this round

                    await until_async(waits, "the take-over to wait")
                    assert not opening.done()
                    stopped.send_signal(signal.SIGCONT)
                    began = time.monotonic()
                writer = await opening
                await writer.append(payload(1, 0))
                took.append(time.monotonic() - began)
            finally:
                stopped.send_signal(signal.SIGCONT)
            await writer.release()
            assert len([entry async for entry in stream.read(0, writer.last_add_confirmed)]) == 101
    took.sort()
    return {
        "mode": mode,
        "bookies": bookies,
        "take_overs": count,
        "median_s": took[count // 2],
        "longest_s": took[-1],
    }


@pytest.mark.slow
@BOTH
async def test_take_overs_with_a_bookie_stopped_and_a_spare(
    tmp_path: Path, mode: str, rounds: Rounds, record: Record
) -> None:
    record(f"{mode}_take_over_with_a_spare", await with_a_stopped_bookie(tmp_path, mode, 4, rounds(20, 3)))


@pytest.mark.slow
@BOTH
async def test_take_overs_with_a_bookie_stopped_and_no_spare(
    tmp_path: Path, mode: str, rounds: Rounds, record: Record
) -> None:
    """Where terms only fence it is counted from the bookie's return on."""
    record(f"{mode}_take_over_without_a_spare", await with_a_stopped_bookie(tmp_path, mode, 3, rounds(20, 3)))
