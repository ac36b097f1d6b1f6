"""A bookie compares its directory with what the cluster knows, and defers requests while its identity may be another's."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from quire.bookie import server
from quire.bookie.identity.lease import pause_of
from quire.bookie.server import BookieServer
from quire.client.access import LedgerAccess
from quire.client.config import ClientConfig
from quire.core.answers import Answer
from quire.core.errors import IdentityReplacedError, WrongDirectoryError
from quire.metadata.bookies import BookieRegistry
from quire.metadata.keys import boot_key
from quire.metadata.memory import MemoryStore
from quire.metadata.store import Op, Registration
from quire.storage.directory.boot_file import MARKER_FILE
from quire.storage.directory.identity import COOKIE_FILE
from quire.wire.responses import ReadReply
from quire.wire.store_records import BOOT_CODEC, StoredBoot
from quire_testing.kit.stepped import StepClock
from support.small_cluster import small_cluster
from support.waiting import until_async
from unit.bookie.test_bookie_server import World, access


async def boot_of(at: World) -> StoredBoot:
    found = await at.store.get(boot_key(at.bookie))
    assert found is not None
    return BOOT_CODEC.decode(found.value, at.bookie)


async def put_boot(at: World, boot: StoredBoot) -> None:
    found = await at.store.get(boot_key(at.bookie))
    assert found is not None
    await at.store.put(boot_key(at.bookie), BOOT_CODEC.encode(boot), found.version)


def shown(reply: ReadReply) -> list[int]:
    return [entry_id for run in reply.runs for entry_id in range(run.first, run.last + 1)]


async def start(at: World, *, adopt: bool = False) -> None:
    at.server = BookieServer(replace(at.config, adopt=adopt), at.store)
    await at.server.start()

    async def reached() -> bool:
        await at.client.bookies()
        return (await at.client.info(at.bookie))[0] is Answer.OK

    await until_async(reached, "the client reaches it")


# --- what the cluster knows -------------------------------------------------------------------------------------


async def test_the_cluster_is_told_how_far_a_directory_is(at: World) -> None:
    first = await boot_of(at)
    assert (first.boot, first.clean) == (1, False)
    assert await at.add(access(), [0]) is Answer.OK

    async def told() -> bool:
        return (await boot_of(at)).durable_lsn > first.durable_lsn

    await until_async(told, "the second after an add")
    await at.restart(clean=True)
    assert (await boot_of(at)).boot == 2
    assert not at.server.storage.report.older
    await at.server.stop()
    stopped = await boot_of(at)
    assert (stopped.boot, stopped.clean) == (2, True)
    await start(at)
    assert at.server.storage.report.clean


async def test_a_kill_on_the_own_directory_leaves_nothing_in_limbo(at: World) -> None:
    for number in range(5):
        assert await at.add(access(), [number]) is Answer.OK
        await at.restart(clean=False)
        report = at.server.storage.report
        assert (report.older, report.limbo, report.unknown_in_limbo) == ("", [], False)


@pytest.mark.parametrize("lower", ["boot", "lsn", "marker"])
async def test_a_directory_that_is_older_denies_nothing(lower: str, tmp_path: Path, at: World) -> None:
    assert await at.add(access(), [0]) is Answer.OK
    await at.server.stop(clean=False)
    known = await boot_of(at)
    if lower == "marker":
        marker = at.config.directory / MARKER_FILE
        shutil.copy2(marker, tmp_path / "copy")
        marker.unlink()
        shutil.move(tmp_path / "copy", marker)
    else:
        field = {"boot": "boot", "lsn": "durable_lsn"}[lower]
        await put_boot(at, replace(known, **{field: getattr(known, field) + 1000}))
    await start(at)
    assert at.server.storage.report.older
    assert at.server.boot == (known.boot + 1001 if lower == "boot" else known.boot + 1)
    reply = await at.read(access(), 0, 5)
    assert shown(reply) == [0]
    assert reply.conclusive_through == -1
    assert at.server.storage.journal.last_lsn > (await boot_of(at)).durable_lsn - 1
    await at.restart(clean=False)
    assert not at.server.storage.report.older, "it is told once"
    assert (await at.read(access(), 0, 5)).conclusive_through == -1


async def test_a_directory_that_was_moved_after_a_clean_stop_is_its_own(tmp_path: Path, at: World) -> None:
    assert await at.add(access(), [0]) is Answer.OK
    await at.server.stop()
    shutil.copytree(at.config.directory, tmp_path / "moved")
    shutil.rmtree(at.config.directory)
    at.config = replace(at.config, directory=tmp_path / "moved")
    await start(at)
    assert not at.server.storage.report.older
    await at.restart(clean=False)
    assert not at.server.storage.report.older, "the marker of the new place is the one that counts"


# --- bad input --------------------------------------------------------------------------------------------------


async def test_without_its_marker_a_directory_is_refused(at: World) -> None:
    await at.server.stop(clean=False)
    (at.config.directory / MARKER_FILE).unlink()
    with pytest.raises(WrongDirectoryError, match=r"MARKER is missing.*create an empty file"):
        await start(at)
    (at.config.directory / MARKER_FILE).touch()
    await start(at)
    assert at.server.storage.report.older


async def test_without_its_cookie_a_directory_is_refused_unless_adopted(at: World) -> None:
    bookie = at.bookie
    assert await at.add(access(), [0]) is Answer.OK
    await at.server.stop()
    (at.config.directory / COOKIE_FILE).unlink()
    with pytest.raises(WrongDirectoryError, match=r"no VERSION file.*--adopt"):
        await start(at)
    await start(at, adopt=True)
    assert at.bookie == bookie
    assert not at.server.storage.report.older
    await at.restart(clean=True)


async def test_adopting_takes_no_other_bookies_cookie(at: World) -> None:
    await at.server.stop()
    bookie = at.bookie
    (at.config.directory / COOKIE_FILE).unlink()
    registry = BookieRegistry(at.store)
    cookies = await registry.list_cookies()
    await registry.delete_cookie(bookie)
    await registry.write_cookie("bookie.other", cookies[bookie].value)
    with pytest.raises(WrongDirectoryError, match="no VERSION file"):
        await start(at, adopt=True)
    await registry.write_cookie(bookie, cookies[bookie].value)
    await start(at, adopt=True)


async def test_a_first_start_that_was_killed_before_its_cookie_needs_none(tmp_path: Path, at: World) -> None:
    await at.server.stop()
    at.config = replace(at.config, directory=tmp_path / "new")
    (tmp_path / "new" / "segments").mkdir(parents=True)
    (tmp_path / "new" / "segments" / "0.fresh.tmp").touch()
    await start(at)
    assert (await boot_of(at)).boot == 1


async def test_a_cookie_that_cannot_be_parsed_and_another_bookies_directory(at: World) -> None:
    await at.server.stop()
    cookie = at.config.directory / COOKIE_FILE
    text = cookie.read_bytes()
    cookie.write_bytes(b"\xff" + text)
    with pytest.raises(WrongDirectoryError, match="VERSION is damaged"):
        await start(at)
    cookie.write_bytes(text)
    at.config, own = replace(at.config, name="other"), at.config
    with pytest.raises(WrongDirectoryError, match="not to one called other"):
        await start(at)
    at.config = own
    await start(at)


# --- a pending lease -------------------------------------------------------------------------------------------


class Gate:
    """Changes of the store wait until it is opened; reads do not."""

    def __init__(self, store: MemoryStore) -> None:
        self.opened = asyncio.Event()
        self._multi = store.multi
        store.multi = self.multi  # type: ignore[method-assign]

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        await self.opened.wait()
        return await self._multi(ops)


async def defers(at: World, gate: Gate, who: LedgerAccess) -> None:
    """While the lease is pending what is here is shown, and the rest waits; then each gets its answer."""
    assert at.server.lease.look()
    waiting = [
        asyncio.ensure_future(at.add(who, [1])),
        asyncio.ensure_future(at.read(who, 5, 5)),
        asyncio.ensure_future(at.read(who, 0, 0, fence=True)),
        asyncio.ensure_future(at.read(access(99), 0, 0)),
    ]
    for _ in range(3):
        assert shown(await at.read(who, 0, 3)) == [0]
    assert (await at.read(who, 0, 3)).conclusive_through == -1
    assert not any(one.done() for one in waiting)
    gate.opened.set()
    added, missing, fenced, unknown = await asyncio.gather(*waiting)
    assert added is Answer.OK
    assert missing.answer is Answer.OK
    assert missing.conclusive_through >= 5
    assert shown(fenced) == [0]
    assert unknown.answer is Answer.NO_LEDGER
    assert await at.add(who, [2]) is Answer.FENCED


async def test_its_lease_is_pending_while_its_registration_is_gone(at: World) -> None:
    who = access()
    assert await at.add(who, [0]) is Answer.OK
    gate = Gate(at.store)
    at.store.lose_session()
    await defers(at, gate, who)


async def test_its_lease_is_pending_after_a_pause(at: World) -> None:
    who = access()
    await at.server.stop()
    clock = StepClock()
    at.server = BookieServer(at.config, at.store, clock=clock)
    await at.server.start()
    await until_async(at.client.bookies, "it is registered")
    assert await at.add(who, [0]) is Answer.OK
    gate = Gate(at.store)
    clock.ms += pause_of(at.store.session_timeout_ms)
    assert not at.server.lease.look()
    clock.ms += pause_of(at.store.session_timeout_ms) + 1
    await defers(at, gate, who)


async def test_what_was_durable_before_the_pause_is_kept_back(at: World) -> None:
    """The answer is made in the first turn after the pause: it is looked at before it leaves."""
    who = access()
    await at.server.stop()
    clock = StepClock()
    at.server = BookieServer(at.config, at.store, clock=clock)
    await at.server.start()
    assert await at.add(who, [0]) is Answer.OK
    gate = Gate(at.store)
    stored = at.server.storage.put_run

    def put_then_pause(*run: object, **options: object) -> None:
        stored(*run, **options)  # type: ignore[arg-type]
        clock.ms += 60_000

    at.server.storage.put_run = put_then_pause  # type: ignore[method-assign]
    adding = asyncio.ensure_future(at.add(who, [1]))
    await until_async(lambda: at.server.lease.pending, "it is pending")
    await until_async(
        lambda: at.server.storage.journal.durable_lsn == at.server.storage.journal.last_lsn, "it is durable"
    )
    assert shown(await at.read(who, 0, 0)) == [0]
    assert not adding.done()
    gate.opened.set()
    assert await adding is Answer.OK


@pytest.mark.parametrize("how", ["its record", "its registration"])
async def test_who_was_replaced_ends_and_says_so(how: str, at: World) -> None:
    who, ended = access(), asyncio.Event()
    assert await at.add(who, [0]) is Answer.OK
    at.server.lease.ended = ended.set
    await put_boot(at, replace(await boot_of(at), boot=9, owner=77))
    if how == "its registration":
        at.store.lose_session()
    adding = asyncio.ensure_future(at.add(who, [1]))
    await asyncio.wait_for(ended.wait(), 20)
    assert isinstance(at.server.lease.error, IdentityReplacedError)
    assert "runs elsewhere as boot 9, and this process is boot 1" in str(at.server.lease.error)
    late = asyncio.ensure_future(at.add(who, [2]))
    assert shown(await at.read(who, 0, 0)) == [0]
    assert not late.done()
    await at.server.stop()
    assert (await boot_of(at)).boot == 9, "it is not this one's to write"
    adding.cancel()
    late.cancel()


async def test_a_store_that_takes_nothing_changes_nothing(at: World) -> None:
    who, gate = access(), Gate(at.store)
    for number in range(50):
        assert await at.add(who, [number]) is Answer.OK
    assert (await at.read(who, 60, 60)).conclusive_through >= 60
    assert not at.server.lease.look()
    gate.opened.set()


async def test_a_store_that_does_not_take_the_bookie_as_read_only_delays_nothing_else(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.001)
    register, asked, opened, looks = at.store.register, asyncio.Event(), asyncio.Event(), 0

    async def silent(key: str, value: bytes) -> Registration:
        asked.set()
        await opened.wait()
        return await register(key, value)

    def looked() -> None:
        nonlocal looks
        looks += 1

    monkeypatch.setattr(at.store, "register", silent)
    at.server.ledgers.read_only = True
    await asyncio.wait_for(asked.wait(), 20)
    monkeypatch.setattr(at.server.storage, "check_disk", looked)
    await until_async(lambda: looks > 1, "descriptors and space are looked for")
    opened.set()


@pytest.mark.parametrize("protocol", ["v2", "v3"])
async def test_clients_of_the_older_protocols_wait_as_well(protocol: str, tmp_path: Path) -> None:
    async with small_cluster(tmp_path, bookies=1) as cluster:
        client = await cluster.client(ClientConfig(protocol=protocol))
        ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await ledger.append(b"zero")
        access = LedgerAccess.of(await client.ledger_metadata(ledger.ledger_id))
        [(bookie, server)] = cluster.servers.items()
        assert isinstance(server.store, MemoryStore)
        gate = Gate(server.store)
        server.store.lose_session()
        assert server.lease.look()
        for _ in range(3):
            assert shown(await client.bookies.read(bookie, access, 0, 0, 1000)) == [0]
        adding = ledger.append_nowait(b"one")
        missing = asyncio.ensure_future(client.bookies.read(bookie, access, 5, 5, 1000))
        await until_async(
            lambda: [one for one in server._connections if one.has_requests()], "a connection waits"
        )
        assert not adding.done()
        assert not missing.done()
        gate.opened.set()
        assert await adding == 1
        assert shown(await missing) == []
        assert shown(await client.bookies.read(bookie, access, 0, 1, 1000)) == [0, 1]
        await ledger.close()
