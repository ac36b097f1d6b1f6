"""The pass counter of a bookie's collector: when it is written, and what an odd end of a pass costs."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import StorageError
from quire.metadata.keys import passes_key
from quire.storage.directory.collector_file import COLLECTOR_FILE, decode_collector
from quire.wire.store_records import PASSES_CODEC
from support.one_collector import At, one_collector


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[At]:
    async with one_collector(tmp_path) as made:
        yield made


async def test_the_counter_is_changed_once_the_disk_knows(at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write of which nobody hears may stand in a copy of the store: the chain does not go on through it."""
    (ledger_id,) = await at.write()
    await at.passes(2)
    collector = at.server.collector
    before = await at.store.get(passes_key(at.server.bookie_id))

    async def fails(*_: object) -> None:
        raise StorageError("the store is gone")

    with monkeypatch.context() as patch:
        patch.setattr(collector._store, "cas_passes", fails)
        with pytest.raises(StorageError, match="the store is gone"):
            await collector.collect()
    assert decode_collector((at.server.config.directory / COLLECTOR_FILE).read_bytes()).asked

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(collector._file, "write", full)
        assert await collector.collect() == 0
    assert await at.store.get(passes_key(at.server.bookie_id)) == before, "the store was not asked"
    await at.restart()
    await at.forget_record(ledger_id)
    assert await at.passes(2) == 0
    assert at.unknown == [ledger_id]


async def test_a_disk_too_full_for_the_counter_still_gets_space_back(
    at: At, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, by_chain, young = await at.write(3)
    await at.passes(2)
    (later,) = await at.write()

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(at.server.collector._file, "write", full)
    await at.client.delete_ledger(ours)
    await at.forget_record(by_chain)
    assert await at.passes() == 2
    assert "No space left" in caplog.text
    await at.passes(3)
    await at.forget_record(later)
    assert await at.passes() == 0, "a pass that was not counted finds nothing"
    assert at.holds(young)
    monkeypatch.undo()
    await at.passes()
    await at.restart()
    await at.forget_record(young)
    assert await at.passes() == 1


async def test_a_cas_that_was_refused_costs_no_evidence(at: At) -> None:
    (ledger_id,) = await at.write()
    await at.passes(2)
    await at.forget_record(ledger_id)
    key = passes_key(at.server.bookie_id)
    asked = at.server.collector._store
    passes = asked.passes

    async def overtaken() -> Any:
        """Somebody writes the counter between the look at it and the compare-and-swap."""
        monkey.undo()
        shown = await passes()
        found = await at.store.get(key)
        assert found is not None
        await at.store.put(key, found.value, found.version)
        return shown

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(asked, "passes", overtaken)
        assert await at.passes() == 1


async def test_a_counter_of_a_later_version_keeps_its_fields(at: At) -> None:
    await at.passes()
    key = passes_key(at.server.bookie_id)
    found = await at.store.get(key)
    assert found is not None
    later = replace(PASSES_CODEC.decode(found.value, at.server.bookie_id), unknown=b"\xa2\x06\x03abc")
    await at.store.put(key, PASSES_CODEC.encode(later), found.version)
    await at.passes()
    found = await at.store.get(key)
    assert found is not None
    assert PASSES_CODEC.decode(found.value, at.server.bookie_id).unknown == b"\xa2\x06\x03abc"
