"""Twenty programs of the version before streams against a stream's records, bookies and files: each refuses in a sentence.

And nothing of the stream goes: afterwards every bookie has every entry.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import quire
from quire.client.access import LedgerAccess
from support.old_programs import BEFORE_STREAMS, NEW, BookieProcess, old_or_skip
from support.rounds import keep_figures
from support.stream_modes import BOTH
from support.upgrading_page import documented

NAME = "ticks"
ENTRIES = 200
TIMEOUT_MS = 10_000

GONE = r"does not exist"
COMMANDS: tuple[tuple[str, str], ...] = (
    ("ledger show ID", GONE),
    ("ledger verify ID", GONE),
    ("ledger read ID", GONE),
    ("ledger tail ID", GONE),
    ("ledger recover ID --yes", GONE),
    ("ledger repair ID", GONE),
    ("ledger delete ID --yes", GONE),
    ("ledger delete ID --yes --force", GONE),
    ("cluster orphans --delete ID --yes", "nothing was deleted"),
    ("log show NAME", GONE),
    ("log read NAME", GONE),
    ("log tail NAME", GONE),
    ("log delete NAME --yes", GONE),
    ("log truncate NAME --before 10 --yes", GONE),
)
"""What is asked with the stream's id or name, and what its refusal has in it."""
LOOKS = ("ledger list", "cluster orphans", "cluster debt")
"""What lists ledgers, without the stream."""


async def written(uri: str, mode: str) -> int:
    """The id of a stream with entries of two terms."""
    async with quire.connect(uri) as client:
        stream = client.unbounded_ledger(NAME, mode=mode)
        await stream.create()
        for _ in range(2):
            async with await stream.open_writer() as writer:
                for number in range(ENTRIES // 2):
                    await writer.append(b"%d" % number)
        return int((await stream.show()).ledger_id)


async def held(uri: str) -> dict[str, int]:
    """How many entries of the stream each bookie has, no-ops apart, and how many a reader gets."""
    async with quire.connect(uri) as client:
        stream = client.unbounded_ledger(NAME)
        record = await stream.show()
        access = LedgerAccess.of(record)
        no_ops = len(record.ranges) - 1 if record.only_fences else 0
        ends = [*(int(after.first_entry) for after in record.ranges[1:]), ENTRIES + no_ops]
        found = {"reader": len([entry async for entry in stream.read()])}
        for bookie in record.last_fragment.ensemble:
            found[bookie] = -no_ops
            for (term, first), end in zip(record.ranges, ends, strict=True):
                if first == end:
                    continue
                reply = await client.bookies.read(
                    bookie, access, first, end - 1, 1 << 20, origin_term=term, timeout_ms=TIMEOUT_MS
                )
                found[bookie] += sum(len(run.ids()) for run in reply.runs)
        return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@BOTH
def test_twenty_programs_before_streams_refuse_a_stream(tmp_path: Path, mode: str) -> None:
    old = old_or_skip(BEFORE_STREAMS)
    uri = f"sqlite:{tmp_path}/metadata.db"
    bookies = [BookieProcess(f"b{number}", tmp_path / f"b{number}", uri) for number in range(3)]
    for bookie in bookies:
        bookie.start(NEW)
    stream_id = asyncio.run(written(uri, mode))
    before = asyncio.run(held(uri))
    assert set(before.values()) == {ENTRIES}
    refused = []
    for command, wanted in COMMANDS:
        words = command.replace("ID", str(stream_id)).replace("NAME", NAME).split()
        done = old.quire(*words, "--cluster", uri)
        assert done.returncode in (1, 2), (command, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        assert wanted in done.stderr, (command, done.stderr)
        refused.append(done.stderr.strip())
    for command in LOOKS:
        done = old.quire(*command.split(), "--cluster", uri, "--json")
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert f'"ledger_id": {stream_id}' not in done.stdout
    for bookie in bookies:
        assert bookie.stop() == 0
        facts, _ = bookie.try_to_start(old)
        refused.append(documented(facts["error"]["message"]))
    for bookie in bookies:
        bookie.start(NEW)
    assert asyncio.run(held(uri)) == before, "0 bytes of it are collected"
    for bookie in bookies:
        bookie.stop()
    programs = len(refused) + len(LOOKS)
    assert programs == 20
    figures = {"programs": programs, "refusals": len(refused), "entries": ENTRIES, "entries_gone": 0}
    keep_figures(f"programs_before_streams_of_{mode}", figures, seed=None)
